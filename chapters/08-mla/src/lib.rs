//! Chapter 8, the exercise: multi-head latent attention of DeepSeek-V2 (arXiv 2405.04434, section 2.1).
//!
//! Six functions are yours, in this order. Absorption: [`absorb`], [`scale`], [`expand`]. Decoupled RoPE: [`rotate`],
//! [`compress`], [`queries`]. The rest is given. `cargo run --release -- check 8` says how far you are, and `--hint` helps.
//!
//! A layer caches one latent c^KV of d_c channels for each token, and one rotated key k^R of d_rope channels for all heads.
//! Keys and values of head i would be `k^C = W^UK_i c^KV` and `v^C = W^UV_i c^KV`. The absorbed form, [`absorbed`], never
//! computes them: it takes W^UK to the query and W^UV behind the sum, and what stands between is attention of all heads on
//! the cache as it lies.
//!
//! Crate `mla` gives what surrounds that: sizes and weights, the [`Layer`] that holds them, the [`Cache`], and the rung
//! [`MlaAbsorbed`]. All weights are `[out, in]` with the heads outermost in `out`: head i of W^UK `[heads d_nope, d_c]` is rows
//! `i * d_nope .. (i + 1) * d_nope`. Rows of every other matrix are tokens, so that `W x` for all of them is `x.dot(&w.t())`.
//! Docs of what is given: crates/mla/src, or `cargo doc -p mla --open`. The functions that it has under the names of yours
//! are the reference.

#![allow(unused, clippy::todo, reason = "what the functions still to be written will use is already here")]

use attention::{Attention, AttentionError, Batch, Mask, Options, Problem};
use mla::{Cache, Dims, Heads, Latent, LatentCache, Layer, MlaAbsorbed, Pairing, Queries, Rope, Yarn, project, split};
use ndarray::{Array2, Array3, ArrayView2, ArrayView3, ArrayViewMut2, Axis, concatenate, s};
use std::marker::PhantomData;

/// Step 1, absorption: `W^UK^T q^C` for each head, `[heads, tokens, d_c]`, from q^C `[heads, tokens, d_nope]` and W^UK
/// `[heads d_nope, d_c]`.
///
/// A score's part without position is `q^C . k^C = q^C . (W^UK c) = (W^UK^T q^C) . c`. So W^UK can move from every key to the
/// one query.
///
/// First hint: head by head it is one matrix product, of `[tokens, d_nope]` and `[d_nope, d_c]`.
pub fn absorb(q: ArrayView3<f32>, w_uk: ArrayView2<f32>) -> Array3<f32> {
    todo!("step 1, absorb")
}

/// Step 2. The factor of `q . k` in every form: `1 / sqrt(d_nope + d_rope)`, as equation 18 has it, and with YaRN times
/// `mscale^2` ([`Yarn::mscale`]).
///
/// First hint: the absorbed product has d_c + d_rope channels, and is still the same number.
pub fn scale(dims: &Dims, yarn: Option<Yarn>) -> f64 {
    todo!("step 2, scale")
}

/// Step 3. `W^UV o` for each head, `[heads, tokens, d_v]`, from the means of latents `[heads, tokens, d_c]` and W^UV
/// `[heads d_v, d_c]`.
///
/// A head's output is `sum_j p_j (W^UV c_j) = W^UV (sum_j p_j c_j)`: the sum first, then one product.
///
/// First hint: as step 1, but this W is not transposed, and d_v is its rows divided by the heads.
pub fn expand(latent: ArrayView3<f32>, w_uv: ArrayView2<f32>) -> Array3<f32> {
    todo!("step 3, expand")
}

/// Step 4, RoPE: turns `vectors` `[any, d_rope]`, all of one token at `position`, in place. Pair i of channels `(x, y)` becomes
/// `(x cos a - y sin a, x sin a + y cos a)` with `a = position * frequency_i`.
///
/// `rope.frequencies()` has one frequency for each pair, and `P::pair(i, rope.d_rope())` its two channels: (2i, 2i + 1) or
/// (i, i + d_rope / 2), as the weights want it.
///
/// First hint: one loop over the pairs, one over the rows. Compute the angle in f64: `f64::sin_cos` gives both.
pub fn rotate<P: Pairing>(rope: &Rope<P>, mut vectors: ArrayViewMut2<f32>, position: usize) {
    todo!("step 4, rotate")
}

/// Step 5. What the cache holds of the tokens `h` `[tokens, d_model]`, of which the first is at `position`: rows
/// `[c^KV | k^R]`, `[tokens, d_c + d_rope]`, and nothing twice.
///
/// equation 9: `c^KV = W^DKV h`, then `norm_kv`, if the layer has it, on c^KV alone;
/// equation 15: `k^R = RoPE(W^KR h)`, each token at its own position. It comes from h, not from c^KV, and all heads share it.
///
/// `layer.weights()` has the matrices `dkv` and `kr` and the norm `norm_kv`, `layer.rope()` the rotation, and
/// [`project`]`(h, &w)` is `W h`.
///
/// First hint: make the rows as zeros and split them at column d_c with `view_mut().split_at(Axis(1), ..)`.
pub fn compress<P: Pairing>(layer: &Layer<P>, h: ArrayView2<f32>, position: usize) -> Array2<f32> {
    todo!("step 5, compress")
}

/// Step 6. The queries of the tokens `h` `[tokens, d_model]`, of which the first is at `position`.
///
/// equation 12: `c^Q = W^DQ h`, then `norm_q`, if the layer has it;
/// equation 13: `q^C = W^UQ c^Q`;
/// equation 14: `q^R = RoPE(W^QR c^Q)`, each token at its own position.
///
/// [`split`]`(x, heads)` makes `[heads, tokens, d]` of `[tokens, heads d]`.
///
/// First hint: for one token `rope.slice_mut(s![.., token, ..])` are the vectors of all heads.
pub fn queries<P: Pairing>(layer: &Layer<P>, h: ArrayView2<f32>, position: usize) -> Queries<P> {
    todo!("step 6, queries")
}

/// Attention over the latents, by the rung [`MlaAbsorbed`] on the cache as it lies.
///
/// # Errors
/// [`AttentionError::Memory`].
pub fn absorbed<P: Pairing>(layer: &Layer<P>, queries: &Queries<P>, cache: &Cache<P>) -> Result<Heads, AttentionError> {
    let w = layer.weights();
    let q_latent = layer.rounded(absorb(queries.nope.view(), w.uk.view()));
    // (16) and (17) in the space of the latents: q = [W^UK^T q^C; q^R], k = [c^KV; k^R], v = c^KV.
    let q = layer.tensor(concatenate![Axis(2), q_latent, queries.rope].insert_axis(Axis(0)));
    let scale = Some(scale(layer.dims(), layer.yarn()));
    let options = Options { scale, mask: Mask::Causal, ..Options::default() };
    // (18)
    let problem = Problem::new(q.view(), cache.kv(), Batch::Dense, options)?;
    let Heads { o: o_latent, lse, .. } = Heads::of(MlaAbsorbed::default().forward(&problem)?);
    let o = layer.rounded(expand(o_latent.view(), w.uv.view()));
    Ok(Heads { o, lse, latent: Some(Latent { q: q_latent, o: o_latent }) })
}
