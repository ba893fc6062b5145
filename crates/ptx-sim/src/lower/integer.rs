//! Arithmetic (PTX ISA, "Integer Arithmetic Instructions" and "Extended-Precision Integer Arithmetic Instructions"), and what
//! its closures share. Floating-point types go on to their own files.

use super::{Lowered, Lowering, Modifiers, Result};
use crate::lanes::{Lane, Lanes};
use crate::ptx::{Instruction, Type};
use std::array;

/// Runs code with `$T` standing for the Rust type of an integer type of PTX; `$other` for any other type.
macro_rules! with_integer {
    ($ty:expr, $T:ident => $code:expr, _ => $other:expr) => {
        match $ty {
            Type::U16 | Type::B16 => {
                type $T = u16;
                $code
            }
            Type::S16 => {
                type $T = i16;
                $code
            }
            Type::U32 | Type::B32 => {
                type $T = u32;
                $code
            }
            Type::S32 => {
                type $T = i32;
                $code
            }
            Type::U64 | Type::B64 => {
                type $T = u64;
                $code
            }
            Type::S64 => {
                type $T = i64;
                $code
            }
            _ => $other,
        }
    };
}
pub(super) use with_integer;

/// Which half of a product (".lo"), or all of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Low,
    High,
    Wide,
}

impl<'a> Lowering<'a> {
    /// One value a lane, of one.
    pub(super) fn unary<A: Lane, R: Lane>(
        &mut self,
        i: &'a Instruction,
        [to, from]: [Type; 2],
        f: impl Fn(A) -> R + Send + Sync + 'static,
    ) -> Result<Lowered> {
        let [d, a] = self.operands(i)?;
        let (d, a) = (self.target(d, to)?, self.source(a, from)?);
        Ok(Lowered::compute(move |r, mask| {
            let a: Lanes<A> = r.get(a);
            r.put(d, mask, a.map(&f));
        }))
    }

    /// One value a lane, of two.
    pub(super) fn binary<A: Lane, B: Lane, R: Lane>(
        &mut self,
        i: &'a Instruction,
        [to, first, second]: [Type; 3],
        f: impl Fn(A, B) -> R + Send + Sync + 'static,
    ) -> Result<Lowered> {
        let [d, a, b] = self.operands(i)?;
        let (d, a, b) = (self.target(d, to)?, self.source(a, first)?, self.source(b, second)?);
        Ok(Lowered::compute(move |r, mask| {
            let (a, b): (Lanes<A>, Lanes<B>) = (r.get(a), r.get(b));
            r.put(d, mask, array::from_fn(|lane| f(a[lane], b[lane])));
        }))
    }

    /// One value a lane, of three.
    pub(super) fn ternary<A: Lane, B: Lane, C: Lane, R: Lane>(
        &mut self,
        i: &'a Instruction,
        [to, first, second, third]: [Type; 4],
        f: impl Fn(A, B, C) -> R + Send + Sync + 'static,
    ) -> Result<Lowered> {
        let [d, a, b, c] = self.operands(i)?;
        let (d, a) = (self.target(d, to)?, self.source(a, first)?);
        let (b, c) = (self.source(b, second)?, self.source(c, third)?);
        Ok(Lowered::compute(move |r, mask| {
            let (a, b, c): (Lanes<A>, Lanes<B>, Lanes<C>) = (r.get(a), r.get(b), r.get(c));
            r.put(d, mask, array::from_fn(|lane| f(a[lane], b[lane], c[lane])));
        }))
    }

    pub(super) fn arithmetic(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let op = i.opcode.as_str();
        if op == "dp4a" {
            return self.dot_product(i, m);
        }
        let ty = m.ty()?;
        match ty {
            Type::F32 => self.float(i, m),
            Type::F64 => self.double(i, m),
            Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 => self.half(i, m, ty),
            _ if matches!(op, "add" | "sub" | "mad") && m.flag("cc") || op.ends_with('c') => self.carrying(i, m, ty),
            _ => match op {
                "mul" | "mad" => self.product(i, m, ty),
                "add" if m.flag("sat") => self.saturating(i, m, ty, i32::saturating_add),
                "sub" if m.flag("sat") => self.saturating(i, m, ty, i32::saturating_sub),
                _ => self.plain(i, m, ty),
            },
        }
    }

