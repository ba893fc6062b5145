//! Rung 2: the online softmax. One pass over the keys, one key at a time, and no score is ever stored.
//!
//! Milakov and Gimelshein (arXiv 1805.02867) fuse the first two passes of the safe softmax; Rabe and Staats
//! (arXiv 2112.05682) carry the output along. What a row has seen so far fits in a [`State`] (m, l, o), two states
//! [`merge`](State::merge), and every later rung is built on that.
//!
//! o is divided once, at the end: a row with `sum_j |v_j|` beyond f32 overflows, as two values of 3e38 do.
//!
//! What it does not do: tile. Each query reads every key again, so it needs no memory and moves more bytes than naive.

mod state;

pub use state::State;

use attention::{
    Attention, AttentionError, Head, LSE_BYTES, Meter, NoMeter, OutputMut, Problem, RowsMut, Traffic,
    supports_contiguous, wide,
};
use ndarray::{ArrayView1, ArrayView2};
use rayon::prelude::*;

/// Rows that one task takes. It divides work among threads and changes no result.
const ROWS: usize = 16;

/// Keys that pass one after the other before their state is merged into the row's. Among many equal weights the roundings
/// of a single long f32 sum all go the same way, and at 2^24 of them it stands still.
const RUN: usize = 256;

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

// ANCHOR: stream
/// What row `i` knows after every key that it sees has passed, one at a time. `q_i` is the row's query, `k` and `v` are
/// the head's, in f32.
pub fn stream(head: &Head, i: usize, q_i: ArrayView1<f32>, k: ArrayView2<f32>, v: ArrayView2<f32>) -> State {
    let visible = head.visible(i);
    let mut state = State::empty(head.d_v());
    for start in visible.clone().step_by(RUN) {
        let mut run = State::empty(head.d_v());
        for j in start..visible.end.min(start + RUN) {
            run.push(head.score(q_i.dot(&k.row(j)), i, j), v.row(j));
        }
        state.merge(&run);
    }
    state
}
// ANCHOR_END: stream

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
