//! Line 1 of the listing, block sizes from a memory budget, and the traffic that follows from them.

use crate::F32;
use attention::{AttentionError, LSE_BYTES, Problem, Traffic, wide};
use std::ops::Range;

/// Rows and keys of a tile: B_r and B_c of the listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// B_r, rows of q, o, l and m.
    pub rows: usize,
    /// B_c, rows of k and v.
    pub keys: usize,
}

impl Blocks {
    /// `B_c = floor(M / 4 d)` and `B_r = min(B_c, d)`, M in elements of 4 bytes: tiles of q, k, v and o take a quarter
    /// each. `d` is the larger of the two channel counts. As in the paper, S (up to another quarter), l and m are not
    /// counted.
    ///
    /// ```
    /// assert_eq!(fa1::Blocks::fit(100 * 1024, 64)?, fa1::Blocks { rows: 64, keys: 100 });
    /// # Ok::<(), attention::AttentionError>(())
    /// ```
    ///
    /// # Errors
    /// [`AttentionError::Value`] if not even one row of each fits.
    pub fn fit(fast_memory: usize, d: usize) -> Result<Self, AttentionError> {
        let keys = fast_memory / (4 * F32) / d;
        if keys == 0 {
            return Err(AttentionError::Value {
                name: "fast_memory",
                found: format!("{fast_memory} bytes"),
                wanted: format!(
                    "at least {} bytes, for one row of {d} channels of q, k, v and o",
                    wide(4 * F32) * wide(d)
                ),
            });
        }
        Ok(Blocks { rows: keys.min(d), keys })
    }
}

/// The ranges that divide `0..len` into tiles of `tile`, the last perhaps shorter: lines 3 and 4.
///
/// ```
/// assert_eq!(fa1::tiles(5, 2).collect::<Vec<_>>(), [0..2, 2..4, 4..5]);
/// ```
pub fn tiles(len: usize, tile: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(tile).map(move |start| start..len.min(start.saturating_add(tile)))
}

/// The traffic of Algorithm 1, by its own count: k and v once, and for each of the T_c key tiles all of q, o, l, m in
/// and o, l, m out; before that their initial values, after it o, l, m once more for the result.
///
/// # Errors
/// Those of [`Blocks::fit`].
pub fn traffic(problem: &Problem, fast_memory: usize) -> Result<Traffic, AttentionError> {
    let blocks = Blocks::fit(fast_memory, problem.d().max(problem.d_v()))?;
    let [heads, d, d_v, size] = [problem.heads(), problem.d(), problem.d_v(), problem.dtype().size()].map(wide);
    let state = wide(F32) * (d_v + 2);
    let mut traffic = Traffic::default();
    for sequence in problem.sequences().iter().filter(|sequence| !sequence.q.is_empty()) {
        let passes = wide(sequence.k.len().div_ceil(blocks.keys));
        let [q_len, k_len] = [sequence.q.len(), sequence.k.len()].map(wide);
        let read = size * k_len * (d + d_v) + passes * q_len * (size * d + state) + q_len * state;
        let written = (passes + 1) * q_len * state + q_len * (size * d_v + wide(LSE_BYTES));
        traffic.add(heads, read, written);
    }
    Ok(traffic)
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
