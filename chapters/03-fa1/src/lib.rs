//! Chapter 3, the exercise: FlashAttention-1, Algorithm 1 of Dao et al. (arXiv 2205.14135).
//!
//! Five functions are yours, in this order: [`Blocks::fit`], [`update`], [`head`], [`finish`], [`traffic`]. The rest is
//! given. `cargo run --release -- check 3` says how far you are, and `--hint` helps.
//!
//! The algorithm has a fast memory of M bytes. A tile of keys and values is loaded once; for each of them all of q, o, l
//! and m passes through fast memory, tile by tile. Slow memory is counted by a [`Meter`]: call `meter.read(bytes)` where
//! the listing loads and `meter.write(bytes)` where it stores; `meter.allocate(bytes)` where slow memory is taken for
//! something that is neither input nor output, here o, l and m, and `meter.release(bytes)` where it is given back.
//!
//! [`Head::scores`] and [`Head::accumulate`] take rows and keys each as a pair `(range, view)`. Their docs, and those of
//! [`weight`], [`sink_factor`] and [`RowsMut::store`]: crates/attention/src/head.rs and output.rs, or
//! `cargo doc -p attention --open`. [`AttentionError::Value`] is in crates/attention/src/error.rs.

#![allow(unused, clippy::todo, reason = "what the functions still to be written will use is already here")]

use attention::{
    Attention, AttentionError, DEFAULT_FAST_MEMORY, Head, LSE_BYTES, Meter, NoMeter, OutputMut, Problem, RowsMut,
    Traffic, sink_factor, supports_contiguous, weight, wide,
};
use ndarray::{Array1, Array2, ArrayViewMut1, ArrayViewMut2, s};
use rayon::prelude::*;
use std::ops::Range;

/// Bytes of one element of o in slow memory, and of l and of m.
const F32: usize = size_of::<f32>();

/// Rows and keys of a tile: B_r and B_c of the listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// B_r, rows of q, o, l and m.
    pub rows: usize,
    /// B_c, rows of k and v.
    pub keys: usize,
}

impl Blocks {
    /// Step 1, line 1 of the listing: `B_c = floor(M / 4 d)` and `B_r = min(B_c, d)`, M in elements of 4 bytes. `d` is
    /// the larger of the two channel counts.
    ///
    /// First hint: `fast_memory` is in bytes and M in elements. Rounding down is what makes the tiles fit.
    ///
    /// # Errors
    /// [`AttentionError::Value`] if not even one row of each fits: name "fast_memory", found "1023 bytes", wanted "at
    /// least 1024 bytes, for one row of 64 channels of q, k, v and o", with the numbers of the call.
    pub fn fit(fast_memory: usize, d: usize) -> Result<Self, AttentionError> {
        todo!("step 1, Blocks::fit")
    }
}

/// The ranges that divide `0..len` into tiles of `tile`, the last perhaps shorter: lines 3 and 4.
pub fn tiles(len: usize, tile: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(tile).map(move |start| start..len.min(start.saturating_add(tile)))
}

/// o `[q_len, d_v]`, l and m `[q_len]` of one head, as they lie in slow memory between the steps. o is divided by l at
/// every step.
#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    /// The output over the keys so far.
    pub o: Array2<f32>,
    /// The sum of the weights so far, against m.
    pub l: Array1<f32>,
    /// The largest score so far.
    pub m: Array1<f32>,
}

impl Running {
    /// Line 2: o = 0, l = 0, m = -inf.
    pub fn new(q_len: usize, d_v: usize) -> Self {
        Running {
            o: Array2::zeros((q_len, d_v)),
            l: Array1::zeros(q_len),
            m: Array1::from_elem(q_len, f32::NEG_INFINITY),
        }
    }

    /// Bytes of `rows` rows.
    fn bytes(rows: usize, d_v: usize) -> usize {
        F32 * rows * (d_v + 2)
    }
}

