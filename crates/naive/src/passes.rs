//! The three passes, each a function on whole matrices; rows run in parallel.

use attention::{Head, sink_factor, weight};
use ndarray::parallel::prelude::*;
use ndarray::{Array1, Array2, ArrayView1, ArrayView2, ArrayViewMut1, ArrayViewMut2, Axis, Zip, s};

/// Rows that one task takes. It divides work among threads and changes no result.
const BLOCK: usize = 64;

/// Terms of a sum that are added one after the other. A longer f32 sum is a sum of such sums: among many equal terms the
/// roundings of a single long one all go the same way, and at 2^24 terms it stands still.
const RUN: usize = 256;

/// Pass 1: `S = scale Q K^T`, with every other option of a score applied, -inf where a key is hidden. `s` is
/// `[q_len, k_len]` and is overwritten.
pub fn scores(head: &Head, mut s: ArrayViewMut2<f32>) {
    let (q, k) = (head.q.load(0..head.q_len), head.k.load(0..head.k_len));
    s.axis_chunks_iter_mut(Axis(0), BLOCK).into_par_iter().enumerate().for_each(|(block, s)| {
        let rows = block * BLOCK..block * BLOCK + s.nrows();
        head.scores((rows.clone(), q.slice(s![rows, ..])), (0..head.k_len, k.view()), s);
    });
}

/// Pass 2: `P = softmax(S)`, row by row; returns lse `[q_len]`. Both matrices are `[q_len, k_len]`.
pub fn weights(s: ArrayView2<f32>, sink: f32, mut p: ArrayViewMut2<f32>) -> Array1<f32> {
    let mut lse = Array1::zeros(s.nrows());
    Zip::from(s.rows()).and(p.rows_mut()).and(&mut lse).par_for_each(|s, p, lse| *lse = softmax(s, sink, p));
    lse
}

/// Pass 3: `O = P V`, from `p` `[q_len, k_len]` to o `[q_len, d_v]`.
pub fn output(head: &Head, p: ArrayView2<f32>) -> Array2<f32> {
    let v = head.v.load(0..head.k_len);
    let mut o = Array2::zeros((head.q_len, head.d_v()));
    o.axis_chunks_iter_mut(Axis(0), BLOCK).into_par_iter().enumerate().for_each(|(block, o)| {
        let rows = block * BLOCK..block * BLOCK + o.nrows();
        head.accumulate((rows.clone(), p.slice(s![rows, ..])), (0..head.k_len, v.view()), o);
    });
    o
}

/// The safe softmax of one row: `p_j = e^(s_j - m) / l` with `m = max_j s_j` and `l = sum_j e^(s_j - m)`; returns
/// `lse = m + ln l`.
///
/// Subtracting the maximum changes nothing but the range: every power is at most 1, so none overflows. A row whose
/// scores are all -inf is empty: p is 0 and lse is -inf. It is told by l = 0: a NaN score makes l NaN, and the row NaN.
/// A `sink` (-inf for none) adds `e^(sink - m)` to the denominator and not to lse.
///
/// ```
/// use ndarray::{Array1, array};
/// let s = array![1000.0, 1000.0, f32::NEG_INFINITY];
/// let mut p = Array1::zeros(3);
/// let lse = naive::softmax(s.view(), f32::NEG_INFINITY, p.view_mut());
/// assert_eq!(p, array![0.5, 0.5, 0.0]);
/// assert_eq!(lse, 1000.0 + 2f32.ln());
/// ```
// ANCHOR: softmax
pub fn softmax(s: ArrayView1<f32>, sink: f32, mut p: ArrayViewMut1<f32>) -> f32 {
    // Three passes over the row: the maximum, the sum, the quotient.
    let m = s.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let l: f32 = s.axis_chunks_iter(Axis(0), RUN).map(|run| run.iter().map(|&s| weight(s, m)).sum::<f32>()).sum();
    if l == 0.0 {
        p.fill(0.0);
        return f32::NEG_INFINITY;
    }
    let share = sink_factor(sink, m, l) / l;
    p.zip_mut_with(&s, |p, &s| *p = weight(s, m) * share);
    m + l.ln()
}
// ANCHOR_END: softmax
