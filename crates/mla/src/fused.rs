//! The fused form: K and V are decompressed tile by tile inside the loop of FlashAttention-2.

use crate::layer::{Heads, Layer, Queries};
use crate::naive::decompress;
use crate::rope::Pairing;
use crate::{Dims, LatentCache, scale};
use attention::{AttentionError, DEFAULT_FAST_MEMORY, Mask, accumulate};
use fa2::{Tiles, merge, update};
use ndarray::{Array1, Array2, Array3, ArrayView2, s};
use online_softmax::State;
use rayon::prelude::*;
use std::ops::Range;

/// Attention with one tile of K and V at a time, decompressed where it is used: no more memory than FlashAttention-2, and
/// W^UK and W^UV multiplied anew for each tile of queries. It is [`naive`](crate::naive()) bit for bit, as long as every
/// product `q . k` fits f32.
///
/// # Errors
/// [`AttentionError::Value`] if a row of K and V does not fit the fast memory of [`Fa2`](fa2::Fa2).
pub fn fused<P: Pairing>(
    layer: &Layer<P>,
    queries: &Queries<P>,
    cache: &impl LatentCache<P>,
) -> Result<Heads, AttentionError> {
    let &Dims { heads, d_v, .. } = layer.dims();
    let tiles = Tiles::fit(DEFAULT_FAST_MEMORY, layer.dims().d_qk(), d_v)?;
    let q = layer.rounded(queries.joined());
    let (q_len, k_len) = (q.dim().1, cache.len());
    let splits = tiles.splits(None, q_len, k_len);
    let row_tile = |(head, start): (usize, usize)| {
        let rows = start..q_len.min(start + tiles.rows);
        let q_i = q.slice(s![head, rows.clone(), ..]);
        let visible = 0..Mask::Causal.visible(rows.end - 1, q_len, k_len).end;
        let parts = (0..splits).into_par_iter().map(|part| {
            let keys = tiles.part(part, splits, visible.clone(), k_len);
            stream(layer, head, (rows.clone(), q_len), q_i, cache, tiles.over(keys, k_len))
        });
        (head, rows.clone(), merge(parts.collect()))
    };
    let starts = (0..heads).flat_map(|head| (0..q_len).step_by(tiles.rows).map(move |start| (head, start)));
    let done: Vec<_> = starts.collect::<Vec<_>>().into_par_iter().map(row_tile).collect();
    let (mut o, mut lse) = (Array3::zeros((heads, q_len, d_v)), Array2::zeros((heads, q_len)));
    for (head, rows, states) in done {
        for (i, state) in rows.zip(states) {
            let (o_i, lse_i) = state.finish(f32::NEG_INFINITY);
            o.slice_mut(s![head, i, ..]).assign(&o_i);
            lse[[head, i]] = lse_i;
        }
    }
    Ok(Heads { o: layer.rounded(o), lse, latent: None })
}

/// Lines 4 to 11 of FlashAttention-2 for some rows of one head, with its K_j and V_j decompressed on the way.
// ANCHOR: stream
fn stream<P: Pairing>(
    layer: &Layer<P>,
    head: usize,
    (rows, q_len): (Range<usize>, usize),
    q_i: ArrayView2<f32>,
    cache: &impl LatentCache<P>,
    key_tiles: impl Iterator<Item = Range<usize>>,
) -> Vec<State> {
    let (scale, k_len) = (scale(layer.dims(), layer.yarn()) as f32, cache.len());
    let mut o = Array2::zeros((rows.len(), layer.dims().d_v));
    let mut l = Array1::zeros(rows.len());
    let mut m = Array1::from_elem(rows.len(), f32::NEG_INFINITY);
    for keys in key_tiles {
        // Lines 6 and 7, where K_j and V_j would be loaded: equations 10, 11 and 17 on a tile of the cache.
        let (k_j, v_j) = decompress(layer, head, cache.load(keys.clone()).view());
        // Line 8: S = Q_i K_j^T, scaled and masked.
        let mut s = q_i.dot(&k_j.t());
        let sees =
            |row: usize, key: usize| Mask::Causal.visible(rows.start + row, q_len, k_len).contains(&(keys.start + key));
        s.indexed_iter_mut()
            .for_each(|((row, key), s)| *s = if sees(row, key) { scale * *s } else { f32::NEG_INFINITY });
        // Lines 9 and 10.
        update(s.view_mut(), o.view_mut(), l.view_mut(), m.view_mut());
        accumulate(s.view(), v_j.view(), o.view_mut(), sees);
    }
    o.outer_iter().zip(l).zip(m).map(|((o, l), m)| State { m, l, o: o.to_owned() }).collect()
}
// ANCHOR_END: stream
