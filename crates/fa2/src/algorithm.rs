//! Algorithm 1 of FlashAttention-2, its line numbers beside the code.

use attention::{Head, Meter, weight};
use ndarray::{Array1, Array2, ArrayViewMut1, ArrayViewMut2};
use online_softmax::State;
use std::ops::Range;

// ANCHOR: stream
/// Lines 4 to 11: the states of `rows` after streaming the given key tiles past them.
pub fn stream(
    head: &Head,
    rows: Range<usize>,
    key_tiles: impl Iterator<Item = Range<usize>>,
    meter: &impl Meter,
) -> Vec<State> {
    let (d, d_v, size) = (head.d(), head.d_v(), head.q.dtype().size());
    // Line 4: load Q_i.
    let q_i = head.q.load(rows.clone());
    meter.read(size * rows.len() * d);
    // Line 5: O = 0, l = 0, m = -inf, in fast memory.
    let mut o = Array2::zeros((rows.len(), d_v));
    let mut l = Array1::zeros(rows.len());
    let mut m = Array1::from_elem(rows.len(), f32::NEG_INFINITY);
    for keys in key_tiles {
        // Lines 6 and 7: load K_j, V_j.
        let (k_j, v_j) = (head.k.load(keys.clone()), head.v.load(keys.clone()));
        meter.read(size * keys.len() * (d + d_v));
        // Line 8: S = Q_i K_j^T.
        let mut s = Array2::zeros((rows.len(), keys.len()));
        head.scores((rows.clone(), q_i.view()), (keys.clone(), k_j.view()), s.view_mut());
        // Lines 9 and 10, but for the product.
        update(s.view_mut(), o.view_mut(), l.view_mut(), m.view_mut());
        // Line 10, the product: O = O + P~ V_j, s holding P~ now.
        head.accumulate((rows.clone(), s.view()), (keys, v_j.view()), o.view_mut());
    }
    o.outer_iter().zip(l).zip(m).map(|((o, l), m)| State { m, l, o: o.to_owned() }).collect()
}
// ANCHOR_END: stream

/// Lines 9 and 10 of the listing, up to the product `P~ V_j` that the caller adds to `o`.
///
/// `s` is `[rows, keys]`, `o` `[rows, d_v]`, `l` and `m` `[rows]`. On return `s` holds `P~ = exp(S - m_new)` and `o` holds
/// `diag(e^(m - m_new)) O`. Nothing is divided here: that is line 12, once.
// ANCHOR: update
pub fn update(
    mut s: ArrayViewMut2<f32>,
    mut o: ArrayViewMut2<f32>,
    mut l: ArrayViewMut1<f32>,
    mut m: ArrayViewMut1<f32>,
) {
    for (r, mut s) in s.rows_mut().into_iter().enumerate() {
        // Line 9: m_new = max(m, rowmax(S)), P~ = exp(S - m_new), l = e^(m - m_new) l + rowsum(P~).
        let m_new = s.iter().copied().fold(m[r], f32::max);
        let rescale = weight(m[r], m_new);
        s.mapv_inplace(|s| weight(s, m_new));
        l[r] = rescale * l[r] + s.sum();
        m[r] = m_new;
        // Line 10: O = diag(e^(m - m_new)) O, for nothing where the maximum has not moved.
        if rescale != 1.0 {
            o.row_mut(r).mapv_inplace(|o| rescale * o);
        }
    }
}
// ANCHOR_END: update

// ANCHOR: merge
/// The states of the rows over all keys, from their states over each part of the keys.
pub fn merge(parts: Vec<Vec<State>>) -> Vec<State> {
    let mut parts = parts.into_iter();
    let mut whole = parts.next().unwrap_or_default();
    for part in parts {
        whole.iter_mut().zip(&part).for_each(|(state, part)| state.merge(part));
    }
    whole
}
// ANCHOR_END: merge
