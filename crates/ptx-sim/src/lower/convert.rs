//! `cvt` (section 9.7.9.21): between all types, by way of what a number is exactly.

use super::{Lowered, Lowering, Modifiers, Result};
use crate::float::{self, BF16, Exact, F16, F32, F64, Format, Round, flush};
use crate::lanes::Lanes;
use crate::ptx::{Instruction, Type};
use std::array;

/// What a number is.
#[derive(Clone, Copy)]
enum Number {
    Integer(i128),
    Float(f64),
}

/// How `cvt` makes one number of another.
#[derive(Clone, Copy)]
struct Conversion {
    to: Type,
    from: Type,
    round: Round,
    /// `.rni` and so on: the result is an integer, whatever its type.
    integral: Option<Round>,
    flushes: bool,
    saturates: bool,
    clamps: bool,
}

impl<'a> Lowering<'a> {
    pub(super) fn conversion(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let integral =
            m.one_of(&[("rni", Round::Nearest), ("rzi", Round::Zero), ("rmi", Round::Down), ("rpi", Round::Up)]);
        let round = m.round();
        let (flushes, saturates, clamps) = (m.flag("ftz"), m.flag("sat"), m.flag("relu"));
        let (to, from) = (m.ty()?, m.ty()?);
        let conversion =
            Conversion { to, from, round: round.unwrap_or(Round::Nearest), integral, flushes, saturates, clamps };
        if from == Type::Pred || to == Type::Pred || to.bytes() == 16 || from.bytes() == 16 {
            return Err(m.error("found a type that is no number"));
        }
        if let Some(half) = half_of(to) {
            if from != Type::F32 {
                return Err(m.error("found a pair of another type, wanted one of .f32"));
            }
            let of = Conversion { to: half, ..conversion };
            let [d, a, b] = self.operands(i)?;
            let (d, a, b) = (self.target(d, to)?, self.source(a, from)?, self.source(b, from)?);
            return Ok(Lowered::compute(move |r, mask| {
                let (a, b): (Lanes<u64>, Lanes<u64>) = (r.get(a), r.get(b));
                r.put(d, mask, array::from_fn(|lane| of.apply(a[lane]) << 16 | of.apply(b[lane])));
            }));
        }
        if format(from).is_some() && format(to).is_none() && integral.is_none() {
            return Err(m.error("found no rounding, wanted .rni, .rzi, .rmi or .rpi"));
        }
        let [d, a] = self.operands(i)?;
        let ((d, d_bytes), (a, a_bytes)) = (self.any_target(d, to)?, self.any_source(a, from)?);
        if d_bytes < to.bytes() || a_bytes < from.bytes() {
            return Err(m.error("found a register with fewer bits than its type"));
        }
        if (to, from) == (Type::F32, Type::Bf16) && !flushes && !saturates && integral.is_none() {
            // Half of the bits are the other's, NaN's too.
            return self.unary(i, [to, from], |x: u16| u32::from(x) << 16);
        }
        // The two that every kernel of 16 bits is full of, short.
        if integral.is_none() && !saturates && !clamps && round.is_none_or(|round| round == Round::Nearest) {
            if (to, from, flushes) == (Type::F32, Type::F16, false) {
                return self.unary(i, [to, from], |x: half::f16| float::canonical(x.to_f32()));
            }
            if (to, from) == (Type::F16, Type::F32) {
                let half = |x: f32| if x.is_nan() { F16.nan as u16 } else { half::f16::from_f32(x).to_bits() };
                return self.unary(i, [to, from], half);
            }
        }
        Ok(Lowered::compute(move |r, mask| {
            let a: Lanes<u64> = r.get(a);
            r.put(d, mask, a.map(|bits| conversion.apply(bits)));
        }))
    }
}

