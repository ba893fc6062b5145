//! Makes a program of a kernel's tree: names become slots, calls are expanded in place, opcodes become closures over slots.
//!
//! A call is expanded so that a program counter says all about where a lane is. Functions that call themselves are refused.
//! An opcode, a modifier or an operand that is not known is an error with the line: nothing is ignored that could matter.

mod bits;
mod bulk;
mod control;
mod convert;
mod float;
mod half;
mod integer;
mod layout;
mod matrix;
mod mbarrier;
mod memory;
mod modifiers;
mod moves;
mod operands;
mod scope;
mod warp;
mod wgmma;

pub(crate) use layout::OWN_PARAMS;
pub(crate) use mbarrier::PENDING_BITS;
pub(crate) use memory::WIDEST_ACCESS;
pub(crate) use operands::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};

use crate::PtxError;
use crate::lanes::{ALL, Condition, Mask, Registers, Source, Target};
use crate::program::{Action, Program, Step, Touch, Touches, Unit, Work};
use crate::ptx::{self, Function, Instruction, Item};
use layout::Layout;
use modifiers::Modifiers;
use scope::Scopes;
use std::collections::HashMap;

/// Steps of a program, at most: expanded calls can be many.
const MOST_STEPS: usize = 1 << 20;

/// Labels, declarations and instructions with calls expanded, at most: also of functions that do nothing.
const MOST_ITEMS: usize = 1 << 22;

/// Calls within calls, at most.
const DEEPEST_CALL: usize = 32;

/// Where a module's variables lie in global memory.
pub(crate) type Addresses = HashMap<String, u64>;

type Result<T> = std::result::Result<T, PtxError>;

/// Makes a program of an entry of a module.
pub(crate) fn lower(module: &ptx::Module, entry: &Function, globals: &Addresses) -> Result<Program> {
    let layout = Layout::new(module, entry)?;
    let lowering = Lowering {
        module,
        scopes: Scopes::new(module, globals, &layout),
        layout,
        steps: Vec::new(),
        touched: Vec::new(),
        branches: Vec::new(),
        mnemonics: HashMap::new(),
        calls: Vec::new(),
        met: 0,
        line: entry.line,
    };
    lowering.entry(entry)
}

struct Lowering<'a> {
    module: &'a ptx::Module,
    scopes: Scopes<'a>,
    layout: Layout,
    steps: Vec<Step>,
    /// What each of them does to narrow registers.
    touched: Vec<(u32, Touch)>,
    /// Steps that branch, and the labels that they go to.
    branches: Vec<(usize, scope::Label)>,
    mnemonics: HashMap<String, u32>,
    /// The functions that are being expanded, and the label behind each.
    calls: Vec<(&'a str, scope::Label)>,
    /// How many labels, declarations and instructions were met.
    met: usize,
    line: u32,
}

/// What is made of an instruction, before it has its place.
struct Lowered {
    action: Action,
    members: Option<Source>,
    whole_warp: bool,
    work: Work,
}

impl From<Action> for Lowered {
    fn from(action: Action) -> Self {
        Lowered { action, members: None, whole_warp: false, work: Work { unit: Unit::None, operations: 0 } }
    }
}

impl Lowered {
    fn compute(compute: impl Fn(&mut Registers, Mask) + Send + Sync + 'static) -> Self {
        Action::Compute(Box::new(compute)).into()
    }

    fn work(self, unit: Unit, operations: u32) -> Self {
        Lowered { work: Work { unit, operations }, ..self }
    }

    fn members(self, members: Source) -> Self {
        Lowered { members: Some(members), ..self }
    }

    fn whole_warp(self) -> Self {
        Lowered { whole_warp: true, ..self.members(Source::Constant(ALL.into())) }
    }
}

impl<'a> Lowering<'a> {
    fn entry(mut self, entry: &'a Function) -> Result<Program> {
        let mut params = (Vec::new(), Vec::new());
        for param in &entry.params {
            let offset = self.layout.param(param)?;
            self.scopes.variable(&param.name, ptx::Space::Param, offset.into());
            params.0.push(param.bytes as u32);
            params.1.push(offset);
        }
        self.items(&entry.body)?;
        self.push(Action::Exit.into(), None, "exit", None)?;
        for (step, label) in std::mem::take(&mut self.branches) {
            let Action::Branch { target } = &mut self.steps[step].action else { continue };
            *target =
                self.scopes.place(label).ok_or_else(|| PtxError::new(entry.line, "found a label without a place"))?;
        }
        let asked = self.steps.iter().filter_map(|step| match step.action {
            Action::Registers { count, .. } => Some(count),
            _ => None,
        });
        let most_registers = asked.max().unwrap_or(0);
        let mut mnemonics = vec![String::new(); self.mnemonics.len()];
        for (name, place) in self.mnemonics {
            mnemonics[place as usize] = name;
        }
        let counts = self.scopes.counts();
        let has_mbarriers = self.steps.iter().any(|step| matches!(step.action, Action::Mbarrier(_)));
        Ok(Program {
            name: entry.name.clone(),
            touches: Touches::new(&self.steps, &self.touched),
            steps: self.steps,
            mnemonics,
            narrow: counts.narrow,
            wide: counts.wide,
            predicates: counts.predicates,
            specials: self.scopes.specials(),
            param_sizes: params.0,
            param_offsets: params.1,
            shared_bytes: self.layout.shared_bytes(),
            local_bytes: self.layout.local_bytes(),
            max_threads: entry.max_threads,
            max_registers: entry.max_registers,
            most_registers,
            has_mbarriers,
            files: self.module.files.clone(),
        })
    }

