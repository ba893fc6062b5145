//! Rung 1: standard attention, `O = softmax(Q K^T) V`, in three passes over a score matrix.
//!
//! Algorithm 0 of FlashAttention (arXiv 2205.14135, section 2.2): write S, read S and write P, read P. It is what
//! everyone writes first and what every later rung is compared with. Per head it holds `2 q_len k_len` numbers that no
//! one asked for, and each of them crosses memory twice.
//!
//! What it does not do: tile, stream, or skip what the mask hides.

mod passes;

pub use passes::{output, scores, softmax, weights};

use attention::{
    Attention, AttentionError, Head, LSE_BYTES, Meter, NoMeter, OutputMut, Problem, RowsMut, Traffic, filled,
    supports_contiguous, wide,
};
use ndarray::parallel::prelude::*;
use ndarray::{Array2, Ix2};

/// Bytes of one element of S or P.
const F32: usize = size_of::<f32>();

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

    fn head(&self, head: &Head, mut out: RowsMut) -> Result<(), AttentionError> {
        let (q_len, k_len, d, d_v) = (head.q_len, head.k_len, head.d(), head.d_v());
        let (mut s, mut p) = (zeros("S", q_len, k_len)?, zeros("P", q_len, k_len)?);
        let (size, matrix) = (head.q.dtype().size(), F32 * s.len());
        self.meter.allocate(2 * matrix);

        // ANCHOR: passes
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
        // ANCHOR_END: passes

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
