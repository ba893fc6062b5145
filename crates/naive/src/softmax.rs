//! The safe softmax of one row, in three passes.

use attention::{sink_factor, weight};
use ndarray::{ArrayView1, ArrayViewMut1};

/// `p_j = e^(s_j - m) / l` with `m = max_j s_j` and `l = sum_j e^(s_j - m)`; returns `lse = m + ln l`.
///
/// Subtracting the maximum changes nothing but the range: every power is at most 1, so none overflows. A row with no
/// score above -inf is empty: p is 0 and lse is -inf. A `sink` (-inf for none) adds `e^(sink - m)` to the denominator
/// and not to lse.
///
/// ```
/// use ndarray::{Array1, array};
/// let s = array![1000.0, 1000.0, f32::NEG_INFINITY];
/// let mut p = Array1::zeros(3);
/// let lse = naive::softmax(s.view(), f32::NEG_INFINITY, p.view_mut());
/// assert_eq!(p, array![0.5, 0.5, 0.0]);
/// assert_eq!(lse, 1000.0 + 2f32.ln());
/// ```
pub fn softmax(s: ArrayView1<f32>, sink: f32, mut p: ArrayViewMut1<f32>) -> f32 {
    // Pass 1: the maximum.
    let m = s.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Pass 2: the sum.
    let l: f32 = s.iter().map(|&s| weight(s, m)).sum();
    if l == 0.0 {
        p.fill(0.0);
        return f32::NEG_INFINITY;
    }
    // Pass 3: the quotient.
    let share = sink_factor(sink, m, l) / l;
    p.zip_mut_with(&s, |p, &s| *p = weight(s, m) * share);
    m + l.ln()
}
