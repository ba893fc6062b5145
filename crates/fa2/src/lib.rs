//! Rung 4: FlashAttention-2, Algorithm 1 of Dao (arXiv 2307.08691), line by line.
//!
//! The loops of FlashAttention-1 change places: a tile of queries stays in fast memory with its o, m and l while the
//! keys stream past. So o is written once, divided once, and row tiles are independent: they run in parallel, over
//! batch, heads and the sequence. Key tiles that the mask hides from the whole row tile are skipped.
//!
//! A row tile alone cannot fill a machine when q is short. So a sequence that fits in one row tile has its keys split,
//! the splits run in parallel, and their states merge with [`State::merge`](online_softmax::State::merge) of chapter 2.
//! The number of splits follows from the sequence's own lengths and the tiles: results do not depend on threads, nor on
//! the other sequences of a batch.
//!
//! One slip of the listing is corrected: its line 10 prints the rescale of O as `diag(e^(m_old - m_new))^-1`; the
//! factor is `e^(m_old - m_new)` itself.
//!
//! o is divided once, at the end: a row with `sum_j |v_j|` beyond f32 overflows, as two values of 3e38 do.
//!
//! [`Fa2`] is the algorithm to read. It does not reach the machine's limit; [`Fa2Simd`], the same on vectors, does.

mod algorithm;
mod simd;
mod tiles;

pub use algorithm::{merge, row_tile, stream, update};
pub use simd::{Fa2Simd, Simd};
pub use tiles::{Tiles, formula, shared_tiles, traffic};

use attention::{
    Attention, AttentionError, DEFAULT_FAST_MEMORY, Meter, NoMeter, OutputMut, Problem, RowsMut, supports_contiguous,
    supports_f32_arithmetic,
};
use rayon::prelude::*;
use std::num::NonZeroUsize;

/// Bytes of one element of a tile, and of a partial result.
const F32: usize = size_of::<f32>();

/// FlashAttention-2 with a fast memory of a given size for each thread.
#[derive(Clone, Copy, Debug)]
pub struct Fa2<M = NoMeter> {
    fast_memory: usize,
    splits: Option<NonZeroUsize>,
    meter: M,
}

impl Default for Fa2 {
    fn default() -> Self {
        Fa2::new(DEFAULT_FAST_MEMORY, NoMeter)
    }
}

impl<M: Meter> Fa2<M> {
    /// The rung with `fast_memory` bytes a thread, its traffic counted by `meter`.
    pub fn new(fast_memory: usize, meter: M) -> Self {
        Fa2 { fast_memory, splits: None, meter }
    }

    /// The same rung with the keys of every row tile cut into `splits` parts, or into single key tiles if there are fewer.
    pub fn with_splits(self, splits: NonZeroUsize) -> Self {
        Fa2 { splits: Some(splits), ..self }
    }

    /// The tiles that fit the rung's fast memory.
    ///
    /// # Errors
    /// Those of [`Tiles::fit`].
    pub fn tiles(&self, problem: &Problem) -> Result<Tiles, AttentionError> {
        Tiles::fit(self.fast_memory, problem.d(), problem.d_v())
    }

    fn splits(&self, tiles: Tiles, q_len: usize, k_len: usize) -> usize {
        tiles.splits(self.splits, q_len, k_len)
    }
}

impl<M: Meter + Send> Fa2<M> {
    /// What [`Attention::forward_into`] does, wherever keys and values lie: for rungs that take pages.
    ///
    /// # Errors
    /// As [`Attention::forward_into`], for F64 tensors too.
    pub fn run(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        supports_f32_arithmetic("fa2", problem)?;
        let tiles = self.tiles(problem)?;
        // Lines 1 to 3: row tiles of every head of every sequence, each a task of its own.
        let row_tiles: Vec<RowsMut> = out.heads(problem)?.into_iter().flat_map(|head| head.tiles(tiles.rows)).collect();
        row_tiles.into_par_iter().for_each(|out| {
            let head = problem.head(out.sequence, out.head);
            let splits = self.splits(tiles, head.q_len, head.k_len);
            row_tile(&head, tiles, splits, out, &self.meter);
        });
        Ok(())
    }
}

impl<M: Meter + Send> Attention for Fa2<M> {
    fn name(&self) -> &'static str {
        "fa2"
    }

    fn supports(&self, problem: &Problem) -> Result<(), AttentionError> {
        supports_contiguous(self.name(), problem)?;
        self.tiles(problem).map(drop)
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        self.supports(problem)?;
        self.run(problem, out)
    }
}
