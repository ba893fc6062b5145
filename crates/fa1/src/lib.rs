//! Rung 3: FlashAttention-1, Algorithm 1 of Dao et al. (arXiv 2205.14135), line by line.
//!
//! Tiles of k and v are loaded once into a fast memory of M bytes; for each of them the whole of q, o, l and m passes
//! through it, tile by tile. No score ever reaches slow memory, so the extra memory is O(N). The traffic is
//! Theta(N^2 d^2 / M): less than standard attention's Theta(N d + N^2) only where M is well above d^2 elements.
//!
//! Differences from the listing: block sizes round down, where it rounds up; masks, bias, sinks and lse are the
//! options of every rung; as in the listing, no tile is skipped, even where the mask hides all of it. Work is split
//! over batch and heads only.

mod algorithm;
mod blocks;

pub use algorithm::{Running, finish, head, update};
pub use blocks::{Blocks, formula, tiles, traffic};

use attention::{
    Attention, AttentionError, DEFAULT_FAST_MEMORY, Meter, NoMeter, OutputMut, Problem, supports_contiguous,
};
use rayon::prelude::*;

/// Bytes of one element of o in slow memory, and of l and of m.
const F32: usize = size_of::<f32>();

/// FlashAttention-1 with a fast memory of a given size.
#[derive(Clone, Copy, Debug)]
pub struct Fa1<M = NoMeter> {
    fast_memory: usize,
    meter: M,
}

impl Default for Fa1 {
    fn default() -> Self {
        Fa1::new(DEFAULT_FAST_MEMORY, NoMeter)
    }
}

impl<M: Meter> Fa1<M> {
    /// The rung with `fast_memory` bytes, its traffic counted by `meter`.
    pub fn new(fast_memory: usize, meter: M) -> Self {
        Fa1 { fast_memory, meter }
    }

    fn blocks(&self, problem: &Problem) -> Result<Blocks, AttentionError> {
        Blocks::fit(self.fast_memory, problem.d().max(problem.d_v()))
    }
}

impl<M: Meter + Send> Attention for Fa1<M> {
    fn name(&self) -> &'static str {
        "fa1"
    }

    fn supports(&self, problem: &Problem) -> Result<(), AttentionError> {
        supports_contiguous(self.name(), problem)?;
        self.blocks(problem).map(drop)
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        self.supports(problem)?;
        let blocks = self.blocks(problem)?;
        out.heads(problem)?.into_par_iter().filter(|out| !out.rows.is_empty()).for_each(|mut out| {
            let one = problem.head(out.sequence, out.head);
            let running = head(&one, blocks, &self.meter);
            finish(&one, running, &mut out, &self.meter);
        });
        Ok(())
    }
}
