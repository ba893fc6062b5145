//! A kernel made ready to run: every name resolved, calls expanded in place, a step for each instruction.

mod hopper;
mod wgmma;

pub(crate) use hopper::{Arrival, BulkCopy, BulkGlobal, BulkKind, ClusterBarrier, Mbarrier, Operation, PhaseWait};
pub(crate) use wgmma::{Left, Operand, Product, ScaleD, Touch, Touches, Warpgroup, narrow};

use crate::clock::Proxied;
use crate::lanes::{Condition, LANES, Mask, Registers, Source, Target};
use crate::ptx::{Loc, Space};
use std::fmt;

/// A kernel.
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
    /// Opcodes with modifiers, which steps name by number.
    pub(crate) mnemonics: Vec<String>,
    /// How many registers a warp has of each kind.
    pub(crate) narrow: u32,
    pub(crate) wide: u32,
    pub(crate) predicates: u32,
    /// Registers that hold what does not change while a warp runs.
    pub(crate) specials: Vec<(Special, Target)>,
    /// Sizes of the parameters, and where each begins.
    pub(crate) param_sizes: Vec<u32>,
    pub(crate) param_offsets: Vec<u32>,
    /// Static shared memory of a block, where dynamic shared memory begins.
    pub(crate) shared_bytes: u32,
    /// Local memory of a thread.
    pub(crate) local_bytes: u32,
    pub(crate) max_threads: Option<u32>,
    /// Of a thread, where the text says so.
    pub(crate) max_registers: Option<u32>,
    /// The most registers that `setmaxnreg` asks for; 0 where there is none.
    pub(crate) most_registers: u32,
    /// It has `mbarrier` objects.
    pub(crate) has_mbarriers: bool,
    /// Names of source files by their numbers.
    pub(crate) files: Vec<(u32, String)>,
    /// What other instructions do to registers of `wgmma`.
    pub(crate) touches: Touches,
}

impl Program {
    /// Of a warp.
    pub(crate) fn register_bytes(&self) -> u64 {
        let bytes = |count: u32, each: usize| u64::from(count) * (LANES * each) as u64;
        bytes(self.narrow, size_of::<u32>()) + bytes(self.wide, size_of::<u64>())
    }
}

/// An instruction.
pub(crate) struct Step {
    pub(crate) guard: Option<Condition>,
    /// The lanes that must come to it together: the mask of a `.sync` instruction.
    pub(crate) members: Option<Source>,
    /// All 32 lanes must be there, none exited: instructions on matrices, and on a warp's registers.
    pub(crate) whole_warp: bool,
    pub(crate) action: Action,
    pub(crate) mnemonic: u32,
    /// What a lane does, for the counters.
    pub(crate) work: Work,
    /// In the text.
    pub(crate) line: u32,
    pub(crate) loc: Option<Loc>,
}

/// Floating-point operations of a lane, and the unit that does them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) unit: Unit,
    pub(crate) operations: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    None,
    F32,
    F64,
    F16,
    Tensor,
    Special,
}

/// Work on registers, for the lanes of a mask.
pub(crate) type Compute = Box<dyn Fn(&mut Registers, Mask) + Send + Sync>;

/// What an instruction does.
pub(crate) enum Action {
    Compute(Compute),
    Branch {
        target: u32,
    },
    Exit,
    Trap,
    /// Orders or hints what happens here anyway, or concerns nothing that is simulated.
    Nothing,
    /// `fence` and `membar`.
    Fence,
    /// `bar.warp.sync`, beyond that its members meet: their memory is ordered.
    OrderWarp,
    Barrier(Barrier),
    Load(Load),
    Store(Store),
    Atomic(Atomic),
    Copy(AsyncCopy),
    CommitCopies,
    /// Waits until at most so many of the last groups are under way; `None` for all copies, with or without a group.
    WaitCopies(Option<u32>),
    LoadMatrix(Matrix),
    StoreMatrix(Matrix),
    /// `fence.proxy.async`, of these memories.
    FenceProxy(&'static [Proxied]),
    /// `fence.mbarrier_init`.
    FenceMbarriers,
    Mbarrier(Mbarrier),
    ClusterBarrier(ClusterBarrier),
    Bulk(BulkCopy),
    CommitBulk,
    /// Waits until at most so many of the last bulk groups are under way, or of their reads alone.
    WaitBulk {
        left: u32,
        reads: bool,
    },
    /// `setmaxnreg`: the registers of each thread of a warp from now on.
    Registers {
        count: u32,
        grows: bool,
    },
    /// `wgmma`.
    Warpgroup(Warpgroup),
    /// A clock: instructions of the block so far.
    Clock(Target),
}

impl Action {
    /// Whether another thread can see that it was done.
    pub(crate) fn is_seen(&self) -> bool {
        matches!(
            self,
            Action::Store(_) | Action::StoreMatrix(_) | Action::Atomic(_) | Action::Mbarrier(_) | Action::Bulk(_)
        )
    }
}

/// An address: a base and a distance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    /// `None` for a generic address.
    pub(crate) space: Option<Space>,
    pub(crate) base: Source,
    pub(crate) offset: i64,
}

