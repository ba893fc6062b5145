//! `setmaxnreg` (PTX ISA, "Miscellaneous Instructions: setmaxnreg"): registers that warpgroups give back and take.
//!
//! How many registers a thread has at first an assembler decides: here it is what `.maxnreg` says, or as many as the block's
//! threads can have each, but no more than the kernel ever asks for. There is nothing to take but what others give back, and
//! who wants more than is there waits.

use super::Trouble;
use super::block::Block;
use super::warp::Waits;
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;
use crate::program::Program;

/// Registers of a multiprocessor.
const ALL: u32 = 1 << 16;
/// Registers of a thread come in such units, and are not more than so many.
const UNIT: u32 = 8;
const MOST: u32 = 256;
/// Warps of a warpgroup.
const WARPS: usize = 4;

pub(super) struct Pool {
    /// By warp: the registers of each thread.
    of: Vec<u32>,
    /// By warp: the steps at which they changed.
    changes: Vec<Vec<u32>>,
    /// Registers of each lane that are nobody's, added up.
    free: u32,
}

impl Pool {
    pub(super) fn new(program: &Program, warps: usize) -> Self {
        let each = ALL / (warps * LANES) as u32 / UNIT * UNIT;
        let each = program.max_registers.unwrap_or(each.min(program.most_registers)).min(MOST);
        Pool { of: vec![each; warps], changes: vec![Vec::new(); warps], free: 0 }
    }

    /// What a warp waits for that wants so many.
    pub(super) fn told(&self, warp: usize, count: u32) -> String {
        let (has, free) = (self.of[warp], self.free);
        format!("{count} registers a thread, of which it has {has}; {free} were given back and are free for a warp")
    }
}

impl Block<'_, '_> {
    /// A warp, all of it, comes to `setmaxnreg`.
    pub(super) fn change_registers(
        &mut self,
        warp: usize,
        place: usize,
        count: u32,
        grows: bool,
    ) -> Result<(), Trouble> {
        let (step, has) = (self.warps[warp].groups[place].step, self.registers.of[warp]);
        if grows != (count > has) && count != has {
            let wanted = if grows { "at least" } else { "at most" };
            let what = format!("found {count} registers a thread, wanted {wanted} the {has} that it has");
            return Err(Trouble::new(FaultKind::Registers, what));
        }
        let first = warp / WARPS * WARPS;
        if first + WARPS > self.warps.len() {
            let what = "found a warp of no whole warpgroup, wanted 4 warps, of which the first has a multiple of 4";
            return Err(Trouble::new(FaultKind::Registers, what));
        }
        let pool = &mut self.registers;
        if count > has && count - has > pool.free {
            self.warps[warp].groups[place].waits = Waits::Registers(count);
            return Ok(());
        }
        pool.free = pool.free + has - count;
        pool.of[warp] = count;
        let at = pool.changes[warp].len();
        pool.changes[warp].push(step);
        if let Some(other) = pool.changes[first..first + WARPS]
            .iter()
            .position(|other| other.get(at).is_some_and(|other| *other != step))
        {
            let other = first + other;
            let what = format!("warp {other} of the same warpgroup came to another setmaxnreg, wanted the same one");
            return Err(Trouble::new(FaultKind::Divergence, what));
        }
        if !grows {
            self.warps.iter_mut().for_each(|warp| {
                warp.rouse(|waits| matches!(waits, Waits::Registers(_)), Waits::Nothing);
            });
        }
        self.grid.count_step(step, crate::lanes::ALL);
        self.warps[warp].go(place, crate::lanes::ALL, step + 1);
        Ok(())
    }

    /// All threads have exited: each warpgroup has come to each `setmaxnreg` as a whole.
    pub(super) fn end_registers(&self) -> Result<(), Box<Fault>> {
        for (number, group) in self.registers.changes.chunks(WARPS).enumerate() {
            let least = group.iter().map(Vec::len).min().unwrap_or(0);
            let more = group.iter().enumerate().find_map(|(warp, changes)| Some((warp, *changes.get(least)?)));
            if let Some((warp, step)) = more {
                let what = "found a warpgroup of which not all warps come to setmaxnreg, wanted all four";
                return Err(self.fault(number * WARPS + warp, step, Trouble::new(FaultKind::Divergence, what)));
            }
        }
        Ok(())
    }
}