impl Conversion {
    /// The bits of the result, continued by the sign where the type has one.
    fn apply(self, bits: u64) -> u64 {
        match (self.number(bits), format(self.to)) {
            (Number::Integer(x), None) => self.integer(x),
            (Number::Integer(x), Some(format)) => Exact::from_integer(x).round(format, self.round),
            (Number::Float(x), None) => match Exact::from_f64(x) {
                Some(exact) => clamped(exact.to_integer(self.integral.unwrap_or(Round::Zero)), self.to),
                None if x.is_nan() => not_a_number(self.to, self.from),
                None if x > 0.0 => clamped(i128::MAX, self.to),
                None => clamped(i128::MIN, self.to),
            },
            (Number::Float(x), Some(format)) => self.float(x, format),
        }
    }

    fn number(self, bits: u64) -> Number {
        match self.from {
            Type::F16 => Number::Float(half::f16::from_bits(bits as u16).into()),
            Type::Bf16 => Number::Float(half::bf16::from_bits(bits as u16).into()),
            Type::F32 => {
                let x = f32::from_bits(bits as u32);
                Number::Float(if self.flushes { flush(x) } else { x }.into())
            }
            Type::F64 => Number::Float(f64::from_bits(bits)),
            ty => Number::Integer(integer(bits, ty)),
        }
    }

    fn integer(self, x: i128) -> u64 {
        if self.saturates { clamped(x, self.to) } else { integer(x as u64, self.to) as u64 }
    }

    fn float(self, x: f64, format: Format) -> u64 {
        let x = match self.integral {
            Some(mode) => match Exact::from_f64(x) {
                Some(exact) if exact.exponent < 0 => (exact.to_integer(mode) as f64).copysign(x),
                _ => x,
            },
            None => x,
        };
        let x = match x {
            _ if self.saturates => {
                if x > 0.0 {
                    x.min(1.0)
                } else {
                    0.0
                }
            }
            _ if self.clamps && x <= 0.0 => 0.0,
            _ => x,
        };
        // As on the hardware, NaN keeps what it carries in conversions of f64 alone.
        if x.is_nan() && self.from == Type::F64 {
            return payload(x, format);
        }
        let bits = float::round(x, format, self.round);
        if self.flushes && format == F32 { flush(f32::from_bits(bits as u32)).to_bits().into() } else { bits }
    }
}

/// The number that an integer type's bits are.
fn integer(bits: u64, ty: Type) -> i128 {
    match ty {
        Type::S8 => (bits as i8).into(),
        Type::S16 => (bits as i16).into(),
        Type::S32 => (bits as i32).into(),
        Type::S64 => (bits as i64).into(),
        _ => i128::from(bits) & ((1 << (8 * ty.bytes())) - 1),
    }
}

/// The nearest number of an integer type.
fn clamped(x: i128, ty: Type) -> u64 {
    let bits = 8 * ty.bytes();
    let signed = matches!(ty, Type::S8 | Type::S16 | Type::S32 | Type::S64);
    let (least, most) = if signed { (-1 << (bits - 1), (1 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
    x.clamp(least, most) as u64
}

/// What NaN becomes as an integer: the highest bit alone where one of the two has 64 bits, as on the hardware, or else 0.
fn not_a_number(to: Type, from: Type) -> u64 {
    if to.bytes() == 8 || from == Type::F64 { integer(1 << (8 * to.bytes() - 1), to) as u64 } else { 0 }
}

/// A NaN with the sign and the highest bits of another's fraction.
fn payload(x: f64, format: Format) -> u64 {
    let Format { fraction, exponent, .. } = format;
    let (sign, carried) = (x.to_bits() >> 63, x.to_bits() & ((1 << 52) - 1));
    let quiet = 1 << (fraction - 1);
    sign << (fraction + exponent) | ((1 << exponent) - 1) << fraction | quiet | carried >> (52 - fraction)
}

/// The format of a floating-point type.
fn format(ty: Type) -> Option<Format> {
    match ty {
        Type::F16 => Some(F16),
        Type::Bf16 => Some(BF16),
        Type::F32 => Some(F32),
        Type::F64 => Some(F64),
        _ => None,
    }
}

fn half_of(ty: Type) -> Option<Type> {
    match ty {
        Type::F16x2 => Some(Type::F16),
        Type::Bf16x2 => Some(Type::Bf16),
        _ => None,
    }
}
