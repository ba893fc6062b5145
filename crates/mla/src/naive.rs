//! The naive form: decompress K and V of all tokens, then FlashAttention-2.

use crate::layer::{Heads, Layer, Queries};
use crate::rope::Pairing;
use crate::{Dims, LatentCache};
use attention::{Attention, AttentionError, Problem, filled};
use fa2::Fa2;
use ndarray::{Array2, ArrayView2, Axis, Ix4, concatenate, s};

/// Attention over decompressed keys and values. It holds K and V of every head, `heads (d_nope + d_rope + d_v)` numbers for
/// each token: what the cache was to spare.
///
/// # Errors
/// [`AttentionError::Memory`], and [`AttentionError::Value`] if a row of K and V does not fit the fast memory of [`Fa2`].
// ANCHOR: naive
pub fn naive<P: Pairing>(
    layer: &Layer<P>,
    queries: &Queries<P>,
    cache: &impl LatentCache<P>,
) -> Result<Heads, AttentionError> {
    let &Dims { heads, d_v, .. } = layer.dims();
    let (tokens, d_qk) = (cache.len(), layer.dims().d_qk());
    let latents = cache.load(0..tokens);
    let array =
        |what, d| Ok(filled(what, &[1, heads, tokens, d], 0.0f32)?.into_dimensionality::<Ix4>().expect("rank 4"));
    let (mut k, mut v) = (array("decompressed keys", d_qk)?, array("decompressed values", d_v)?);
    for head in 0..heads {
        let (k_head, v_head) = decompress(layer, head, latents.view());
        k.slice_mut(s![0, head, .., ..]).assign(&k_head);
        v.slice_mut(s![0, head, .., ..]).assign(&v_head);
    }
    let q = layer.tensor(queries.joined().insert_axis(Axis(0)));
    let (k, v) = (layer.tensor(k), layer.tensor(v));
    // (18) o = sum_j softmax_j(q . k_j / sqrt(d_h + d_h^R)) v_j
    let output = Fa2::default().forward(&Problem::dense(q.view(), k.view(), v.view(), layer.options())?)?;
    Ok(Heads::of(output))
}
// ANCHOR_END: naive

/// K `[keys, d_nope + d_rope]` and V `[keys, d_v]` of one head, rounded to the layer's type, from rows `[c_kv | k_rope]` of
/// the cache.
///
/// # Panics
/// If there is no such head.
// ANCHOR: decompress
pub fn decompress<P: Pairing>(layer: &Layer<P>, head: usize, latents: ArrayView2<f32>) -> (Array2<f32>, Array2<f32>) {
    let (w, &Dims { d_nope, d_v, d_c, .. }) = (layer.weights(), layer.dims());
    let (c_kv, k_rope) = latents.split_at(Axis(1), d_c);
    let w_uk = w.uk.slice(s![head * d_nope..(head + 1) * d_nope, ..]);
    let w_uv = w.uv.slice(s![head * d_v..(head + 1) * d_v, ..]);
    // (10) k^C = W^UK c^KV, and (17) k = [k^C; k^R]
    let k = concatenate![Axis(1), c_kv.dot(&w_uk.t()), k_rope];
    // (11) v^C = W^UV c^KV
    (layer.rounded(k), layer.rounded(c_kv.dot(&w_uv.t())))
}
// ANCHOR_END: decompress
