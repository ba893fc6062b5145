//! Element types: what a tensor may hold, and how one element becomes a number and back.

use crate::TensorView;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ndarray::{ArrayView, Dimension};
use std::fmt;

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE double precision. Only the oracle takes it.
    F64,
    /// IEEE half precision: 11 significant bits, largest finite value 65504.
    F16,
    /// bfloat16: 8 significant bits, the exponent range of f32.
    Bf16,
    /// FP8 with 4 exponent and 3 mantissa bits. Reserved: no rung takes it yet.
    E4m3,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
            DType::E4m3 => 1,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "F32",
            DType::F64 => "F64",
            DType::F16 => "F16",
            DType::Bf16 => "BF16",
            DType::E4m3 => "F8_E4M3",
        })
    }
}

/// The bits of one e4m3fn number: sign, 4 exponent bits of bias 7, 3 mantissa bits; no infinity, and NaN is 0x7F or 0xFF.
///
/// It keeps the place of FP8 among the types: it widens, and no rung takes it yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct E4m3(pub u8);

impl E4m3 {
    fn value(self) -> f32 {
        let sign = if self.0 & 0x80 == 0 { 1.0 } else { -1.0 };
        let exponent = i32::from(self.0 >> 3 & 0xF);
        let mantissa = f32::from(self.0 & 7) / 8.0;
        sign * match exponent {
            15 if mantissa == 7.0 / 8.0 => f32::NAN,
            0 => mantissa * f32::powi(2.0, -6),
            e => (1.0 + mantissa) * f32::powi(2.0, e - 7),
        }
    }
}

/// An element that a rung or the oracle can read. Widening is exact, but for F64 to f32, which no rung asks for.
pub trait Element: Copy + Send + Sync + 'static {
    /// The element as f32.
    fn to_f32(self) -> f32;
    /// The element as f64.
    fn to_f64(self) -> f64;
    /// Neighbouring elements as f32, into as many places.
    fn widen(row: &[Self], out: &mut [f32]);
    /// The tensor's array, if its elements are these.
    fn array<'v, 'a, D: Dimension>(tensor: &'v TensorView<'a, D>) -> Option<&'v ArrayView<'a, Self, D>>;
}

macro_rules! element {
    ($type:ty, $variant:ident, $to_f32:expr, $to_f64:expr, $widen:expr) => {
        impl Element for $type {
            #[inline(always)]
            fn widen(row: &[Self], out: &mut [f32]) {
                $widen(row, out)
            }
            #[inline]
            fn array<'v, 'a, D: Dimension>(tensor: &'v TensorView<'a, D>) -> Option<&'v ArrayView<'a, Self, D>> {
                if let TensorView::$variant(array) = tensor { Some(array) } else { None }
            }
            #[inline]
            fn to_f32(self) -> f32 {
                $to_f32(self)
            }
            #[inline]
            fn to_f64(self) -> f64 {
                $to_f64(self)
            }
        }
    };
}

/// [`Element::widen`] by a function of one element.
macro_rules! each_by {
    ($widen:expr) => {
        |row: &[Self], out: &mut [f32]| out.iter_mut().zip(row).for_each(|(out, &x)| *out = $widen(x))
    };
}

element!(f32, F32, |x| x, f64::from, |row: &[f32], out: &mut [f32]| out.copy_from_slice(row));
element!(f64, F64, |x| x as f32, |x| x, each_by!(Self::to_f32));
element!(f16, F16, f16::to_f32, f16::to_f64, |row: &[f16], out| row.convert_to_f32_slice(out));
element!(bf16, Bf16, bf16::to_f32, bf16::to_f64, each_by!(|x: bf16| f32::from_bits(u32::from(x.to_bits()) << 16)));
element!(E4m3, E4m3, E4m3::value, |x| f64::from(E4m3::value(x)), each_by!(Self::to_f32));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_widens_to_the_values_of_the_ocp_table() {
        for (bits, value) in [
            (0x00, 0.0),
            (0x01, 0.001953125),
            (0x07, 0.013671875),
            (0x08, 0.015625),
            (0x38, 1.0),
            (0x39, 1.125),
            (0xB8, -1.0),
            (0x7E, 448.0),
            (0xFE, -448.0),
        ] {
            assert_eq!(E4m3(bits).to_f32(), value, "bits {bits:#04x}");
        }
        assert!(E4m3(0x7F).to_f32().is_nan() && E4m3(0xFF).to_f64().is_nan());
    }
}
