//! Chapter 2, the exercise: the online softmax. One pass over the keys, one key at a time, and no score is stored.
//!
//! Six functions are yours, in this order: [`State::rescale`], [`State::push`], [`State::finish`], [`State::merge`],
//! [`State::from_partial`], [`stream`]. The rest is given. `cargo run --release -- check 2` says how far you are, and
//! `--hint` helps.
//!
//! [`Head`]'s methods, and helpers such as [`weight`] and [`sink_factor`], say in their docs what they take:
//! crates/attention/src/head.rs, or `cargo doc -p attention --open`.

#![allow(unused, clippy::todo, reason = "what the functions still to be written will use is already here")]

use attention::{
    Attention, AttentionError, Head, LSE_BYTES, Meter, NoMeter, OutputMut, Problem, RowsMut, Traffic, sink_factor,
    supports_contiguous, weight, wide,
};
use ndarray::{Array1, ArrayView1, ArrayView2};
use rayon::prelude::*;

/// Rows that one task takes. It divides work among threads and changes no result.
const ROWS: usize = 16;

/// Keys that pass one after the other, if you let a long row be merged from states of so many. It matters only among
/// many equal weights: at 2^24 of them a single f32 sum stands still.
const RUN: usize = 256;

/// The softmax of a row over some keys, in a form that can grow and merge.
///
/// `m` is the largest score, `l = sum_j e^(s_j - m)`, `o = sum_j e^(s_j - m) v_j`, not divided. States over disjoint
/// keys merge to the state over all of them, in any order.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The largest score; -inf while there is none.
    pub m: f32,
    /// The sum of the weights `e^(s_j - m)`; 0 exactly for an empty state.
    pub l: f32,
    /// The weighted sum of the values, `[d_v]`.
    pub o: Array1<f32>,
}

impl State {
    /// No key seen: (-inf, 0, 0).
    pub fn empty(d_v: usize) -> Self {
        State { m: f32::NEG_INFINITY, l: 0.0, o: Array1::zeros(d_v) }
    }

    /// Step 1. Expresses the state against a maximum `m` no lower than its own: l and o shrink by `e^(m_old - m)`, and
    /// `self.m` becomes `m`.
    ///
    /// First hint: every weight in l and in o is `e^(s_j - m_old)` and should be `e^(s_j - m)`. The state may be empty,
    /// with m = -inf; `weight(self.m, m)` is then 0.
    pub fn rescale(&mut self, m: f32) {
        todo!("step 1, rescale")
    }

    /// Step 2. Takes in one key: its score and its value `[d_v]`. A score of -inf is a hidden key, whose value is not
    /// read.
    ///
    /// `m' = max(m, s)`, `l' = e^(m - m') l + e^(s - m')`, `o' = e^(m - m') o + e^(s - m') v`.
    ///
    /// First hint: if the score is a new maximum, rescale first. Then the key is one more term of both sums.
    pub fn push(&mut self, s: f32, v: ArrayView1<f32>) {
        todo!("step 2, push")
    }

    /// Step 3. The one division: the row's output `o / l` and `lse = m + ln l`. A `sink` (-inf for none) joins the
    /// denominator here, once, and stays out of lse. A state of keys whose scores were all -inf gives zeros and -inf.
    /// A NaN score must give NaN: ask `l == 0`, not `m == -inf`, which a comparison with NaN may leave behind.
    ///
    /// First hint: [`sink_factor`] is what a sink leaves of the output.
    pub fn finish(mut self, sink: f32) -> (Array1<f32>, f32) {
        todo!("step 3, finish")
    }

    /// Step 4. Takes in the keys of another state over other keys.
    ///
    /// First hint: it is [`State::push`] for many keys at once. Bring both sums to the larger of the two maxima, then
    /// add. Either state may be empty; one that has met a NaN score is not, even if its m is -inf: ask l.
    pub fn merge(&mut self, other: &State) {
        todo!("step 4, merge")
    }

