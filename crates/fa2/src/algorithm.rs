//! Algorithm 1 of FlashAttention-2, its line numbers beside the code.
//!
//! | lines | here |
//! |---|---|
//! | 1 to 3 | row tiles: `forward_into`, and key tiles: [`Tiles::over`] |
//! | 4 to 11 | [`stream`], with [`update`] for the rows of lines 9 and 10 |
//! | 12 to 15 | [`row_tile`] |
//! | 16, 17 | the end of the loop over row tiles, which run in parallel |

use crate::{F32, Tiles};
use attention::{Head, LSE_BYTES, Meter, RowsMut, weight};
use ndarray::{Array1, Array2, ArrayViewMut1, ArrayViewMut2};
use online_softmax::State;
use rayon::prelude::*;
use std::ops::Range;

// ANCHOR: row_tile
/// Lines 4 to 15 for one tile of rows, its keys cut into `splits` parts that stream in parallel.
pub fn row_tile(head: &Head, tiles: Tiles, splits: usize, mut out: RowsMut, meter: &impl Meter) {
    let (rows, d_v, size) = (out.rows.clone(), head.d_v(), head.q.dtype().size());
    let visible = head.visible_to_any(rows.clone());
    let parts: Vec<Vec<State>> = (0..splits)
        .into_par_iter()
        .map(|part| {
            let keys = tiles.part(part, splits, visible.clone(), head.k_len);
            stream(head, rows.clone(), tiles.over(keys, head.k_len), meter) // lines 4 to 11
        })
        .collect();
    if splits > 1 {
        let partial = splits * rows.len() * F32 * (d_v + 2);
        meter.write(partial);
        meter.read(partial);
    }
    meter.write(rows.len() * (size * d_v + LSE_BYTES));
    for (i, state) in rows.zip(merge(parts)) {
        // Lines 12 and 13: O = diag(l)^-1 O, L = m + ln l.
        let (o, lse) = state.finish(head.sink);
        // Lines 14 and 15: write O_i, L_i.
        out.store(i, o.view(), lse);
    }
}
// ANCHOR_END: row_tile

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

/// The states of the rows over all keys, from their states over each part of the keys.
pub fn merge(parts: Vec<Vec<State>>) -> Vec<State> {
    let mut parts = parts.into_iter();
    let mut whole = parts.next().unwrap_or_default();
    for part in parts {
        whole.iter_mut().zip(&part).for_each(|(state, part)| state.merge(part));
    }
    whole
}
