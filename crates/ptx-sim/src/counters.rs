//! What a launch did, counted.

#[cfg(test)]
mod tests;

use crate::lanes::lanes;
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
    /// Special functions: ex2, lg2, rcp, rsqrt, sin, cos, tanh, sqrt, and divisions that are approximate.
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

/// Accesses to shared memory, whose 32 banks give 4 bytes each at a time. What `wgmma` reads there no lane asks for, and it
/// is not counted.
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

/// What global memory gives at least.
const SECTOR: u64 = 32;
const BANKS: u64 = 32;
/// What a bank gives at a time.
const BANK_BYTES: u64 = 4;

impl Global {
    /// Counts an instruction of a warp: its active lanes access 1 to 16 bytes each, at the address that stands under the lane.
    pub(crate) fn count(&mut self, addresses: &[u64; 32], active: u32, bytes: u32) {
        if active == 0 {
            return;
        }
        let mut sectors = [0; 64];
        let mut len = 0;
        let mut sorted = true;
        for address in lanes(active).map(|lane| addresses[lane]) {
            let first = address / SECTOR;
            let last = address.saturating_add(u64::from(bytes) - 1) / SECTOR;
            for sector in [first, last] {
                // Neighbours share sectors, and lanes mostly come in the order of their addresses.
                if len == 0 || sectors[len - 1] != sector {
                    sorted &= len == 0 || sectors[len - 1] < sector;
                    sectors[len] = sector;
                    len += 1;
                }
            }
        }
        let sectors = &mut sectors[..len];
        if !sorted {
            sectors.sort_unstable();
        }
        let distinct = 1 + sectors.windows(2).filter(|pair| pair[0] != pair[1]).count();
        self.bytes += u64::from(active.count_ones()) * u64::from(bytes);
        self.sectors += distinct as u64;
        self.requests += 1;
    }
}

impl Global {
    /// Counts a bulk copy, one request: runs of bytes, of which each begins where the one before ends or elsewhere.
    pub(crate) fn count_bulk(&mut self, runs: impl Iterator<Item = (u64, u32)>) {
        self.requests += 1;
        let mut last = None;
        for (address, bytes) in runs.filter(|(_, bytes)| *bytes > 0) {
            let (from, to) = (address / SECTOR, address.saturating_add(u64::from(bytes) - 1) / SECTOR);
            self.sectors += to - from + u64::from(last != Some(from));
            self.bytes += u64::from(bytes);
            last = Some(to);
        }
    }
}

impl Shared {
    /// Counts a bulk copy, one request, which uses all banks in each pass.
    pub(crate) fn count_bulk(&mut self, bytes: u32) {
        self.requests += 1;
        self.bytes += u64::from(bytes);
        self.passes += u64::from(bytes).div_ceil(BANKS * BANK_BYTES);
    }

    /// Counts an instruction of a warp: its active lanes access 1, 2, 4, 8 or 16 bytes each, at the aligned address that
    /// stands under the lane.
    ///
    /// Of 8 bytes a half of the warp is served at once, of 16 a quarter. Then each bank gives one word in a pass, to all
    /// lanes that ask for it: passes are the most words that are asked of one bank. A part of the warp without an active
    /// lane needs none.
    pub(crate) fn count(&mut self, addresses: &[u64; 32], active: u32, bytes: u32) {
        if active == 0 {
            return;
        }
        let words = u64::from(bytes).div_ceil(BANK_BYTES);
        let part = 32 / words as u32;
        for first in (0..32).step_by(part as usize) {
            let served = active & (u32::MAX >> (32 - part)) << first;
            if served != 0 {
                let passes = passes(addresses, served, words);
                self.passes += passes;
                self.conflicts += passes - 1;
            }
        }
        self.bytes += u64::from(active.count_ones()) * u64::from(bytes);
        self.requests += 1;
    }
}

/// The most distinct words in one bank, of lanes that want so many words each: not more than 32 in all.
fn passes(addresses: &[u64; 32], active: u32, words: u64) -> u64 {
    let mut seen = [0; BANKS as usize];
    let mut len = 0;
    let mut in_bank = [0; BANKS as usize];
    for first in lanes(active).map(|lane| addresses[lane] / BANK_BYTES) {
        for word in first..first + words {
            let bank = &mut in_bank[(word % BANKS) as usize];
            if *bank == 0 || !seen[..len].contains(&word) {
                *bank += 1;
                seen[len] = word;
                len += 1;
            }
        }
    }
    in_bank.into_iter().max().unwrap_or(0)
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