    /// Step 5. The state of a finished partial result, as another kernel returns it: o divided, lse natural and without
    /// a sink.
    ///
    /// A partial with lse -inf is empty, and so is one with +inf, which some kernels return for a row that saw no key;
    /// whatever its o holds is dropped.
    ///
    /// First hint: which m and l have `m + ln l = lse`, so that o is already the undivided output?
    pub fn from_partial(o: ArrayView1<f32>, lse: f32) -> Self {
        todo!("step 5, from_partial")
    }
}

/// Step 6. What row `i` knows after every key that it sees has passed, one at a time. `q_i` is the row's query, `k` and
/// `v` are the head's, in f32.
///
/// First hint: `head.visible(i)` are the keys that row `i` sees, and `head.score(dot, i, j)` makes a score of the
/// product `q_i . k_j`.
pub fn stream(head: &Head, i: usize, q_i: ArrayView1<f32>, k: ArrayView2<f32>, v: ArrayView2<f32>) -> State {
    todo!("step 6, stream")
}

/// Attention that streams one key at a time.
#[derive(Clone, Copy, Debug)]
pub struct OnlineSoftmax<M = NoMeter> {
    meter: M,
}

impl Default for OnlineSoftmax {
    fn default() -> Self {
        OnlineSoftmax::with_meter(NoMeter)
    }
}

impl<M: Meter> OnlineSoftmax<M> {
    /// The rung with its traffic counted.
    pub fn with_meter(meter: M) -> Self {
        OnlineSoftmax { meter }
    }

    fn head(&self, head: &Head, out: RowsMut) {
        let (k, v) = (head.k.load(0..head.k_len), head.v.load(0..head.k_len));
        let (d, d_v, size) = (head.d(), head.d_v(), head.q.dtype().size());
        out.tiles(ROWS).into_par_iter().for_each(|mut out| {
            let q = head.q.load(out.rows.clone());
            for (i, q_i) in out.rows.clone().zip(q.rows()) {
                self.meter.read(size * (d + head.visible(i).len() * (d + d_v)));
                let (o, lse) = stream(head, i, q_i, k.view(), v.view()).finish(head.sink);
                out.store(i, o.view(), lse);
                self.meter.write(size * d_v + LSE_BYTES);
            }
        });
    }
}

impl<M: Meter + Send> Attention for OnlineSoftmax<M> {
    fn name(&self) -> &'static str {
        "online-softmax"
    }

    fn supports(&self, problem: &Problem) -> Result<(), AttentionError> {
        supports_contiguous(self.name(), problem)
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        self.supports(problem)?;
        out.heads(problem)?.into_par_iter().filter(|out| !out.rows.is_empty()).for_each(|out| {
            self.head(&problem.head(out.sequence, out.head), out);
        });
        Ok(())
    }
}

/// The traffic of the stream, by its own count: each row reads itself and every key and value that it sees.
pub fn traffic(problem: &Problem) -> Traffic {
    let [heads, d, d_v, size] = [problem.heads(), problem.d(), problem.d_v(), problem.dtype().size()].map(wide);
    let mut traffic = Traffic::default();
    for sequence in problem.sequences() {
        let (q_len, k_len) = (sequence.q.len(), sequence.k.len());
        let pairs: u128 = (0..q_len).map(|i| wide(problem.options().mask.visible(i, q_len, k_len).len())).sum();
        let q_len = wide(q_len);
        traffic.add(heads, size * (q_len * d + pairs * (d + d_v)), q_len * (size * d_v + wide(LSE_BYTES)));
    }
    traffic
}

/// Bytes by the closed formula `heads * e * (pairs + N_q)(d + d_v)`, e the bytes of an element and `pairs` the visible
/// ones: `N_q N_k` without a mask.
pub fn formula(problem: &Problem) -> f64 {
    let channels = (problem.dtype().size() * (problem.d() + problem.d_v())) as f64;
    let pairs = |s: &attention::Sequence| problem.options().mask.pairs(s.q.len(), s.k.len()) + s.q.len() as f64;
    problem.heads() as f64 * channels * problem.sequences().iter().map(pairs).sum::<f64>()
}
