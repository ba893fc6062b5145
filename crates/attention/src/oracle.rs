//! The f64 oracle: attention written so plainly that it can be believed, and slowly.
//!
//! It visits one query and one key at a time, without tiles, in f64 from the inputs as they are stored; only rows run in
//! parallel. It shares no
//! mask and no score with the rungs, so that a fault there cannot hide here. Besides the result it returns what the
//! error rule needs to say how far a correct f32 computation may be from it.

use crate::{Attention, AttentionError, Mask, OutputMut, Problem, TensorView};
use ndarray::parallel::prelude::*;
use ndarray::{Array1, Array2, ArrayD, ArrayView1, ArrayView2, Axis, IxDyn};
use std::ops::Range;

/// The oracle as a rung.
///
/// Its o is rounded from f64 by way of f32; [`truth`] has the exact values.
#[derive(Clone, Copy, Debug, Default)]
pub struct Oracle;

/// The true result of a problem, and the magnitudes that rounding errors scale with.
///
/// `o`, `spread`, `v_norm` and `v_max` are `[batch, heads, q_len, d_v]`, the others `[batch, heads, q_len]`; packed,
/// `[heads, total_q, ..]`.
#[derive(Clone, Debug)]
pub struct Truth {
    /// The output.
    pub o: ArrayD<f64>,
    /// `ln sum_j e^s`, -inf for a row that sees no key.
    pub lse: ArrayD<f64>,
    /// `sqrt(sum_j p_j^2 v_j^2)`: how rounding each weight once moves o.
    pub spread: ArrayD<f64>,
    /// `sqrt(sum_j v_j^2)` over the keys that the row sees.
    pub v_norm: ArrayD<f64>,
    /// Largest |score| of the row.
    pub s_max: ArrayD<f64>,
    /// Largest sum of magnitudes that cancel in a score of the row: `|scale| |q| |k|`, plus ALiBi's and the bias's.
    pub reach: ArrayD<f64>,
    /// Largest |v| of the keys that the row sees, channel by channel.
    pub v_max: ArrayD<f64>,
    /// How many keys the row sees.
    pub keys: ArrayD<f64>,
}

/// The true result of one row.
struct Row {
    o: Array1<f64>,
    lse: f64,
    spread: Array1<f64>,
    v_norm: Array1<f64>,
    s_max: f64,
    reach: f64,
    v_max: Array1<f64>,
    keys: f64,
}

/// One score, and the sum of magnitudes it was made of.
struct Score {
    s: f64,
    reach: f64,
}

/// Computes the true result of `problem`.
pub fn truth(problem: &Problem) -> Truth {
    let full = || ArrayD::<f64>::zeros(IxDyn(&problem.o_shape()));
    let flat = |fill: f64| ArrayD::<f64>::from_elem(IxDyn(&problem.lse_shape()), fill);
    let mut truth = Truth {
        o: full(),
        lse: flat(f64::NEG_INFINITY),
        spread: full(),
        v_norm: full(),
        s_max: flat(0.0),
        reach: flat(0.0),
        v_max: full(),
        keys: flat(0.0),
    };
    let group = problem.heads() / problem.kv_heads();
    for (b, sequence) in problem.sequences().iter().enumerate().filter(|(_, sequence)| !sequence.q.is_empty()) {
        for h in 0..problem.heads() {
            let keys = |tensor| match problem.block_table() {
                Some(table) => paged_rows(tensor, table.row(b), h / group, sequence.k.len()),
                None => rows(tensor, problem.is_packed(), (b, h / group), &sequence.k),
            };
            let q = rows(problem.q(), problem.is_packed(), (b, h), &sequence.q);
            let (k, v) = (keys(problem.k()), keys(problem.v()));
            let (q, k, v) = (q.view(), k.view(), v.view());
            let k_norms: Vec<f64> = k.rows().into_iter().map(norm).collect();
            let rows: Vec<Row> =
                (0..sequence.q.len()).into_par_iter().map(|i| row(problem, (b, h, i), q, (k, &k_norms), v)).collect();
            for (i, row) in rows.into_iter().enumerate() {
                let at = sequence.q.start + i;
                let at = if problem.is_packed() { vec![h, at] } else { vec![b, h, at] };
                truth.set(&at, row);
            }
        }
    }
    truth
}

/// The rows of `range` in head `h` of sequence `b`.
fn rows(tensor: &TensorView, packed: bool, (b, h): (usize, usize), range: &Range<usize>) -> Array2<f64> {
    let sequence = if packed { tensor.clone() } else { tensor.clone().index_first(b) };
    let rows = sequence.index_first(h).rows(range.clone());
    rows.to_f64().into_dimensionality().expect("two axes are left")
}

/// The first `len` rows of head `h` in the pages of `table`, one by one from a pool `[pages, page, kv_heads, d]`.
fn paged_rows(pool: &TensorView, table: ArrayView1<i32>, h: usize, len: usize) -> Array2<f64> {
    let (page, d) = (pool.shape()[1], pool.shape()[3]);
    let mut rows = Array2::zeros((len, d));
    for (j, mut row) in rows.rows_mut().into_iter().enumerate() {
        let slot = pool.clone().index_first(table[j / page] as usize).index_first(j % page);
        row.assign(&slot.index_first(h).to_f64());
    }
    rows
}