    fn plain(&mut self, i: &'a Instruction, m: &Modifiers<'a>, ty: Type) -> Result<Lowered> {
        let (two, three) = ([ty; 3], [ty; 4]);
        with_integer!(ty, T => match i.opcode.as_str() {
            "add" => self.binary(i, two, T::wrapping_add),
            "sub" => self.binary(i, two, T::wrapping_sub),
            // A divisor of 0 is left open; this is what the hardware gives.
            "div" => self.binary(i, two, |a: T, b: T| if b == 0 { T::from_bits(u64::MAX) } else { a.wrapping_div(b) }),
            "rem" => self.binary(i, two, |a: T, b: T| if b == 0 { a } else { a.wrapping_rem(b) }),
            "min" => self.binary(i, two, T::min),
            "max" => self.binary(i, two, T::max),
            "abs" => self.unary(i, [ty; 2], |a: T| if a.is_below_zero() { a.wrapping_neg() } else { a }),
            "neg" => self.unary(i, [ty; 2], T::wrapping_neg),
            "sad" => self.ternary(i, three, |a: T, b: T, c: T| c.wrapping_add(a.max(b).wrapping_sub(a.min(b)))),
            _ => Err(m.error("found an integer type, wanted a floating-point one")),
        }, _ => Err(m.error("found no integer type, wanted one of 16 to 64 bits")))
    }

    fn saturating(
        &mut self,
        i: &'a Instruction,
        m: &Modifiers<'a>,
        ty: Type,
        f: fn(i32, i32) -> i32,
    ) -> Result<Lowered> {
        if ty != Type::S32 {
            return Err(m.error("found .sat, wanted it with .s32 alone"));
        }
        self.binary(i, [ty; 3], f)
    }

    /// `mul` and `mad`, whose product has twice the bits.
    fn product(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>, ty: Type) -> Result<Lowered> {
        let parts = [("lo", Part::Low), ("hi", Part::High), ("wide", Part::Wide)];
        let part = m.wanted("part of the product", &parts)?;
        let to = match (part, ty) {
            (Part::Wide, Type::U16) => Type::U32,
            (Part::Wide, Type::S16) => Type::S32,
            (Part::Wide, Type::U32) => Type::U64,
            (Part::Wide, Type::S32) => Type::S64,
            (Part::Wide, _) => return Err(m.error("found .wide, wanted it with 16 or 32 bits")),
            _ => ty,
        };
        let bits = 8 * ty.bytes();
        let saturates = i.opcode == "mad" && m.flag("sat");
        if saturates && (part, ty) != (Part::High, Type::S32) {
            return Err(m.error("found .sat, wanted it with .hi.s32 alone"));
        }
        with_integer!(ty, T => {
            let product = move |a: T, b: T| match part {
                Part::Low => a.wrapping_mul(b) as i128,
                Part::High => (a as i128).wrapping_mul(b as i128) >> bits,
                Part::Wide => (a as i128).wrapping_mul(b as i128),
            };
            if i.opcode == "mul" {
                return self.binary(i, [to, ty, ty], move |a: T, b: T| product(a, b) as u64);
            }
            let add = move |a: T, b: T, c: u64| (product(a, b) as u64).wrapping_add(c);
            if saturates {
                let sum = move |a: T, b: T, c: i32| {
                    (product(a, b) + i128::from(c)).clamp(i32::MIN.into(), i32::MAX.into()) as i32
                };
                return self.ternary(i, [to, ty, ty, to], sum);
            }
            self.ternary(i, [to, ty, ty, to], add)
        }, _ => Err(m.error("found no integer type, wanted one of 16 to 64 bits")))
    }

