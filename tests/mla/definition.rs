//! A layer in numbers, and what it must give, by the paper's equations in f64: one token, one head and one key at a time.
//! It shares nothing with the crate but the sizes.

use attention::{DType, Tensor, TensorView};
use half::{bf16, f16};
use mla::{Dims, Norms, Weights, Yarn};
use ndarray::{Array1, Array2, Array3, ArrayD, ArrayView1, s};
use rand::SeedableRng;
use rand::rngs::StdRng;
use testkit::problems::normal;

/// Which channels RoPE turns together: the convention of the definition, apart from that of the crate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pairs {
    Neighbours,
    Halves,
}

/// A layer and its tokens, of which everything follows from these few numbers.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) dims: Dims,
    pub(crate) dtype: DType,
    pub(crate) norms: bool,
    pub(crate) yarn: Option<Yarn>,
    pub(crate) tokens: usize,
    /// The tokens before it are only there to be seen: nobody asks what they get.
    pub(crate) first: usize,
    pub(crate) seed: u64,
}

pub(crate) const THETA: f64 = 10_000.0;

pub(crate) const EPS: f64 = 1e-6;

/// Owned tensors of a case, rounded to its type.
pub(crate) struct Owned {
    /// dq, uq, qr, dkv, uk, uv, kr, o
    pub(crate) weights: [Tensor; 8],
    pub(crate) gains: Option<[Tensor; 2]>,
    pub(crate) h: Tensor,
}

fn rounded(values: ArrayD<f64>, dtype: DType) -> Tensor {
    match dtype {
        DType::F16 => values.mapv(f16::from_f64).into(),
        DType::Bf16 => values.mapv(bf16::from_f64).into(),
        _ => values.mapv(|x| x as f32).into(),
    }
}

impl Case {
    /// Small sizes, none like another, to vary from.
    pub(crate) fn plain() -> Self {
        let dims = Dims { d_model: 24, heads: 3, d_nope: 8, d_rope: 6, d_v: 7, d_c: 16, d_cq: 12 };
        Case { dims, dtype: DType::F32, norms: true, yarn: None, tokens: 9, first: 0, seed: 8 }
    }

    pub(crate) fn build(&self) -> Owned {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let Dims { d_model, heads, d_nope, d_rope, d_v, d_c, d_cq } = self.dims;
        let mut w = |out: usize, from: usize, factor: f64| {
            rounded(normal(&mut rng, &[out, from]) * (factor / (from as f64).sqrt()), self.dtype)
        };
        let weights = [
            w(d_cq, d_model, 1.0),
            w(heads * d_nope, d_cq, 2.0),
            w(heads * d_rope, d_cq, 2.0),
            w(d_c, d_model, 1.0),
            w(heads * d_nope, d_c, 2.0),
            w(heads * d_v, d_c, 1.0),
            w(d_rope, d_model, 2.0),
            w(d_model, heads * d_v, 1.0),
        ];
        let mut gain = |d: usize| rounded(normal(&mut rng, &[d]) * 0.1 + 1.0, self.dtype);
        let gains = self.norms.then(|| [gain(d_cq), gain(d_c)]);
        let h = rounded(normal(&mut rng, &[self.tokens, d_model]), self.dtype);
        Owned { weights, gains, h }
    }
}

impl Owned {
    pub(crate) fn weights(&self) -> Weights<'_> {
        let [dq, uq, qr, dkv, uk, uv, kr, o] = self.weights.each_ref().map(Tensor::view);
        let norms = self.gains.as_ref().map(|[q, kv]| Norms { q: q.view(), kv: kv.view(), eps: EPS });
        Weights { dq, uq, qr, dkv, uk, uv, kr, o, norms }
    }
}

