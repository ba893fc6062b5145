//! The vocabulary of the ladder: what an attention problem is, what its result is, and how both are judged.
//!
//! For one head, with queries q `[q_len, d]`, keys k `[k_len, d]` and values v `[k_len, d_v]`:
//!
//! - the **score** of query i and key j is `s_ij = scale * q_i . k_j`, changed by the [`Options`]: a *soft cap* bounds it,
//!   *ALiBi* takes off a slope times the distance, a *bias* is added, a *mask* hides the key;
//! - the **weights** of a row are the softmax of its scores, `p_ij = e^s_ij / sum_j e^s_ij`; a *sink* is one more term of
//!   that sum, with no value;
//! - the **output** is `o_i = sum_j p_ij v_j`, and the **lse** is `ln sum_j e^s_ij`, from which partial results merge;
//! - a rung that sees the keys bit by bit keeps, of each row, the largest score **m** so far, the sum **l** of `e^(s - m)`,
//!   and **o** not yet divided by it.
//!
//! All arithmetic of a rung is f32. A score must fit f32, and on the rungs that divide once at the end, so must the sum of
//! `|v|` over the keys of a row; what does not comes out infinite or NaN, never finite and wrong.
//!
//! Heads and sequences are independent. With grouped heads, several query heads read one *kv head*.
//!
//! ```
//! use attention::{Attention, Mask, Options, Problem, oracle::Oracle};
//! use ndarray::Array4;
//!
//! // One sequence of three tokens, two query heads on one kv head, four channels.
//! let q = Array4::<f32>::zeros((1, 2, 3, 4));
//! let (k, v) = (Array4::<f32>::zeros((1, 1, 3, 4)), Array4::<f32>::ones((1, 1, 3, 4)));
//! let options = Options { mask: Mask::Causal, ..Options::default() };
//! let problem = Problem::dense(q.view(), k.view(), v.view(), options)?;
//! let output = Oracle.forward(&problem)?;
//! // All scores are 0, so row i averages i + 1 keys and its lse is ln(i + 1).
//! assert_eq!(output.lse[[0, 0, 2]], 3f32.ln());
//! # Ok::<(), attention::AttentionError>(())
//! ```
//!
//! [`Problem`] borrows tensors with any strides and checks them once. A rung is a type with the trait [`Attention`].
//! [`Head`] is the unit that every rung works on. [`oracle`] is the truth in f64; [`meter`] counts traffic.
//!
//! What it does not do: compute attention in any way worth timing. That is what the rungs are for.

pub mod dtype;
mod error;
mod head;
mod kv_rows;
pub mod meter;
mod options;
pub mod oracle;
mod output;
mod problem;
mod rung;
mod tensor;

pub use dtype::{DType, E4m3, Element};
pub use error::AttentionError;
pub use head::{Head, accumulate, sink_factor, weight};
pub use kv_rows::{KvRows, Pages};
pub use meter::{DEFAULT_FAST_MEMORY, LSE_BYTES, Meter, NoMeter, Traffic, TrafficMeter, wide};
pub use options::{Mask, Options};
pub use output::{Output, OutputMut, RowsMut, filled, page_aligned};
pub use problem::{Batch, Kv, Problem, Sequence};
pub use rung::{Attention, supports_contiguous, supports_f32_arithmetic};
pub use tensor::{Rows, Tensor, TensorView, TensorViewMut};
