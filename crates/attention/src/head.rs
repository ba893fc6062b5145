//! The smallest independent piece of attention: one query head of one sequence.
//!
//! Every rung computes the same scores and differs only in the order it visits them. So what a score *is* stands here
//! once, for a single pair ([`Head::score`]) and for a tile ([`Head::scores`]), with the product `P V` of a tile
//! ([`Head::accumulate`]). The oracle shares none of it.
//!
//! Precision: q, k, v widen to f32 exactly and all arithmetic is f32. A product `q . k` whose f32 sum overflows is
//! computed again in f64, so every finite score that fits f32 comes out finite. Products below f32's normal range lose
//! digits.

use crate::Mask;
use crate::kv_rows::KvRows;
use crate::tensor::Rows;
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, s};
use std::ops::Range;

/// One query head of one sequence: q `[q_len, d]`, k `[k_len, d]`, v `[k_len, d_v]`, and its share of the options.
#[derive(Clone, Debug)]
pub struct Head<'a> {
    /// Queries.
    pub q: Rows<'a>,
    /// Keys of the kv head that this query head reads.
    pub k: KvRows<'a>,
    /// Values of the same kv head.
    pub v: KvRows<'a>,
    /// Rows of q.
    pub q_len: usize,
    /// Rows of k and v.
    pub k_len: usize,
    /// The extra logit in the denominator; -inf is none.
    pub sink: f32,
    /// Factor of `q . k`.
    pub scale: f32,
    /// Soft cap of the scaled score; 0 is off.
    pub softcap: f32,
    /// ALiBi slope.
    pub slope: Option<f32>,
    /// Added to the scores, `[q_len, k_len]`.
    pub bias: Option<ArrayView2<'a, f32>>,
    /// Which keys a row sees.
    pub mask: Mask,
}

impl Head<'_> {
    /// Channels of a query or key.
    pub fn d(&self) -> usize {
        self.q.shape()[1]
    }

    /// Channels of a value.
    pub fn d_v(&self) -> usize {
        self.v.channels()
    }

    /// Whether a visible score is `scale * (q . k)` and nothing else.
    pub fn only_scales(&self) -> bool {
        self.softcap == 0.0 && self.slope.is_none() && self.bias.is_none()
    }

    /// The keys that row `i` sees by the mask.
    pub fn visible(&self, i: usize) -> Range<usize> {
        self.mask.visible(i, self.q_len, self.k_len)
    }

    /// The keys that at least one of `rows` sees by the mask.
    pub fn visible_to_any(&self, rows: Range<usize>) -> Range<usize> {
        if rows.is_empty() {
            return 0..0;
        }
        self.visible(rows.start).start..self.visible(rows.end - 1).end
    }

    /// The score of row `i` and key `j`, given their product `dot = q_i . k_j`; -inf where the mask or the bias hides
    /// the key.
    pub fn score(&self, dot: f32, i: usize, j: usize) -> f32 {
        if self.visible(i).contains(&j) { self.visible_score(dot, i, j) } else { f32::NEG_INFINITY }
    }

    fn visible_score(&self, dot: f32, i: usize, j: usize) -> f32 {
        let mut s =
            if dot.is_finite() { self.scale * dot } else { (f64::from(self.scale) * self.dot_f64(i, j)) as f32 };
        if self.softcap > 0.0 {
            s = self.softcap * (s / self.softcap).tanh();
        }
        if let Some(slope) = self.slope {
            s -= slope * (i + self.k_len).abs_diff(j + self.q_len) as f32;
        }
        match self.bias.map(|bias| bias[[i, j]]) {
            Some(f32::NEG_INFINITY) => f32::NEG_INFINITY,
            Some(bias) => s + bias,
            None => s,
        }
    }

    /// The scores of a tile: `s = q k^T`, scaled, capped, biased and masked.
    ///
    /// `q` is [`Rows::load`] of `rows` of q, `k` [`KvRows::load`] of `keys` of k; `s` is `[rows, keys]` and is overwritten.
    pub fn scores(
        &self,
        (rows, q): (Range<usize>, ArrayView2<f32>),
        (keys, k): (Range<usize>, ArrayView2<f32>),
        mut s: ArrayViewMut2<f32>,
    ) {
        general_mat_mul(1.0, &q, &k.t(), 0.0, &mut s);
        self.finish_scores(rows, keys, s);
    }

    /// Turns the products `q k^T` of `rows` and `keys`, `[rows, keys]`, into scores, in place: for whoever multiplies the
    /// rows of several heads at once.
    pub fn finish_scores(&self, rows: Range<usize>, keys: Range<usize>, mut s: ArrayViewMut2<f32>) {
        for (i, mut row) in rows.zip(s.rows_mut()) {
            let visible = self.visible(i);
            let from = visible.start.clamp(keys.start, keys.end) - keys.start;
            let to = visible.end.clamp(keys.start, keys.end) - keys.start;
            row.slice_mut(s![..from]).fill(f32::NEG_INFINITY);
            row.slice_mut(s![to.max(from)..]).fill(f32::NEG_INFINITY);
            for (j, s) in (from..to).zip(row.slice_mut(s![from..to.max(from)])) {
                *s = self.visible_score(*s, i, keys.start + j);
            }
        }
    }

    /// [`accumulate`] for a tile of weights `p` `[rows, keys]`, where `v` is [`KvRows::load`] of `keys` of v.
    pub fn accumulate(
        &self,
        (rows, p): (Range<usize>, ArrayView2<f32>),
        (keys, v): (Range<usize>, ArrayView2<f32>),
        o: ArrayViewMut2<f32>,
    ) {
        accumulate(p, v, o, |row, key| self.attends(rows.start + row, keys.start + key));
    }

    /// Whether key `j` has a part in row `i`: it is visible and its score is not -inf.
    pub fn attends(&self, i: usize, j: usize) -> bool {
        self.score(self.dot_f64(i, j) as f32, i, j) != f32::NEG_INFINITY
    }

    /// `q_i . k_j` in f64.
    fn dot_f64(&self, i: usize, j: usize) -> f64 {
        let (k, j) = self.k.row(j);
        self.q.row_f64(i).dot(&k.row_f64(j))
    }
}

