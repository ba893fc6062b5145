//! Comparison, selection and moves (PTX ISA, "Comparison and Selection Instructions" and "Data Movement and Conversion
//! Instructions").

use super::integer::with_integer;
use super::operands::window;
use super::{Lowered, Lowering, Modifiers, Result};
use crate::float;
use crate::lanes::{Lane, Lanes, Mask, Registers, Source};
use crate::program::Action;
use crate::ptx::{Instruction, Operand, Space, Type};
use std::array;
use std::cmp::Ordering;

/// What a comparison holds for; `None` stands for numbers that are not ordered, one of them NaN.
type Holds = fn(Option<Ordering>) -> bool;

const COMPARISONS: [(&str, Holds); 18] = [
    ("eq", |order| order == Some(Ordering::Equal)),
    ("ne", |order| order.is_some_and(Ordering::is_ne)),
    ("lt", |order| order == Some(Ordering::Less)),
    ("le", |order| order.is_some_and(Ordering::is_le)),
    ("gt", |order| order == Some(Ordering::Greater)),
    ("ge", |order| order.is_some_and(Ordering::is_ge)),
    ("lo", |order| order == Some(Ordering::Less)),
    ("ls", |order| order.is_some_and(Ordering::is_le)),
    ("hi", |order| order == Some(Ordering::Greater)),
    ("hs", |order| order.is_some_and(Ordering::is_ge)),
    ("equ", |order| order.is_none_or(Ordering::is_eq)),
    ("neu", |order| order.is_none_or(Ordering::is_ne)),
    ("ltu", |order| order.is_none_or(Ordering::is_lt)),
    ("leu", |order| order.is_none_or(Ordering::is_le)),
    ("gtu", |order| order.is_none_or(Ordering::is_gt)),
    ("geu", |order| order.is_none_or(Ordering::is_ge)),
    ("num", |order| order.is_some()),
    ("nan", |order| order.is_none()),
];

type Combine = fn(Mask, Mask) -> Mask;

/// What combines a comparison with a predicate.
const COMBINATIONS: [(&str, Combine); 3] = [("and", |a, b| a & b), ("or", |a, b| a | b), ("xor", |a, b| a ^ b)];

/// The lanes for which a comparison of two sources holds, and for which that of the upper halves of pairs does.
type Comparison = Box<dyn Fn(&Registers) -> [Mask; 2] + Send + Sync>;

impl<'a> Lowering<'a> {
    pub(super) fn comparison(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        match i.opcode.as_str() {
            "selp" => return self.selection(i, m),
            "slct" => return self.selection_by_sign(i, m),
            _ => {}
        }
        let holds = m.wanted("comparison", &COMPARISONS)?;
        let combine = m.one_of(&COMBINATIONS);
        let flushes = m.flag("ftz");
        if i.opcode == "set" {
            let (to, ty) = (m.ty()?, m.ty()?);
            if matches!(ty, Type::F16x2 | Type::Bf16x2) {
                return Err(m.error("found pairs, wanted single numbers"));
            }
            let (d, a, b, c) = match (combine, i.operands.as_slice()) {
                (None, [d, a, b]) => (d, a, b, None),
                (Some(combine), [d, a, b, c]) => (d, a, b, Some((combine, self.condition(c)?))),
                _ => return Err(m.error("found another number of operands")),
            };
            let (d, of) = (self.target(d, to)?, self.compared(m, ty, a, b, holds, flushes)?);
            let truth = match to {
                Type::F32 => 1.0f32.bits(),
                Type::F16 => half::f16::ONE.bits(),
                Type::Bf16 => half::bf16::ONE.bits(),
                _ => u64::MAX,
            };
            return Ok(Lowered::compute(move |r, mask| {
                let [found, _] = of(r);
                let found = c.map_or(found, |(combine, c)| combine(found, r.holds(c)));
                r.put(d, mask, array::from_fn(|lane| if found >> lane & 1 != 0 { truth } else { 0 }));
            }));
        }
        let ty = m.ty()?;
        let (pair, a, b, c) = match (combine, i.operands.as_slice()) {
            (None, [pair, a, b]) => (pair, a, b, None),
            (Some(combine), [pair, a, b, c]) => (pair, a, b, Some((combine, self.condition(c)?))),
            _ => return Err(m.error("found another number of operands")),
        };
        let (p, q) = self.pair(pair);
        let p = self.predicate_target(p)?;
        let q = q.map(|q| self.predicate_target(q)).transpose()?;
        let pairs = matches!(ty, Type::F16x2 | Type::Bf16x2);
        let of = self.compared(m, ty, a, b, holds, flushes)?;
        Ok(Lowered::compute(move |r, mask| {
            let [found, upper] = of(r);
            let combined = |found| c.map_or(found, |(combine, c)| combine(found, r.holds(c)));
            // Of a pair of numbers, the second predicate is of the upper one.
            let (yes, no) = (combined(found), combined(if pairs { upper } else { !found }));
            r.put_predicate(p, mask, yes);
            if let Some(q) = q {
                r.put_predicate(q, mask, no);
            }
        }))
    }

