//! Arithmetic of f16 and bf16, single and in pairs (PTX ISA, "Half Precision Floating Point Instructions").

use super::{Lowered, Lowering, Modifiers, Result};
use crate::float::{self, BF16, F16, Format, Round, add_to_odd};
use crate::program::Unit;
use crate::ptx::{Instruction, Type};

/// How an instruction reads and writes its numbers.
#[derive(Clone, Copy)]
struct Style {
    format: Format,
    flushes: bool,
    saturates: bool,
    /// `.relu`: what is less than 0 becomes 0.
    clamps: bool,
    nan: bool,
}

impl Style {
    fn number(self, bits: u16) -> f64 {
        if self.flushes && self.is_subnormal(bits) {
            return if bits & 0x8000 == 0 { 0.0 } else { -0.0 };
        }
        if self.format == F16 { half::f16::from_bits(bits).into() } else { half::bf16::from_bits(bits).into() }
    }

    fn is_subnormal(self, bits: u16) -> bool {
        let fraction = (1 << self.format.fraction) - 1;
        bits & 0x7fff & !fraction == 0 && bits & fraction != 0
    }

    /// A result that was rounded to odd, or is exact.
    fn bits(self, x: f64) -> u16 {
        let bits = float::round(x, self.format, Round::Nearest) as u16;
        let bits = self.flushed(bits);
        match x {
            _ if x.is_nan() && !self.saturates => bits,
            _ if self.clamps && (x < 0.0 || bits == 0x8000) => 0,
            _ if self.saturates && (x.is_nan() || x <= 0.0) => 0,
            _ if self.saturates && x > 1.0 => float::round(1.0, self.format, Round::Nearest) as u16,
            _ => bits,
        }
    }
}

impl<'a> Lowering<'a> {
    pub(super) fn half(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>, ty: Type) -> Result<Lowered> {
        m.flag("rn");
        let format = if matches!(ty, Type::F16 | Type::F16x2) { F16 } else { BF16 };
        let style = Style {
            format,
            flushes: m.flag("ftz"),
            saturates: m.flag("sat"),
            clamps: i.opcode == "fma" && m.flag("relu"),
            nan: matches!(i.opcode.as_str(), "min" | "max") && m.flag("NaN"),
        };
        let count = ty.bytes() / 2;
        let two = move |f: fn(Style, u16, u16) -> u16| move |a, b| f(style, a, b);
        match i.opcode.as_str() {
            "add" => Ok(self
                .half_binary(i, ty, two(|s, a, b| s.bits(sum(s.number(a), s.number(b)))))?
                .work(Unit::F16, count)),
            "sub" => Ok(self
                .half_binary(i, ty, two(|s, a, b| s.bits(sum(s.number(a), -s.number(b)))))?
                .work(Unit::F16, count)),
            "mul" => {
                Ok(self.half_binary(i, ty, two(|s, a, b| s.bits(s.number(a) * s.number(b))))?.work(Unit::F16, count))
            }
            "min" => self.half_binary(i, ty, two(|s, a, b| s.least(a, b, false))),
            "max" => self.half_binary(i, ty, two(|s, a, b| s.least(a, b, true))),
            "fma" => {
                let fma = move |a, b, c| style.bits(sum(style.number(a) * style.number(b), style.number(c)));
                let pairs = move |a: u32, b: u32, c: u32| {
                    let of = |place: u32| u32::from(fma(part(a, place), part(b, place), part(c, place)));
                    of(0) | of(1) << 16
                };
                Ok(match ty.bytes() {
                    2 => self.ternary(i, [ty; 4], fma)?.work(Unit::F16, 2),
                    _ => self.ternary(i, [ty; 4], pairs)?.work(Unit::F16, 4),
                })
            }
            "abs" => self.half_unary(i, ty, move |a| style.flushed(a) & 0x7fff),
            "neg" => self.half_unary(i, ty, move |a| style.flushed(a) ^ 0x8000),
            _ => Err(m.error("found a type of 16 bits, wanted an integer type")),
        }
    }

    /// `ex2` and `tanh`.
    pub(super) fn half_function(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>, ty: Type) -> Result<Lowered> {
        let format = if matches!(ty, Type::F16 | Type::F16x2) { F16 } else { BF16 };
        let (flushes, _) = (m.flag("ftz"), m.wanted("kind", &[("approx", ())])?);
        let style = Style { format, flushes, saturates: false, clamps: false, nan: false };
        let f: fn(f64) -> f64 = match i.opcode.as_str() {
            "ex2" => f64::exp2,
            "tanh" => f64::tanh,
            _ => return Err(m.error("found a type of 16 bits, wanted .f32")),
        };
        let of = move |a| style.bits(f(style.number(a)));
        Ok(self.half_unary(i, ty, of)?.work(Unit::Special, ty.bytes() / 2))
    }

    fn half_unary(
        &mut self,
        i: &'a Instruction,
        ty: Type,
        f: impl Fn(u16) -> u16 + Send + Sync + 'static,
    ) -> Result<Lowered> {
        match ty.bytes() {
            2 => self.unary(i, [ty; 2], f),
            _ => self.unary(i, [ty; 2], move |a: u32| u32::from(f(part(a, 0))) | u32::from(f(part(a, 1))) << 16),
        }
    }

    fn half_binary(
        &mut self,
        i: &'a Instruction,
        ty: Type,
        f: impl Fn(u16, u16) -> u16 + Send + Sync + 'static,
    ) -> Result<Lowered> {
        match ty.bytes() {
            2 => self.binary(i, [ty; 3], f),
            _ => {
                let pairs = move |a: u32, b: u32| {
                    u32::from(f(part(a, 0), part(b, 0))) | u32::from(f(part(a, 1), part(b, 1))) << 16
                };
                self.binary(i, [ty; 3], pairs)
            }
        }
    }
}

impl Style {
    fn flushed(self, bits: u16) -> u16 {
        if self.flushes && self.is_subnormal(bits) { bits & 0x8000 } else { bits }
    }

    /// The smaller number, or the greater one; -0 is below 0. NaN is no number unless `.NaN` says that it wins.
    fn least(self, a: u16, b: u16, greatest: bool) -> u16 {
        let (a, b) = (self.flushed(a), self.flushed(b));
        let (x, y) = (self.number(a), self.number(b));
        let first = match (x.is_nan(), y.is_nan()) {
            (true, true) => return self.format.nan as u16,
            (true, false) | (false, true) if self.nan => return self.format.nan as u16,
            (x_nan, _) if x.is_nan() || y.is_nan() => !x_nan,
            _ if x == y => (a & 0x8000 != 0) != greatest,
            _ => (x < y) != greatest,
        };
        if first { a } else { b }
    }
}

/// A sum rounded to odd; the zero of numbers that cancel is positive.
fn sum(a: f64, b: f64) -> f64 {
    add_to_odd(a, b)
}

/// The lower or upper half of a pair.
fn part(pair: u32, place: u32) -> u16 {
    (pair >> (16 * place)) as u16
}
