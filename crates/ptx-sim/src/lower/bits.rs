//! Logic, shifts and fields of bits (sections 9.7.1.15 to 9.7.1.22 and 9.7.8).

use super::integer::with_integer;
use super::{Lowered, Lowering, Modifiers, Result};
use crate::lanes::{Lane, Lanes};
use crate::ptx::{Instruction, Type};
use std::array;

impl<'a> Lowering<'a> {
    pub(super) fn bits(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let op = i.opcode.as_str();
        if op == "shf" {
            return self.funnel(i, m);
        }
        if op == "prmt" {
            return self.permutation(i, m);
        }
        let shift_amount = m.flag("shiftamt");
        let ty = m.ty()?;
        match op {
            _ if ty == Type::Pred => self.predicate_logic(i, m),
            "and" => self.bitwise(i, ty, |a, b| a & b),
            "or" => self.bitwise(i, ty, |a, b| a | b),
            "xor" => self.bitwise(i, ty, |a, b| a ^ b),
            "not" => self.unary(i, [ty; 2], |a: u64| !a),
            "lop3" => self.lookup(i, ty),
            "shl" | "shr" => self.shift(i, m, ty),
            "bfi" => self.insertion(i, ty),
            "bfe" => self.extraction(i, ty),
            _ => with_integer!(ty, T => match op {
                "cnot" => self.unary(i, [ty; 2], |a: T| T::from_bits(u64::from(a == 0))),
                "popc" => self.unary(i, [Type::U32, ty], |a: T| a.count_ones()),
                "clz" => self.unary(i, [Type::U32, ty], |a: T| a.leading_zeros()),
                "brev" => self.unary(i, [ty; 2], T::reverse_bits),
                "bfind" => self.unary(i, [Type::U32, ty], move |a: T| {
                    // Of a negative number, the highest bit that is 0.
                    let a = if (a as i64) < 0 && T::MIN != 0 { !a } else { a };
                    match a.leading_zeros() {
                        T::BITS => u32::MAX,
                        zeros if shift_amount => zeros,
                        zeros => T::BITS - 1 - zeros,
                    }
                }),
                _ => Err(m.error("not simulated for this type")),
            }, _ => Err(m.error("found no integer type, wanted one"))),
        }
    }

    fn bitwise(&mut self, i: &'a Instruction, ty: Type, f: fn(u64, u64) -> u64) -> Result<Lowered> {
        self.binary(i, [ty; 3], f)
    }

    fn predicate_logic(&mut self, i: &'a Instruction, m: &Modifiers<'a>) -> Result<Lowered> {
        if i.opcode == "not" {
            let [d, a] = self.operands(i)?;
            let (d, a) = (self.predicate_target(d)?, self.condition(a)?);
            return Ok(Lowered::compute(move |r, mask| r.put_predicate(d, mask, !r.holds(a))));
        }
        let f: fn(u32, u32) -> u32 = match i.opcode.as_str() {
            "and" => |a, b| a & b,
            "or" => |a, b| a | b,
            "xor" => |a, b| a ^ b,
            _ => return Err(m.error("found predicates, wanted and, or, xor or not of them")),
        };
        let [d, a, b] = self.operands(i)?;
        let (d, a, b) = (self.predicate_target(d)?, self.condition(a)?, self.condition(b)?);
        Ok(Lowered::compute(move |r, mask| r.put_predicate(d, mask, f(r.holds(a), r.holds(b)))))
    }

    /// `lop3`: bit `4 a + 2 b + c` of the table.
    fn lookup(&mut self, i: &'a Instruction, ty: Type) -> Result<Lowered> {
        let [d, a, b, c, table] = self.operands(i)?;
        let table = self.immediate(table)?;
        let (d, a, b, c) = (self.target(d, ty)?, self.source(a, ty)?, self.source(b, ty)?, self.source(c, ty)?);
        let of = move |a: u32, b: u32, c: u32| {
            let inputs = |number: u64| {
                let bit = |of: u32, place: u32| if number >> place & 1 != 0 { of } else { !of };
                bit(a, 2) & bit(b, 1) & bit(c, 0)
            };
            (0..8).filter(|number| table >> number & 1 != 0).fold(0, |sum, number| sum | inputs(number))
        };
        Ok(Lowered::compute(move |r, mask| {
            let (a, b, c): (Lanes<u32>, Lanes<u32>, Lanes<u32>) = (r.get(a), r.get(b), r.get(c));
            r.put(d, mask, array::from_fn(|lane| of(a[lane], b[lane], c[lane])));
        }))
    }

