//! Runs a program: grid, blocks and warps.
//!
//! The blocks of a grid run one after another, in an order that the seed draws: what two blocks do to one place is a race
//! whatever the order, so nothing is gained by mixing them. The warps of a block take turns: the seed draws which, and for how
//! many instructions. The lanes of a warp that have come apart are groups with program counters of their own; the one that is
//! furthest behind goes first, so that groups meet again where their paths do, or now and then another, as the seed says.

mod access;
mod barriers;
mod block;
mod bulk;
mod cluster;
mod copies;
mod matrix;
mod mbarrier;
mod products;
mod registers;
mod schedule;
mod signals;
mod tensor;
mod warp;
mod warpgroup;

use crate::clock::Proxied;
use crate::counters::Counters;
use crate::fault::{Fault, FaultKind};
use crate::lanes::Mask;
use crate::launch::{Schedule, Shape};
use crate::memory::Memory;
use crate::program::{Program, Unit};
use crate::races::Races;
use block::Block;
use schedule::{Draw, order};
use signals::Signals;
use std::collections::HashMap;

/// What all blocks of a launch share.
struct Grid<'a> {
    program: &'a Program,
    shape: Shape,
    /// The bytes of the parameters, where the program has them.
    params: Vec<u8>,
    memory: &'a mut Memory,
    races: Races,
    /// By address of global memory.
    signals: Signals,
    /// Who issued the copies that a ticket stands for: by block, the ticket's warp and lane, and step.
    issuers: HashMap<(u32, u16, u8, u32), (u16, u8)>,
    counters: Counters,
    /// By step: how often a warp took it, and how many lanes took part.
    taken: Vec<[u64; 2]>,
    steps_left: u64,
}

/// Runs a program on parameters and a shape that fit it.
pub(crate) fn run(
    program: &Program,
    memory: &mut Memory,
    shape: Shape,
    params: Vec<u8>,
    schedule: Schedule,
) -> Result<Counters, Box<Fault>> {
    let taken = vec![[0; 2]; program.steps.len()];
    let (races, signals) = (Races::new(Proxied::Global), Signals::default());
    let (counters, steps_left, issuers) = (Counters::default(), schedule.steps, HashMap::new());
    let mut grid = Grid { program, shape, params, memory, races, signals, issuers, counters, taken, steps_left };
    let [x, y, z] = shape.grid.map(u64::from);
    for number in order(x * y * z, schedule.seed) {
        let at = [number % x, number / x % y, number / x / y].map(|axis| axis as u32);
        Block::new(&mut grid, at, number, Draw::new(schedule.seed, number)).run()?;
    }
    Ok(grid.counted())
}

impl Grid<'_> {
    /// Counts a step that lanes of a warp took.
    #[inline]
    fn count_step(&mut self, step: u32, lanes: Mask) {
        let taken = &mut self.taken[step as usize];
        taken[0] += 1;
        taken[1] += u64::from(lanes.count_ones());
    }

    /// The counters, with what the steps did.
    fn counted(self) -> Counters {
        let mut counters = self.counters;
        for (step, [taken, lanes]) in self.program.steps.iter().zip(&self.taken) {
            if *taken > 0 {
                let name = &self.program.mnemonics[step.mnemonic as usize];
                *counters.instructions.entry(name.clone()).or_default() += taken;
            }
            let operations = lanes * u64::from(step.work.operations);
            match step.work.unit {
                Unit::None => {}
                Unit::F32 => counters.flops.f32 += operations,
                Unit::F64 => counters.flops.f64 += operations,
                Unit::F16 => counters.flops.f16 += operations,
                Unit::Tensor => counters.flops.tensor += operations,
                Unit::Special => counters.flops.special += operations,
            }
        }
        counters
    }
}

/// What went wrong in an instruction, before it is known where that is.
struct Trouble {
    kind: FaultKind,
    what: String,
    lane: Option<usize>,
    earlier: Option<crate::races::Conflict>,
}

impl Trouble {
    fn new(kind: FaultKind, what: impl Into<String>) -> Self {
        Trouble { kind, what: what.into(), lane: None, earlier: None }
    }

    fn lane(self, lane: usize) -> Self {
        Trouble { lane: Some(lane), ..self }
    }

    fn with(self, earlier: crate::races::Conflict) -> Self {
        Trouble { earlier: Some(earlier), ..self }
    }
}
