//! What stands in braces.

use super::{NESTING, Parser, Token};
use crate::PtxError;
use crate::ptx::{Guard, Instruction, Item, Loc, Type};

impl Parser<'_> {
    /// `{ ... }`
    pub(super) fn block(&mut self) -> Result<Vec<Item>, PtxError> {
        if self.depth == NESTING {
            return Err(self.wanted(&format!("braces at most {NESTING} deep")));
        }
        self.expect('{')?;
        self.depth += 1;
        let mut items = Vec::new();
        while !self.take('}') {
            self.statement(&mut items)?;
        }
        self.depth -= 1;
        Ok(items)
    }

    fn statement(&mut self, items: &mut Vec<Item>) -> Result<(), PtxError> {
        match self.peek() {
            Some(Token::Mark('{')) => items.push(Item::Block(self.block()?)),
            Some(Token::Mark(';')) => self.at += 1,
            Some(Token::Dot("reg")) => self.registers(items)?,
            Some(Token::Dot("loc")) => self.location()?,
            Some(Token::Dot("pragma")) => self.pragma()?,
            Some(Token::Dot("extern" | "const" | "global" | "local" | "param" | "shared")) => {
                let external = self.linking();
                items.extend(self.variables(external)?.into_iter().map(Item::Variable));
            }
            Some(Token::Word(name)) if self.tokens.get(self.at + 1).is_some_and(|next| next.0 == Token::Mark(':')) => {
                items.push(Item::Label { name: name.to_owned(), line: self.line() });
                self.at += 2;
            }
            _ => items.push(Item::Instruction(self.instruction()?)),
        }
        Ok(())
    }

    /// `.reg .b32 %r<5>, x;`
    fn registers(&mut self, items: &mut Vec<Item>) -> Result<(), PtxError> {
        self.directive("reg")?;
        let ty = match self.peek() {
            Some(Token::Dot(name)) => Type::named(name),
            _ => None,
        };
        let ty = ty.ok_or_else(|| self.wanted("the type of a register"))?;
        self.at += 1;
        items.extend(self.list(';', |parser| {
            let line = parser.line();
            let name = parser.word("the name of a register")?.to_owned();
            let mut count = None;
            if parser.take('<') {
                count = Some(parser.natural()?);
                parser.expect('>')?;
            }
            Ok(Item::Registers { ty, name, count, line })
        })?);
        Ok(())
    }

    /// `.loc 1 35 9, function_name $L__info_string0, inlined_at 1 51 5`
    fn location(&mut self) -> Result<(), PtxError> {
        self.directive("loc")?;
        let (file, line) = self.place()?;
        let mut inlined_at = None;
        while self.take(',') {
            match self.word("`function_name` or `inlined_at`")? {
                "function_name" => {
                    self.word("the label of a name")?;
                    if self.take('+') {
                        self.integer()?;
                    }
                }
                "inlined_at" => inlined_at = Some(self.place()?),
                _ => return Err(self.wanted_before("`function_name` or `inlined_at`")),
            }
        }
        self.loc = Some(Loc { file, line, inlined_at });
        Ok(())
    }

    /// File, line and column, of which the column is not kept.
    fn place(&mut self) -> Result<(u32, u32), PtxError> {
        let place = (self.natural()?, self.natural()?);
        self.natural()?;
        Ok(place)
    }

    /// `@!p add.rn.f32 a, b, c;`
    fn instruction(&mut self) -> Result<Instruction, PtxError> {
        let line = self.line();
        let mut guard = None;
        if self.take('@') {
            let negated = self.take('!');
            guard = Some(Guard { register: self.word("a predicate")?.to_owned(), negated });
        }
        let opcode = match self.peek() {
            Some(Token::Word(word)) if word.starts_with(|first: char| first.is_ascii_alphabetic()) => word.to_owned(),
            _ => return Err(self.wanted("an instruction")),
        };
        self.at += 1;
        let mut modifiers = Vec::new();
        while let Some(Token::Dot(modifier)) = self.peek() {
            modifiers.push(modifier.to_owned());
            self.at += 1;
        }
        let operands = if self.take(';') { Vec::new() } else { self.list(';', Parser::operand)? };
        Ok(Instruction { guard, opcode, modifiers, operands, line, loc: self.loc })
    }
}