/// `o += p v` for a tile of weights `p` `[rows, keys]` and of values `v` `[keys, d_v]`. `attends(row, key)`, both counted
/// in the tile, says whether a row's result may depend on a key.
///
/// A hidden key has weight 0, but 0 * NaN is NaN. So value rows that are not finite stay out of the matrix product
/// and are added one by one to the rows that attend them.
pub fn accumulate(
    p: ArrayView2<f32>,
    v: ArrayView2<f32>,
    mut o: ArrayViewMut2<f32>,
    attends: impl Fn(usize, usize) -> bool,
) {
    let wild: Vec<usize> = (0..v.nrows()).filter(|&j| v.row(j).iter().any(|x| !x.is_finite())).collect();
    if wild.is_empty() {
        general_mat_mul(1.0, &p, &v, 1.0, &mut o);
        return;
    }
    let mut tame = v.to_owned();
    for &j in &wild {
        tame.row_mut(j).fill(0.0);
    }
    general_mat_mul(1.0, &p, &tame, 1.0, &mut o);
    for (i, (p, mut o)) in p.rows().into_iter().zip(o.rows_mut()).enumerate() {
        for &j in wild.iter().filter(|&&j| attends(i, j)) {
            o.scaled_add(p[j], &v.row(j));
        }
    }
}

/// The weight `e^(s - m)` of a score against a reference `m` no smaller than it; 0 for a score of -inf.
///
/// The guard is on `s`, not on the difference: with every score -inf so far, `m` is -inf too and `s - m` is NaN,
/// while a NaN score must stay NaN.
pub fn weight(s: f32, m: f32) -> f32 {
    if s == f32::NEG_INFINITY { 0.0 } else { (s - m).exp() }
}

/// What a sink logit leaves of a row: `1 / (1 + e^(sink - m) / l)`, for a row whose scores have maximum `m` and sum
/// `l > 0` of weights. It multiplies the row's output once; no sink (-inf) leaves 1, and +inf leaves 0.
pub fn sink_factor(sink: f32, m: f32, l: f32) -> f32 {
    1.0 / (1.0 + (sink - m).exp() / l)
}
