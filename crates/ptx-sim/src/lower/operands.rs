//! Operands: what is read, what is written, and whether it fits the instruction's type (chapter 6).

use super::scope::{Label, Name};
use super::{Lowering, Result};
use crate::lanes::{Condition, Source, Target};
use crate::program::Address;
use crate::ptx::{Instruction, Operand, Space, Type};

/// Where generic addresses of shared, local and parameter memory begin (section 5.1, "State spaces"): beyond any allocation.
pub(crate) const SHARED_WINDOW: u64 = 1 << 56;
pub(crate) const LOCAL_WINDOW: u64 = 2 << 56;
pub(crate) const PARAM_WINDOW: u64 = 3 << 56;

/// The generic address at which a space begins.
pub(crate) fn window(space: Space) -> u64 {
    match space {
        Space::Global | Space::Const => 0,
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Param => PARAM_WINDOW,
    }
}

impl<'a> Lowering<'a> {
    /// The operands, of which there must be as many.
    pub(super) fn operands<const COUNT: usize>(&self, i: &'a Instruction) -> Result<&'a [Operand; COUNT]> {
        i.operands
            .as_slice()
            .try_into()
            .map_err(|_| self.error(format!("{i}: found {} operands, wanted {COUNT}", i.operands.len())))
    }

    fn find(&mut self, name: &str) -> Result<Name> {
        match self.scopes.find(name) {
            Some(Name::Register(_, 16)) => Err(self.error(format!("{name}: registers of 128 bits are not simulated"))),
            Some(found) => Ok(found),
            None => Err(self.error(format!("{name}: not declared"))),
        }
    }

    /// Refuses types that no register here has.
    fn not_too_wide(&self, ty: Type) -> Result<()> {
        match ty {
            Type::Pred => Err(self.error("found a predicate, wanted a number")),
            Type::B128 => Err(self.error("found 128 bits, wanted 64 or fewer")),
            _ => Ok(()),
        }
    }

    /// Refuses a type that has not so many bits, where only that is simulated.
    pub(super) fn sized(&self, i: &Instruction, ty: Type, sizes: &[u32]) -> Result<()> {
        if sizes.contains(&(8 * ty.bytes())) {
            Ok(())
        } else {
            Err(self.error(format!("{i}: found {} bits", 8 * ty.bytes())))
        }
    }

    /// A register to be written, of the size of a type.
    pub(super) fn target(&mut self, operand: &Operand, ty: Type) -> Result<Target> {
        let (target, bytes) = self.any_target(operand, ty)?;
        self.fits(operand, bytes, ty)?;
        Ok(target)
    }

    /// A register to be written that may be larger than the type, and its size. What goes to "_" goes to one of its own.
    pub(super) fn any_target(&mut self, operand: &Operand, ty: Type) -> Result<(Target, u32)> {
        self.not_too_wide(ty)?;
        let name = match operand {
            Operand::Name(name) if name == "_" => self.scopes.register(ty),
            Operand::Name(name) if !name.contains('.') => self.find(name)?,
            _ => return Err(self.error(format!("found {}, wanted a register to write", shown(operand)))),
        };
        match name {
            Name::Register(target, bytes) => {
                self.touch(target, true);
                Ok((target, bytes))
            }
            _ => Err(self.error(format!("found {}, wanted a register to write", shown(operand)))),
        }
    }

    fn fits(&self, operand: &Operand, bytes: u32, ty: Type) -> Result<()> {
        // Registers of 8 bits are not declared: types of 8 bits use those of 16 and more.
        if bytes == ty.bytes() {
            return Ok(());
        }
        let (found, wanted) = (8 * bytes, 8 * ty.bytes());
        Err(self.error(format!("{}: found {found} bits, wanted {wanted}", shown(operand))))
    }

    /// What is read, of the size of a type: a register, a number or an address.
    pub(super) fn source(&mut self, operand: &Operand, ty: Type) -> Result<Source> {
        let (source, bytes) = self.any_source(operand, ty)?;
        self.fits(operand, bytes, ty)?;
        Ok(source)
    }

    /// What is read that may be larger than the type, and its size.
    pub(super) fn any_source(&mut self, operand: &Operand, ty: Type) -> Result<(Source, u32)> {
        self.not_too_wide(ty)?;
        let constant = |bits| Ok((Source::Constant(bits), ty.bytes()));
        match operand {
            Operand::Integer(bits) => match ty {
                Type::F32 | Type::F64 => Err(self.error("found an integer, wanted a floating-point constant")),
                _ => constant(*bits),
            },
            Operand::F32(bits) => match ty {
                Type::F32 | Type::B32 => constant((*bits).into()),
                Type::F64 => constant(f64::from(f32::from_bits(*bits)).to_bits()),
                _ => Err(self.error("found a constant of type f32, wanted an integer")),
            },
            Operand::F64(bits) => match ty {
                Type::F64 | Type::B64 => constant(*bits),
                Type::F32 => constant((f64::from_bits(*bits) as f32).to_bits().into()),
                _ => Err(self.error("found a constant of type f64, wanted an integer")),
            },
            Operand::Name(name) if name == "WARP_SZ" => constant(crate::lanes::LANES as u64),
            Operand::Name(name) => match self.find(name)? {
                Name::Register(target, bytes) => {
                    self.touch(target, false);
                    Ok((Source::Register(target), bytes))
                }
                Name::Variable(_, address) => constant(address),
                _ => Err(self.error(format!("{name}: found no register, wanted one"))),
            },
            Operand::Address { base, offset, loads: false } => match self.any_source(base, ty)? {
                (Source::Constant(address), bytes) => {
                    Ok((Source::Constant(address.wrapping_add_signed(*offset)), bytes))
                }
                _ => Err(self.error("found a register with an offset, wanted a variable")),
            },
            _ => Err(self.error(format!("found {}, wanted a register or a constant", shown(operand)))),
        }
    }

    /// `[a+8]`, in a space, or generic.
    pub(super) fn address(&mut self, operand: &Operand, space: Option<Space>) -> Result<Address> {
        let Operand::Address { base, offset, loads: true } = operand else {
            return Err(self.error(format!("found {}, wanted an address in brackets", shown(operand))));
        };
        let (mut space, offset) = (space, *offset);
        let base = match &**base {
            Operand::Name(name) => match self.find(name)? {
                Name::Register(target, 4 | 8) => {
                    self.touch(target, false);
                    Source::Register(target)
                }
                Name::Variable(own, address) => {
                    // A generic access to a variable by its name is one to its space.
                    let wanted = *space.get_or_insert(own);
                    if wanted != own {
                        let (found, wanted) = (format!("{own:?}"), format!("{wanted:?}"));
                        let (found, wanted) = (found.to_lowercase(), wanted.to_lowercase());
                        return Err(
                            self.error(format!("{name}: found a variable of .{found}, wanted one of .{wanted}"))
                        );
                    }
                    Source::Constant(address)
                }
                _ => return Err(self.error(format!("{name}: found no address, wanted one"))),
            },
            Operand::Integer(address) => Source::Constant(*address),
            other => return Err(self.error(format!("found {}, wanted an address", shown(other)))),
        };
        Ok(Address { space, base, offset })
    }

    /// The elements of `{a, b}`, or the one that stands alone.
    pub(super) fn elements(operand: &'a Operand) -> &'a [Operand] {
        match operand {
            Operand::Vector(elements) => elements,
            other => std::slice::from_ref(other),
        }
    }

    /// A predicate register.
    pub(super) fn predicate(&mut self, name: &str) -> Result<u32> {
        match (name, self.scopes.find(name)) {
            (_, Some(Name::Predicate(register))) => Ok(register),
            ("_", _) => match self.scopes.register(Type::Pred) {
                Name::Predicate(register) => Ok(register),
                _ => Err(self.error("no predicate")),
            },
            _ => Err(self.error(format!("{name}: found no predicate, wanted one"))),
        }
    }

    /// A predicate to be written.
    pub(super) fn predicate_target(&mut self, operand: &Operand) -> Result<u32> {
        match operand {
            Operand::Name(name) => self.predicate(name),
            other => Err(self.error(format!("found {}, wanted a predicate", shown(other)))),
        }
    }

    /// A predicate to be read, or its opposite.
    pub(super) fn condition(&mut self, operand: &Operand) -> Result<Condition> {
        match operand {
            Operand::Name(name) => Ok(Condition { register: self.predicate(name)?, negated: false }),
            Operand::Not(name) => Ok(Condition { register: self.predicate(name)?, negated: true }),
            other => Err(self.error(format!("found {}, wanted a predicate", shown(other)))),
        }
    }

    /// `d|p`, or d alone.
    pub(super) fn pair(&mut self, operand: &'a Operand) -> (&'a Operand, Option<&'a Operand>) {
        match operand {
            Operand::Pair(first, second) => (first, Some(second)),
            one => (one, None),
        }
    }

    /// A number that the instruction itself holds.
    pub(super) fn immediate(&self, operand: &Operand) -> Result<u64> {
        match operand {
            Operand::Integer(value) => Ok(*value),
            other => Err(self.error(format!("found {}, wanted a constant", shown(other)))),
        }
    }

    pub(super) fn label(&mut self, operand: &Operand) -> Result<Label> {
        if let Operand::Name(name) = operand
            && let Some(Name::Label(label)) = self.scopes.find(name)
        {
            return Ok(label);
        }
        Err(self.error(format!("found {}, wanted a label of this function", shown(operand))))
    }

    /// A variable's space and address.
    pub(super) fn variable(&mut self, operand: &Operand) -> Result<(Space, u64)> {
        if let Operand::Name(name) = operand
            && let Some(Name::Variable(space, address)) = self.scopes.find(name)
        {
            return Ok((space, address));
        }
        Err(self.error(format!("found {}, wanted a variable", shown(operand))))
    }
}

/// An operand in an error.
fn shown(operand: &Operand) -> String {
    match operand {
        Operand::Name(name) => name.clone(),
        Operand::Not(name) => format!("!{name}"),
        Operand::Integer(_) | Operand::F32(_) | Operand::F64(_) => "a constant".into(),
        Operand::Address { .. } | Operand::Tensor { .. } => "an address".into(),
        Operand::Vector(_) => "a vector".into(),
        Operand::Pair(..) => "a pair".into(),
        Operand::List(_) => "a list".into(),
    }
}