/// Attention of query `i` of head `h` in sequence `b`, by the definition.
fn row(
    problem: &Problem,
    (b, h, i): (usize, usize, usize),
    q: ArrayView2<f64>,
    (k, k_norms): (ArrayView2<f64>, &[f64]),
    v: ArrayView2<f64>,
) -> Row {
    let (q_len, k_len, q_norm) = (q.nrows(), k.nrows(), norm(q.row(i)));
    let scores: Vec<(usize, Score)> = (0..k_len)
        .filter_map(|j| {
            let product = || (q.row(i).dot(&k.row(j)), q_norm * k_norms[j]);
            let score = score(problem, (b, h), (i, q_len), (j, k_len), product)?;
            Some((j, score))
        })
        .collect();
    let zeros = || Array1::<f64>::zeros(v.ncols());
    let [o, spread, v_norm, v_max] = [zeros(), zeros(), zeros(), zeros()];
    let mut row = Row { o, lse: f64::NEG_INFINITY, spread, v_norm, s_max: 0.0, reach: 0.0, v_max, keys: 0.0 };
    if scores.is_empty() {
        return row;
    }
    let m = scores.iter().fold(f64::NEG_INFINITY, |m, (_, score)| m.max(score.s));
    let l: f64 = scores.iter().map(|(_, score)| (score.s - m).exp()).sum();
    row.lse = m + l.ln();
    let sink = problem.options().sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[h]));
    row.keys = scores.len() as f64;
    let kept = kept_beside(sink, row.lse);
    for (j, Score { s, reach }) in scores {
        let p = (s - m).exp() / l * kept;
        for (c, &v) in v.row(j).iter().enumerate() {
            row.o[c] += p * v;
            row.spread[c] += p * p * v * v;
            row.v_norm[c] += v * v;
            row.v_max[c] = row.v_max[c].max(v.abs());
        }
        row.s_max = row.s_max.max(s.abs());
        row.reach = row.reach.max(reach);
    }
    row.spread.mapv_inplace(f64::sqrt);
    row.v_norm.mapv_inplace(f64::sqrt);
    row
}

fn norm(row: ArrayView1<f64>) -> f64 {
    row.dot(&row).sqrt()
}

/// The score of a pair, or `None` if the query does not see the key or the score is -inf, which comes to the same.
/// `product` gives `q . k` and `|q| |k|`.
fn score(
    problem: &Problem,
    (b, h): (usize, usize),
    (i, q_len): (usize, usize),
    (j, k_len): (usize, usize),
    product: impl Fn() -> (f64, f64),
) -> Option<Score> {
    let options = problem.options();
    // The key's distance from the query's own position, negative for the past.
    let distance = j as i128 - (i as i128 + k_len as i128 - q_len as i128);
    let sees = match options.mask {
        Mask::Full => true,
        Mask::Causal => distance <= 0,
        Mask::Window { left, right } => {
            left.is_none_or(|left| -distance <= left as i128) && right.is_none_or(|right| distance <= right as i128)
        }
    };
    if !sees {
        return None;
    }
    let (dot, norms) = product();
    let mut s = problem.scale() * dot;
    let mut reach = problem.scale().abs() * norms;
    if options.softcap > 0.0 {
        s = options.softcap * (s / options.softcap).tanh();
    }
    if let Some(slopes) = &options.alibi_slopes {
        let slope = if slopes.ndim() == 1 { slopes[[h]] } else { slopes[[b, h]] };
        let decay = f64::from(slope) * distance.abs() as f64;
        s -= decay;
        reach += decay.abs();
    }
    if let Some(bias) = options.bias {
        let bias = f64::from(bias[[b.min(bias.shape()[0] - 1), h.min(bias.shape()[1] - 1), i, j]]);
        if bias == f64::NEG_INFINITY {
            return None;
        }
        s += bias;
        reach += bias.abs();
    }
    (s != f64::NEG_INFINITY).then_some(Score { s, reach })
}

/// The share of the denominator that the keys keep beside a sink: `e^lse / (e^lse + e^sink)`.
fn kept_beside(sink: f64, lse: f64) -> f64 {
    if sink > lse {
        let ratio = (lse - sink).exp();
        ratio / (ratio + 1.0)
    } else {
        1.0 / (1.0 + (sink - lse).exp())
    }
}

impl Truth {
    fn set(&mut self, at: &[usize], row: Row) {
        let rows = [
            (&mut self.o, row.o),
            (&mut self.spread, row.spread),
            (&mut self.v_norm, row.v_norm),
            (&mut self.v_max, row.v_max),
        ];
        for (array, values) in rows {
            let mut view = array.view_mut();
            for &index in at {
                view.index_axis_inplace(Axis(0), index);
            }
            view.assign(&values);
        }
        self.lse[at] = row.lse;
        self.s_max[at] = row.s_max;
        self.reach[at] = row.reach;
        self.keys[at] = row.keys;
    }
}

impl Attention for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn supports(&self, _: &Problem) -> Result<(), AttentionError> {
        Ok(())
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        let mut heads = out.heads(problem)?;
        let truth = truth(problem);
        for head in &mut heads {
            let start = problem.sequences()[head.sequence].q.start;
            for i in head.rows.clone() {
                let at =
                    if problem.is_packed() { vec![head.head, start + i] } else { vec![head.sequence, head.head, i] };
                let mut o = truth.o.view();
                for &index in &at {
                    o.index_axis_inplace(Axis(0), index);
                }
                head.store(i, o.into_dimensionality().expect("one axis is left"), truth.lse[&at[..]] as f32);
            }
        }
        Ok(())
    }
}
