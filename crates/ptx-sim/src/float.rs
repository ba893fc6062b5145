//! IEEE arithmetic with every rounding mode of PTX, on any CPU.
//!
//! A result is found exactly, or rounded to odd in f64, which has so many bits more than the formats of 32 bits and fewer that
//! a second rounding gives what one rounding of the exact result would (Boldo and Melquiond, "Emulation of FMA and correctly
//! rounded sums", 2008).

/// A rounding mode (PTX ISA, "Rounding Modifiers").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// To the nearest, ties to even.
    Nearest,
    Zero,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
}

/// A binary format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bits of the fraction.
    pub(crate) fraction: u32,
    /// Bits of the exponent.
    pub(crate) exponent: u32,
    /// The NaN that arithmetic gives.
    pub(crate) nan: u64,
}

pub(crate) const F16: Format = Format { fraction: 10, exponent: 5, nan: 0x7fff };
pub(crate) const BF16: Format = Format { fraction: 7, exponent: 8, nan: 0x7fff };
pub(crate) const TF32: Format = Format { fraction: 10, exponent: 8, nan: 0x3_ffff };
pub(crate) const F32: Format = Format { fraction: 23, exponent: 8, nan: 0x7fff_ffff };
pub(crate) const F64: Format = Format { fraction: 52, exponent: 11, nan: 0xfff8_0000_0000_0000 };

/// A number that is not infinite: `(-1)^negative * mantissa * 2^exponent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exact {
    pub(crate) negative: bool,
    pub(crate) mantissa: u128,
    pub(crate) exponent: i32,
}

impl Exact {
    /// `None` for infinities and NaN.
    pub(crate) fn from_f64(x: f64) -> Option<Exact> {
        let bits = x.to_bits();
        let (field, fraction) = (bits >> 52 & 0x7ff, bits & ((1 << 52) - 1));
        let (mantissa, exponent) = match field {
            0x7ff => return None,
            0 => (fraction, -1074),
            _ => (fraction | 1 << 52, field as i32 - 1075),
        };
        Some(Exact { negative: x.is_sign_negative(), mantissa: mantissa.into(), exponent })
    }

    pub(crate) fn from_integer(x: i128) -> Exact {
        Exact { negative: x < 0, mantissa: x.unsigned_abs(), exponent: 0 }
    }

    /// The integer part and whether it went up, by a mode: the magnitude is rounded with the sign in mind.
    pub(crate) fn to_integer(self, mode: Round) -> i128 {
        let magnitude = if self.exponent >= 0 {
            // Beyond 2^127 every integer type saturates.
            if self.exponent > 64 && self.mantissa != 0 { u128::MAX >> 1 } else { self.mantissa << self.exponent }
        } else {
            shift_rounded(self.mantissa, self.exponent.unsigned_abs(), self.negative, mode)
        };
        let magnitude = magnitude.min(u128::MAX >> 1) as i128;
        if self.negative { -magnitude } else { magnitude }
    }

    /// Rounded to a format: its bits. What is too large becomes infinity, or the largest number where the mode says so.
    pub(crate) fn round(self, format: Format, mode: Round) -> u64 {
        let Format { fraction, exponent, .. } = format;
        let sign = u64::from(self.negative) << (fraction + exponent);
        if self.mantissa == 0 {
            return sign;
        }
        let bias = (1 << (exponent - 1)) - 1;
        // The exponent of the last bit that the format can hold of this number.
        let top = 127 - self.mantissa.leading_zeros() as i32 + self.exponent;
        let last = top.max(1 - bias) - fraction as i32;
        let shift = last - self.exponent;
        let kept = if shift > 0 {
            shift_rounded(self.mantissa, shift.unsigned_abs(), self.negative, mode)
        } else {
            self.mantissa << shift.unsigned_abs()
        };
        // A mantissa that has grown by a bit carries into the exponent by itself.
        let field = (last + fraction as i32 + bias - 1) as u64;
        let bits = (field << fraction) + kept as u64;
        let infinity = ((1u64 << exponent) - 1) << fraction;
        if bits >= infinity {
            let outward = match mode {
                Round::Nearest => true,
                Round::Zero => false,
                Round::Down => self.negative,
                Round::Up => !self.negative,
            };
            return sign | if outward { infinity } else { infinity - 1 };
        }
        sign | bits
    }
}

/// `x / 2^shift`, rounded to an integer.
fn shift_rounded(x: u128, shift: u32, negative: bool, mode: Round) -> u128 {
    let (kept, half, rest) = match shift {
        0 => return x,
        1..=127 => (x >> shift, x >> (shift - 1) & 1 != 0, x & ((1 << (shift - 1)) - 1) != 0),
        128 => (0, x >> 127 != 0, x & (u128::MAX >> 1) != 0),
        _ => (0, false, x != 0),
    };
    let up = match mode {
        Round::Nearest => half && (rest || kept & 1 != 0),
        Round::Zero => false,
        Round::Down => negative && (half || rest),
        Round::Up => !negative && (half || rest),
    };
    kept + u128::from(up)
}

/// An f64 rounded to a format; arithmetic's NaN for NaN.
#[inline]
pub(crate) fn round(x: f64, format: Format, mode: Round) -> u64 {
    match Exact::from_f64(x) {
        Some(exact) => exact.round(format, mode),
        None if x.is_nan() => format.nan,
        None => {
            let sign = u64::from(x < 0.0) << (format.fraction + format.exponent);
            sign | ((1 << format.exponent) - 1) << format.fraction
        }
    }
}

