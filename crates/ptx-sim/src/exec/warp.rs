//! A warp: its registers, and where its lanes are.

use super::schedule::Draw;
use crate::lanes::{ALL, LANES, Lanes, Mask, Registers};
use crate::launch::Shape;
use crate::program::{Program, Special};
use std::array;

/// Turns after which, on average, a group that is not the furthest behind goes first.
const AHEAD: u32 = 16;

pub(super) struct Warp {
    pub(super) registers: Registers,
    /// Lanes that have not exited.
    pub(super) live: Mask,
    /// Live lanes by where they are: no two groups that wait for nothing have the same step.
    pub(super) groups: Vec<Group>,
    /// The number of each lane's open group of copies.
    pub(super) copy_group: Lanes<u32>,
    /// The number of each lane's open group of bulk copies.
    pub(super) bulk_group: Lanes<u32>,
}

/// Lanes that are at the same step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) step: u32,
    pub(super) lanes: Mask,
    pub(super) waits: Waits,
}

/// What a group waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    Nothing,
    /// Other lanes of the warp, at the same step.
    Lanes,
    /// A barrier of the block, by its number.
    Barrier(u8),
    /// The other warps of its warpgroup, at the same step.
    Warpgroup,
    /// The barrier of the cluster.
    Cluster,
    /// A phase of an `mbarrier`, by its address.
    Phase(u32),
    /// For nothing any more: the time for which it waits for a phase is over.
    Expired,
    /// Registers that another warp gives back: so many for each thread.
    Registers(u32),
}

impl Waits {
    #[inline]
    pub(super) fn is_over(self) -> bool {
        matches!(self, Waits::Nothing | Waits::Expired)
    }
}

impl Warp {
    pub(super) fn new(program: &Program, shape: Shape, at: [u32; 3], number: usize) -> Self {
        let [x, y, z] = shape.block;
        let threads = (x * y * z) as usize;
        let live = ALL >> (LANES - (threads - number * LANES).min(LANES));
        let mut registers = Registers::new(program.narrow, program.wide, program.predicates);
        for (special, target) in &program.specials {
            let of = |lane: usize| {
                let thread = (number * LANES + lane) as u32;
                let bit = 1u32 << lane;
                match *special {
                    Special::Thread(axis) => [thread % x, thread / x % y, thread / x / y][axis],
                    Special::Threads(axis) => shape.block[axis],
                    Special::Block(axis) => at[axis],
                    Special::Blocks(axis) => shape.grid[axis],
                    Special::Lane => lane as u32,
                    Special::Warp => number as u32,
                    Special::Warps => threads.div_ceil(LANES) as u32,
                    Special::LanesEqual => bit,
                    Special::LanesLess => bit - 1,
                    Special::LanesLessEqual => bit | (bit - 1),
                    Special::LanesGreater => !(bit | (bit - 1)),
                    Special::LanesGreaterEqual => !(bit - 1),
                    Special::DynamicShared => shape.shared_bytes,
                    Special::TotalShared => shape.shared_bytes + program.shared_bytes,
                    Special::Zero => 0,
                    Special::One => 1,
                }
            };
            registers.put::<u32>(*target, ALL, array::from_fn(of));
        }
        let groups = vec![Group { step: 0, lanes: live, waits: Waits::Nothing }];
        Warp { registers, live, groups, copy_group: [0; LANES], bulk_group: [0; LANES] }
    }

    /// The group that goes next; `None` if all wait, or have exited.
    #[inline]
    pub(super) fn next(&self, draw: &mut Draw) -> Option<usize> {
        if let [group] = self.groups.as_slice() {
            return group.waits.is_over().then_some(0);
        }
        let ready = |place: &usize| self.groups[*place].waits.is_over();
        let behind = (0..self.groups.len()).filter(ready).min_by_key(|place| self.groups[*place].step)?;
        if draw.once_in(AHEAD) {
            let count = (0..self.groups.len()).filter(ready).count();
            return (0..self.groups.len()).filter(ready).nth(draw.one_of(count));
        }
        Some(behind)
    }

    /// Moves lanes of a group to a step; those that are left stay. Groups that come to one step become one.
    #[inline]
    pub(super) fn go(&mut self, place: usize, lanes: Mask, step: u32) {
        if let [group] = self.groups.as_mut_slice()
            && group.lanes == lanes
        {
            *group = Group { step, lanes, waits: Waits::Nothing };
            return;
        }
        self.leave(place, lanes);
        match self.groups.iter_mut().find(|group| group.step == step && !matches!(group.waits, Waits::Barrier(_))) {
            // Whoever waited there looks again at who has come.
            Some(group) => {
                let waits = if group.waits == Waits::Expired { Waits::Expired } else { Waits::Nothing };
                *group = Group { step, lanes: group.lanes | lanes, waits };
            }
            None if lanes != 0 => self.groups.push(Group { step, lanes, waits: Waits::Nothing }),
            None => {}
        }
    }

    /// Lanes exit. Whoever waits for lanes looks again.
    pub(super) fn exit(&mut self, place: usize, lanes: Mask) {
        self.live &= !lanes;
        self.leave(place, lanes);
        for group in &mut self.groups {
            if group.waits == Waits::Lanes {
                group.waits = Waits::Nothing;
            }
        }
    }

    /// Those who wait as `which` says wait for what comes in its place.
    pub(super) fn rouse(&mut self, which: impl Fn(Waits) -> bool, then: Waits) -> bool {
        let mut any = false;
        for group in self.groups.iter_mut().filter(|group| which(group.waits)) {
            group.waits = then;
            any = true;
        }
        any
    }

    fn leave(&mut self, place: usize, lanes: Mask) {
        self.groups[place].lanes &= !lanes;
        if self.groups[place].lanes == 0 {
            self.groups.swap_remove(place);
        }
    }
}
