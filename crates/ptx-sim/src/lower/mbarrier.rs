//! `mbarrier` (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier"), `setmaxnreg`, and barriers and
//! addresses of a cluster, of which a block is all there is here.

use super::{Lowered, Lowering, Modifiers, Result};
use crate::lanes::{Lanes, Source};
use crate::program::{Action, Arrival, ClusterBarrier, Mbarrier, Operation, PhaseWait};
use crate::ptx::{Instruction, Operand, Space, Type};

/// Bits of a state that hold the pending count; those above them hold the phase.
pub(crate) const PENDING_BITS: u32 = 20;

/// Registers of a thread that `setmaxnreg` can ask for (PTX ISA, "setmaxnreg").
const REGISTERS: std::ops::RangeInclusive<u64> = 24..=256;
const REGISTERS_STEP: u64 = 8;

/// An address that nothing has: of a block that is not in the cluster.
const NO_BLOCK: u64 = 0xff << 56;

impl<'a> Lowering<'a> {
    pub(super) fn mbarrier(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        self.hopper(m, false)?;
        let names = [
            "init",
            "inval",
            "expect_tx",
            "complete_tx",
            "arrive",
            "arrive_drop",
            "test_wait",
            "try_wait",
            "pending_count",
        ];
        // `arrive.expect_tx` is a kind of arrival.
        let arrives = [("arrive", "arrive"), ("arrive_drop", "arrive_drop")];
        let name = match m.one_of(&arrives) {
            Some(name) => name,
            None => m.wanted("operation", &names.map(|name| (name, name)))?,
        };
        if name == "pending_count" {
            return self.pending_count(i, m);
        }
        let operation = match name {
            "arrive" | "arrive_drop" => return self.arrival(i, m, name == "arrive_drop"),
            "test_wait" | "try_wait" => return self.phase_wait(i, m, name == "try_wait"),
            operation => operation,
        };
        if matches!(operation, "expect_tx" | "complete_tx") && m.flag("relaxed") {
            Self::scope(m);
        }
        let space = Self::shared(m);
        m.wanted("type", &[("b64", ())])?;
        if operation == "inval" {
            let [address] = self.operands(i)?;
            return self.operation(address, space, Operation::Invalidate);
        }
        let [address, number] = self.operands(i)?;
        let number = self.source(number, Type::B32)?;
        let operation = match operation {
            "init" => Operation::Init(number),
            "expect_tx" => Operation::Expect(number),
            _ => Operation::Complete(number),
        };
        self.operation(address, space, operation)
    }

    fn operation(&mut self, address: &'a Operand, space: Option<Space>, operation: Operation) -> Result<Lowered> {
        let address = self.address(address, space)?;
        Ok(Action::Mbarrier(Mbarrier { address, operation }).into())
    }

    fn scope(m: &mut Modifiers<'a>) {
        m.one_of(&[("cta", ()), ("cluster", ())]);
    }

    /// The space: of a cluster of one block, the block's is all. Generic addresses say theirs themselves.
    fn shared(m: &mut Modifiers<'a>) -> Option<Space> {
        m.one_of(&["shared::cta", "shared::cluster", "shared"].map(|name| (name, Space::Shared)))
    }

    /// `arrive` and `arrive_drop`. Those that release are simulated; `.relaxed` is left over, and refused.
    fn arrival(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>, drops: bool) -> Result<Lowered> {
        let expects = m.flag("expect_tx");
        let last_is_wrong = m.flag("noComplete");
        m.flag("release");
        Self::scope(m);
        let space = Self::shared(m);
        m.wanted("type", &[("b64", ())])?;
        let (state, address, number) = match i.operands.as_slice() {
            [Operand::Address { .. }, ..] => return Err(m.error("found no state, wanted a register or _")),
            [state, address] => (state, address, None),
            [state, address, number] => (state, address, Some(self.source(number, Type::B32)?)),
            _ => return Err(m.error("found another number of operands")),
        };
        let state = self.target(state, Type::B64)?;
        let (count, expects) = match (expects, number) {
            (true, None) => return Err(m.error("found no number of bytes, wanted one")),
            (true, Some(bytes)) => (Source::Constant(1), bytes),
            (false, count) => (count.unwrap_or(Source::Constant(1)), Source::Constant(0)),
        };
        let arrival = Arrival { count, expects, drops, last_is_wrong, state };
        self.operation(address, space, Operation::Arrive(arrival))
    }