/// How a number of memory becomes one of a register that is wider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extend {
    Zero,
    Sign,
}

/// What a strong access orders (PTX ISA, "Memory Consistency Model", "Operation types"): `.volatile` and `.relaxed` nothing
/// by itself. A plain access has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) acquires: bool,
    pub(crate) releases: bool,
}

pub(crate) struct Load {
    pub(crate) address: Address,
    /// Bytes of an element.
    pub(crate) bytes: u32,
    pub(crate) extend: Extend,
    pub(crate) to: Vec<Target>,
    pub(crate) order: Option<Order>,
}

pub(crate) struct Store {
    pub(crate) address: Address,
    pub(crate) bytes: u32,
    pub(crate) from: Vec<Source>,
    pub(crate) order: Option<Order>,
}

/// What an atomic leaves in memory: of the old value, the operands, and whether it is shared memory.
pub(crate) type Update = Box<dyn Fn(u64, [u64; 2], bool) -> u64 + Send + Sync>;

pub(crate) struct Atomic {
    pub(crate) address: Address,
    pub(crate) bytes: u32,
    pub(crate) update: Update,
    pub(crate) operands: [Source; 2],
    /// Where the old value goes; nowhere, of `red`.
    pub(crate) to: Option<Target>,
    pub(crate) order: Order,
}

/// `barrier` and its kinds (PTX ISA, "bar, barrier").
pub(crate) struct Barrier {
    pub(crate) id: Source,
    /// Threads that take part; all of the block if it does not say.
    pub(crate) threads: Option<Source>,
    pub(crate) kind: BarrierKind,
    /// All threads of a warp must come to it together.
    pub(crate) aligned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    Sync,
    Arrive,
    Reduce { of: Condition, to: Reduced },
}

impl BarrierKind {
    /// The reduction that it does.
    pub(crate) fn reduces(self) -> Option<&'static str> {
        match self {
            BarrierKind::Reduce { to: Reduced::Count(_), .. } => Some("popc"),
            BarrierKind::Reduce { to: Reduced::And(_), .. } => Some("and"),
            BarrierKind::Reduce { to: Reduced::Or(_), .. } => Some("or"),
            BarrierKind::Sync | BarrierKind::Arrive => None,
        }
    }
}

/// What a barrier makes of a predicate of all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduced {
    /// How many hold.
    Count(Target),
    And(u32),
    Or(u32),
}

/// `cp.async` (PTX ISA, "Non-bulk copy: cp.async").
pub(crate) struct AsyncCopy {
    pub(crate) to: Address,
    pub(crate) from: Address,
    pub(crate) bytes: u32,
    /// Bytes that are read; the rest is zeros.
    pub(crate) read: Source,
}

/// `ldmatrix` and `stmatrix`: 8 x 8 matrices of 16 bits.
pub(crate) struct Matrix {
    pub(crate) address: Address,
    pub(crate) registers: Vec<Source>,
    pub(crate) transposed: bool,
}

/// A special register (chapter 10) whose value a warp is started with. Axes are x, y, z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Lane,
    Warp,
    Warps,
    /// Lanes with a number equal to, less than, ... the lane's own.
    LanesEqual,
    LanesLess,
    LanesLessEqual,
    LanesGreater,
    LanesGreaterEqual,
    DynamicShared,
    TotalShared,
    Zero,
    One,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("name", &self.name).field("steps", &self.steps.len()).finish_non_exhaustive()
    }
}
