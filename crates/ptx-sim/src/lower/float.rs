//! Floating-point arithmetic of 32 and 64 bits (PTX ISA, "Floating Point Instructions").

use super::{Lowered, Lowering, Modifiers, Result};
use crate::float::{self, F32, Round, add_to_odd, canonical, div_to_odd, flush, saturate, sqrt_to_odd};
use crate::program::Unit;
use crate::ptx::{Instruction, Type};

/// The types of an instruction all of whose operands are f32, and f64.
const ONE: [Type; 2] = [Type::F32; 2];
const TWO: [Type; 3] = [Type::F32; 3];
const THREE: [Type; 4] = [Type::F32; 4];
const WIDE: Type = Type::F64;

/// What f32 instructions do beside their arithmetic.
#[derive(Clone, Copy)]
struct Style {
    round: Round,
    flushes: bool,
    saturates: bool,
}

impl Style {
    fn of(m: &mut Modifiers) -> Self {
        let round = m.round().unwrap_or(Round::Nearest);
        Style { round, flushes: m.flag("ftz"), saturates: m.flag("sat") }
    }

    #[inline]
    fn input(self, x: f32) -> f32 {
        if self.flushes { flush(x) } else { x }
    }

    #[inline]
    fn output(self, x: f32) -> f32 {
        let x = if self.flushes { flush(x) } else { x };
        if self.saturates { saturate(x) } else { canonical(x) }
    }

    /// A result that was rounded to odd.
    fn rounded(self, x: f64) -> f32 {
        self.output(f32::from_bits(float::round(x, F32, self.round) as u32))
    }

    fn is_plain(self) -> bool {
        self.round == Round::Nearest && !self.flushes && !self.saturates
    }
}

impl<'a> Lowering<'a> {
    /// Instructions of f32.
    pub(super) fn float(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let op = i.opcode.as_str();
        let nan = matches!(op, "min" | "max") && m.flag("NaN");
        let (approximate, full) = (op == "div" && m.flag("approx"), op == "div" && m.flag("full"));
        let style = Style::of(m);
        let input = move |x| style.input(x);
        let lowered = match op {
            "add" if style.is_plain() => self.binary(i, TWO, |a: f32, b: f32| canonical(a + b))?.work(Unit::F32, 1),
            "add" => self.binary(i, TWO, move |a, b| sum(style, a, b))?.work(Unit::F32, 1),
            "sub" if style.is_plain() => self.binary(i, TWO, |a: f32, b: f32| canonical(a - b))?.work(Unit::F32, 1),
            "sub" => self.binary(i, TWO, move |a, b: f32| sum(style, a, -b))?.work(Unit::F32, 1),
            "mul" if style.is_plain() => self.binary(i, TWO, |a: f32, b: f32| canonical(a * b))?.work(Unit::F32, 1),
            "mul" => {
                let product = move |a, b| style.rounded(f64::from(input(a)) * f64::from(input(b)));
                self.binary(i, TWO, product)?.work(Unit::F32, 1)
            }
            "fma" | "mad" if style.is_plain() => {
                self.ternary(i, THREE, |a: f32, b: f32, c: f32| canonical(a.mul_add(b, c)))?.work(Unit::F32, 2)
            }
            "fma" | "mad" => self.ternary(i, THREE, move |a, b, c| multiply_add(style, a, b, c))?.work(Unit::F32, 2),
            "div" if full => self.binary(i, TWO, move |a, b| style.output(input(a) / input(b)))?.work(Unit::Special, 1),
            "div" if approximate => {
                // The reciprocal of what is so large is 0 to the special unit (PTX ISA, "Floating Point Instructions: div").
                let divisor = |b: f32| {
                    if b.is_finite() && b.abs() > f32::from_bits(253 << 23) { f32::INFINITY.copysign(b) } else { b }
                };
                let quotient = move |a, b| style.output(input(a) / divisor(input(b)));
                self.binary(i, TWO, quotient)?.work(Unit::Special, 1)
            }
            "div" => {
                let quotient = move |a, b| style.rounded(div_to_odd(input(a).into(), input(b).into()));
                self.binary(i, TWO, quotient)?.work(Unit::F32, 1)
            }
            "min" => {
                self.binary(i, TWO, move |a, b| style.output(minimum(input(a).into(), input(b).into(), nan) as f32))?
            }
            "max" => {
                self.binary(i, TWO, move |a, b| style.output(maximum(input(a).into(), input(b).into(), nan) as f32))?
            }
            "abs" => self.unary(i, ONE, move |a: f32| input(a).abs())?,
            "neg" => self.unary(i, ONE, move |a: f32| -input(a))?,
            _ => return Err(m.error("found .f32, wanted an integer type")),
        };
        Ok(lowered)
    }

