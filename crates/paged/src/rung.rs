//! Rung 7: FlashAttention-2 through block tables.
//!
//! PagedAttention (arXiv 2309.06180, section 4.1) changes lines 6 and 7 of the listing and nothing else: where the rows of
//! K_j and V_j lie is looked up, page by page ([`KvRows`](attention::KvRows)). Tiles and pages know nothing of each other: a
//! tile may take its rows from many pages, and a page may give rows to many tiles. So whatever the pages, the same tiles are
//! multiplied in the same order, and results are those of contiguous keys and values bit for bit.
//!
//! What it does not do: check that a table's pages are those of its sequence. Whoever makes the table knows.

use attention::{
    Attention, AttentionError, DEFAULT_FAST_MEMORY, DType, Meter, NoMeter, OutputMut, Problem, supports_f32_arithmetic,
};
use fa2::{Fa2, Fa2Simd};

/// The algorithm of [`Fa2`], on paged and on contiguous keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Paged<M = NoMeter> {
    fa2: Fa2<M>,
}

/// The algorithm of [`Fa2Simd`], on paged and on contiguous keys and values.
///
/// With few query rows, rows of whole vectors in F32 or BF16 are read where they lie, page by page. Otherwise the rows of a
/// tile that spans pages are copied together first.
#[derive(Clone, Copy, Debug, Default)]
pub struct PagedSimd {
    fa2: Fa2Simd,
}

impl Default for Paged {
    fn default() -> Self {
        Paged::new(Fa2::new(DEFAULT_FAST_MEMORY, NoMeter))
    }
}

impl<M: Meter> Paged<M> {
    /// The rung with the tiles and splits of `fa2`.
    pub fn new(fa2: Fa2<M>) -> Self {
        Paged { fa2 }
    }
}

impl PagedSimd {
    /// The rung with the vectors of `fa2`.
    pub fn new(fa2: Fa2Simd) -> Self {
        PagedSimd { fa2 }
    }
}

impl<M: Meter + Send> Attention for Paged<M> {
    fn name(&self) -> &'static str {
        "paged"
    }

    fn supports(&self, problem: &Problem) -> Result<(), AttentionError> {
        supports_f32_arithmetic(self.name(), problem)?;
        self.fa2.tiles(problem).map(drop)
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        self.supports(problem)?;
        self.fa2.run(problem, out)
    }
}

impl Attention for PagedSimd {
    fn name(&self) -> &'static str {
        "paged-simd"
    }

    fn supports(&self, problem: &Problem) -> Result<(), AttentionError> {
        supports_f32_arithmetic(self.name(), problem)
    }

    fn weights(&self, problem: &Problem) -> DType {
        self.fa2.weights(problem)
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        self.supports(problem)?;
        self.fa2.run(problem, out)
    }
}
