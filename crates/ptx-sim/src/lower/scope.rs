//! Names: registers, variables and labels, in nested scopes (PTX ISA, "Identifiers" and "Variables").

use super::Addresses;
use super::layout::Layout;
use crate::lanes::Target;
use crate::program::Special;
use crate::ptx::{self, Space, Type};
use std::collections::HashMap;

/// A label's number.
pub(super) type Label = usize;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// A register and the bytes that it has.
    Register(Target, u32),
    Predicate(u32),
    /// A variable at an address of its space.
    Variable(Space, u64),
    Label(Label),
}

/// How many registers there are of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) narrow: u32,
    pub(super) wide: u32,
    pub(super) predicates: u32,
}

pub(super) struct Scopes<'a> {
    /// Those that a name is looked for in, the innermost last.
    open: Vec<Scope<'a>>,
    /// Those of callers, which a function does not see.
    hidden: Vec<Vec<Scope<'a>>>,
    counts: Counts,
    places: Vec<Option<u32>>,
    specials: Vec<(Special, Target)>,
    carry: Option<u32>,
}

#[derive(Default)]
struct Scope<'a> {
    names: HashMap<&'a str, Name>,
    /// Declared as `%r<5>`: the type and how many.
    families: HashMap<&'a str, (Type, u32)>,
    /// Registers of families, which get a slot when they are first used.
    members: HashMap<String, Name>,
}

impl<'a> Scopes<'a> {
    pub(super) fn new(module: &'a ptx::Module, globals: &Addresses, layout: &Layout) -> Self {
        let mut outermost = Scope::default();
        for variable in &module.variables {
            let address = match variable.space {
                Space::Shared => Some(layout.shared(variable)),
                _ => globals.get(&variable.name).copied(),
            };
            if let Some(address) = address {
                outermost.names.insert(&variable.name, Name::Variable(variable.space, address));
            }
        }
        Scopes {
            open: vec![outermost],
            hidden: Vec::new(),
            counts: Counts::default(),
            places: Vec::new(),
            specials: Vec::new(),
            carry: None,
        }
    }

    pub(super) fn enter(&mut self) {
        self.open.push(Scope::default());
    }

    pub(super) fn leave(&mut self) {
        self.open.pop();
    }

    /// Hides all but the module's names, until [`leave_function`](Self::leave_function).
    pub(super) fn enter_function(&mut self) {
        self.hidden.push(self.open.split_off(1));
        self.enter();
    }

    pub(super) fn leave_function(&mut self) {
        self.open.truncate(1);
        self.open.extend(self.hidden.pop().unwrap_or_default());
    }

    fn innermost(&mut self) -> &mut Scope<'a> {
        self.open.last_mut().expect("the module's scope is never left")
    }

    pub(super) fn registers(&mut self, ty: Type, name: &'a str, count: Option<u32>) {
        match count {
            Some(count) => {
                self.innermost().families.insert(name, (ty, count));
            }
            None => {
                let register = self.register(ty);
                self.innermost().names.insert(name, register);
            }
        }
    }

    /// A new register.
    pub(super) fn register(&mut self, ty: Type) -> Name {
        let next = |count: &mut u32| {
            *count += 1;
            *count - 1
        };
        match ty.bytes() {
            0 => Name::Predicate(next(&mut self.counts.predicates)),
            8.. => Name::Register(Target::Wide(next(&mut self.counts.wide)), ty.bytes()),
            bytes => Name::Register(Target::Narrow(next(&mut self.counts.narrow)), bytes),
        }
    }

    /// The predicate that holds the carry (CC.CF).
    pub(super) fn carry(&mut self) -> u32 {
        let counts = &mut self.counts;
        *self.carry.get_or_insert_with(|| {
            counts.predicates += 1;
            counts.predicates - 1
        })
    }

    pub(super) fn variable(&mut self, name: &'a str, space: Space, address: u64) {
        self.innermost().names.insert(name, Name::Variable(space, address));
    }

    pub(super) fn label(&mut self, name: &'a str) {
        let label = self.unnamed_label();
        self.innermost().names.insert(name, Name::Label(label));
    }

    pub(super) fn unnamed_label(&mut self) -> Label {
        self.places.push(None);
        self.places.len() - 1
    }

    /// Says where a label of the innermost scope stands; `None` if it stands somewhere already.
    pub(super) fn place_label(&mut self, name: &str, step: u32) -> Option<()> {
        let Some(&Name::Label(label)) = self.innermost().names.get(name) else { return None };
        let place = &mut self.places[label];
        place.replace(step).is_none().then_some(())
    }

    pub(super) fn set_place(&mut self, label: Label, step: u32) {
        self.places[label] = Some(step);
    }

    pub(super) fn place(&self, label: Label) -> Option<u32> {
        self.places[label]
    }

    /// What a name stands for in the innermost scope that has it.
    pub(super) fn find(&mut self, name: &str) -> Option<Name> {
        for place in (0..self.open.len()).rev() {
            if let Some(found) = self.open[place].names.get(name).or_else(|| self.open[place].members.get(name)) {
                return Some(*found);
            }
            if let Some(ty) = self.open[place].member(name) {
                let register = self.register(ty);
                self.open[place].members.insert(name.to_string(), register);
                return Some(register);
            }
        }
        let (special, ty) = special(name)?;
        let name = self.register(ty);
        let Name::Register(target, _) = name else { return None };
        // One more register for each use is simple, and there are few.
        self.specials.push((special, target));
        Some(name)
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn specials(self) -> Vec<(Special, Target)> {
        self.specials
    }
}

impl Scope<'_> {
    /// The type of a register of a family, "%r4" of `%r<5>`.
    fn member(&self, name: &str) -> Option<Type> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (family, number) = name.split_at(name.len() - digits);
        let (ty, count) = self.families.get(family)?;
        let plain = number == "0" || !number.starts_with('0');
        (plain && number.parse::<u32>().is_ok_and(|number| number < *count)).then_some(*ty)
    }
}

/// A special register and its type.
fn special(name: &str) -> Option<(Special, Type)> {
    let axis = |name: &str| ["x", "y", "z"].iter().position(|axis| *axis == name);
    if let Some((name, of)) = name.split_once('.') {
        let axis = axis(of)?;
        let special = match name {
            "%tid" => Special::Thread(axis),
            "%ntid" => Special::Threads(axis),
            "%ctaid" => Special::Block(axis),
            "%nctaid" | "%nclusterid" => Special::Blocks(axis),
            "%clusterid" => Special::Block(axis),
            "%cluster_ctaid" => Special::Zero,
            "%cluster_nctaid" => Special::One,
            _ => return None,
        };
        return Some((special, Type::U32));
    }
    let special = match name {
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%lanemask_eq" => Special::LanesEqual,
        "%lanemask_lt" => Special::LanesLess,
        "%lanemask_le" => Special::LanesLessEqual,
        "%lanemask_gt" => Special::LanesGreater,
        "%lanemask_ge" => Special::LanesGreaterEqual,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" => Special::TotalShared,
        "%smid" | "%cluster_ctarank" => Special::Zero,
        "%nsmid" | "%cluster_nctarank" => Special::One,
        "%gridid" => return Some((Special::Zero, Type::U64)),
        _ => return None,
    };
    Some((special, Type::U32))
}
