//! Multi-head latent attention (MLA) of DeepSeek-V2 (arXiv 2405.04434, section 2.1); DeepSeek-V3 has the same.
//!
//! A decoding step reads all that is cached of every token before it, so a small cache is a fast one. MLA caches one
//! *latent* of d_c channels for each token, from which the keys and values of all heads can be computed, and one *rotated
//! key* of d_rope channels, which all heads share: 576 numbers in DeepSeek-V2, where multi-head attention would keep 32,768.
//!
//! | equation | here |
//! |---|---|
//! | 9, 15: what is cached | [`compress`], into a [`Cache`] or a [`PagedCache`] |
//! | 12 to 14: queries | [`queries`] |
//! | 10, 11, 17: keys and values | [`decompress`] |
//! | 18: attention | [`naive()`], [`fused()`] or [`absorbed()`] |
//! | 19: the result | [`Layer::forward`] |
//!
//! The three [`Form`]s give the same result. The first two compute keys and values; the third moves the matrices that do to
//! the query and to the result, and attends the latents themselves. That is what decoding does, and its attention is a rung
//! of the ladder, [`MlaAbsorbed`]. [`cost`] says what each form takes and where they cross; [`Cached`] compares caches.
//!
//! RoPE turns pairs of channels, and which ones is a convention: [`Interleaved`] or [`HalfSplit`], a type that layer,
//! queries and cache carry, so that the two cannot meet.
//!
//! ```
//! use attention::TensorView;
//! use mla::{Dims, Form, Interleaved, LatentCache, Layer, Rope, Weights};
//! use ndarray::Array2;
//!
//! let dims = Dims { d_model: 16, heads: 3, d_nope: 4, d_rope: 2, d_v: 5, d_c: 8, d_cq: 6 };
//! let w = |out: usize, from: usize| Array2::from_shape_fn((out, from), |(i, j)| (1.3 * i as f32 + j as f32).sin());
//! let (dq, uq, qr, o) = (w(6, 16), w(12, 6), w(6, 6), w(16, 15));
//! let (dkv, uk, uv, kr) = (w(8, 16), w(12, 8), w(15, 8), w(2, 16));
//! let [dq, uq, qr, dkv, uk, uv, kr, o] = [&dq, &uq, &qr, &dkv, &uk, &uv, &kr, &o].map(|w| TensorView::from(w.view()));
//! let weights = Weights { dq, uq, qr, dkv, uk, uv, kr, o, norms: None };
//! let layer = Layer::<Interleaved>::new(dims, &weights, Rope::new(2, 1e4)?, None)?;
//!
//! // A prompt of six tokens, decompressed; then one token, absorbed. The cache holds 8 + 2 numbers for each.
//! let h = w(7, 16);
//! let mut cache = layer.cache(7)?;
//! let h = TensorView::from(h.view());
//! layer.forward(Form::Naive, &h.rows(0..6), &mut cache)?;
//! layer.forward(Form::Absorbed, &h.rows(6..7), &mut cache)?;
//! assert_eq!((cache.len(), cache.allocated()), (7, 7 * (8 + 2) * 4));
//! # Ok::<(), attention::AttentionError>(())
//! ```
//!
//! What it does not do: layers without compressed queries (DeepSeek-V2-Lite), training, and the frequencies of YaRN, which
//! [`Rope::with_frequencies`] takes as they are given.

mod absorbed;
mod cache;
pub mod cost;
mod dims;
mod fused;
mod layer;
mod naive;
mod paged;
mod rope;
mod rung;
mod weights;

pub use absorbed::{absorb, absorbed, expand};
pub use cache::{Cache, LatentCache};
pub use cost::Cached;
pub use dims::{Dims, Yarn, scale};
pub use fused::fused;
pub use layer::{Attended, Form, Heads, Latent, Layer, Queries, compress, project, queries, split};
pub use naive::{decompress, naive};
pub use paged::PagedCache;
pub use rope::{HalfSplit, Interleaved, Pairing, Rope, rotate};
pub use rung::MlaAbsorbed;
pub use weights::{Matrices, Norms, RmsNorm, Weights};