    /// Instructions of f64, which round to nearest.
    pub(super) fn double(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        m.flag("rn");
        let lowered = match i.opcode.as_str() {
            "add" => self.binary(i, [WIDE; 3], |a: f64, b: f64| wide_nan(a + b))?.work(Unit::F64, 1),
            "sub" => self.binary(i, [WIDE; 3], |a: f64, b: f64| wide_nan(a - b))?.work(Unit::F64, 1),
            "mul" => self.binary(i, [WIDE; 3], |a: f64, b: f64| wide_nan(a * b))?.work(Unit::F64, 1),
            "fma" | "mad" => {
                self.ternary(i, [WIDE; 4], |a: f64, b: f64, c: f64| wide_nan(a.mul_add(b, c)))?.work(Unit::F64, 2)
            }
            "div" => self.binary(i, [WIDE; 3], |a: f64, b: f64| wide_nan(a / b))?.work(Unit::F64, 1),
            "min" => self.binary(i, [WIDE; 3], |a: f64, b: f64| wide_nan(minimum(a, b, false)))?,
            "max" => self.binary(i, [WIDE; 3], |a: f64, b: f64| wide_nan(maximum(a, b, false)))?,
            "abs" => self.unary(i, [WIDE; 2], f64::abs)?,
            "neg" => self.unary(i, [WIDE; 2], |a: f64| -a)?,
            _ => return Err(m.error("found .f64, wanted an integer type")),
        };
        Ok(lowered)
    }

    /// Functions of one number. Those of the special units are within what the ISA says of them, not the hardware's own bits.
    pub(super) fn function(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let ty = m.ty()?;
        let op = i.opcode.as_str();
        match (op, ty) {
            ("testp", Type::F32 | Type::F64) => return self.test(i, m, ty),
            ("copysign", Type::F32) => return self.binary(i, TWO, |a: f32, b: f32| b.copysign(a)),
            ("copysign", Type::F64) => return self.binary(i, [WIDE; 3], |a: f64, b: f64| b.copysign(a)),
            (_, Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2) => return self.half_function(i, m, ty),
            _ => {}
        }
        let approximate = m.flag("approx");
        let style = Style::of(m);
        let exact: fn(f64) -> f64 = match (op, approximate) {
            ("rcp", false) => |x| div_to_odd(1.0, x),
            ("sqrt", false) => sqrt_to_odd,
            ("rcp", true) => |x| 1.0 / x,
            ("sqrt", true) => f64::sqrt,
            ("rsqrt", true) => |x| 1.0 / x.sqrt(),
            ("ex2", true) => f64::exp2,
            ("lg2", true) => f64::log2,
            ("sin", true) => f64::sin,
            ("cos", true) => f64::cos,
            ("tanh", true) => f64::tanh,
            _ => return Err(m.error("wanted .approx")),
        };
        match (op, ty) {
            (_, Type::F32) => {
                let of = move |x: f32| style.rounded(exact(style.input(x).into()));
                Ok(self.unary(i, ONE, of)?.work(Unit::Special, 1))
            }
            ("rcp", Type::F64) if !approximate => {
                Ok(self.unary(i, [WIDE; 2], |x: f64| wide_nan(1.0 / x))?.work(Unit::F64, 1))
            }
            ("sqrt", Type::F64) if !approximate => {
                Ok(self.unary(i, [WIDE; 2], |x: f64| wide_nan(x.sqrt()))?.work(Unit::F64, 1))
            }
            _ => Err(m.error("found another type, wanted .f32")),
        }
    }

