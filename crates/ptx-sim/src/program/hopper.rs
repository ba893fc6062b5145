//! What sm_90 adds: barriers in memory, bulk copies, registers that change hands.

use super::Address;
use crate::lanes::{Source, Target};

/// An instruction on an `mbarrier` object (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier").
pub(crate) struct Mbarrier {
    pub(crate) address: Address,
    pub(crate) operation: Operation,
}

pub(crate) enum Operation {
    /// So many threads are to arrive in each phase.
    Init(Source),
    Invalidate,
    Arrive(Arrival),
    /// So many bytes more are to come.
    Expect(Source),
    /// So many bytes have come.
    Complete(Source),
    Wait(PhaseWait),
}

pub(crate) struct Arrival {
    pub(crate) count: Source,
    /// Bytes that are to come, which are counted first.
    pub(crate) expects: Source,
    /// Those who arrive are not waited for in later phases.
    pub(crate) drops: bool,
    /// It must not be the last one of its phase.
    pub(crate) last_is_wrong: bool,
    /// Where what the phase was goes.
    pub(crate) state: Target,
}

/// `test_wait` and `try_wait`.
#[derive(Clone, Copy)]
pub(crate) struct PhaseWait {
    /// Which phase: what an arrival gave, or a parity.
    pub(crate) phase: Source,
    pub(crate) by_parity: bool,
    /// It may wait, and does not only ask.
    pub(crate) may_wait: bool,
    /// The predicate that says whether the phase is over.
    pub(crate) to: u32,
}

/// `barrier.cluster`.
#[derive(Clone, Copy)]
pub(crate) struct ClusterBarrier {
    /// It arrives, and does not wait.
    pub(crate) arrives: bool,
    /// An arrival releases.
    pub(crate) orders: bool,
    /// All threads of a warp must come to it together.
    pub(crate) aligned: bool,
}

/// `cp.async.bulk` and `cp.async.bulk.tensor`.
pub(crate) struct BulkCopy {
    pub(crate) kind: BulkKind,
    pub(crate) global: BulkGlobal,
}

pub(crate) enum BulkKind {
    /// From global to shared memory, which an `mbarrier` counts.
    Load { to: Address, mbarrier: Address },
    /// From shared to global memory, in a bulk group.
    Store { from: Address },
    /// To the cache alone.
    Prefetch,
}

/// What a bulk copy moves in global memory.
pub(crate) enum BulkGlobal {
    /// So many bytes from an address on.
    Line { address: Address, bytes: Source },
    /// A box of a tensor: where its map is, and where in the tensor the box begins, the innermost coordinate first. With no
    /// coordinates, the map alone.
    Box { map: Address, at: Vec<Source> },
}
