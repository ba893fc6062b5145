//! A layer's weights: as they are given, checked, and as they are computed with.

use crate::Dims;
use crate::dims::check_type;
use attention::{AttentionError, DType, TensorView};
use ndarray::{Array1, Array2, ArrayD, ArrayViewMut2, Dimension};

/// The weights of a layer, each `[out, in]`, with the heads outermost in `out`: `y = W x`. All of one type.
///
/// How W^QR and W^KR pair their channels is the layer's type parameter, a [`Pairing`](crate::Pairing).
#[derive(Clone, Debug)]
pub struct Weights<'a> {
    /// W^DQ `[d_cq, d_model]`
    pub dq: TensorView<'a>,
    /// W^UQ `[heads d_nope, d_cq]`
    pub uq: TensorView<'a>,
    /// W^QR `[heads d_rope, d_cq]`
    pub qr: TensorView<'a>,
    /// W^DKV `[d_c, d_model]`
    pub dkv: TensorView<'a>,
    /// W^UK `[heads d_nope, d_c]`
    pub uk: TensorView<'a>,
    /// W^UV `[heads d_v, d_c]`
    pub uv: TensorView<'a>,
    /// W^KR `[d_rope, d_model]`
    pub kr: TensorView<'a>,
    /// W^O `[d_model, heads d_v]`
    pub o: TensorView<'a>,
    /// Norms of the two latents; the released models have them.
    pub norms: Option<Norms<'a>>,
}

/// RMSNorm of the latents right after the down projections, `x * gain / sqrt(mean(x^2) + eps)`: section 3.1.2 of the paper.
#[derive(Clone, Debug)]
pub struct Norms<'a> {
    /// Gain of the queries' latent, `[d_cq]`.
    pub q: TensorView<'a>,
    /// Gain of the keys' and values' latent, `[d_c]`.
    pub kv: TensorView<'a>,
    /// 1e-6 in the released models.
    pub eps: f64,
}

/// Weights in f32, each `[out, in]`, as [`Weights`] has them.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrices {
    /// W^DQ
    pub dq: Array2<f32>,
    /// W^UQ
    pub uq: Array2<f32>,
    /// W^QR
    pub qr: Array2<f32>,
    /// W^DKV
    pub dkv: Array2<f32>,
    /// W^UK
    pub uk: Array2<f32>,
    /// W^UV
    pub uv: Array2<f32>,
    /// W^KR
    pub kr: Array2<f32>,
    /// W^O
    pub o: Array2<f32>,
    /// The norm of the queries' latent, if there is one.
    pub norm_q: Option<RmsNorm>,
    /// The norm of the keys' and values' latent, if there is one.
    pub norm_kv: Option<RmsNorm>,
}

/// One RMSNorm.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    gain: Array1<f32>,
    eps: f64,
}

impl RmsNorm {
    /// Normalises each row of `x` `[tokens, channels]`.
    pub fn apply(&self, mut x: ArrayViewMut2<f32>) {
        for mut x in x.rows_mut() {
            let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64;
            x *= (1.0 / (mean + self.eps).sqrt()) as f32;
            x *= &self.gain;
        }
    }
}

impl Matrices {
    /// Checks every weight, then widens all of them. With them comes their type.
    pub(crate) fn new(dims: &Dims, weights: &Weights) -> Result<(Self, DType), AttentionError> {
        let Dims { d_model, heads, d_nope, d_rope, d_v, d_c, d_cq } = *dims;
        let Weights { dq, uq, qr, dkv, uk, uv, kr, o, norms } = weights;
        let dtype = dq.dtype();
        check_type("w_dq", dtype)?;
        let mut all = vec![
            ("w_dq", dq, vec![d_cq, d_model]),
            ("w_uq", uq, vec![heads * d_nope, d_cq]),
            ("w_qr", qr, vec![heads * d_rope, d_cq]),
            ("w_dkv", dkv, vec![d_c, d_model]),
            ("w_uk", uk, vec![heads * d_nope, d_c]),
            ("w_uv", uv, vec![heads * d_v, d_c]),
            ("w_kr", kr, vec![d_rope, d_model]),
            ("w_o", o, vec![d_model, heads * d_v]),
        ];
        if let Some(Norms { q, kv, eps }) = norms {
            all.extend([("g_q", q, vec![d_cq]), ("g_kv", kv, vec![d_c])]);
            if !eps.is_finite() || *eps < 0.0 {
                return AttentionError::value("eps", eps, "0 or a positive finite number");
            }
        }
        for (tensor, found, wanted) in all {
            if found.shape() != wanted {
                return AttentionError::shape(tensor, found.shape(), format!("{wanted:?}"));
            }
            if found.dtype() != dtype {
                let wanted = format!("{dtype} as in w_dq");
                return Err(AttentionError::DType { tensor, found: found.dtype(), wanted });
            }
        }
        let norm = |gain: fn(&Norms) -> ArrayD<f64>| {
            norms.as_ref().map(|norms| RmsNorm { gain: ranked(gain(norms)), eps: norms.eps })
        };
        let [dq, uq, qr, dkv, uk, uv, kr, o] = [dq, uq, qr, dkv, uk, uv, kr, o].map(|w| ranked(w.to_f64()));
        let (norm_q, norm_kv) = (norm(|norms| norms.q.to_f64()), norm(|norms| norms.kv.to_f64()));
        Ok((Matrices { dq, uq, qr, dkv, uk, uv, kr, o, norm_q, norm_kv }, dtype))
    }
}

/// An array of checked rank in f32, row-major. What it holds has come from f32 or less.
fn ranked<D: Dimension>(array: ArrayD<f64>) -> ndarray::Array<f32, D> {
    array.mapv(|x| x as f32).as_standard_layout().into_owned().into_dimensionality().expect("a shape that was checked")
}
