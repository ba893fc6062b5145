//! Branches, calls and barriers (PTX ISA, "Control Flow Instructions" and "Parallel Synchronization and Communication
//! Instructions").

use super::{DEEPEST_CALL, Lowered, Lowering, Modifiers, Result};
use crate::clock::Proxied;
use crate::lanes::{Condition, Source};
use crate::program::{Action, Barrier, BarrierKind, Reduced};
use crate::ptx::{Instruction, Operand, Type, Variable};

impl<'a> Lowering<'a> {
    pub(super) fn control(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        m.flag("uni");
        match i.opcode.as_str() {
            "bra" => {
                let [to] = self.operands(i)?;
                let label = self.label(to)?;
                Ok(self.branch(label))
            }
            "ret" => match self.calls.last() {
                Some((_, label)) => {
                    let label = *label;
                    Ok(self.branch(label))
                }
                None => Ok(Action::Exit.into()),
            },
            "exit" => Ok(Action::Exit.into()),
            "trap" | "brkpt" => Ok(Action::Trap.into()),
            "bar" | "barrier" => self.barrier(i, m),
            "fence" if m.flag("proxy") => self.proxy_fence(m),
            "fence" if m.flag("mbarrier_init") => {
                self.hopper(m, false)?;
                m.wanted("order", &[("release", ())])?;
                m.wanted("scope", &[("cluster", ())])?;
                Ok(Action::FenceMbarriers.into())
            }
            "fence" | "membar" => {
                m.skip(|name| ["sc", "acq_rel", "cta", "cluster", "gpu", "sys", "gl"].contains(&name));
                Ok(Action::Fence.into())
            }
            _ => {
                m.ty()?;
                Ok(Action::Nothing.into())
            }
        }
    }

    /// `fence.proxy.async` (PTX ISA, "membar, fence"), in both directions.
    fn proxy_fence(&mut self, m: &mut Modifiers<'a>) -> Result<Lowered> {
        self.hopper(m, false)?;
        m.wanted("proxy", &[("async", ())])?;
        let memories: &'static [Proxied] = match m.one_of(&[("global", 0), ("shared::cta", 1), ("shared::cluster", 1)])
        {
            None => &[Proxied::Shared, Proxied::Global],
            Some(0) => &[Proxied::Global],
            Some(_) => &[Proxied::Shared],
        };
        Ok(Action::FenceProxy(memories).into())
    }

    fn branch(&mut self, label: super::scope::Label) -> Lowered {
        self.branches.push((self.steps.len(), label));
        Action::Branch { target: 0 }.into()
    }

    /// A call, expanded: the function's parameters are the caller's variables under other names.
    pub(super) fn call(&mut self, i: &'a Instruction, guard: Option<Condition>) -> Result<()> {
        let mut m = Modifiers::new(i);
        m.flag("uni");
        m.finish()?;
        let (returns, name, arguments): (&'a [Operand], _, &'a [Operand]) = match i.operands.as_slice() {
            [Operand::Name(name)] => (&[], name, &[]),
            [Operand::Name(name), Operand::List(arguments)] => (&[], name, arguments),
            [Operand::List(returns), Operand::Name(name)] => (returns, name, &[]),
            [Operand::List(returns), Operand::Name(name), Operand::List(arguments)] => (returns, name, arguments),
            _ => return Err(self.error("call: found other operands, wanted results, a function and arguments")),
        };
        let module = self.module;
        let function = module.functions.iter().find(|function| !function.entry && function.name == *name);
        let Some(function) = function else { return Err(self.error(format!("call {name}: no function with a body"))) };
        if self.calls.len() >= DEEPEST_CALL || self.calls.iter().any(|(known, _)| known == name) {
            return Err(self.error(format!("call {name}: found a function that calls itself, or calls too deep")));
        }
        let formals: Vec<&'a Variable> = function.returns.iter().chain(&function.params).collect();
        let actuals: Vec<&Operand> = returns.iter().chain(arguments).collect();
        if formals.len() != actuals.len() {
            let found = actuals.len();
            return Err(
                self.error(format!("call {name}: found {found} results and arguments, wanted {}", formals.len()))
            );
        }
        let addresses = actuals.iter().map(|one| self.variable(one)).collect::<Result<Vec<_>>>()?;
        let behind = self.scopes.unnamed_label();
        if let Some(Condition { register, negated }) = guard {
            let skip = self.branch(behind);
            self.push(skip, Some(Condition { register, negated: !negated }), "call", i.loc)?;
        }
        self.scopes.enter_function();
        for (formal, (space, address)) in formals.into_iter().zip(addresses) {
            self.scopes.variable(&formal.name, space, address);
        }
        self.calls.push((&function.name, behind));
        self.items(&function.body)?;
        self.calls.pop();
        self.scopes.leave_function();
        self.scopes.set_place(behind, self.steps.len() as u32);
        self.line = i.line;
        Ok(())
    }

    /// `bar` and `barrier`: `bar.sync a, b` is `barrier.sync.aligned a, b`.
    fn barrier(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        if m.flag("warp") {
            m.wanted("kind", &[("sync", ())])?;
            let [members] = self.operands(i)?;
            let members = self.source(members, Type::B32)?;
            return Ok(Lowered::from(Action::OrderWarp).members(members));
        }
        if i.opcode == "barrier" && m.flag("cluster") {
            return self.cluster_barrier(i, m);
        }
        m.flag("cta");
        let aligned = m.flag("aligned") || i.opcode == "bar";
        #[derive(Clone, Copy, PartialEq)]
        enum Kind {
            Sync,
            Arrive,
            Reduce,
        }
        let kind = m.wanted("kind", &[("sync", Kind::Sync), ("arrive", Kind::Arrive), ("red", Kind::Reduce)])?;
        let mut operands = i.operands.iter();
        let mut reduced = None;
        if kind == Kind::Reduce {
            let of = m.wanted("operation", &[("popc", 0), ("and", 1), ("or", 2)])?;
            m.ty()?;
            let d = operands.next().ok_or_else(|| m.error("found no operand, wanted a result"))?;
            reduced = Some(match of {
                0 => Reduced::Count(self.target(d, Type::U32)?),
                1 => Reduced::And(self.predicate_target(d)?),
                _ => Reduced::Or(self.predicate_target(d)?),
            });
        }
        let id = operands.next().ok_or_else(|| m.error("found no barrier, wanted its number"))?;
        let id = self.source(id, Type::U32)?;
        let condition = match reduced {
            Some(_) => Some(operands.next_back().ok_or_else(|| m.error("found no predicate, wanted one"))?),
            None => None,
        };
        let threads = operands.next().map(|threads| self.source(threads, Type::U32)).transpose()?;
        if operands.next().is_some() {
            return Err(m.error("found too many operands"));
        }
        let kind = match (kind, reduced, condition) {
            (Kind::Reduce, Some(to), Some(of)) => BarrierKind::Reduce { of: self.condition(of)?, to },
            (Kind::Arrive, ..) if threads.is_none() => return Err(m.error("found no number of threads, wanted one")),
            (Kind::Arrive, ..) => BarrierKind::Arrive,
            _ => BarrierKind::Sync,
        };
        Ok(Action::Barrier(Barrier { id, threads, kind, aligned }).into())
    }

    /// The mask of a `.sync` instruction.
    pub(super) fn member_mask(&mut self, operand: &Operand) -> Result<Source> {
        self.source(operand, Type::B32)
    }
}