    /// `shl` and `shr`: amounts beyond the width shift everything out.
    fn shift(&mut self, i: &'a Instruction, m: &Modifiers<'a>, ty: Type) -> Result<Lowered> {
        let types = [ty, ty, Type::U32];
        let left = i.opcode == "shl";
        with_integer!(ty, T => self.binary(i, types, move |a: T, by: u32| match (left, by < T::BITS) {
            (true, true) => a << by,
            (false, true) => a >> by,
            (false, false) if (a as i64) < 0 && T::MIN != 0 => T::from_bits(u64::MAX),
            _ => 0,
        }), _ => Err(m.error("found no integer type, wanted one")))
    }

    /// `shf`: 32 bits of the 64 that two registers make.
    fn funnel(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let left = m.wanted("direction", &[("l", true), ("r", false)])?;
        let wraps = m.wanted("kind", &[("wrap", true), ("clamp", false)])?;
        let ty = m.ty()?;
        self.ternary(i, [ty; 4], move |a: u32, b: u32, by: u32| {
            let by = if wraps { by % 32 } else { by.min(32) };
            let both = u64::from(b) << 32 | u64::from(a);
            if left { (both << by >> 32) as u32 } else { (both >> by) as u32 }
        })
    }

    /// `bfe` (section 9.7.1.19): a field of bits, the sign continued above it.
    fn extraction(&mut self, i: &'a Instruction, ty: Type) -> Result<Lowered> {
        let signed = matches!(ty, Type::S32 | Type::S64);
        let bits = 8 * ty.bytes();
        self.ternary(i, [ty, ty, Type::U32, Type::U32], move |a: u64, start: u32, length: u32| {
            let (start, length) = (field(start, bits), field(length, bits));
            let a = if bits == 32 { u64::from(a as u32) } else { a };
            let top = bits - 1;
            let sign = signed && length > 0 && a >> start.saturating_add(length - 1).min(top) & 1 != 0;
            let fill = if sign { u64::MAX } else { 0 };
            let shifted = if start > top { fill } else { a >> start };
            let length = length.min(bits.saturating_sub(start));
            if length >= 64 { shifted } else { shifted & ((1 << length) - 1) | fill << length }
        })
    }

    /// `bfi` (section 9.7.1.20): a field of bits put into another number.
    fn insertion(&mut self, i: &'a Instruction, ty: Type) -> Result<Lowered> {
        let [d, a, b, start, length] = self.operands(i)?;
        let (d, a, b) = (self.target(d, ty)?, self.source(a, ty)?, self.source(b, ty)?);
        let (start, length) = (self.source(start, Type::U32)?, self.source(length, Type::U32)?);
        let bits = 8 * ty.bytes();
        Ok(Lowered::compute(move |r, mask| {
            let (a, b): (Lanes<u64>, Lanes<u64>) = (r.get(a), r.get(b));
            let (start, length): (Lanes<u32>, Lanes<u32>) = (r.get(start), r.get(length));
            let of = |lane: usize| {
                let (start, length) = (field(start[lane], bits), field(length[lane], bits));
                if start >= bits {
                    return b[lane];
                }
                let field = if length >= 64 { u64::MAX } else { (1 << length) - 1 } << start;
                b[lane] & !field | a[lane] << start & field
            };
            r.put(d, mask, array::from_fn(of));
        }))
    }

    /// `prmt` (section 9.7.8.7): four bytes of the eight that two registers have.
    fn permutation(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        m.wanted("type", &[("b32", ())])?;
        let modes: [(&str, fn(u32, u32) -> u32); 6] = [
            ("f4e", |place, from| place + from),
            ("b4e", |place, from| 8 + from - place),
            ("rc8", |_, from| from),
            ("ecl", |place, from| place.max(from)),
            ("ecr", |place, from| place.min(from)),
            ("rc16", |place, from| 2 * (from % 2) + place % 2),
        ];
        let mode = m.one_of(&modes);
        self.ternary(i, [Type::B32; 4], move |a: u32, b: u32, selector: u32| {
            let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
            let byte = |place: u32| {
                let choice = match mode {
                    Some(mode) => mode(place, selector % 4) % 8,
                    None => selector >> (4 * place) & 0xf,
                };
                let byte = bytes[choice as usize % 8];
                if choice & 8 == 0 {
                    byte
                } else if byte & 0x80 == 0 {
                    0
                } else {
                    0xff
                }
            };
            u32::from_le_bytes(array::from_fn(|place| byte(place as u32)))
        })
    }
}

/// A start or length of a field: of 32 bits its low 8 bits count, of 64 bits all of it, as on the hardware.
fn field(number: u32, bits: u32) -> u32 {
    if bits == 32 { number & 0xff } else { number }
}