/// What the equations give.
pub(crate) struct Truth {
    /// q and k `[heads, tokens, d_nope + d_rope]`, v `[heads, tokens, d_v]`.
    pub(crate) q: Array3<f64>,
    pub(crate) k: Array3<f64>,
    pub(crate) v: Array3<f64>,
    /// `[tokens, d_c]`
    pub(crate) c_kv: Array2<f64>,
    /// `[tokens, d_rope]`
    pub(crate) k_rope: Array2<f64>,
    /// `[heads, tokens, d_v]`
    pub(crate) o: Array3<f64>,
    /// `[heads, tokens]`
    pub(crate) lse: Array2<f64>,
    /// `[tokens, d_model]`
    pub(crate) out: Array2<f64>,
    pub(crate) scale: f64,
    w_o: Array2<f64>,
    /// Largest |score| of a row, `[heads, tokens]`.
    s_max: Array2<f64>,
    /// Largest sum of magnitudes that cancel in a score, whichever way it is multiplied: `[heads, tokens]`.
    reach: Array2<f64>,
    /// The same of a value, `[heads, d_v]`.
    v_reach: Array2<f64>,
}

/// Section 2.1 of the paper.
pub(crate) fn truth(case: &Case, owned: &Owned, pairs: Pairs) -> Truth {
    let Dims { d_model, heads, d_nope, d_rope, d_v, d_c, .. } = case.dims;
    let [dq, uq, qr, dkv, uk, uv, kr, w_o] = owned.weights.each_ref().map(|w| matrix(w.view()));
    let gain = |place: usize| owned.gains.as_ref().map(|gains| gains[place].view().to_f64().into_iter().collect());
    let (gain_q, gain_kv): (Option<Vec<f64>>, Option<Vec<f64>>) = (gain(0), gain(1));
    let h = matrix(owned.h.view());
    let tokens = h.nrows();
    let mscale = case.yarn.map_or(1.0, |yarn| 0.1 * yarn.mscale_all_dim * yarn.factor.ln() + 1.0);
    let mut truth = Truth {
        q: Array3::zeros((heads, tokens, d_nope + d_rope)),
        k: Array3::zeros((heads, tokens, d_nope + d_rope)),
        v: Array3::zeros((heads, tokens, d_v)),
        c_kv: Array2::zeros((tokens, d_c)),
        k_rope: Array2::zeros((tokens, d_rope)),
        o: Array3::zeros((heads, tokens, d_v)),
        lse: Array2::zeros((heads, tokens)),
        out: Array2::zeros((tokens, d_model)),
        scale: mscale * mscale / ((d_nope + d_rope) as f64).sqrt(),
        s_max: Array2::zeros((heads, tokens)),
        reach: Array2::zeros((heads, tokens)),
        v_reach: Array2::zeros((heads, d_v)),
        w_o,
    };
    for t in 0..tokens {
        let c_q = normed(dq.dot(&h.row(t)), &gain_q);
        let (q_c, q_r) = (uq.dot(&c_q), qr.dot(&c_q));
        let c_kv = normed(dkv.dot(&h.row(t)), &gain_kv);
        let (k_c, v_c, k_r) = (uk.dot(&c_kv), uv.dot(&c_kv), turned(kr.dot(&h.row(t)).view(), t, pairs));
        for head in 0..heads {
            let part = |x: &Array1<f64>, d: usize| x.slice(s![head * d..(head + 1) * d]).to_owned();
            truth.q.slice_mut(s![head, t, ..d_nope]).assign(&part(&q_c, d_nope));
            truth.q.slice_mut(s![head, t, d_nope..]).assign(&turned(part(&q_r, d_rope).view(), t, pairs));
            truth.k.slice_mut(s![head, t, ..d_nope]).assign(&part(&k_c, d_nope));
            truth.k.slice_mut(s![head, t, d_nope..]).assign(&k_r);
            truth.v.slice_mut(s![head, t, ..]).assign(&part(&v_c, d_v));
        }
        truth.c_kv.row_mut(t).assign(&c_kv);
        truth.k_rope.row_mut(t).assign(&k_r);
    }
    truth.attend(case.first);
    truth.measure(&uk, &uv);
    truth
}

fn norm(x: ArrayView1<f64>) -> f64 {
    x.dot(&x).sqrt()
}

