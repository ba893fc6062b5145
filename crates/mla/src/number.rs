//! Storing what was computed in f32: rounded once to the layer's type, to nearest even.

use attention::{AttentionError, DType, Tensor};
use half::{bf16, f16};
use ndarray::{Array, Dimension};

/// Refuses types that a layer cannot have.
pub(crate) fn check_type(tensor: &'static str, found: DType) -> Result<(), AttentionError> {
    match found {
        DType::F32 | DType::F16 | DType::Bf16 => Ok(()),
        DType::F64 | DType::E4m3 => Err(AttentionError::DType { tensor, found, wanted: "F32, F16 or BF16".into() }),
    }
}

/// The tensor of `dtype` that holds `values`; F64 and E4m3 are no types of a layer, and stay f32.
pub(crate) fn tensor<D: Dimension>(dtype: DType, values: Array<f32, D>) -> Tensor {
    match dtype {
        DType::F16 => values.mapv(f16::from_f32).into(),
        DType::Bf16 => values.mapv(bf16::from_f32).into(),
        DType::F32 | DType::F64 | DType::E4m3 => values.into(),
    }
}

/// The values as a tensor of `dtype` would hold them.
pub(crate) fn rounded<D: Dimension>(dtype: DType, values: Array<f32, D>) -> Array<f32, D> {
    match dtype {
        DType::F16 => values.mapv_into(|x| f16::from_f32(x).to_f32()),
        DType::Bf16 => values.mapv_into(|x| bf16::from_f32(x).to_f32()),
        DType::F32 | DType::F64 | DType::E4m3 => values,
    }
}