/// Step 2, lines 10 to 13 of the listing, up to the product `P~ V_j` of line 12 that [`head`] adds to `o`.
///
/// `s` is `[rows, keys]`, `o` `[rows, d_v]`, `l` and `m` `[rows]`. For each row:
///
/// line 10: `m~ = max_j s_j`, `p~_j = e^(s_j - m~)`, `l~ = sum_j p~_j`;
/// line 11: `m_new = max(m, m~)`, `l_new = e^(m - m_new) l + e^(m~ - m_new) l~`;
/// line 12: `o` becomes `l e^(m - m_new) / l_new * o`, and `s` becomes `e^(m~ - m_new) / l_new * p~`;
/// line 13: l and m become l_new and m_new.
///
/// A row whose scores in the tile are all -inf sees no key of it: it gets weights 0 and keeps its o, l and m. A NaN score
/// must give NaN: ask `l~ == 0`, not `m~ == -inf`, since `f32::max` drops NaN.
///
/// First hint: every row has its own m~, l~, m_new and l_new. Write one row with four lines of code for the four lines
/// above, and loop over the rows. [`weight`] is `e^(s - m)`, and 0 for -inf.
pub fn update(
    mut s: ArrayViewMut2<f32>,
    mut o: ArrayViewMut2<f32>,
    mut l: ArrayViewMut1<f32>,
    mut m: ArrayViewMut1<f32>,
) {
    todo!("step 2, update")
}

/// Step 3, lines 2 to 15 for one head: the two loops, K/V outside and Q inside.
///
/// line 2: start from [`Running::new`], for which the meter counts one `allocate` and one `write`, both of
/// `Running::bytes`;
/// lines 5 and 6: for each tile of keys, load K_j and V_j;
/// lines 7 and 8: for each tile of rows, load Q_i, and O_i, l_i, m_i;
/// line 9: `S = Q_i K_j^T`; lines 10 to 13: [`update`]; line 12: `O_i += P V_j`; then O_i, l_i, m_i are written.
///
/// q, k and v have elements of `head.q.dtype().size()` bytes, o, l and m of 4.
///
/// First hint: no tile is skipped, even where the mask hides all of it. [`Head::scores`] is line 9 for a tile and
/// [`Head::accumulate`] the product.
pub fn head(head: &Head, blocks: Blocks, meter: &impl Meter) -> Running {
    todo!("step 3, head")
}

/// Step 4, line 16, and what the listing leaves out: one more pass over o, l and m applies the sink, takes
/// `lse = m + ln l`, and rounds o to its type.
///
/// A row with l = 0 saw no key: its o is 0 and its lse -inf. Ask l, not m: a row of NaN scores can have m = -inf too. The
/// pass reads o, l and m; it writes o with elements of `head.q.dtype().size()` bytes and lse with 4; then `meter.release`
/// gives back the memory of o, l and m.
///
/// First hint: o is divided already. `out.store(i, row, lse)` stores one row.
pub fn finish(head: &Head, running: Running, out: &mut RowsMut, meter: &impl Meter) {
    todo!("step 4, finish")
}

/// Step 5. The traffic of Algorithm 1 predicted from the shapes, without running it: what [`head`] and [`finish`] count.
///
/// First hint: write down for one head what each line of the listing moves, and how often. T_c, the number of key tiles,
/// is how often all of q, o, l and m passes. A sequence without queries moves nothing. [`wide`] makes a u128 of a length:
/// no product of those overflows, and [`Traffic::add`] takes them.
///
/// # Errors
/// Those of [`Blocks::fit`].
pub fn traffic(problem: &Problem, fast_memory: usize) -> Result<Traffic, AttentionError> {
    todo!("step 5, traffic")
}

/// Bytes by the closed formula `heads * N_q ((T_c + 1)(e d + 8 d_v) + 16 T_c) + heads * e N_k (d + d_v)`, with
/// `T_c = ceil(N_k / B_c)` and e the bytes of an element. With `B_c = M / 4 d` this is Theta(N^2 d^2 / M).
///
/// # Errors
/// Those of [`Blocks::fit`].
pub fn formula(problem: &Problem, fast_memory: usize) -> Result<f64, AttentionError> {
    let (d, d_v, size) = (problem.d() as f64, problem.d_v() as f64, problem.dtype().size() as f64);
    let blocks = Blocks::fit(fast_memory, problem.d().max(problem.d_v()))?;
    let bytes = problem.sequences().iter().map(|sequence| {
        let (q_len, k_len) = (sequence.q.len() as f64, sequence.k.len() as f64);
        let passes = (k_len / blocks.keys as f64).ceil();
        q_len * ((passes + 1.0) * (size * d + 8.0 * d_v) + 16.0 * passes) + size * k_len * (d + d_v)
    });
    Ok(problem.heads() as f64 * bytes.sum::<f64>())
}

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