    /// A body or a block in braces, whose names end with it.
    fn items(&mut self, items: &'a [Item]) -> Result<()> {
        self.met += 1 + items.len();
        if self.met > MOST_ITEMS {
            return Err(self.error(format!("found more than {MOST_ITEMS} items with calls expanded")));
        }
        self.scopes.enter();
        for item in items {
            if let Item::Label { name, .. } = item {
                self.scopes.label(name);
            }
        }
        for item in items {
            match item {
                Item::Registers { ty, name, count, .. } => self.scopes.registers(*ty, name, *count),
                Item::Variable(variable) => {
                    self.line = variable.line;
                    let address = self.layout.variable(variable)?;
                    self.scopes.variable(&variable.name, variable.space, address);
                }
                Item::Label { name, line } => {
                    let here = self.steps.len() as u32;
                    self.scopes.place_label(name, here).ok_or_else(|| {
                        PtxError::new(*line, format!("label {name}: found twice in one scope, wanted once"))
                    })?;
                }
                Item::Block(items) => self.items(items)?,
                Item::Instruction(instruction) => self.instruction(instruction)?,
            }
        }
        self.scopes.leave();
        Ok(())
    }

    fn instruction(&mut self, i: &'a Instruction) -> Result<()> {
        self.line = i.line;
        let guard = match &i.guard {
            None => None,
            Some(guard) => {
                let register = self.predicate(&guard.register)?;
                Some(Condition { register, negated: guard.negated })
            }
        };
        if i.opcode == "call" {
            return self.call(i, guard);
        }
        let mut modifiers = Modifiers::new(i);
        let lowered = self.lowered(i, &mut modifiers)?;
        modifiers.finish()?;
        self.push(lowered, guard, &i.to_string(), i.loc)
    }

    /// What an instruction does, by its opcode.
    fn lowered(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        match i.opcode.as_str() {
            "add" | "sub" | "mul" | "mad" | "div" | "rem" | "abs" | "neg" | "min" | "max" | "fma" | "addc" | "subc"
            | "madc" | "sad" | "dp4a" => self.arithmetic(i, m),
            "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" | "testp" | "copysign" => {
                self.function(i, m)
            }
            "and" | "or" | "xor" | "not" | "cnot" | "lop3" | "shl" | "shr" | "shf" | "popc" | "clz" | "brev"
            | "bfind" | "bfe" | "bfi" | "prmt" => self.bits(i, m),
            "setp" | "set" | "selp" | "slct" => self.comparison(i, m),
            "mov" | "cvta" | "isspacep" => self.moving(i, m),
            "cvt" => self.conversion(i, m),
            "ld" | "ldu" | "st" | "atom" | "red" | "cp" | "ldmatrix" | "stmatrix" | "prefetch" | "prefetchu" => {
                self.memory(i, m)
            }
            "shfl" | "vote" | "match" | "redux" | "movmatrix" | "activemask" | "elect" => self.exchange(i, m),
            "mma" => self.mma(i, m),
            "wgmma" => self.wgmma(i, m),
            "mbarrier" => self.mbarrier(i, m),
            "createpolicy" => self.cache_policy(i, m),
            "setmaxnreg" => self.set_registers(i, m),
            "mapa" | "getctarank" => self.cluster_address(i, m),
            "bra" | "ret" | "exit" | "trap" | "bar" | "barrier" | "membar" | "fence" | "nanosleep" | "brkpt" => {
                self.control(i, m)
            }
            other => Err(self.error(format!("instruction {other}: not simulated"))),
        }
    }

    fn push(
        &mut self,
        lowered: Lowered,
        guard: Option<Condition>,
        mnemonic: &str,
        loc: Option<ptx::Loc>,
    ) -> Result<()> {
        if self.steps.len() >= MOST_STEPS {
            return Err(self.error(format!("found more than {MOST_STEPS} instructions with calls expanded")));
        }
        let count = self.mnemonics.len() as u32;
        let mnemonic = match self.mnemonics.get(mnemonic) {
            Some(known) => *known,
            None => *self.mnemonics.entry(mnemonic.to_string()).or_insert(count),
        };
        let Lowered { action, members, whole_warp, work } = lowered;
        self.steps.push(Step { guard, members, whole_warp, action, mnemonic, work, line: self.line, loc });
        Ok(())
    }

    /// The instruction at hand reads or writes a register.
    fn touch(&mut self, register: Target, writes: bool) {
        if let Target::Narrow(slot) = register {
            self.touched.push((self.steps.len() as u32, Touch { slot, writes }));
        }
    }

    /// Refuses an instruction of sm_90 in a text for a GPU before it, as an assembler does; with `exact`, also in one that is
    /// not for sm_90a or its like.
    fn hopper(&self, m: &Modifiers<'a>, exact: bool) -> Result<()> {
        let target = self.module.target.as_str();
        let name = target.strip_prefix("sm_").unwrap_or_default();
        let number: u32 = name.trim_end_matches(|end: char| end.is_ascii_alphabetic()).parse().unwrap_or(0);
        if number >= 90 && (!exact || name.ends_with(['a', 'f'])) {
            return Ok(());
        }
        let wanted = if exact { "sm_90a" } else { "sm_90 or later" };
        Err(m.error(format!("found target {target}, wanted {wanted}")))
    }

    fn error(&self, what: impl Into<String>) -> PtxError {
        PtxError::new(self.line, what)
    }
}
