//! Warpgroups: four warps that execute `wgmma` together (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
//!
//! The four warps wait for each other at each of these instructions, and it is done once. That orders none of their memory.
//! Which registers are whose is kept by warp:
//!
//! - From `mma_async` until a `wait_group` that covers it, its registers belong to it, both accumulators and fragments of A:
//!   nothing else reads or writes them, but for another `mma_async` that adds to the same accumulators in the same shape, or
//!   has the same fragments.
//! - Between a thread's own access to a register and an `mma_async` that has it, there must be a `wgmma.fence`.

use super::Trouble;
use super::block::Block;
use super::mbarrier;
use super::products::InFlight;
use super::warp::Waits;
use crate::fault::FaultKind;
use crate::lanes::{ALL, LANES, Mask};
use crate::program::{Product, Touch, Warpgroup, narrow};
use crate::races::{Conflict, Kind};
use std::collections::VecDeque;
use std::ops::Range;

/// Warps of a warpgroup.
pub(super) const WARPS: usize = 4;

/// A warpgroup of a block.
#[derive(Default)]
pub(super) struct Group {
    /// Its warps that have come to an instruction, and which step that is.
    arrived: u8,
    step: u32,
    /// How many `wgmma.fence` it has executed.
    fences: u32,
    /// How many groups it has committed: the number of the open one.
    pub(super) committed: u32,
    /// Groups with lower numbers were waited for.
    waited: u32,
    /// Products that are not computed yet, in the order in which they will be.
    pub(super) products: VecDeque<InFlight>,
    /// By warp, and by narrow register.
    registers: [Vec<Register>; WARPS],
}

/// Who has a register of a warp.
#[derive(Clone, Copy, Default)]
struct Register {
    product: Option<InProduct>,
    touched: Option<Touched>,
}

/// The last product that has a register.
#[derive(Clone, Copy)]
struct InProduct {
    /// The number of its group.
    group: u32,
    step: u32,
    /// As a part of D, not of A.
    accumulates: bool,
}

/// The last access by an instruction that is no product.
#[derive(Clone, Copy)]
struct Touched {
    /// How many `wgmma.fence` came before.
    fences: u32,
    step: u32,
    writes: bool,
}

impl Group {
    pub(super) fn new(narrow: u32) -> Self {
        let registers = std::array::from_fn(|_| vec![Register::default(); narrow as usize]);
        Group { registers, ..Group::default() }
    }
}

/// The warps of a warpgroup.
pub(super) fn warps_of(number: usize) -> Range<usize> {
    number * WARPS..(number + 1) * WARPS
}

/// The threads of warps.
pub(super) fn threads_of(warps: Range<usize>) -> Range<usize> {
    warps.start * LANES..warps.end * LANES
}

impl Block<'_, '_> {
    /// A warp, all of whose lanes are there, comes to an instruction of its warpgroup.
    pub(super) fn warpgroup(&mut self, warp: usize, place: usize, action: &Warpgroup) -> Result<(), Trouble> {
        let step = self.warps[warp].groups[place].step;
        let number = warp / WARPS;
        if warps_of(number).end > self.warps.len() {
            let what = "found a warpgroup of fewer than four warps";
            return Err(Trouble::new(FaultKind::Divergence, what));
        }
        let group = &mut self.warpgroups[number];
        if group.arrived != 0 && group.step != step {
            let (other, step) = (number * WARPS + group.arrived.trailing_zeros() as usize, group.step);
            let what = "warps of a warpgroup come to different instructions, where they must come to one together";
            return Err(Trouble::new(FaultKind::Divergence, what).with(self.site_of(other, step, Kind::Operand)));
        }
        self.progress += 1;
        group.step = step;
        group.arrived |= 1 << (warp % WARPS);
        self.warps[warp].groups[place].waits = Waits::Warpgroup;
        if group.arrived.count_ones() as usize == WARPS {
            group.arrived = 0;
            self.together(number, step, action)?;
            for warp in warps_of(number) {
                let place = self.place_of(warp, ALL);
                self.warps[warp].go(place, ALL, step + 1);
            }
        }
        Ok(())
    }

    /// What the four warps do once all are there.
    fn together(&mut self, number: usize, step: u32, action: &Warpgroup) -> Result<(), Trouble> {
        match action {
            Warpgroup::Fence => self.warpgroups[number].fences += 1,
            Warpgroup::Commit => self.warpgroups[number].committed += 1,
            Warpgroup::Wait(left) => self.wait_for_products(number, *left),
            Warpgroup::Multiply(product) => {
                self.take_registers(number, step, product)?;
                self.begin_product(number, step, product)?;
            }
        }
        Ok(())
    }