    /// `add.cc` and what follows it: the carry is a condition of each lane (PTX ISA, "Extended-Precision Integer Arithmetic
    /// Instructions").
    fn carrying(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>, ty: Type) -> Result<Lowered> {
        let reads = i.opcode.ends_with('c');
        // A flag that was taken to get here stands among the modifiers still.
        let writes = i.modifiers.iter().any(|modifier| modifier == "cc");
        m.flag("cc");
        let carry = self.scopes.carry();
        let bits = 8 * ty.bytes();
        self.sized(i, ty, &[32, 64])?;
        let product = match i.opcode.as_str() {
            "mad" | "madc" => Some(m.wanted("part of the product", &[("lo", Part::Low), ("hi", Part::High)])?),
            _ => None,
        };
        let signed = matches!(ty, Type::S32 | Type::S64);
        let operands = match product {
            None => {
                let [d, a, b] = self.operands(i)?;
                (self.target(d, ty)?, self.source(a, ty)?, self.source(b, ty)?, None)
            }
            Some(_) => {
                let [d, a, b, c] = self.operands(i)?;
                (self.target(d, ty)?, self.source(a, ty)?, self.source(b, ty)?, Some(self.source(c, ty)?))
            }
        };
        let (d, a, b, c) = operands;
        let subtracts = i.opcode.starts_with("sub");
        let low = move |x: u64| if bits == 32 { u64::from(x as u32) } else { x };
        let extended = move |x: u64| match (bits, signed) {
            (32, true) => i128::from(x as i32),
            (32, false) => i128::from(x as u32),
            (_, true) => i128::from(x as i64),
            _ => i128::from(x),
        };
        Ok(Lowered::compute(move |r, mask| {
            let (a, b): (Lanes<u64>, Lanes<u64>) = (r.get(a), r.get(b));
            let before = r.holds(crate::lanes::Condition { register: carry, negated: false });
            let (first, second): (Lanes<u64>, Lanes<u64>) = match (product, c) {
                (Some(part), Some(c)) => {
                    let c: Lanes<u64> = r.get(c);
                    let shift = if part == Part::High { bits } else { 0 };
                    let of = |lane: usize| extended(a[lane]).wrapping_mul(extended(b[lane])) >> shift;
                    (array::from_fn(|lane| low(of(lane) as u64)), c.map(low))
                }
                _ => (a.map(low), b.map(low)),
            };
            let mut after = 0;
            let result: Lanes<u64> = array::from_fn(|lane| {
                let carried = u128::from(reads && before >> lane & 1 != 0);
                let (first, second) = (u128::from(first[lane]), u128::from(second[lane]));
                let wide =
                    if subtracts { first.wrapping_sub(second).wrapping_sub(carried) } else { first + second + carried };
                after |= u32::from(wide >> bits != 0) << lane;
                wide as u64
            });
            r.put(d, mask, result);
            if writes {
                r.put_predicate(carry, mask, after);
            }
        }))
    }

    /// `dp4a`: four products of bytes and a sum.
    fn dot_product(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let signed = |ty| match ty {
            Type::S32 => Some(true),
            Type::U32 => Some(false),
            _ => None,
        };
        let (Some(first), Some(second)) = (signed(m.ty()?), signed(m.ty()?)) else {
            return Err(m.error("found other types, wanted .u32 or .s32"));
        };
        let byte = |word: u32, place: usize, signed: bool| {
            let byte = word.to_le_bytes()[place];
            if signed { i32::from(byte as i8) } else { i32::from(byte) }
        };
        self.ternary(i, [Type::U32; 4], move |a: u32, b: u32, c: i32| {
            (0..4).fold(c, |sum, place| sum.wrapping_add(byte(a, place, first) * byte(b, place, second)))
        })
    }
}
