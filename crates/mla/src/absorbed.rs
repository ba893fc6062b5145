//! The absorbed form: queries go to the latents, and nothing is decompressed.
//!
//! A score's part without position is `q^C . k^C = q^C . (W^UK c) = (W^UK^T q^C) . c`: W^UK moves from every key to the one
//! query ("absorbed", end of section 2.1.2). The part with position is the same for all heads. So a head's score is one
//! product of d_c + d_rope channels with the cache's row, and its values are W^UV times a mean of latents, in which W^UV
//! stands before the sum. What is left is attention of many query heads on one kv head, whose values are the first d_c
//! channels of its keys.
//!
//! It takes decoupled RoPE (section 2.1.3): a rotation between q^C and W^UK would depend on the key's position, and no
//! product could move past it.

use crate::layer::{Heads, Latent, Layer, Queries};
use crate::rope::Pairing;
use crate::{LatentCache, MlaAbsorbed};
use attention::{Attention, AttentionError, Batch, Problem};
use ndarray::{Array3, ArrayView2, ArrayView3, Axis, concatenate, s};

/// Attention over the latents, by the rung [`MlaAbsorbed`] on the cache as it lies.
///
/// # Errors
/// [`AttentionError::Memory`].
// ANCHOR: absorbed
pub fn absorbed<P: Pairing>(
    layer: &Layer<P>,
    queries: &Queries<P>,
    cache: &impl LatentCache<P>,
) -> Result<Heads, AttentionError> {
    let w = layer.weights();
    let q_latent = layer.rounded(absorb(queries.nope.view(), w.uk.view()));
    // (16) and (17) in the space of the latents: q = [W^UK^T q^C; q^R], k = [c^KV; k^R], v = c^KV.
    let q = layer.tensor(concatenate![Axis(2), q_latent, queries.rope].insert_axis(Axis(0)));
    // (18)
    let problem = Problem::new(q.view(), cache.kv(), Batch::Dense, layer.options())?;
    let Heads { o: o_latent, lse, .. } = Heads::of(MlaAbsorbed::default().forward(&problem)?);
    let o = layer.rounded(expand(o_latent.view(), w.uv.view()));
    Ok(Heads { o, lse, latent: Some(Latent { q: q_latent, o: o_latent }) })
}
// ANCHOR_END: absorbed

/// W^UK absorbed into the query: `W^UK^T q^C` for each head, `[heads, tokens, d_c]`, from q^C `[heads, tokens, d_nope]` and
/// W^UK `[heads d_nope, d_c]`.
///
/// # Panics
/// If the two do not fit together.
// ANCHOR: absorb
pub fn absorb(q: ArrayView3<f32>, w_uk: ArrayView2<f32>) -> Array3<f32> {
    let (heads, tokens, d_nope) = q.dim();
    let mut latent = Array3::zeros((heads, tokens, w_uk.ncols()));
    for (head, mut latent) in latent.outer_iter_mut().enumerate() {
        // Rows are tokens, so the transposes of q^C and of the product cancel that of W^UK.
        let w_uk = w_uk.slice(s![head * d_nope..(head + 1) * d_nope, ..]);
        latent.assign(&q.index_axis(Axis(0), head).dot(&w_uk));
    }
    latent
}
// ANCHOR_END: absorb

/// W^UV after the sum: `W^UV o` for each head, `[heads, tokens, d_v]`, from the means of latents `[heads, tokens, d_c]` and
/// W^UV `[heads d_v, d_c]`.
///
/// # Panics
/// If the two do not fit together.
// ANCHOR: expand
pub fn expand(latent: ArrayView3<f32>, w_uv: ArrayView2<f32>) -> Array3<f32> {
    let (heads, tokens, _) = latent.dim();
    let d_v = w_uv.nrows() / heads;
    let mut o = Array3::zeros((heads, tokens, d_v));
    for (head, mut o) in o.outer_iter_mut().enumerate() {
        let w_uv = w_uv.slice(s![head * d_v..(head + 1) * d_v, ..]);
        o.assign(&latent.index_axis(Axis(0), head).dot(&w_uv.t()));
    }
    o
}
// ANCHOR_END: expand