    fn compared(
        &mut self,
        m: &Modifiers<'a>,
        ty: Type,
        a: &Operand,
        b: &Operand,
        holds: Holds,
        flushes: bool,
    ) -> Result<Comparison> {
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        fn plain<T: Lane + PartialOrd>(a: Source, b: Source, holds: Holds, input: fn(T) -> T) -> Comparison {
            Box::new(move |r| [compare(r.get::<T>(a).map(input), r.get::<T>(b).map(input), holds), 0])
        }
        fn pairs<T: Lane + PartialOrd>(a: Source, b: Source, holds: Holds, input: fn(T) -> T) -> Comparison {
            Box::new(move |r| {
                let (a, b): (Lanes<u64>, Lanes<u64>) = (r.get(a), r.get(b));
                [0, 16].map(|shift| {
                    let half = |pair: u64| input(T::from_bits(pair >> shift));
                    compare(a.map(half), b.map(half), holds)
                })
            })
        }
        Ok(match ty {
            Type::F32 if flushes => plain(a, b, holds, float::flush),
            Type::F32 => plain::<f32>(a, b, holds, |x| x),
            Type::F64 => plain::<f64>(a, b, holds, |x| x),
            Type::F16 if flushes => plain(a, b, holds, flush_half),
            Type::F16 => plain::<half::f16>(a, b, holds, |x| x),
            Type::Bf16 => plain::<half::bf16>(a, b, holds, |x| x),
            Type::F16x2 if flushes => pairs(a, b, holds, flush_half),
            Type::F16x2 => pairs::<half::f16>(a, b, holds, |x| x),
            Type::Bf16x2 => pairs::<half::bf16>(a, b, holds, |x| x),
            _ => with_integer!(ty, T => plain::<T>(a, b, holds, |x| x), _ => {
                return Err(m.error("not simulated for this type"));
            }),
        })
    }

    fn selection(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let ty = m.ty()?;
        let [d, a, b, c] = self.operands(i)?;
        let (d, a, b, c) = (self.target(d, ty)?, self.source(a, ty)?, self.source(b, ty)?, self.condition(c)?);
        Ok(Lowered::compute(move |r, mask| {
            let (a, b, c): (Lanes<u64>, Lanes<u64>, Mask) = (r.get(a), r.get(b), r.holds(c));
            r.put(d, mask, array::from_fn(|lane| if c >> lane & 1 != 0 { a[lane] } else { b[lane] }));
        }))
    }

    /// `slct`: the first where the third is not negative.
    fn selection_by_sign(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let flushes = m.flag("ftz");
        let (ty, by) = (m.ty()?, m.ty()?);
        let types = [ty, ty, ty, by];
        match by {
            Type::S32 => self.ternary(i, types, |a: u64, b: u64, c: i32| if c >= 0 { a } else { b }),
            Type::F32 => self.ternary(i, types, move |a: u64, b: u64, c: f32| {
                let c = if flushes { float::flush(c) } else { c };
                if c >= 0.0 { a } else { b }
            }),
            _ => Err(m.error("found another type, wanted .s32 or .f32")),
        }
    }

