//! What a rung runs, and how it plans a call.

use crate::plan::{Plan, Shape, Target};
use crate::steps::{FA2_STEPS, Step};
use crate::{fa1, fa2_mma, fa2_simt, naive, triton};
use attention::{AttentionError, DType, Options};

/// What a rung runs. This crate has five; another crate's kernels are one more, if they take the problem as these do.
#[derive(Debug)]
pub struct Algorithm {
    /// The name of its rung.
    pub name: &'static str,
    /// The types of tensors that it takes.
    pub dtypes: &'static [DType],
    /// Whether it runs on tensor cores, which take numbers of 16 bits: then P is rounded to the tensors' type.
    pub on_tensor_cores: bool,
    /// Whether its kernels read the table of [sequences](Plan::sequences) even where all have the same lengths.
    pub wants_table: bool,
    /// The steps in which its kernel was made, if they are kept.
    pub steps: &'static [Step],
    /// Plans a call of a shape that kernels can count, in one of the types.
    pub planner: fn(&Call) -> Result<Plan, AttentionError>,
}

/// What a plan is made of.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a, 'o> {
    /// The rung's name.
    pub rung: &'static str,
    /// The place of the call's type among those that the algorithm takes.
    pub dtype: usize,
    /// Shapes of tensors.
    pub shape: &'a Shape,
    /// Of those that are tensors, only whether they are there is looked at.
    pub options: &'a Options<'o>,
    /// The device.
    pub target: Target,
}

const F32_OR_F16: &[DType] = &[DType::F32, DType::F16];
const F16_OR_BF16: &[DType] = &[DType::F16, DType::Bf16];

/// S and P in device memory.
pub static NAIVE: Algorithm =
    on_cuda_cores("cuda-naive", |call| naive::plan(call.rung, &naive::VARIANTS[call.dtype], call.shape, call.options));

/// FlashAttention-1.
pub static FA1: Algorithm = on_cuda_cores("cuda-fa1", |call| {
    fa1::plan(call.rung, &fa1::VARIANTS[call.dtype], shared_per_block(call), call.shape, call.options)
});

/// FlashAttention-2 on CUDA cores.
pub static FA2_SIMT: Algorithm = on_cuda_cores("cuda-fa2-simt", |call| {
    fa2_simt::plan(call.rung, &fa2_simt::OF_TYPE[call.dtype], shared_per_block(call), call.shape, call.options)
});

/// FlashAttention-2 on tensor cores.
pub static FA2: Algorithm = Algorithm {
    name: "cuda-fa2",
    dtypes: F16_OR_BF16,
    on_tensor_cores: true,
    wants_table: false,
    steps: &FA2_STEPS,
    planner: |call| fa2_mma::plan(call.rung, fa2_mma::OF_TYPE[call.dtype], call.target, call.shape, call.options),
};

/// The same, compiled by Triton.
pub static TRITON: Algorithm = Algorithm {
    name: "triton-fa2",
    dtypes: F16_OR_BF16,
    on_tensor_cores: true,
    wants_table: true,
    steps: &[],
    planner: |call| triton::plan(call.rung, &triton::OF_TYPE[call.dtype], call.shape, call.options),
};

const fn on_cuda_cores(name: &'static str, planner: fn(&Call) -> Result<Plan, AttentionError>) -> Algorithm {
    Algorithm { name, dtypes: F32_OR_F16, on_tensor_cores: false, wants_table: false, steps: &[], planner }
}

/// What kernels can address of it.
fn shared_per_block(call: &Call) -> usize {
    call.target.shared_per_block.min(u32::MAX as usize)
}

impl Algorithm {
    /// Tiles, grids, kernels and workspace for a call. Of the options that are tensors, only whether they are there is looked at.
    ///
    /// # Errors
    /// [`AttentionError::Unsupported`] names what the rung cannot do, [`AttentionError::Memory`] a workspace that no address
    /// reaches.
    pub fn plan(&self, shape: &Shape, options: &Options, target: Target) -> Result<Plan, AttentionError> {
        let rung = self.name;
        shape.check(rung)?;
        let Some(dtype) = self.dtypes.iter().position(|dtype| *dtype == shape.dtype) else {
            return Err(AttentionError::Unsupported { rung, what: format!("{} tensors", shape.dtype) });
        };
        let plan = (self.planner)(&Call { rung, dtype, shape, options, target })?;
        Ok(Plan { tabled: plan.tabled || self.wants_table, ..plan })
    }
}
