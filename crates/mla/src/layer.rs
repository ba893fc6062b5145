//! The layer: projections in, one of three forms of attention, projection out.

use crate::rope::{HalfSplit, Interleaved, Pairing, Rope};
use crate::weights::{Matrices, Weights};
use crate::{Cache, Dims, LatentCache, Yarn, absorbed, fused, naive, rotate, scale};
use attention::{AttentionError, DType, Mask, Options, Output, Tensor, TensorView};
use half::{bf16, f16};
use ndarray::parallel::prelude::*;
use ndarray::{Array, Array2, Array3, ArrayView2, ArrayView3, Axis, Dimension, Ix2, concatenate, s};
use std::marker::PhantomData;

/// Outputs that one task projects.
const OUT: usize = 128;

/// How attention over the latents is computed. All three give the same result, up to rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// K and V of all tokens are decompressed, then attention as of any layer: [`naive`].
    Naive,
    /// A tile of K and V at a time is decompressed inside the loop over keys: [`fused`].
    Fused,
    /// Nothing is decompressed: the queries come to the latents. [`absorbed`].
    Absorbed,
}

impl Form {
    /// All of them.
    pub const ALL: [Form; 3] = [Form::Naive, Form::Fused, Form::Absorbed];

    /// Its name in packs, results and on the command line. One of them is also the name of the rung that it uses.
    pub fn name(self) -> &'static str {
        match self {
            Form::Naive => "mla-naive",
            Form::Fused => "mla-fused",
            Form::Absorbed => "mla-absorbed",
        }
    }
}

/// Multi-head latent attention with weights whose RoPE turns pairs `P`.
///
/// What is computed is f32, and [`project`]ions are summed in f64; what is stored, be it the cache, queries, keys, values or
/// a result, is rounded once to the layer's type.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer<P> {
    dims: Dims,
    dtype: DType,
    yarn: Option<Yarn>,
    rope: Rope<P>,
    weights: Matrices,
}

/// The queries of some tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Queries<P> {
    /// q^C, `[heads, tokens, d_nope]`
    pub nope: Array3<f32>,
    /// q^R, rotated in pairs `P`, `[heads, tokens, d_rope]`
    pub rope: Array3<f32>,
    /// Which pairs.
    pub pairing: PhantomData<P>,
}

impl<P> Queries<P> {
    /// (16) q = [q^C; q^R], `[heads, tokens, d_nope + d_rope]`.
    pub fn joined(&self) -> Array3<f32> {
        concatenate![Axis(2), self.nope, self.rope]
    }
}

/// What a form computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Heads {
    /// o, `[heads, tokens, d_v]`, rounded to the layer's type.
    pub o: Array3<f32>,
    /// `ln sum_j e^s`, `[heads, tokens]`.
    pub lse: Array2<f32>,
    /// What the absorbed form meets on the way.
    pub latent: Option<Latent>,
}

impl Heads {
    /// The result of a problem of one sequence: `[1, heads, tokens, d_v]`.
    ///
    /// # Panics
    /// If it is of another rank.
    pub fn of(output: Output) -> Self {
        let (o, lse) = (output.o.view().to_f64().mapv(|x| x as f32), output.lse);
        let o = o.index_axis_move(Axis(0), 0).into_dimensionality().expect("heads, tokens, channels");
        let lse = lse.index_axis_move(Axis(0), 0).into_dimensionality().expect("heads, tokens");
        Heads { o, lse, latent: None }
    }
}

/// Queries and results in the space of the latents.
#[derive(Clone, Debug, PartialEq)]
pub struct Latent {
    /// `W^UK^T q^C`, `[heads, tokens, d_c]`
    pub q: Array3<f32>,
    /// `sum_j p_j c_j`, `[heads, tokens, d_c]`
    pub o: Array3<f32>,
}

/// The result of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Attended {
    /// u, `[tokens, d_model]`, in the layer's type.
    pub out: Tensor,
    /// What went into it.
    pub heads: Heads,
}

impl<P: Pairing> Layer<P> {
    /// The layer, its weights widened to f32.
    ///
    /// # Errors
    /// [`AttentionError::Value`], [`AttentionError::Shape`] or [`AttentionError::DType`] name the size or the weight that
    /// does not fit, what was found and what was wanted.
    pub fn new(dims: Dims, weights: &Weights, rope: Rope<P>, yarn: Option<Yarn>) -> Result<Self, AttentionError> {
        dims.check()?;
        yarn.map_or(Ok(()), |yarn| yarn.check())?;
        let factor = scale(&dims, yarn);
        if !(factor as f32).is_finite() {
            return AttentionError::value("scale", factor, "a finite f32");
        }
        if rope.d_rope() != dims.d_rope {
            let wanted = format!("[{}], one for each pair of d_rope", dims.d_rope / 2);
            return AttentionError::shape("frequencies", &[rope.frequencies().len()], wanted);
        }
        let (weights, dtype) = Matrices::new(&dims, weights)?;
        Ok(Layer { dims, dtype, yarn, rope, weights })
    }

