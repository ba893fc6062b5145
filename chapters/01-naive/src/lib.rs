//! Chapter 1, the exercise: standard attention, `O = softmax(Q K^T) V`, in three passes over a score matrix.
//!
//! Four functions are yours, in this order: [`softmax`], [`weights`], [`scores`], [`output`]. The rest is given.
//! `cargo run --release -- check 1` says how far you are, and `--hint` helps.
//!
//! A [`Head`] holds one head's q `[q_len, d]`, k `[k_len, d]`, v `[k_len, d_v]` and its options. `head.q.load(0..3)`
//! gives the first three rows of q as an f32 matrix. Its methods, and helpers such as [`sink_factor`] and
//! [`RowsMut::store`], say in their docs what they take: crates/attention/src/head.rs and output.rs, or
//! `cargo doc -p attention --open`.

#![allow(unused, clippy::todo, reason = "what the functions still to be written will use is already here")]

use attention::{
    Attention, AttentionError, Head, LSE_BYTES, Meter, NoMeter, OutputMut, Problem, RowsMut, Traffic, filled,
    sink_factor, supports_contiguous, weight, wide,
};
use ndarray::parallel::prelude::*;
use ndarray::{Array1, Array2, ArrayView1, ArrayView2, ArrayViewMut1, ArrayViewMut2, Axis, Ix2, Zip, s};

/// Rows that one task takes, if you let blocks of rows run in parallel. One block for all rows is as right.
const BLOCK: usize = 64;

/// Terms of a sum that are added one after the other, if you let a long sum be a sum of such sums. It matters only
/// among many equal terms: at 2^24 of them a single f32 sum stands still.
const RUN: usize = 256;

/// Bytes of one element of S or P.
const F32: usize = size_of::<f32>();

/// Step 1. The safe softmax of one row of scores: fill `p` and return `lse`.
///
/// `m = max_j s_j`, `l = sum_j e^(s_j - m)`, `p_j = e^(s_j - m) / l`, `lse = m + ln l`.
///
/// A row whose scores are all -inf sees no key: p is 0 and lse is -inf. A NaN score must give NaN: ask `l == 0`, not
/// `m == -inf`, since `f32::max` drops NaN. A `sink` (-inf for none) adds `e^(sink - m)` to the denominator of p, and
/// nothing to lse.
///
/// First hint: three loops over the row, for the maximum, the sum and the quotient. [`weight`] is `e^(s - m)` that
/// gives 0 for a score of -inf; [`sink_factor`] is what a sink leaves of a row.
pub fn softmax(s: ArrayView1<f32>, sink: f32, mut p: ArrayViewMut1<f32>) -> f32 {
    todo!("step 1, softmax")
}

/// Step 2. Pass 2: `P = softmax(S)`, row by row; returns lse `[q_len]`. Both matrices are `[q_len, k_len]`.
///
/// First hint: `s.rows()` and `p.rows_mut()` walk the two matrices together, and each row is one call of [`softmax`].
pub fn weights(s: ArrayView2<f32>, sink: f32, mut p: ArrayViewMut2<f32>) -> Array1<f32> {
    todo!("step 2, weights")
}

/// Step 3. Pass 1: `S = scale Q K^T`, -inf where a key is hidden. `s` is `[q_len, k_len]` and is overwritten.
///
/// First hint: [`Head::scores`] does this for any tile of rows and keys, with every option of a score. Here the tile is
/// the whole matrix. It takes rows and keys each as a pair `(range, view)`.
pub fn scores(head: &Head, mut s: ArrayViewMut2<f32>) {
    todo!("step 3, scores")
}

/// Step 4. Pass 3: `O = P V`, from `p` `[q_len, k_len]` to o `[q_len, d_v]`.
///
/// First hint: a hidden key has weight 0, but 0 times NaN is NaN, and no row may depend on a key hidden from it.
/// [`Head::accumulate`] adds `P V` to an o with that in mind.
pub fn output(head: &Head, p: ArrayView2<f32>) -> Array2<f32> {
    todo!("step 4, output")
}

