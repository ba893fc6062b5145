//! What a seed decides.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

/// Blocks of a grid whose order is drawn, at most; those of larger grids run in order.
const MOST_DRAWN: u64 = 1 << 20;

/// Instructions after which seed 0, too, has another warp or another group of lanes go on: it may be what the first waits for.
const PATIENCE: u32 = 1 << 14;

/// The order of a grid's blocks.
pub(super) fn order(blocks: u64, seed: u64) -> Box<dyn Iterator<Item = u64>> {
    if seed == 0 || blocks > MOST_DRAWN {
        return Box::new(0..blocks);
    }
    let mut order: Vec<u64> = (0..blocks).collect();
    order.shuffle(&mut StdRng::seed_from_u64(seed));
    Box::new(order.into_iter())
}

/// What is drawn for a block.
pub(super) struct Draw {
    /// `None` for seed 0, which draws nothing.
    random: Option<StdRng>,
    /// What seed 0 has in place of chance: how often it was asked.
    asked: u32,
    /// Instructions of a turn, at most.
    longest: u32,
}

impl Draw {
    pub(super) fn new(seed: u64, block: u64) -> Self {
        let mut random = (seed != 0).then(|| StdRng::seed_from_u64(seed ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        // From turns of one instruction to turns that few warps interrupt: faults hide at different lengths.
        let longest = random.as_mut().map_or(PATIENCE, |random| 1 << random.random_range(0..12));
        Draw { random, asked: 0, longest }
    }

    /// One of these.
    pub(super) fn one_of(&mut self, count: usize) -> usize {
        match &mut self.random {
            Some(random) if count > 1 => random.random_range(0..count),
            Some(_) => 0,
            None => (self.asked / PATIENCE) as usize % count.max(1),
        }
    }

    /// Instructions of a turn.
    pub(super) fn turn(&mut self) -> u32 {
        match &mut self.random {
            Some(random) => random.random_range(1..=self.longest),
            None => self.longest,
        }
    }

    /// A bulk copy under way lands after a turn once in so many times: in some blocks soon, in others when many turns are over.
    pub(super) fn bulk_lands(&self) -> u32 {
        2 << (self.longest.ilog2() % 4)
    }

    /// Whether something happens that happens once in so many times.
    pub(super) fn once_in(&mut self, times: u32) -> bool {
        match &mut self.random {
            Some(random) => random.random_range(0..times) == 0,
            None => {
                self.asked = self.asked.wrapping_add(1);
                self.asked.is_multiple_of(PATIENCE)
            }
        }
    }

    /// A warp has used up its turn: under seed 0 the next one goes on.
    pub(super) fn turn_is_over(&mut self) {
        self.asked = self.asked.wrapping_add(PATIENCE);
    }
}
