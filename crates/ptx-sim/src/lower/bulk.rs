//! `cp.async.bulk` (PTX ISA, "Data Movement and Conversion Instructions: Bulk copy" and "Tensor copy").

use super::{Lowered, Lowering, Modifiers, Result};
use crate::lanes::Source;
use crate::program::{Action, BulkCopy, BulkGlobal, BulkKind};
use crate::ptx::{Instruction, Operand, Space, Type};

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Load,
    Store,
    Prefetch,
}

impl<'a> Lowering<'a> {
    /// What stands behind `cp.async.bulk`.
    pub(super) fn bulk(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        self.hopper(m, false)?;
        if m.flag("commit_group") {
            let [] = self.operands(i)?;
            return Ok(Action::CommitBulk.into());
        }
        if m.flag("wait_group") {
            let reads = m.flag("read");
            let [left] = self.operands(i)?;
            let left = self.immediate(left)?.min(u32::MAX.into()) as u32;
            return Ok(Action::WaitBulk { left, reads }.into());
        }
        // Named here, for what else is wrong with them would be told first.
        for refused in ["multicast::cluster", "im2col", "cp_mask", "cta_group::1", "cta_group::2"] {
            if m.flag(refused) {
                return Err(m.error(format!(".{refused} is not simulated")));
            }
        }
        let prefetches = m.flag("prefetch");
        let rank = if m.flag("tensor") { Some(self.tensor_form(m)?) } else { None };
        let way = if prefetches { self.prefetch_way(m)? } else { self.way(m)? };
        let hint = m.flag("L2::cache_hint");
        let mut operands = i.operands.as_slice();
        if hint {
            let [rest @ .., policy] = operands else { return Err(m.error("found no operands")) };
            self.source(policy, Type::B64)?;
            operands = rest;
        }
        let copy = match (rank, way) {
            (Some(rank), _) => self.tensor_copy(m, way, rank, operands)?,
            (None, _) => self.line_copy(m, way, operands)?,
        };
        Ok(Action::Bulk(copy).into())
    }

    /// `prefetch.tensormap`: the map is looked at.
    pub(super) fn prefetch_map(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        self.hopper(m, false)?;
        let space = m.one_of(&[("param", Space::Param), ("const", Space::Const)]);
        let [map] = self.operands(i)?;
        let global = BulkGlobal::Box { map: self.address(map, space)?, at: Vec::new() };
        Ok(Action::Bulk(BulkCopy { kind: BulkKind::Prefetch, global }).into())
    }

    /// `createpolicy`: there are no caches here, so one policy is as good as another.
    pub(super) fn cache_policy(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        m.wanted("kind", &[("fractional", ())])?;
        m.skip(|name| name.starts_with("L2::"));
        m.wanted("type", &[("b64", ())])?;
        let (d, fraction) = match i.operands.as_slice() {
            [d] => (d, None),
            [d, fraction] => (d, Some(fraction)),
            _ => return Err(m.error("found another number of operands")),
        };
        fraction.map(|fraction| self.source(fraction, Type::F32)).transpose()?;
        let d = self.target(d, Type::B64)?;
        Ok(Lowered::compute(move |r, mask| r.put(d, mask, [0u64; 32])))
    }

    /// How many coordinates a tensor copy has.
    fn tensor_form(&mut self, m: &mut Modifiers<'a>) -> Result<usize> {
        let rank = m.wanted("number of dimensions", &[("1d", 1), ("2d", 2), ("3d", 3), ("4d", 4), ("5d", 5)])?;
        m.flag("tile");
        Ok(rank)
    }

    fn prefetch_way(&mut self, m: &mut Modifiers<'a>) -> Result<Way> {
        m.wanted("level", &[("L2", ())])?;
        m.wanted("source", &[("global", ())])?;
        Ok(Way::Prefetch)
    }

    /// What does not fit either way is left over, and refused: `.multicast::cluster`, `.im2col`, copies between blocks.
    fn way(&mut self, m: &mut Modifiers<'a>) -> Result<Way> {
        if m.flag("mbarrier::complete_tx::bytes") {
            m.wanted("destination", &[("shared::cluster", ()), ("shared::cta", ())])?;
            m.wanted("source", &[("global", ())])?;
            return Ok(Way::Load);
        }
        m.wanted("completion", &[("bulk_group", ())])?;
        m.wanted("destination", &[("global", ())])?;
        m.wanted("source", &[("shared::cta", ())])?;
        Ok(Way::Store)
    }

    fn line_copy(&mut self, m: &Modifiers<'a>, way: Way, operands: &'a [Operand]) -> Result<BulkCopy> {
        let (kind, address, bytes): (_, &'a Operand, &'a Operand) = match (way, operands) {
            (Way::Load, [to, from, bytes, mbarrier]) => (self.load_to(to, mbarrier)?, from, bytes),
            (Way::Store, [to, from, bytes]) => (self.store_from(from)?, to, bytes),
            (Way::Prefetch, [from, bytes]) => (BulkKind::Prefetch, from, bytes),
            _ => return Err(m.error("found another number of operands")),
        };
        let (address, bytes) = (self.address(address, Some(Space::Global))?, self.source(bytes, Type::U32)?);
        Ok(BulkCopy { kind, global: BulkGlobal::Line { address, bytes } })
    }

    fn tensor_copy(&mut self, m: &Modifiers<'a>, way: Way, rank: usize, operands: &'a [Operand]) -> Result<BulkCopy> {
        let (kind, tensor) = match (way, operands) {
            (Way::Load, [to, tensor, mbarrier]) => (self.load_to(to, mbarrier)?, tensor),
            (Way::Store, [tensor, from]) => (self.store_from(from)?, tensor),
            (Way::Prefetch, [tensor]) => (BulkKind::Prefetch, tensor),
            _ => return Err(m.error("found another number of operands")),
        };
        let Operand::Tensor { base, coordinates } = tensor else {
            return Err(m.error("found no tensor map with coordinates, wanted [map, {..}]"));
        };
        if coordinates.len() != rank {
            return Err(m.error(format!("found {} coordinates, wanted {rank}", coordinates.len())));
        }
        let (base, offset) = match &**base {
            Operand::Address { base, offset, .. } => (&**base, *offset),
            other => (other, 0),
        };
        let map = Operand::Address { base: Box::new(base.clone()), offset, loads: true };
        let map = self.address(&map, None)?;
        let at = coordinates.iter().map(|one| self.source(one, Type::B32)).collect::<Result<Vec<Source>>>()?;
        Ok(BulkCopy { kind, global: BulkGlobal::Box { map, at } })
    }

    fn load_to(&mut self, to: &'a Operand, mbarrier: &'a Operand) -> Result<BulkKind> {
        let (to, mbarrier) = (self.address(to, Some(Space::Shared))?, self.address(mbarrier, Some(Space::Shared))?);
        Ok(BulkKind::Load { to, mbarrier })
    }

    fn store_from(&mut self, from: &'a Operand) -> Result<BulkKind> {
        Ok(BulkKind::Store { from: self.address(from, Some(Space::Shared))? })
    }
}