    /// The sizes.
    pub fn dims(&self) -> &Dims {
        &self.dims
    }

    /// The type of weights, tokens, cache and results.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The weights, in f32.
    pub fn weights(&self) -> &Matrices {
        &self.weights
    }

    /// The rotation.
    pub fn rope(&self) -> &Rope<P> {
        &self.rope
    }

    /// What YaRN changes, if it is on.
    pub fn yarn(&self) -> Option<Yarn> {
        self.yarn
    }

    /// The layer's scores: the [`scale`] of its sizes, and a causal mask.
    pub fn options<'a>(&self) -> Options<'a> {
        Options { scale: Some(scale(&self.dims, self.yarn)), mask: Mask::Causal, ..Options::default() }
    }

    /// A tensor of the layer's type that holds `values`.
    pub fn tensor<D: Dimension>(&self, values: Array<f32, D>) -> Tensor {
        match self.dtype {
            DType::F16 => values.mapv(f16::from_f32).into(),
            DType::Bf16 => values.mapv(bf16::from_f32).into(),
            DType::F32 | DType::F64 | DType::E4m3 => values.into(),
        }
    }

    /// The values as a tensor of the layer's type would hold them.
    pub fn rounded<D: Dimension>(&self, values: Array<f32, D>) -> Array<f32, D> {
        match self.dtype {
            DType::F16 => values.mapv_into(|x| f16::from_f32(x).to_f32()),
            DType::Bf16 => values.mapv_into(|x| bf16::from_f32(x).to_f32()),
            DType::F32 | DType::F64 | DType::E4m3 => values,
        }
    }

    /// An empty cache for this layer, with room for `tokens` tokens at first.
    ///
    /// # Errors
    /// [`AttentionError::Memory`].
    pub fn cache(&self, tokens: usize) -> Result<Cache<P>, AttentionError> {
        Cache::new(self.dtype, self.dims.d_c, self.dims.d_rope, tokens)
    }

    /// Attends the tokens `h` `[tokens, d_model]` of one sequence, which come right after those in `cache`, and adds them
    /// to it. All at once are a prefill, a few at a time a chunked one, one by one is decoding; each sees itself and what
    /// came before.
    ///
    /// # Errors
    /// [`AttentionError::Shape`] or [`AttentionError::DType`] if h or the cache are not this layer's, and
    /// [`AttentionError::Memory`], or [`AttentionError::Value`] if a pool has no places for the tokens; the cache is as before
    /// then.
    pub fn forward(
        &self,
        form: Form,
        h: &TensorView,
        cache: &mut impl LatentCache<P>,
    ) -> Result<Attended, AttentionError> {
        let h = self.check(h, cache)?;
        let position = cache.len();
        cache.append(compress(self, h.view(), position).view())?;
        let queries = queries(self, h.view(), position);
        let heads = match form {
            Form::Naive => naive(self, &queries, cache),
            Form::Fused => fused(self, &queries, cache),
            Form::Absorbed => absorbed(self, &queries, cache),
        };
        let heads = heads.inspect_err(|_| cache.truncate(position))?;
        // (19) u = W^O [o_1; ..; o_H]
        let out = project(joined(heads.o.view()).view(), &self.weights.o);
        Ok(Attended { out: self.tensor(out), heads })
    }

    /// The tokens in f32, once they and the cache fit.
    fn check(&self, h: &TensorView, cache: &impl LatentCache<P>) -> Result<Array2<f32>, AttentionError> {
        let Dims { d_model, d_c, d_rope, .. } = self.dims;
        match *h.shape() {
            [_, channels] if channels == d_model => {}
            _ => return AttentionError::shape("h", h.shape(), format!("[tokens, {d_model}]")),
        }
        if (cache.d_c(), cache.d_rope()) != (d_c, d_rope) {
            return AttentionError::shape(
                "cache",
                &[cache.d_c(), cache.d_rope()],
                format!("d_c and d_rope [{d_c}, {d_rope}]"),
            );
        }
        for (tensor, found) in [("h", h.dtype()), ("cache", cache.dtype())] {
            if found != self.dtype {
                let wanted = format!("{} as in the weights", self.dtype);
                return Err(AttentionError::DType { tensor, found, wanted });
            }
        }
        Ok(h.to_f64().mapv(|x| x as f32).into_dimensionality::<Ix2>().expect("a rank that was checked"))
    }
}

