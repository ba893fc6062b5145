//! What every rung is.

use crate::{AttentionError, DType, Output, OutputMut, Problem};

/// One implementation of attention: a rung of the ladder.
pub trait Attention: Send + Sync {
    /// The name by which the registry and the command line know it.
    fn name(&self) -> &'static str;

    /// Whether this rung can do `problem`. Called before any work.
    ///
    /// # Errors
    /// [`AttentionError::Unsupported`] names what it cannot do; other errors name a setting of the rung that cannot
    /// serve these shapes.
    fn supports(&self, problem: &Problem) -> Result<(), AttentionError>;

    /// The type that the weights P are rounded to before `P V`, which the error rule allows for. The sums of the weights
    /// are always f32.
    fn weights(&self, _problem: &Problem) -> DType {
        DType::F32
    }

    /// Computes o and lse into `out`, in the caller's rayon pool.
    ///
    /// # Errors
    /// Those of [`Attention::supports`], and those of an output that does not fit; nothing is written then. A rung that
    /// keeps an intermediate of more than O(N) may also answer [`AttentionError::Memory`], with part of `out` written.
    /// Small allocations that fail abort the process, as everywhere in Rust.
    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError>;

    /// As [`Attention::forward_into`], into new memory.
    ///
    /// # Errors
    /// Those of [`Attention::forward_into`], and [`AttentionError::Memory`].
    fn forward(&self, problem: &Problem) -> Result<Output, AttentionError> {
        self.supports(problem)?;
        let mut output = Output::empty(problem)?;
        self.forward_into(problem, &mut output.view_mut())?;
        Ok(output)
    }
}

/// What rungs take that compute in f32: every problem but F64 ones, which are the oracle's.
///
/// # Errors
/// [`AttentionError::Unsupported`].
pub fn supports_f32_arithmetic(rung: &'static str, problem: &Problem) -> Result<(), AttentionError> {
    match problem.dtype() {
        DType::F64 => Err(AttentionError::Unsupported { rung, what: "F64 tensors".into() }),
        _ => Ok(()),
    }
}

/// What the rungs take that come before paging: problems in f32 whose keys and values lie one behind the other.
///
/// # Errors
/// [`AttentionError::Unsupported`].
pub fn supports_contiguous(rung: &'static str, problem: &Problem) -> Result<(), AttentionError> {
    match problem.block_table() {
        Some(_) => Err(AttentionError::Unsupported { rung, what: "paged keys and values".into() }),
        None => supports_f32_arithmetic(rung, problem),
    }
}