/// Standard attention.
#[derive(Clone, Copy, Debug)]
pub struct Naive<M = NoMeter> {
    meter: M,
}

impl Default for Naive {
    fn default() -> Self {
        Naive::with_meter(NoMeter)
    }
}

impl<M: Meter> Naive<M> {
    /// The rung with its traffic counted.
    pub fn with_meter(meter: M) -> Self {
        Naive { meter }
    }

    /// The three passes over one head, each counted where it reads and writes slow memory.
    fn head(&self, head: &Head, mut out: RowsMut) -> Result<(), AttentionError> {
        let (q_len, k_len, d, d_v) = (head.q_len, head.k_len, head.d(), head.d_v());
        let (size, matrix) = (head.q.dtype().size(), F32 * q_len * k_len);
        let (mut s, mut p) = (zeros("S", q_len, k_len)?, zeros("P", q_len, k_len)?);
        self.meter.allocate(2 * matrix);

        // Pass 1: S = Q K^T.
        self.meter.read(size * (q_len + k_len) * d);
        scores(head, s.view_mut());
        self.meter.write(matrix);

        // Pass 2: P = softmax(S).
        self.meter.read(matrix);
        let lse = weights(s.view(), head.sink, p.view_mut());
        self.meter.write(matrix + LSE_BYTES * q_len);

        // Pass 3: O = P V.
        self.meter.read(matrix + size * k_len * d_v);
        let o = output(head, p.view());
        for (i, o) in o.rows().into_iter().enumerate() {
            out.store(i, o, lse[i]);
        }
        self.meter.write(size * q_len * d_v);

        self.meter.release(2 * matrix);
        Ok(())
    }
}

impl<M: Meter + Send> Attention for Naive<M> {
    fn name(&self) -> &'static str {
        "naive"
    }

    fn supports(&self, problem: &Problem) -> Result<(), AttentionError> {
        supports_contiguous(self.name(), problem)
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        self.supports(problem)?;
        let heads = out.heads(problem)?;
        heads.into_par_iter().filter(|out| !out.rows.is_empty()).try_for_each(|out| {
            let head = problem.head(out.sequence, out.head);
            self.head(&head, out)
        })
    }
}

fn zeros(what: &'static str, rows: usize, columns: usize) -> Result<Array2<f32>, AttentionError> {
    let matrix = filled(what, &[rows, columns], 0.0)?;
    Ok(matrix.into_dimensionality::<Ix2>().expect("two lengths were given"))
}

/// The traffic of the three passes, by their own count.
pub fn traffic(problem: &Problem) -> Traffic {
    let [heads, d, d_v, size] = [problem.heads(), problem.d(), problem.d_v(), problem.dtype().size()].map(wide);
    let mut traffic = Traffic::default();
    for sequence in problem.sequences().iter().filter(|sequence| !sequence.q.is_empty()) {
        let [q_len, k_len] = [sequence.q.len(), sequence.k.len()].map(wide);
        let matrix = wide(F32) * q_len * k_len;
        let read = size * (q_len * d + k_len * (d + d_v)) + 2 * matrix;
        let written = size * q_len * d_v + wide(LSE_BYTES) * q_len + 2 * matrix;
        traffic.add(heads, read, written);
    }
    traffic
}

/// Bytes by the closed formula `heads * (4 * 4 N_q N_k + e (N_q + N_k)(d + d_v))`, e the bytes of an element:
/// Theta(N d + N^2) of Theorem 2 with its constants. It leaves out the 4 N_q bytes of lse, which [`traffic`] counts.
pub fn formula(problem: &Problem) -> f64 {
    let channels = (problem.dtype().size() * (problem.d() + problem.d_v())) as f64;
    let lengths = problem.sequences().iter().map(|s| (s.q.len() as f64, s.k.len() as f64));
    let bytes = lengths.map(|(q_len, k_len)| 16.0 * q_len * k_len + channels * (q_len + k_len));
    problem.heads() as f64 * bytes.sum::<f64>()
}
