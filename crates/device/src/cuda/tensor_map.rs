//! Tensor maps: what Hopper's copy engine (TMA) is told of a tensor in the device's memory.

use super::Gpu;
use super::driver::call;
use crate::DeviceError;
use cudarc::driver::sys;

/// A tensor map, 128 bytes as the driver encodes them, or the simulator: a kernel's argument. The tensor must be live where a
/// kernel uses it.
// CUDA 13 aligns it to 128 bytes, CUDA 12 to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(128))]
pub struct TensorMap([u64; 16]);

/// An element of a tensor map's tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorMapElement {
    /// 8 bits, of any meaning.
    U8,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
}

/// How 16-byte pieces of a tile's rows are exchanged in shared memory, so that columns meet no bank conflicts. A row of the
/// tile has at most as many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    /// As they are.
    None,
    /// Within 32 bytes.
    B32,
    /// Within 64 bytes.
    B64,
    /// Within 128 bytes.
    B128,
}

/// A tensor in the device's memory, and the tile of it that one copy moves. The innermost axis comes first, whose elements lie
/// side by side. What a tile has beyond the tensor's edges is filled with zeros. Along the innermost axis a tile begins at a
/// multiple of 16 bytes, before the tensor's start too: a kernel that asks for another place ends with an illegal instruction.
#[derive(Clone, Copy, Debug)]
pub struct Tiling<'a> {
    /// The elements.
    pub element: TensorMapElement,
    /// Where the tensor begins, a multiple of 16.
    pub address: u64,
    /// Elements along each of one to five axes, 1 to 2^32.
    pub lengths: &'a [u64],
    /// Bytes from one element to the next along each axis but the innermost: multiples of 16 below 2^40.
    pub strides: &'a [u64],
    /// Elements of the tile along each axis, 1 to 256.
    pub tile: &'a [u32],
    /// The order in shared memory.
    pub swizzle: Swizzle,
}

impl TensorMap {
    /// A map of a simulated device, which has an encoding of its own.
    pub(crate) fn of_bytes(bytes: [u8; 128]) -> Self {
        TensorMap(bytemuck::cast(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        bytemuck::bytes_of(&self.0)
    }
}

impl TensorMapElement {
    fn bytes(self) -> u32 {
        match self {
            TensorMapElement::U8 => 1,
            TensorMapElement::F16 | TensorMapElement::Bf16 => 2,
            TensorMapElement::F32 => 4,
        }
    }

    fn code(self) -> sys::CUtensorMapDataType {
        use sys::CUtensorMapDataType_enum as Of;
        match self {
            TensorMapElement::U8 => Of::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            TensorMapElement::F16 => Of::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            TensorMapElement::Bf16 => Of::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            TensorMapElement::F32 => Of::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        }
    }
}

impl Swizzle {
    /// Bytes of a tile's row, at most.
    fn span(self) -> u32 {
        match self {
            Swizzle::None => u32::MAX,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 => 128,
        }
    }

    fn code(self) -> sys::CUtensorMapSwizzle {
        use sys::CUtensorMapSwizzle_enum as Of;
        match self {
            Swizzle::None => Of::CU_TENSOR_MAP_SWIZZLE_NONE,
            Swizzle::B32 => Of::CU_TENSOR_MAP_SWIZZLE_32B,
            Swizzle::B64 => Of::CU_TENSOR_MAP_SWIZZLE_64B,
            Swizzle::B128 => Of::CU_TENSOR_MAP_SWIZZLE_128B,
        }
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
                tiling.element.code(),
                tiling.lengths.len() as u32,
                tiling.address as *mut std::ffi::c_void,
                tiling.lengths.as_ptr(),
                tiling.strides.as_ptr(),
                tiling.tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE,
                tiling.swizzle.code(),
                sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
            ))
        }?;
        Ok(map)
    }
}

impl Tiling<'_> {
    /// The rules of `cuTensorMapEncodeTiled`, which itself does not say which was broken.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        let rank = self.lengths.len();
        let refuse = |name: &str, found: &dyn std::fmt::Debug, wanted: &str| {
            Err(DeviceError::value(format!("tensor map: {name}"), format!("{found:?}"), wanted))
        };
        if !(1..=5).contains(&rank) {
            return refuse("lengths", &self.lengths, "1 to 5 axes");
        }
        if self.strides.len() != rank - 1 || self.tile.len() != rank {
            return refuse(
                "strides and tile",
                &(self.strides, self.tile),
                "a stride less than axes, and a side for each axis",
            );
        }
        if self.address == 0 || !self.address.is_multiple_of(16) {
            return refuse("address", &self.address, "a multiple of 16");
        }
        if self.lengths.iter().any(|&length| length == 0 || length > 1 << 32) {
            return refuse("lengths", &self.lengths, "1 to 2^32 each");
        }
        if self.strides.iter().any(|&stride| stride == 0 || !stride.is_multiple_of(16) || stride >= 1 << 40) {
            return refuse("strides", &self.strides, "multiples of 16 bytes below 2^40");
        }
        if self.tile.iter().any(|&side| side == 0 || side > 256) {
            return refuse("tile", &self.tile, "1 to 256 each");
        }
        let row = self.tile[0] * self.element.bytes();
        if !row.is_multiple_of(16) || row > self.swizzle.span() {
            return refuse("bytes of a tile's row", &row, "a multiple of 16 within the swizzle's span");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tiling_is_held_against_every_rule_of_the_driver() {
        let good = Tiling {
            element: TensorMapElement::F16,
            address: 1 << 20,
            lengths: &[128, 487, 9],
            strides: &[256, 256 * 487],
            tile: &[64, 128, 1],
            swizzle: Swizzle::B128,
        };
        assert_eq!(good.check(), Ok(()));
        for (bad, name) in [
            (Tiling { lengths: &[], strides: &[], tile: &[], ..good }, "lengths: found []"),
            (Tiling { strides: &[256], ..good }, "strides and tile: found ([256], [64, 128, 1])"),
            (Tiling { tile: &[64, 128], ..good }, "strides and tile"),
            (Tiling { address: 8, ..good }, "address: found 8"),
            (Tiling { lengths: &[128, 0, 9], ..good }, "lengths: found [128, 0, 9]"),
            (Tiling { strides: &[256, 1000], ..good }, "strides: found [256, 1000]"),
            (Tiling { strides: &[256, 1 << 40], ..good }, "strides"),
            (Tiling { tile: &[64, 257, 1], ..good }, "tile: found [64, 257, 1]"),
            (Tiling { tile: &[128, 128, 1], ..good }, "bytes of a tile's row: found 256"),
            (Tiling { tile: &[9, 128, 1], ..good }, "bytes of a tile's row: found 18"),
            (Tiling { element: TensorMapElement::F32, ..good }, "bytes of a tile's row: found 256"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.starts_with(&format!("tensor map: {name}")), "{error}");
        }
        assert_eq!(Tiling { tile: &[128, 128, 1], swizzle: Swizzle::None, ..good }.check(), Ok(()));
    }
}
