//! What the lanes of a warp exchange: `shfl`, `vote`, `match`, `redux` (PTX ISA, the instructions of those names).

use super::{Lowered, Lowering, Modifiers, Result};
use crate::lanes::{ALL, Lanes, Source, lanes};
use crate::ptx::{Instruction, Operand, Type};
use std::array;

/// Which lane a lane reads.
#[derive(Clone, Copy)]
enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy)]
enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

impl<'a> Lowering<'a> {
    pub(super) fn exchange(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        if i.opcode == "activemask" {
            m.ty()?;
            let [d] = self.operands(i)?;
            let d = self.target(d, Type::B32)?;
            return Ok(Lowered::compute(move |r, mask| r.put(d, mask, [mask; 32])));
        }
        m.wanted("kind", &[("sync", ())])?;
        match i.opcode.as_str() {
            "shfl" => self.shuffle(i, m),
            "vote" => self.vote(i, m),
            "match" => self.matching(i, m),
            "redux" => self.reduction(i, m),
            "elect" => self.election(i, m),
            _ => self.move_matrix(i, m),
        }
    }

    /// `shfl.sync`.
    fn shuffle(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let kinds =
            [("up", Shuffle::Up), ("down", Shuffle::Down), ("bfly", Shuffle::Butterfly), ("idx", Shuffle::Index)];
        let kind = m.wanted("kind", &kinds)?;
        m.wanted("type", &[("b32", ())])?;
        let [pair, a, b, c, members] = self.operands(i)?;
        let (d, p) = self.pair(pair);
        let d = self.target(d, Type::B32)?;
        let p = p.map(|p| self.predicate_target(p)).transpose()?;
        let (a, b, c) = (self.source(a, Type::B32)?, self.source(b, Type::B32)?, self.source(c, Type::B32)?);
        let members = self.member_mask(members)?;
        let from = move |lane: usize, b: u32, c: u32| {
            let (lane, b, clamp, segment) = (lane as u32, b & 0x1f, c & 0x1f, c >> 8 & 0x1f);
            let least = lane & segment;
            let most = least | clamp & !segment;
            let (from, inside) = match kind {
                Shuffle::Up => (lane.wrapping_sub(b), lane as i32 - b as i32 >= most as i32),
                Shuffle::Down => (lane + b, lane + b <= most),
                Shuffle::Butterfly => (lane ^ b, lane ^ b <= most),
                Shuffle::Index => {
                    let from = least | b & !segment;
                    (from, from <= most)
                }
            };
            (if inside { from } else { lane } as usize % 32, inside)
        };
        Ok(Lowered::compute(move |r, mask| {
            let (a, b, c): (Lanes<u32>, Lanes<u32>, Lanes<u32>) = (r.get(a), r.get(b), r.get(c));
            let sources: Lanes<(usize, bool)> = array::from_fn(|lane| from(lane, b[lane], c[lane]));
            r.put(d, mask, sources.map(|(from, _)| a[from]));
            if let Some(p) = p {
                let inside = (0..32).fold(0, |inside, lane| inside | u32::from(sources[lane].1) << lane);
                r.put_predicate(p, mask, inside);
            }
        })
        .members(members))
    }

    fn vote(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let kinds = [("all", Vote::All), ("any", Vote::Any), ("uni", Vote::Uniform), ("ballot", Vote::Ballot)];
        let kind = m.wanted("kind", &kinds)?;
        m.ty()?;
        let [d, a, members] = self.operands(i)?;
        let (a, members) = (self.condition(a)?, self.member_mask(members)?);
        if let Vote::Ballot = kind {
            let d = self.target(d, Type::B32)?;
            return Ok(Lowered::compute(move |r, mask| r.put(d, mask, [r.holds(a) & mask; 32])).members(members));
        }
        let d = self.predicate_target(d)?;
        Ok(Lowered::compute(move |r, mask| {
            let held = r.holds(a) & mask;
            let result = match kind {
                Vote::All => held == mask,
                Vote::Any => held != 0,
                _ => held == mask || held == 0,
            };
            r.put_predicate(d, mask, if result { ALL } else { 0 });
        })
        .members(members))
    }

