//! `mma.sync` of f16 and bf16 (PTX ISA, "Warp Level Matrix Instructions: mma"): D = A B + C, A of 16 x k, B of k x 8.

use super::{Lowered, Lowering, Modifiers, Result};
use crate::fragments::{self, Accumulator, Factor};
use crate::lanes::LANES;
use crate::program::Unit;
use crate::ptx::{Instruction, Type};

impl<'a> Lowering<'a> {
    pub(super) fn mma(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        for modifier in ["sync", "aligned", "row", "col"] {
            m.wanted("form", &[(modifier, ())])?;
        }
        let k: usize = m.wanted("shape", &[("m16n8k8", 8), ("m16n8k16", 16)])?;
        let [d_type, a_type, b_type, c_type] = [m.ty()?, m.ty()?, m.ty()?, m.ty()?];
        let factor = Self::factor(m, a_type, b_type)?;
        let (d_type, c_type) = (Self::accumulator(m, d_type, factor)?, Self::accumulator(m, c_type, factor)?);
        let [d, a, b, c] = self.operands(i)?;
        let d = Self::elements(d).iter().map(|one| self.target(one, register(d_type))).collect::<Result<Vec<_>>>()?;
        let (a, b, c) = (self.sources(a, Type::B32)?, self.sources(b, Type::B32)?, self.sources(c, register(c_type))?);
        let counts = [("d", d.len(), d_type.registers()), ("a", a.len(), k / 4), ("b", b.len(), k / 8)];
        for (what, found, wanted) in counts.into_iter().chain([("c", c.len(), c_type.registers())]) {
            if found != wanted {
                return Err(m.error(format!("{what}: found {found} registers, wanted {wanted}")));
            }
        }
        let compute = Lowered::compute(move |r, _| {
            let (a, b, mut sums) = (factor.tile_a(r, &a), factor.tile_b(r, &b), c_type.load(r, &c));
            fragments::multiply(&a, &b, k, &mut sums);
            d_type.store(r, &d, &sums);
        });
        Ok(compute.whole_warp().work(Unit::Tensor, (2 * 16 * 8 * k / LANES) as u32))
    }

    /// The type of A and B.
    pub(super) fn factor(m: &Modifiers<'a>, a: Type, b: Type) -> Result<Factor> {
        match (a, b) {
            (Type::F16, Type::F16) => Ok(Factor::F16),
            (Type::Bf16, Type::Bf16) => Ok(Factor::Bf16),
            _ => Err(m.error("not simulated for these types")),
        }
    }

    /// The type of C or D, given that of A and B.
    pub(super) fn accumulator(m: &Modifiers<'a>, ty: Type, factor: Factor) -> Result<Accumulator> {
        match (ty, factor) {
            (Type::F32, _) => Ok(Accumulator::F32),
            (Type::F16, Factor::F16) => Ok(Accumulator::F16),
            _ => Err(m.error("not simulated for these types")),
        }
    }
}

/// The type of a register of C or D.
pub(super) fn register(ty: Accumulator) -> Type {
    match ty {
        Accumulator::F32 => Type::F32,
        Accumulator::F16 => Type::B32,
    }
}
