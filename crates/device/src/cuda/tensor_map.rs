//! Tensor maps: what Hopper's copy engine (TMA) is told of a tensor in the device's memory.

use super::Gpu;
use super::driver::call;
use crate::DeviceError;
use cudarc::driver::sys;
use ptx_sim::{Element, OutOfBoundsFill, Swizzle, Tiling};

/// A tensor map, 128 bytes as the driver encodes them, or the simulator: a kernel's argument. The tensor must be live where a
/// kernel uses it.
// CUDA 13 aligns it to 128 bytes, CUDA 12 to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(128))]
pub struct TensorMap([u64; 16]);

impl TensorMap {
    /// A map of a simulated device, which has an encoding of its own.
    pub(crate) fn of_bytes(bytes: [u8; 128]) -> Self {
        TensorMap(bytemuck::cast(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        bytemuck::bytes_of(&self.0)
    }
}

fn element(element: Element) -> sys::CUtensorMapDataType {
    use sys::CUtensorMapDataType_enum as Of;
    match element {
        Element::U8 => Of::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        Element::U16 => Of::CU_TENSOR_MAP_DATA_TYPE_UINT16,
        Element::U32 => Of::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        Element::I32 => Of::CU_TENSOR_MAP_DATA_TYPE_INT32,
        Element::U64 => Of::CU_TENSOR_MAP_DATA_TYPE_UINT64,
        Element::I64 => Of::CU_TENSOR_MAP_DATA_TYPE_INT64,
        Element::F16 => Of::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        Element::F32 => Of::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        Element::F64 => Of::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
        Element::Bf16 => Of::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        Element::Tf32 => Of::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
    }
}

fn swizzle(swizzle: Swizzle) -> sys::CUtensorMapSwizzle {
    use sys::CUtensorMapSwizzle_enum as Of;
    match swizzle {
        Swizzle::None => Of::CU_TENSOR_MAP_SWIZZLE_NONE,
        Swizzle::B32 => Of::CU_TENSOR_MAP_SWIZZLE_32B,
        Swizzle::B64 => Of::CU_TENSOR_MAP_SWIZZLE_64B,
        Swizzle::B128 => Of::CU_TENSOR_MAP_SWIZZLE_128B,
    }
}

fn fill(fill: OutOfBoundsFill) -> sys::CUtensorMapFloatOOBfill {
    use sys::CUtensorMapFloatOOBfill_enum as Of;
    match fill {
        OutOfBoundsFill::Zeros => Of::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        OutOfBoundsFill::Nan => Of::CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
    }
}

impl Gpu {
    pub(crate) fn tensor_map(&self, tiling: &Tiling) -> Result<TensorMap, DeviceError> {
        let (major, minor) = self.attributes().compute_capability;
        if major < 9 {
            return Err(DeviceError::value(
                "device",
                format!("compute capability {major}.{minor}"),
                "9.0 or newer for tensor maps",
            ));
        }
        tiling.check()?;
        self.bind()?;
        let mut map = TensorMap([0; 16]);
        let steps = [1u32; 5];
        // SAFETY: each list has an entry for each axis, the strides one less, as `check` has seen; the driver writes one map
        // of 128 bytes, aligned as it wants.
        unsafe {
            call!(cuTensorMapEncodeTiled(
                (&raw mut map).cast(),
                element(tiling.element),
                tiling.lengths.len() as u32,
                tiling.address as *mut std::ffi::c_void,
                tiling.lengths.as_ptr(),
                tiling.strides.as_ptr(),
                tiling.tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle(tiling.swizzle),
                sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                fill(tiling.fill)
            ))
        }?;
        Ok(map)
    }
}