impl Layer<Interleaved> {
    /// The same layer for kernels that turn pairs (i, i + d/2): the rows of W^QR and W^KR are permuted alike, so that
    /// every score stays what it was. Caches hold permuted keys, and are of another type.
    pub fn into_half_split(mut self) -> Layer<HalfSplit> {
        let d_rope = self.dims.d_rope;
        for w in [&mut self.weights.qr, &mut self.weights.kr] {
            let old = w.clone();
            for (row, mut w) in w.rows_mut().into_iter().enumerate() {
                let (head, channel) = (row / d_rope * d_rope, row % d_rope);
                let (pair, second) = (channel % (d_rope / 2), channel / (d_rope / 2));
                w.assign(&old.row(head + 2 * pair + second));
            }
        }
        let Layer { dims, dtype, yarn, rope, weights } = self;
        Layer { dims, dtype, yarn, rope: rope.repaired(), weights }
    }
}

/// `W x` for each token, `[tokens, out]`, from `x` `[tokens, in]` and `w` `[out, in]`, summed in f64: thousands of terms in
/// f32 would cost more digits than all of attention.
///
/// # Panics
/// If the two do not fit together.
pub fn project(x: ArrayView2<f32>, w: &Array2<f32>) -> Array2<f32> {
    let x = x.mapv(f64::from);
    let mut y = Array2::zeros((x.nrows(), w.nrows()));
    let some = y.axis_chunks_iter_mut(Axis(1), OUT).into_par_iter().zip(w.axis_chunks_iter(Axis(0), OUT));
    some.for_each(|(mut y, w)| y.assign(&x.dot(&w.mapv(f64::from).t()).mapv(|y| y as f32)));
    y
}

/// What the cache holds of the tokens `h` `[tokens, d_model]` from `position` on: rows `[c_kv | k_rope]`,
/// `[tokens, d_c + d_rope]`.
///
/// # Panics
/// If h has other channels.
// ANCHOR: compress
pub fn compress<P: Pairing>(layer: &Layer<P>, h: ArrayView2<f32>, position: usize) -> Array2<f32> {
    let w = layer.weights();
    let mut rows = Array2::zeros((h.nrows(), layer.dims().latent()));
    let (mut c_kv, mut k_rope) = rows.view_mut().split_at(Axis(1), layer.dims().d_c);
    // (9) c^KV = W^DKV h, normalised where the layer has norms.
    c_kv.assign(&project(h, &w.dkv));
    if let Some(norm) = &w.norm_kv {
        norm.apply(c_kv);
    }
    // (15) k^R = RoPE(W^KR h), one key for all heads, straight from the token: what is rotated must not lie between W^UK
    // and the query, or W^UK could not be absorbed.
    k_rope.assign(&project(h, &w.kr));
    for (token, k_rope) in k_rope.axis_chunks_iter_mut(Axis(0), 1).enumerate() {
        rotate(layer.rope(), k_rope, position + token);
    }
    rows
}
// ANCHOR_END: compress

/// The queries of the tokens `h` `[tokens, d_model]` from `position` on.
///
/// # Panics
/// If h has other channels.
// ANCHOR: queries
pub fn queries<P: Pairing>(layer: &Layer<P>, h: ArrayView2<f32>, position: usize) -> Queries<P> {
    let (w, heads) = (layer.weights(), layer.dims().heads);
    // (12) c^Q = W^DQ h, normalised where the layer has norms.
    let mut c_q = project(h, &w.dq);
    if let Some(norm) = &w.norm_q {
        norm.apply(c_q.view_mut());
    }
    // (13) q^C = W^UQ c^Q
    let nope = split(project(c_q.view(), &w.uq), heads);
    // (14) q^R = RoPE(W^QR c^Q)
    let mut rope = split(project(c_q.view(), &w.qr), heads);
    for token in 0..h.nrows() {
        rotate(layer.rope(), rope.slice_mut(s![.., token, ..]), position + token);
    }
    Queries { nope, rope, pairing: PhantomData }
}
// ANCHOR_END: queries

/// `[tokens, heads d]` as `[heads, tokens, d]`.
///
/// # Panics
/// If the columns are no multiple of `heads`.
pub fn split(x: Array2<f32>, heads: usize) -> Array3<f32> {
    let (tokens, d) = (x.nrows(), x.ncols() / heads);
    let x = x.into_shape_with_order((tokens, heads, d)).expect("as many channels for each head");
    x.permuted_axes([1, 0, 2]).as_standard_layout().into_owned()
}

/// `[heads, tokens, d]` as `[tokens, heads d]`.
fn joined(x: ArrayView3<f32>) -> Array2<f32> {
    let (heads, tokens, d) = x.dim();
    let x = x.permuted_axes([1, 0, 2]).as_standard_layout().into_owned();
    x.into_shape_with_order((tokens, heads * d)).expect("as many numbers")
}
