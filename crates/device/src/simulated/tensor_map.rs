//! Tensor maps of a simulated device.

use crate::{DeviceError, Swizzle, TensorMap, TensorMapElement, Tiling};
use ptx_sim::{Element, Interleave, OutOfBoundsFill, TensorMapError};

pub(crate) fn tensor_map(tiling: &Tiling) -> Result<TensorMap, DeviceError> {
    // In the words of a GPU, for what both refuse.
    tiling.check()?;
    let map = ptx_sim::TensorMap {
        element: match tiling.element {
            TensorMapElement::U8 => Element::U8,
            TensorMapElement::F16 => Element::F16,
            TensorMapElement::Bf16 => Element::Bf16,
            TensorMapElement::F32 => Element::F32,
        },
        address: tiling.address,
        sizes: tiling.lengths,
        strides: tiling.strides,
        box_sizes: tiling.tile,
        element_strides: &[1; 5][..tiling.lengths.len()],
        interleave: Interleave::None,
        swizzle: match tiling.swizzle {
            Swizzle::None => ptx_sim::Swizzle::None,
            Swizzle::B32 => ptx_sim::Swizzle::B32,
            Swizzle::B64 => ptx_sim::Swizzle::B64,
            Swizzle::B128 => ptx_sim::Swizzle::B128,
        },
        fill: OutOfBoundsFill::Zeros,
    };
    map.encode().map(TensorMap::of_bytes).map_err(|error| match error {
        TensorMapError::Rule { argument, found, wanted } => {
            DeviceError::value(format!("tensor map: {argument}"), found, wanted)
        }
        TensorMapError::NotSimulated { argument, found } => {
            DeviceError::value(format!("tensor map: {argument}"), found, "what is simulated")
        }
    })
}
