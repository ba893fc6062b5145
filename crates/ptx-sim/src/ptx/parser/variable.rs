//! Variables and their initial bytes (section 5.4).

use super::{NESTING, Number, Parser, Token};
use crate::PtxError;
use crate::ptx::{Pointer, Space, Type, Variable};

/// An array is not larger, in bytes.
const LARGEST: u64 = 1 << 40;

/// Initial bytes of a module, at most: `{1}` initialises all of an array.
const INITIALISED: u64 = 64 << 20;

/// What all variables of a declaration have in common.
struct Element {
    space: Space,
    ty: Type,
    /// Of a vector; otherwise 1.
    lanes: u32,
    align: u32,
}

impl Parser<'_> {
    /// `.global .align 4 .f32 x = 0f3F800000, y[2];`
    pub(super) fn variables(&mut self, external: bool) -> Result<Vec<Variable>, PtxError> {
        let start = self.at;
        let element = self.element()?;
        if external && element.space != Space::Shared {
            self.at = start;
            return Err(self.wanted("`.shared`, as the variables of other modules are not here"));
        }
        self.list(';', |parser| parser.variable(&element, external))
    }

    /// `.param .u64 .ptr .global .align 16 name`
    pub(super) fn parameter(&mut self) -> Result<Variable, PtxError> {
        if self.peek() != Some(Token::Dot("param")) {
            return Err(self.wanted("`.param`"));
        }
        let element = self.element()?;
        self.variable(&element, false)
    }

    /// State space, alignment and type.
    fn element(&mut self) -> Result<Element, PtxError> {
        let space = self.space().ok_or_else(|| self.wanted("a state space"))?;
        let (mut align, mut lanes) = (None, 1);
        loop {
            match self.peek() {
                Some(Token::Dot("align")) => align = Some(self.alignment()?),
                Some(Token::Dot(vector @ ("v2" | "v4"))) => {
                    self.at += 1;
                    lanes = if vector == "v2" { 2 } else { 4 };
                }
                _ => break,
            }
        }
        let ty = match self.peek() {
            Some(Token::Dot(name)) => Type::named(name).filter(|&ty| ty != Type::Pred),
            _ => None,
        };
        let ty = ty.ok_or_else(|| self.wanted("the type of a variable"))?;
        self.at += 1;
        if space == Space::Param && self.take_dot("ptr") {
            // What it points to.
            self.space();
            if self.peek() == Some(Token::Dot("align")) {
                self.alignment()?;
            }
        }
        Ok(Element { space, ty, lanes, align: align.unwrap_or(ty.bytes() * lanes) })
    }

    /// `.align 16`
    fn alignment(&mut self) -> Result<u32, PtxError> {
        self.directive("align")?;
        let align = self.natural()?;
        if align.is_power_of_two() { Ok(align) } else { Err(self.wanted_before("a power of two")) }
    }

    /// `name[2][3] = {{1, 2, 3}, {4}}`
    fn variable(&mut self, element: &Element, external: bool) -> Result<Variable, PtxError> {
        let &Element { space, ty, lanes, align } = element;
        let line = self.line();
        let name = self.word("the name of a variable")?.to_owned();
        let (open, mut extents, row) = self.extents(element)?;
        if lanes > 1 {
            extents.push(lanes.into());
        }
        if open {
            extents.insert(0, u64::MAX);
        }
        let mut bytes = if open { 0 } else { row };
        let mut init = None;
        if matches!(space, Space::Const | Space::Global) && self.take('=') {
            self.initial_room(bytes)?;
            let mut initial = Vec::new();
            self.initialiser(ty, &extents, 0, &mut initial)?;
            bytes = (initial.len() as u64).next_multiple_of(row);
            initial.resize(bytes as usize, 0);
            self.initialised += bytes;
            init = Some(initial);
        } else if open && !external {
            return Err(self.wanted(&format!("the length of `{name:.40}`")));
        }
        let pointers = std::mem::take(&mut self.pointers);
        Ok(Variable { name, space, ty, align, bytes, init, pointers, line })
    }

    /// `[][2][3]`: whether the first length is open, the other lengths, and the bytes of all but the open one.
    fn extents(&mut self, element: &Element) -> Result<(bool, Vec<u64>, u64), PtxError> {
        let (mut open, mut extents) = (false, Vec::new());
        let mut bytes = u64::from(element.ty.bytes() * element.lanes);
        while self.take('[') {
            if !open && extents.is_empty() && self.take(']') {
                open = true;
                continue;
            }
            if extents.len() == NESTING {
                return Err(self.wanted(&format!("at most {NESTING} dimensions")));
            }
            let extent = self.integer()?;
            bytes = match bytes.checked_mul(extent) {
                Some(bytes @ 1..=LARGEST) => bytes,
                _ => {
                    let wanted = format!("a length of at least 1, and at most {LARGEST} bytes in all");
                    return Err(self.wanted_before(&wanted));
                }
            };
            extents.push(extent);
            self.expect(']')?;
        }
        Ok((open, extents, bytes))
    }

    /// Whether the module may have so many initial bytes more.
    fn initial_room(&self, bytes: u64) -> Result<(), PtxError> {
        if self.initialised + bytes > INITIALISED {
            return Err(self.wanted(&format!("at most {INITIALISED} initial bytes in a module")));
        }
        Ok(())
    }

    /// Appends the bytes of what stands at `start`: a value, or a list of at most `extents[0]` of what the other extents say.
    fn initialiser(&mut self, ty: Type, extents: &[u64], start: u64, initial: &mut Vec<u8>) -> Result<(), PtxError> {
        let Some((&extent, inner)) = extents.split_first() else {
            initial.resize(start as usize, 0);
            return self.initial_value(ty, initial);
        };
        let stride = inner.iter().product::<u64>() * u64::from(ty.bytes());
        self.expect('{')?;
        let mut index = 0;
        self.list('}', |parser| {
            if index == extent {
                return Err(parser.wanted(&format!("no more than {extent} values")));
            }
            let start = start + index * stride;
            parser.initial_room(start + stride)?;
            index += 1;
            parser.initialiser(ty, inner, start, initial)
        })?;
        Ok(())
    }

    /// `name+4`, `generic(name)`
    fn pointer(&mut self, at: u64) -> Result<Pointer, PtxError> {
        let mut name = self.word("the name of a variable")?;
        if name == "generic" && self.take('(') {
            name = self.word("the name of a variable")?;
            self.expect(')')?;
        }
        let offset = if self.take('+') { self.integer()? } else { 0 };
        Ok(Pointer { at, name: name.to_owned(), offset })
    }

    /// Appends a value, little endian.
    fn initial_value(&mut self, ty: Type, initial: &mut Vec<u8>) -> Result<(), PtxError> {
        if let (Type::U64 | Type::B64 | Type::S64, Some(Token::Word(_))) = (ty, self.peek()) {
            let pointer = self.pointer(initial.len() as u64)?;
            self.pointers.push(pointer);
            initial.extend([0; 8]);
            return Ok(());
        }
        let number = self.signed()?;
        let value = match (ty, number) {
            (Type::F32 | Type::B32, Number::F32(bits)) => Some(bits.into()),
            (Type::F64 | Type::B64, Number::F64(bits)) => Some(bits),
            (Type::F32, Number::F64(bits)) => {
                let value = f64::from_bits(bits) as f32;
                value.is_finite().then_some(value.to_bits().into())
            }
            (Type::F32 | Type::F64 | Type::B128, _) => None,
            // As a signed number or as one with no sign.
            (_, Number::Integer(value)) => {
                let bits = 8 * ty.bytes();
                (-(1 << (bits - 1))..1 << bits).contains(&i128::from(value as i64)).then_some(value)
            }
            _ => None,
        };
        let Some(value) = value else {
            let name = format!("{ty:?}").to_lowercase();
            return Err(self.wanted_before(&format!("a constant of type .{name}")));
        };
        initial.extend_from_slice(&value.to_le_bytes()[..ty.bytes() as usize]);
        Ok(())
    }
}
