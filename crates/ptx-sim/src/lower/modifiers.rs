//! The modifiers of an instruction, taken one by one: what is left over at the end is not known.

use crate::PtxError;
use crate::float::Round;
use crate::ptx::{Instruction, Type};

pub(super) struct Modifiers<'a> {
    instruction: &'a Instruction,
    left: Vec<&'a str>,
}

impl<'a> Modifiers<'a> {
    pub(super) fn new(instruction: &'a Instruction) -> Self {
        Modifiers { instruction, left: instruction.modifiers.iter().map(String::as_str).collect() }
    }

    /// Takes a modifier if it is there.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        let place = self.left.iter().position(|left| *left == name);
        place.map(|place| self.left.remove(place)).is_some()
    }

    /// Takes the first of these modifiers that is there, and gives what stands beside it.
    pub(super) fn one_of<T: Copy>(&mut self, names: &[(&str, T)]) -> Option<T> {
        names.iter().find(|(name, _)| self.flag(name)).map(|(_, value)| *value)
    }

    /// As [`one_of`](Self::one_of), where one must be there.
    pub(super) fn wanted<T: Copy>(&mut self, what: &str, names: &[(&str, T)]) -> Result<T, PtxError> {
        self.one_of(names).ok_or_else(|| {
            let known = names.iter().map(|(name, _)| format!(".{name}")).collect::<Vec<_>>().join(", ");
            self.error(format!("found no {what}, wanted one of {known}"))
        })
    }

    /// Takes the first modifier of which something can be made, where there must be one.
    pub(super) fn parsed<T>(&mut self, what: &str, of: impl Fn(&str) -> Option<T>) -> Result<T, PtxError> {
        let found = self.left.iter().enumerate().find_map(|(place, name)| Some((place, of(name)?)));
        let Some((place, value)) = found else { return Err(self.error(format!("found no {what}, wanted one"))) };
        self.left.remove(place);
        Ok(value)
    }

    pub(super) fn round(&mut self) -> Option<Round> {
        self.one_of(&[("rn", Round::Nearest), ("rz", Round::Zero), ("rm", Round::Down), ("rp", Round::Up)])
    }

    /// Takes the first type that is there.
    pub(super) fn ty(&mut self) -> Result<Type, PtxError> {
        self.parsed("type", Type::named)
    }

    /// Takes whatever `known` knows.
    pub(super) fn skip(&mut self, known: impl Fn(&str) -> bool) {
        self.left.retain(|name| !known(name));
    }

    pub(super) fn error(&self, what: impl std::fmt::Display) -> PtxError {
        PtxError::new(self.instruction.line, format!("{}: {what}", self.instruction))
    }

    pub(super) fn finish(self) -> Result<(), PtxError> {
        match self.left.first() {
            None => Ok(()),
            Some(left) => Err(self.error(format!(".{left} is not simulated"))),
        }
    }
}
