//! The vocabulary of the ladder: what an attention problem is, what its result is, and how both are judged.
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
pub mod meter;
mod options;
pub mod oracle;
mod output;
mod problem;
mod rung;
mod tensor;

pub use dtype::{DType, E4m3};
pub use error::AttentionError;
pub use head::{Head, sink_factor, weight};
pub use meter::{DEFAULT_FAST_MEMORY, LSE_BYTES, Meter, NoMeter, Traffic, TrafficMeter, wide};
pub use options::{Mask, Options};
pub use output::{Output, OutputMut, RowsMut, filled};
pub use problem::{Batch, Kv, Problem, Sequence};
pub use rung::{Attention, supports_f32_arithmetic};
pub use tensor::{Rows, Tensor, TensorView, TensorViewMut};