    /// `testp` (PTX ISA, "Floating Point Instructions: testp").
    fn test(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>, ty: Type) -> Result<Lowered> {
        type Test = (fn(f64) -> bool, bool);
        // Whether a number is normal depends on its type: the second field says that the test does.
        let tests: [(&str, Test); 6] = [
            ("finite", (f64::is_finite, false)),
            ("infinite", (f64::is_infinite, false)),
            ("number", (|x| !x.is_nan(), false)),
            ("notanumber", (f64::is_nan, false)),
            // Zeros are normal numbers to the ISA.
            ("normal", (|x| x.is_normal() || x == 0.0, true)),
            ("subnormal", (|x| x.is_subnormal(), true)),
        ];
        let (test, of_type) = m.wanted("test", &tests)?;
        let subnormal = i.modifiers.iter().any(|modifier| modifier == "subnormal");
        let [p, a] = self.operands(i)?;
        let (p, a) = (self.predicate_target(p)?, self.source(a, ty)?);
        Ok(Lowered::compute(move |r, mask| {
            let holds = |bits: u64| match (ty, of_type) {
                (Type::F32, false) => test(f32::from_bits(bits as u32).into()),
                (Type::F32, true) if subnormal => f32::from_bits(bits as u32).is_subnormal(),
                (Type::F32, true) => {
                    let x = f32::from_bits(bits as u32);
                    x.is_normal() || x == 0.0
                }
                _ => test(f64::from_bits(bits)),
            };
            let bits: [u64; 32] = r.get(a);
            let held = (0..32).fold(0, |held, lane| held | u32::from(holds(bits[lane])) << lane);
            r.put_predicate(p, mask, held);
        }))
    }
}

fn sum(style: Style, a: f32, b: f32) -> f32 {
    let (a, b) = (style.input(a), style.input(b));
    let sum = add_to_odd(a.into(), b.into());
    if sum == 0.0 { style.output(zero(a, b, style.round)) } else { style.rounded(sum) }
}

fn multiply_add(style: Style, a: f32, b: f32, c: f32) -> f32 {
    let (a, b, c) = (style.input(a), style.input(b), style.input(c));
    if style.round == Round::Nearest {
        return style.output(a.mul_add(b, c));
    }
    let product = f64::from(a) * f64::from(b);
    let sum = add_to_odd(product, c.into());
    if sum == 0.0 { style.output(zero(product as f32, c, style.round)) } else { style.rounded(sum) }
}

/// The sum of two numbers that cancel, or of zeros: its sign depends on the mode (IEEE 754, section 6.3).
fn zero(a: f32, b: f32, mode: Round) -> f32 {
    match (a.is_sign_negative(), b.is_sign_negative()) {
        (true, true) => -0.0,
        (false, false) => 0.0,
        _ if mode == Round::Down => -0.0,
        _ => 0.0,
    }
}

/// The smaller number, -0 below 0. NaN is no number unless `nan` says that it wins.
#[inline]
fn minimum(a: f64, b: f64, nan: bool) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (false, false) if a < b || a == b && a.is_sign_negative() => a,
        (false, false) => b,
        (true, false) if !nan => b,
        (false, true) if !nan => a,
        _ => f64::NAN,
    }
}

/// The greater number, likewise.
#[inline]
fn maximum(a: f64, b: f64, nan: bool) -> f64 {
    -minimum(-a, -b, nan)
}

/// Arithmetic's NaN for every NaN.
#[inline]
fn wide_nan(x: f64) -> f64 {
    if x.is_nan() { f64::from_bits(float::F64.nan) } else { x }
}