    /// Waits until at most `left` of the groups that were committed are under way.
    fn wait_for_products(&mut self, number: usize, left: u32) {
        let group = &mut self.warpgroups[number];
        group.waited = group.committed.saturating_sub(left).max(group.waited);
        let waited = group.waited;
        while self.warpgroups[number].products.front().is_some_and(|product| product.group < waited) {
            self.compute_product(number);
        }
        // What a group reads belongs to an epoch of the warpgroup's ticket: that of group 0 is 1.
        self.clocks.learn_ticket(threads_of(warps_of(number)), self.ticket_of(number), waited);
    }

    /// The ticket of a warpgroup: behind those of the mbarriers.
    pub(super) fn ticket_of(&self, number: usize) -> usize {
        mbarrier::tickets(self.grid.program) + number
    }

    /// Registers of the four warps become those of a product.
    fn take_registers(&mut self, number: usize, step: u32, product: &Product) -> Result<(), Trouble> {
        if self.warpgroups[number].fences == 0 {
            let what = "found no wgmma.fence before the first wgmma.mma_async";
            return Err(Trouble::new(FaultKind::WgmmaFence, what));
        }
        for warp in warps_of(number) {
            for slot in narrow(&product.d) {
                self.take_register(warp, slot, step, true)?;
            }
            for slot in product.a.slots() {
                self.take_register(warp, slot, step, false)?;
            }
        }
        Ok(())
    }

    fn take_register(&mut self, warp: usize, slot: u32, step: u32, accumulates: bool) -> Result<(), Trouble> {
        let group = &self.warpgroups[warp / WARPS];
        let Register { product, touched } = group.registers[warp % WARPS][slot as usize];
        let what = if accumulates { "an accumulator" } else { "a register of A" };
        if let Some(touched) = touched.filter(|touched| touched.fences == group.fences) {
            let (kind, done) = if touched.writes { (Kind::Write, "written") } else { (Kind::Read, "read") };
            let what = format!("{what} was {done} by another instruction, with no wgmma.fence between the two");
            let earlier = self.site_of(warp, touched.step, kind);
            return Err(Trouble::new(FaultKind::WgmmaFence, what).with(earlier));
        }
        if let Some(earlier) = product.filter(|product| product.group >= group.waited)
            && (accumulates || earlier.accumulates)
            && !(accumulates && earlier.accumulates && self.same_shape(earlier.step, step))
        {
            let what = format!("{what} is of a wgmma that was not waited for, and of another shape or role");
            let earlier = self.site_of(warp, earlier.step, Kind::Operand);
            return Err(Trouble::new(FaultKind::Fragment, what).with(earlier));
        }
        let product = Some(InProduct { group: group.committed, step, accumulates });
        self.warpgroups[warp / WARPS].registers[warp % WARPS][slot as usize].product = product;
        Ok(())
    }

    fn same_shape(&self, one: u32, other: u32) -> bool {
        let shape = |step: u32| {
            let product = self.grid.program.steps[step as usize].product();
            product.map(|product| (product.columns, product.accumulator))
        };
        shape(one) == shape(other)
    }

    /// An instruction that is no product reads or writes registers that are of one at other times.
    pub(super) fn touch(&mut self, warp: usize, step: u32, touches: &[Touch]) -> Result<(), Trouble> {
        // A warp that is not of a whole warpgroup has no products.
        let Some(group) = self.warpgroups.get_mut(warp / WARPS) else { return Ok(()) };
        for touch in touches {
            let register = &mut group.registers[warp % WARPS][touch.slot as usize];
            if let Some(product) = register.product.filter(|product| product.group >= group.waited) {
                let what = if product.accumulates { "an accumulator" } else { "a register of A" };
                let done = if touch.writes { "written" } else { "read" };
                let what = format!("{what} of a wgmma is {done} before the wgmma was waited for");
                let earlier = self.site_of(warp, product.step, Kind::Operand);
                return Err(Trouble::new(FaultKind::Fragment, what).with(earlier));
            }
            register.touched = Some(Touched { fences: group.fences, step, writes: touch.writes });
        }
        Ok(())
    }

    /// A step of a whole warp, as what another conflicts with.
    pub(super) fn site_of(&self, warp: usize, step: u32, kind: Kind) -> Conflict {
        let (block, warp, lane) = (self.number, warp as u16, u8::MAX);
        Conflict { block, warp, lane, pc: step, kind, address: 0, unfenced: false }
    }
}

/// Every lane of a warp holds the condition, or none does.
pub(super) fn uniform(holds: Mask) -> Option<bool> {
    match holds {
        0 => Some(false),
        ALL => Some(true),
        _ => None,
    }
}
