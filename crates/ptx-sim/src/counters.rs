//! What a launch did, counted.

use std::collections::BTreeMap;
use std::ops::AddAssign;

/// What a launch did. Sums of several launches are made with `+=`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Instructions of warps, by opcode and modifiers, "fma.rn.f32". Those whose guard is false for all lanes count too.
    pub instructions: BTreeMap<String, u64>,
    /// Operations by unit.
    pub flops: Flops,
    /// Reads of global memory.
    pub global_reads: Global,
    /// Writes of global memory, atomics among them.
    pub global_writes: Global,
    /// Accesses to shared memory.
    pub shared: Shared,
}

/// Floating-point operations by the unit that does them: a multiply-add is two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flops {
    /// f32 units.
    pub f32: u64,
    /// f64 units.
    pub f64: u64,
    /// Packed and single f16 and bf16.
    pub f16: u64,
    /// Tensor cores.
    pub tensor: u64,
    /// Special functions: ex2, lg2, rcp, rsqrt, sin, cos, tanh, sqrt.
    pub special: u64,
}

/// Traffic between threads and global memory, before any cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Global {
    /// Bytes that lanes asked for.
    pub bytes: u64,
    /// Sectors of 32 bytes that the requests of warps touch.
    pub sectors: u64,
    /// Requests: instructions of warps with a lane that takes part.
    pub requests: u64,
}

/// Accesses to shared memory, whose 32 banks give 4 bytes each at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// Bytes that lanes asked for.
    pub bytes: u64,
    /// Requests: instructions of warps with a lane that takes part.
    pub requests: u64,
    /// Passes over the banks that the requests need.
    pub passes: u64,
    /// Passes beyond those that requests of that size need at least: bank conflicts.
    pub conflicts: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        for (instruction, count) in other.instructions {
            *self.instructions.entry(instruction).or_default() += count;
        }
        self.flops += other.flops;
        self.global_reads += other.global_reads;
        self.global_writes += other.global_writes;
        self.shared += other.shared;
    }
}

impl AddAssign for Flops {
    fn add_assign(&mut self, other: Self) {
        self.f32 += other.f32;
        self.f64 += other.f64;
        self.f16 += other.f16;
        self.tensor += other.tensor;
        self.special += other.special;
    }
}

impl AddAssign for Global {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.sectors += other.sectors;
        self.requests += other.requests;
    }
}

impl AddAssign for Shared {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.requests += other.requests;
        self.passes += other.passes;
        self.conflicts += other.conflicts;
    }
}
