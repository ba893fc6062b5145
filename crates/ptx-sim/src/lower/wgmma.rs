//! `wgmma` of f16 and bf16 (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions").

use super::matrix::register;
use super::{Lowered, Lowering, Modifiers, Result};
use crate::lanes::{LANES, Source, Target};
use crate::program::{self, Action, Left, Product, ScaleD, Unit, Warpgroup};
use crate::ptx::{Instruction, Operand, Type};
use crate::wgmma::Major;
use std::collections::HashSet;

/// Rows of A and D that a warp has, and columns of A.
const ROWS: usize = 16;
const K: usize = 16;

/// Columns of B and D, at most.
const MOST_COLUMNS: usize = 256;

impl<'a> Lowering<'a> {
    pub(super) fn wgmma(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        // Later GPUs do not have it, whatever their number.
        if self.module.target != "sm_90a" {
            return Err(m.error(format!("found target {}, wanted sm_90a", self.module.target)));
        }
        for modifier in ["sync", "aligned"] {
            m.wanted("form", &[(modifier, ())])?;
        }
        match m.wanted("kind", &[("fence", 0), ("commit_group", 1), ("wait_group", 2), ("mma_async", 3)])? {
            0 => self.operands(i).map(|[]| Lowered::from(Action::Warpgroup(Warpgroup::Fence)).whole_warp()),
            1 => self.operands(i).map(|[]| Lowered::from(Action::Warpgroup(Warpgroup::Commit)).whole_warp()),
            2 => {
                let [left] = self.operands(i)?;
                let left = u32::try_from(self.immediate(left)?).map_err(|_| m.error("found no number of groups"))?;
                Ok(Lowered::from(Action::Warpgroup(Warpgroup::Wait(left))).whole_warp())
            }
            _ => self.warpgroup_product(i, m),
        }
    }

    fn warpgroup_product(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let columns = m.parsed("shape m64nNk16, N a multiple of 8 up to 256", |name| {
            let columns: usize = name.strip_prefix("m64n")?.strip_suffix("k16")?.parse().ok()?;
            (columns.is_multiple_of(8) && (8..=MOST_COLUMNS).contains(&columns)).then_some(columns)
        })?;
        let [d_type, a_type, b_type] = [m.ty()?, m.ty()?, m.ty()?];
        let factor = Self::factor(m, a_type, b_type)?;
        let accumulator = Self::accumulator(m, d_type, factor)?;
        let [d, a, b, scale_d, rest @ ..] = i.operands.as_slice() else {
            return Err(m.error("found too few operands"));
        };
        let d = self.accumulators(m, d, register(accumulator), columns / 8 * accumulator.registers())?;
        let (a, [scale_a, scale_b, transposed_b]) = match (a, rest) {
            (Operand::Vector(_), [scale_a, scale_b, b]) => (self.fragment(m, a)?, [scale_a, scale_b, b]),
            (_, [scale_a, scale_b, a_by, b_by]) if !matches!(a, Operand::Vector(_)) => {
                (Left::Shared(self.operand_by_descriptor(m, a, a_by)?), [scale_a, scale_b, b_by])
            }
            _ => return Err(m.error("found another number of operands")),
        };
        if let Left::Registers(a) = &a
            && d.iter().any(|target| a.contains(&Source::Register(*target)))
        {
            return Err(m.error("found a register that is both of A and of D"));
        }
        let b = self.operand_by_descriptor(m, b, transposed_b)?;
        let scale_d = match scale_d {
            Operand::Integer(scale) => ScaleD::Constant(*scale != 0),
            other => ScaleD::Predicate(self.condition(other)?),
        };
        let negative = self.is_negative(m, scale_a)? != self.is_negative(m, scale_b)?;
        let product = Product { columns, factor, accumulator, d, a, b, scale_d, negative };
        let work = 2 * ROWS * columns * K / LANES;
        let action = Action::Warpgroup(Warpgroup::Multiply(Box::new(product)));
        Ok(Lowered::from(action).whole_warp().work(Unit::Tensor, work as u32))
    }

    /// The registers of D, each another one.
    fn accumulators(&mut self, m: &Modifiers<'a>, d: &'a Operand, ty: Type, wanted: usize) -> Result<Vec<Target>> {
        let elements = Self::elements(d);
        if elements.len() != wanted {
            return Err(m.error(format!("d: found {} registers, wanted {wanted}", elements.len())));
        }
        if elements.iter().any(|one| matches!(one, Operand::Name(name) if name == "_")) {
            return Err(m.error("d: found _, wanted registers"));
        }
        let targets = elements.iter().map(|one| self.target(one, ty)).collect::<Result<Vec<_>>>()?;
        if program::narrow(&targets).collect::<HashSet<_>>().len() != wanted {
            return Err(m.error("d: found a register twice"));
        }
        Ok(targets)
    }

    /// The four registers of A.
    fn fragment(&mut self, m: &Modifiers<'a>, a: &'a Operand) -> Result<Left> {
        let a = self.sources(a, Type::B32)?;
        let found = a.len();
        let a = a.try_into().map_err(|_| m.error(format!("a: found {found} registers, wanted 4")))?;
        Ok(Left::Registers(a))
    }

    /// A descriptor, and `imm-trans-a` or `imm-trans-b`.
    fn operand_by_descriptor(
        &mut self,
        m: &Modifiers<'a>,
        descriptor: &Operand,
        transposed: &Operand,
    ) -> Result<program::Operand> {
        let major = match self.immediate(transposed)? {
            0 => Major::K,
            1 => Major::Mn,
            other => return Err(m.error(format!("found transposition {other}, wanted 0 or 1"))),
        };
        Ok(program::Operand { descriptor: self.source(descriptor, Type::B64)?, major })
    }

    /// `imm-scale-a` and `imm-scale-b`.
    fn is_negative(&self, m: &Modifiers<'a>, scale: &Operand) -> Result<bool> {
        match self.immediate(scale)? as i64 {
            1 => Ok(false),
            -1 => Ok(true),
            other => Err(m.error(format!("found scale {other}, wanted 1 or -1"))),
        }
    }
}