    /// `match.sync`: who has the same value.
    fn matching(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let all = m.wanted("kind", &[("all", true), ("any", false)])?;
        let ty = m.ty()?;
        let [pair, a, members] = self.operands(i)?;
        let (d, p) = self.pair(pair);
        let d = self.target(d, Type::B32)?;
        let p = p.map(|p| self.predicate_target(p)).transpose()?;
        let (a, members) = (self.source(a, ty)?, self.member_mask(members)?);
        Ok(Lowered::compute(move |r, mask| {
            let a: Lanes<u64> = r.get(a);
            let same = |lane: usize| {
                lanes(mask).filter(|other| a[*other] == a[lane]).fold(0u32, |same, other| same | 1 << other)
            };
            let equal = same(mask.trailing_zeros() as usize % 32) == mask;
            let of = |lane| match all {
                false => same(lane),
                true if equal => mask,
                true => 0,
            };
            r.put(d, mask, array::from_fn(of));
            if let Some(p) = p {
                r.put_predicate(p, mask, if equal { ALL } else { 0 });
            }
        })
        .members(members))
    }

    /// `redux.sync`.
    fn reduction(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        type Reduce = fn(i64, i64) -> i64;
        let operations: [(&str, Reduce); 6] = [
            ("add", i64::wrapping_add),
            ("min", i64::min),
            ("max", i64::max),
            ("and", |a, b| a & b),
            ("or", |a, b| a | b),
            ("xor", |a, b| a ^ b),
        ];
        let reduce = m.wanted("operation", &operations)?;
        let ty = m.ty()?;
        if !matches!(ty, Type::U32 | Type::S32 | Type::B32) {
            return Err(m.error("not simulated for this type"));
        }
        let [d, a, members] = self.operands(i)?;
        let (d, a, members) = (self.target(d, ty)?, self.source(a, ty)?, self.member_mask(members)?);
        let signed = ty == Type::S32;
        Ok(Lowered::compute(move |r, mask| {
            let a: Lanes<u32> = r.get(a);
            let number = |lane: usize| if signed { i64::from(a[lane] as i32) } else { a[lane].into() };
            let result = lanes(mask).map(number).reduce(reduce).unwrap_or(0);
            r.put(d, mask, [result as u32; 32]);
        })
        .members(members))
    }

    /// `elect.sync`: one lane of those that meet. Which one is left open by the ISA, but that it is always the same.
    fn election(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        self.hopper(m, false)?;
        let [pair, members] = self.operands(i)?;
        let (Operand::Pair(d, p), members) = (pair, self.member_mask(members)?) else {
            return Err(m.error("found one result, wanted a register and a predicate"));
        };
        let (d, p) = (self.target(d, Type::B32)?, self.predicate_target(p)?);
        Ok(Lowered::compute(move |r, mask| {
            let leader = mask.trailing_zeros();
            r.put(d, mask, [leader; 32]);
            r.put_predicate(p, mask, 1 << leader);
        })
        .members(members))
    }

    /// `movmatrix` (PTX ISA, "Warp Level Matrix Transpose Instruction: movmatrix"): an 8 x 8 matrix transposed. Lane `4 r + c
    /// / 2` holds elements (r, c) and (r, c + 1).
    fn move_matrix(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        for modifier in ["aligned", "m8n8", "trans", "b16"] {
            m.wanted("form", &[(modifier, ())])?;
        }
        let [d, a] = self.operands(i)?;
        let (d, a) = (self.target(d, Type::B32)?, self.source(a, Type::B32)?);
        Ok(Lowered::compute(move |r, mask| {
            let a: Lanes<u32> = r.get(a);
            let element = |row: usize, column: usize| a[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
            let of = |lane: usize| {
                let (row, column) = (lane / 4, 2 * (lane % 4));
                element(column, row) | element(column + 1, row) << 16
            };
            r.put(d, mask, array::from_fn(of));
        })
        .whole_warp())
    }

    /// A vector's registers, to be read.
    pub(super) fn sources(&mut self, operand: &'a Operand, ty: Type) -> Result<Vec<Source>> {
        Self::elements(operand).iter().map(|one| self.source(one, ty)).collect()
    }
}