    pub(super) fn moving(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        match i.opcode.as_str() {
            "cvta" => return self.conversion_of_address(i, m),
            "isspacep" => return self.test_of_space(i, m),
            _ => {}
        }
        let ty = m.ty()?;
        let [d, a] = self.operands(i)?;
        match (d, a) {
            _ if ty == Type::Pred => self.predicate_move(d, a),
            (Operand::Name(_), Operand::Name(clock)) if ["%clock", "%clock64", "%globaltimer"].contains(&&**clock) => {
                Ok(Action::Clock(self.target(d, ty)?).into())
            }
            (_, Operand::Vector(parts)) => {
                let part = self.part(m, ty, parts.len())?;
                let d = self.target(d, ty)?;
                let parts = parts.iter().map(|one| self.source(one, part)).collect::<Result<Vec<Source>>>()?;
                let bits = 8 * part.bytes();
                let low = u64::MAX >> (64 - bits);
                Ok(Lowered::compute(move |r, mask| {
                    let mut whole = [0u64; 32];
                    for (place, part) in parts.iter().enumerate() {
                        let part: Lanes<u64> = r.get(*part);
                        for lane in 0..32 {
                            whole[lane] |= (part[lane] & low) << (bits * place as u32);
                        }
                    }
                    r.put(d, mask, whole);
                }))
            }
            (Operand::Vector(parts), _) => {
                let part = self.part(m, ty, parts.len())?;
                let a = self.source(a, ty)?;
                let parts = parts.iter().map(|one| self.target(one, part)).collect::<Result<Vec<_>>>()?;
                let bits = 8 * part.bytes();
                let low = u64::MAX >> (64 - bits);
                Ok(Lowered::compute(move |r, mask| {
                    let whole: Lanes<u64> = r.get(a);
                    for (place, part) in parts.iter().enumerate() {
                        r.put(*part, mask, whole.map(|whole| whole >> (bits * place as u32) & low));
                    }
                }))
            }
            _ => {
                let (d, a) = (self.target(d, ty)?, self.source(a, ty)?);
                Ok(Lowered::compute(move |r, mask| {
                    let a: Lanes<u64> = r.get(a);
                    r.put(d, mask, a);
                }))
            }
        }
    }

    /// The type of each of the parts of a register.
    fn part(&self, m: &Modifiers<'a>, ty: Type, parts: usize) -> Result<Type> {
        match (ty.bytes(), parts) {
            (8, 2) => Ok(Type::B32),
            (8, 4) | (4, 2) => Ok(Type::B16),
            _ => Err(m.error(format!("found {parts} parts of {} bits", 8 * ty.bytes()))),
        }
    }

    fn predicate_move(&mut self, d: &Operand, a: &Operand) -> Result<Lowered> {
        let d = self.predicate_target(d)?;
        if let Operand::Integer(value) = a {
            let value = if *value == 0 { 0 } else { Mask::MAX };
            return Ok(Lowered::compute(move |r, mask| r.put_predicate(d, mask, value)));
        }
        let a = self.condition(a)?;
        Ok(Lowered::compute(move |r, mask| r.put_predicate(d, mask, r.holds(a))))
    }

    fn space(m: &mut Modifiers<'a>) -> Result<Space> {
        let spaces = [
            ("global", Space::Global),
            ("const", Space::Const),
            ("shared::cta", Space::Shared),
            ("shared::cluster", Space::Shared),
            ("shared", Space::Shared),
            ("local", Space::Local),
            ("param", Space::Param),
        ];
        m.wanted("space", &spaces)
    }

    fn conversion_of_address(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let to_space = m.flag("to");
        let base = window(Self::space(m)?);
        let ty = m.ty()?;
        if to_space {
            self.unary(i, [ty; 2], move |a: u64| a.wrapping_sub(base))
        } else {
            self.unary(i, [ty; 2], move |a: u64| a.wrapping_add(base))
        }
    }

    fn test_of_space(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        // Constants lie among global variables here: an address of either is one of both.
        let wanted = window(Self::space(m)?);
        let [p, a] = self.operands(i)?;
        let (p, a) = (self.predicate_target(p)?, self.source(a, Type::U64)?);
        Ok(Lowered::compute(move |r, mask| {
            let a: Lanes<u64> = r.get(a);
            let found = (0..32).fold(0, |found, lane| found | u32::from(a[lane] >> 56 << 56 == wanted) << lane);
            r.put_predicate(p, mask, found);
        }))
    }
}

#[inline]
fn compare<T: PartialOrd + Copy>(a: Lanes<T>, b: Lanes<T>, holds: Holds) -> Mask {
    (0..32).fold(0, |found, lane| found | u32::from(holds(a[lane].partial_cmp(&b[lane]))) << lane)
}

/// As [`float::flush`].
fn flush_half(x: half::f16) -> half::f16 {
    let subnormal = x.to_bits() & 0x7c00 == 0;
    if subnormal { half::f16::from_bits(x.to_bits() & 0x8000) } else { x }
}