    fn phase_wait(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>, may_wait: bool) -> Result<Lowered> {
        let by_parity = m.flag("parity");
        m.flag("acquire");
        Self::scope(m);
        let space = Self::shared(m);
        m.wanted("type", &[("b64", ())])?;
        let (to, address, phase) = match i.operands.as_slice() {
            [to, address, phase] => (to, address, phase),
            [to, address, phase, hint] if may_wait => {
                self.source(hint, Type::B32)?;
                (to, address, phase)
            }
            _ => return Err(m.error("found another number of operands")),
        };
        let to = self.predicate_target(to)?;
        let phase = self.source(phase, if by_parity { Type::B32 } else { Type::B64 })?;
        self.operation(address, space, Operation::Wait(PhaseWait { phase, by_parity, may_wait, to }))
    }

    fn pending_count(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        m.wanted("type", &[("b64", ())])?;
        let [d, state] = self.operands(i)?;
        let (d, state) = (self.target(d, Type::B32)?, self.source(state, Type::B64)?);
        Ok(Lowered::compute(move |r, mask| {
            let states: Lanes<u64> = r.get(state);
            r.put(d, mask, states.map(|state| state & ((1 << PENDING_BITS) - 1)));
        }))
    }

    /// `setmaxnreg`.
    pub(super) fn set_registers(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        self.hopper(m, true)?;
        let grows = m.wanted("direction", &[("inc", true), ("dec", false)])?;
        for modifier in ["sync", "aligned", "u32"] {
            m.wanted("form", &[(modifier, ())])?;
        }
        let [count] = self.operands(i)?;
        let count = self.immediate(count)?;
        if !REGISTERS.contains(&count) || !count.is_multiple_of(REGISTERS_STEP) {
            let (first, last) = (REGISTERS.start(), REGISTERS.end());
            let wanted = format!("a multiple of {REGISTERS_STEP} from {first} to {last}");
            return Err(m.error(format!("found {count} registers, wanted {wanted}")));
        }
        Ok(Lowered::from(Action::Registers { count: count as u32, grows }).whole_warp())
    }

    /// `barrier.cluster`.
    pub(super) fn cluster_barrier(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        self.hopper(m, false)?;
        let arrives = m.wanted("kind", &[("arrive", true), ("wait", false)])?;
        let orders = if arrives {
            m.one_of(&[("release", true), ("relaxed", false)]).unwrap_or(true)
        } else {
            m.flag("acquire");
            true
        };
        let aligned = m.flag("aligned");
        let [] = self.operands(i)?;
        Ok(Action::ClusterBarrier(ClusterBarrier { arrives, orders, aligned }).into())
    }

    /// `mapa` and `getctarank`: the only block of a cluster has rank 0.
    pub(super) fn cluster_address(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        self.hopper(m, false)?;
        let generic = m.one_of(&[("shared::cluster", ())]).is_none();
        let ty = m.ty()?;
        if i.opcode == "getctarank" {
            let [d, a] = self.operands(i)?;
            self.source(a, ty)?;
            let d = self.target(d, Type::U32)?;
            return Ok(Lowered::compute(move |r, mask| r.put(d, mask, [0u32; 32])));
        }
        let [d, a, rank] = self.operands(i)?;
        if let (true, Operand::Name(name)) = (generic, a)
            && self.scopes.find(name).is_some_and(|name| matches!(name, super::scope::Name::Variable(Space::Shared, _)))
        {
            return Err(m.error(format!("found {name}, a variable of .shared, wanted a generic address")));
        }
        let (d, a, rank) = (self.target(d, ty)?, self.source(a, ty)?, self.source(rank, Type::U32)?);
        Ok(Lowered::compute(move |r, mask| {
            let (a, ranks): (Lanes<u64>, Lanes<u32>) = (r.get(a), r.get(rank));
            let of = |lane: usize| if ranks[lane] == 0 { a[lane] } else { NO_BLOCK | u64::from(u32::MAX) };
            r.put(d, mask, std::array::from_fn(of));
        }))
    }
}