/// The sum, rounded to odd: where it is not exact, the one of its two neighbours whose last bit is 1.
#[inline]
pub(crate) fn add_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    // Knuth's two-sum: the error is exact.
    let from_b = sum - a;
    let error = (a - (sum - from_b)) + (b - from_b);
    to_odd(sum, error)
}

/// The quotient, rounded to odd.
pub(crate) fn div_to_odd(a: f64, b: f64) -> f64 {
    let quotient = a / b;
    if !quotient.is_finite() || b.is_infinite() {
        return quotient;
    }
    let error = (-quotient).mul_add(b, a);
    to_odd(quotient, if b < 0.0 { -error } else { error })
}

/// The square root, rounded to odd.
pub(crate) fn sqrt_to_odd(a: f64) -> f64 {
    let root = a.sqrt();
    if !root.is_finite() {
        return root;
    }
    to_odd(root, (-root).mul_add(root, a))
}

/// A nearest number, given the sign of what is missing.
fn to_odd(nearest: f64, error: f64) -> f64 {
    let bits = nearest.to_bits();
    if error == 0.0 || bits & 1 != 0 {
        return nearest;
    }
    let away = (error > 0.0) == (nearest > 0.0);
    f64::from_bits(if away { bits + 1 } else { bits - 1 })
}

/// A number whose magnitude is too small to be normal becomes a zero of its sign (".ftz").
#[inline]
pub(crate) fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// Arithmetic's NaN for every NaN.
#[inline]
pub(crate) fn canonical(x: f32) -> f32 {
    if x.is_nan() { f32::from_bits(0x7fff_ffff) } else { x }
}

/// `.sat`: clamps to 0 to 1, NaN to 0.
#[inline]
pub(crate) fn saturate(x: f32) -> f32 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    const MODES: [Round; 4] = [Round::Nearest, Round::Zero, Round::Down, Round::Up];

    fn f32_of(x: f64, mode: Round) -> f32 {
        f32::from_bits(round(x, F32, mode) as u32)
    }

    #[test]
    fn numbers_between_two_neighbours_go_where_the_mode_says() {
        let (one, next) = (1.0f32, f32::from_bits(0x3f80_0001));
        let between = |share: f64| 1.0 + share * (f64::from(next) - 1.0);
        for (x, wanted) in [
            (between(0.25), [one, one, one, next]),
            (between(0.5), [one, one, one, next]),
            (between(0.75), [next, one, one, next]),
            (-between(0.75), [-next, -one, -next, -one]),
            (1e300, [f32::INFINITY, f32::MAX, f32::MAX, f32::INFINITY]),
            (-1e300, [-f32::INFINITY, -f32::MAX, -f32::INFINITY, -f32::MAX]),
            (1e-300, [0.0, 0.0, 0.0, f32::from_bits(1)]),
            (-1e-300, [-0.0, -0.0, -f32::from_bits(1), -0.0]),
        ] {
            assert_eq!(MODES.map(|mode| f32_of(x, mode).to_bits()), wanted.map(f32::to_bits), "{x}");
        }
        assert_eq!(round(f64::NAN, F16, Round::Nearest), 0x7fff);
        assert_eq!(round(f64::NEG_INFINITY, BF16, Round::Zero), 0xff80);
    }

    #[test]
    fn integers_are_rounded_with_the_sign_in_mind() {
        for (x, wanted) in [
            (2.5, [2, 2, 2, 3]),
            (3.5, [4, 3, 3, 4]),
            (-2.5, [-2, -2, -3, -2]),
            (-0.1, [0, 0, -1, 0]),
            (7.0, [7, 7, 7, 7]),
            (1e-320, [0, 0, 0, 1]),
        ] {
            assert_eq!(MODES.map(|mode| Exact::from_f64(x).unwrap().to_integer(mode)), wanted, "{x}");
        }
        assert_eq!(Exact::from_f64(-1e308).unwrap().to_integer(Round::Nearest), -i128::MAX);
    }

    proptest! {
        #[test]
        fn nearest_is_what_the_cpu_and_the_crate_half_round_to(bits: u64, small in -40i32..40, x in -2.0f64..2.0) {
            for x in [f64::from_bits(bits), x * f64::from(small).exp2()] {
                prop_assume!(!x.is_nan());
                prop_assert_eq!(f32_of(x, Round::Nearest).to_bits(), (x as f32).to_bits());
                prop_assert_eq!(round(x, F16, Round::Nearest) as u16, f16::from_f64(x).to_bits());
                prop_assert_eq!(round(x, BF16, Round::Nearest) as u16, bf16::from_f64(x).to_bits());
                prop_assert_eq!(round(x, F64, Round::Nearest), x.to_bits());
            }
        }

        #[test]
        fn two_roundings_by_way_of_odd_are_one(a: u32, b: u32, c: u32) {
            let [a, b, c] = [a, b, c].map(f32::from_bits);
            prop_assume!(a.is_finite() && b.is_finite() && c.is_finite());
            let product = f64::from(a) * f64::from(b);
            let fma = f32_of(add_to_odd(product, c.into()), Round::Nearest);
            prop_assert_eq!(fma.to_bits(), a.mul_add(b, c).to_bits());
            prop_assert_eq!(f32_of(add_to_odd(a.into(), b.into()), Round::Nearest).to_bits(), (a + b).to_bits());
            if b != 0.0 {
                prop_assert_eq!(f32_of(div_to_odd(a.into(), b.into()), Round::Nearest).to_bits(), (a / b).to_bits());
            }
            prop_assert_eq!(f32_of(sqrt_to_odd(a.abs().into()), Round::Nearest).to_bits(), a.abs().sqrt().to_bits());
        }
    }
}