impl Truth {
    /// How large numbers are before they cancel, from which f32 takes its errors.
    fn measure(&mut self, uk: &Array2<f64>, uv: &Array2<f64>) {
        let (heads, tokens, d_v) = self.o.dim();
        let d_nope = uk.nrows() / heads;
        let largest = |x: &Array2<f64>| x.rows().into_iter().map(norm).fold(0f64, f64::max);
        let (c, k_rope) = (largest(&self.c_kv), largest(&self.k_rope));
        for head in 0..heads {
            let uk = uk.slice(s![head * d_nope..(head + 1) * d_nope, ..]);
            let whole = uk.iter().map(|w| w * w).sum::<f64>().sqrt();
            for t in 0..tokens {
                let (q_c, q_r) = (self.q.slice(s![head, t, ..d_nope]), self.q.slice(s![head, t, d_nope..]));
                let latent = norm(q_c.dot(&uk).view()) + norm(q_c) * whole;
                self.reach[[head, t]] = self.scale * (latent * c + norm(q_r) * k_rope);
            }
            for channel in 0..d_v {
                self.v_reach[[head, channel]] = norm(uv.row(head * d_v + channel)) * c;
            }
        }
    }

    /// The error rule, with the magnitudes that cancel in a layer's own products: how far o may be from the truth.
    pub(crate) fn o_tolerance(&self, at: &[usize]) -> f64 {
        let (head, t, channel) = (at[0], at[1], at[2]);
        let score = f64::powi(2.0, -22) * (1.0 + self.s_max[[head, t]]) + f64::powi(2.0, -24) * self.reach[[head, t]];
        (score + f64::powi(2.0, -24) * ((t + 1) as f64).sqrt()) * self.v_reach[[head, channel]]
    }

    /// How far out may be from the truth: as far as all of o together, and a rounding of its own.
    pub(crate) fn out_tolerance(&self, at: &[usize]) -> f64 {
        let (t, d_v) = (at[0], self.o.dim().2);
        let part = |(c, w): (usize, &f64)| {
            let o = [c / d_v, t, c % d_v];
            w.abs() * (self.o_tolerance(&o) + f64::powi(2.0, -23) * self.o[o].abs())
        };
        self.w_o.row(at[1]).iter().enumerate().map(part).sum()
    }

    /// How far lse may be from the truth.
    pub(crate) fn lse_tolerance(&self, at: &[usize]) -> f64 {
        1e-5 * (1.0 + self.lse[[at[0], at[1]]].abs()) + f64::powi(2.0, -24) * self.reach[[at[0], at[1]]]
    }

    fn attend(&mut self, first: usize) {
        let (heads, tokens, d_v) = self.o.dim();
        for t in first..tokens {
            for head in 0..heads {
                let q = self.q.slice(s![head, t, ..]);
                let scores: Vec<f64> = (0..=t).map(|j| self.scale * q.dot(&self.k.slice(s![head, j, ..]))).collect();
                let m = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let lse = m + scores.iter().map(|s| (s - m).exp()).sum::<f64>().ln();
                self.lse[[head, t]] = lse;
                self.s_max[[head, t]] = scores.iter().fold(0f64, |max, s| max.max(s.abs()));
                for (j, s) in scores.iter().enumerate() {
                    let v = self.v.slice(s![head, j, ..]).to_owned();
                    self.o.slice_mut(s![head, t, ..]).scaled_add((s - lse).exp(), &v);
                }
            }
            let o = Array1::from_shape_fn(heads * d_v, |c| self.o[[c / d_v, t, c % d_v]]);
            self.out.row_mut(t).assign(&self.w_o.dot(&o));
        }
    }
}

fn matrix(tensor: TensorView) -> Array2<f64> {
    tensor.to_f64().into_dimensionality().unwrap()
}

fn normed(x: Array1<f64>, gain: &Option<Vec<f64>>) -> Array1<f64> {
    let Some(gain) = gain else { return x };
    let mean = x.dot(&x) / x.len() as f64;
    Array1::from_shape_fn(x.len(), |c| x[c] * gain[c] / (mean + EPS).sqrt())
}

fn turned(x: ArrayView1<f64>, position: usize, pairs: Pairs) -> Array1<f64> {
    let d = x.len();
    let mut y = x.to_owned();
    for i in 0..d / 2 {
        let (a, b) = if pairs == Pairs::Neighbours { (2 * i, 2 * i + 1) } else { (i, i + d / 2) };
        let angle = position as f64 * THETA.powf(-2.0 * i as f64 / d as f64);
        y[a] = x[a] * angle.cos() - x[b] * angle.sin();
        y[b] = x[a] * angle.sin() + x[b] * angle.cos();
    }
    y
}
