//! `wgmma`, and what else is done to its registers.

use super::{Action, Step};
use crate::fragments::{Accumulator, Factor};
use crate::lanes::{Condition, Source, Target};
use crate::wgmma::Major;
use std::collections::HashSet;

/// `wgmma` (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
pub(crate) enum Warpgroup {
    Fence,
    Commit,
    /// Until at most so many of the last groups are under way.
    Wait(u32),
    Multiply(Box<Product>),
}

/// `wgmma.mma_async`: D = A B + D, or A B alone, A of 64 x 16, B of 16 x `columns`.
pub(crate) struct Product {
    pub(crate) columns: usize,
    pub(crate) factor: Factor,
    pub(crate) accumulator: Accumulator,
    /// All of them narrow.
    pub(crate) d: Vec<Target>,
    pub(crate) a: Left,
    pub(crate) b: Operand,
    pub(crate) scale_d: ScaleD,
    /// The product is subtracted.
    pub(crate) negative: bool,
}

/// Where A is.
pub(crate) enum Left {
    Registers([Source; 4]),
    Shared(Operand),
}

/// Of an operand in shared memory, the descriptor and how it lies there.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    pub(crate) descriptor: Source,
    pub(crate) major: Major,
}

/// Whether D is added to.
pub(crate) enum ScaleD {
    Constant(bool),
    Predicate(Condition),
}

/// What instructions other than `wgmma` do to registers that `wgmma` has too, by step. There are none without `wgmma`.
#[derive(Default)]
pub(crate) struct Touches {
    /// Where a step's begin, and where the last one's end.
    begins: Vec<u32>,
    all: Vec<Touch>,
}

/// A narrow register that a step reads or writes.
#[derive(Clone, Copy)]
pub(crate) struct Touch {
    pub(crate) slot: u32,
    pub(crate) writes: bool,
}

impl Touches {
    /// Of what steps do to registers, in the order of the steps, what matters to those of `wgmma`.
    pub(crate) fn new(steps: &[Step], touched: &[(u32, Touch)]) -> Self {
        let products = || steps.iter().filter_map(Step::product);
        let mut slots: HashSet<u32> = products().flat_map(|product| narrow(&product.d)).collect();
        slots.extend(products().flat_map(|product| product.a.slots()));
        if !steps.iter().any(|step| matches!(step.action, Action::Warpgroup(_))) {
            return Touches::default();
        }
        let mut touches = Touches { begins: vec![0], all: Vec::new() };
        let mut left = touched.iter().peekable();
        for (number, step) in (0..).zip(steps) {
            while let Some((_, touch)) = left.next_if(|(at, _)| *at == number) {
                if step.product().is_none() && slots.contains(&touch.slot) {
                    touches.all.push(*touch);
                }
            }
            touches.begins.push(touches.all.len() as u32);
        }
        touches
    }

    /// Those of a step.
    #[inline]
    pub(crate) fn of(&self, step: u32) -> &[Touch] {
        match self.begins.get(step as usize..step as usize + 2) {
            Some([begin, end]) => &self.all[*begin as usize..*end as usize],
            _ => &[],
        }
    }

    /// Whether the program has `wgmma`.
    pub(crate) fn is_empty(&self) -> bool {
        self.begins.is_empty()
    }
}

impl Step {
    pub(crate) fn product(&self) -> Option<&Product> {
        match &self.action {
            Action::Warpgroup(Warpgroup::Multiply(product)) => Some(product),
            _ => None,
        }
    }
}

impl Left {
    /// The registers of A; none if it is in shared memory.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        let registers = match self {
            Left::Registers(registers) => registers.as_slice(),
            Left::Shared(_) => &[],
        };
        registers.iter().filter_map(|source| match source {
            Source::Register(Target::Narrow(slot)) => Some(*slot),
            _ => None,
        })
    }
}

/// The numbers of narrow registers.
pub(crate) fn narrow(targets: &[Target]) -> impl Iterator<Item = u32> {
    targets.iter().filter_map(|target| match target {
        Target::Narrow(slot) => Some(*slot),
        Target::Wide(_) => None,
    })
}
