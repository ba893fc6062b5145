//! Operands (chapter 6).

use super::{Number, Parser, Token};
use crate::PtxError;
use crate::ptx::Operand;

impl Parser<'_> {
    pub(super) fn operand(&mut self) -> Result<Operand, PtxError> {
        if self.take('!') {
            return Ok(Operand::Not(self.name()?));
        }
        if self.take('{') {
            return Ok(Operand::Vector(self.list('}', Parser::single)?));
        }
        if self.take('(') {
            return Ok(Operand::List(if self.take(')') { Vec::new() } else { self.list(')', Parser::single)? }));
        }
        if self.take('[') {
            return self.address();
        }
        let operand = self.single()?;
        if !matches!(operand, Operand::Name(_)) {
            return Ok(operand);
        }
        if self.take('|') {
            return Ok(Operand::Pair(Box::new(operand), Box::new(Operand::Name(self.name()?))));
        }
        Ok(match self.offset()? {
            Some(offset) => Operand::Address { base: Box::new(operand), offset, loads: false },
            None => operand,
        })
    }

    /// A name or a constant.
    fn single(&mut self) -> Result<Operand, PtxError> {
        match self.peek() {
            Some(Token::Word(_)) => Ok(Operand::Name(self.name()?)),
            Some(Token::Number(_) | Token::Mark('-')) => Ok(match self.signed()? {
                Number::Integer(value) => Operand::Integer(value),
                Number::F32(bits) => Operand::F32(bits),
                Number::F64(bits) => Operand::F64(bits),
            }),
            _ => Err(self.wanted("an operand")),
        }
    }

    /// "%tid.x" is one name.
    fn name(&mut self) -> Result<String, PtxError> {
        let mut name = self.word("a name")?.to_owned();
        while let Some(Token::Dot(part)) = self.peek() {
            name.push('.');
            name.push_str(part);
            self.at += 1;
        }
        Ok(name)
    }

    /// A number with minus signs before it.
    pub(super) fn signed(&mut self) -> Result<Number, PtxError> {
        let mut negative = false;
        while self.take('-') {
            negative = !negative;
        }
        let number = self.number()?;
        Ok(if negative { number.negative() } else { number })
    }

    /// What follows `[`.
    fn address(&mut self) -> Result<Operand, PtxError> {
        let base = match self.peek() {
            Some(Token::Word(_)) => Operand::Name(self.name()?),
            Some(Token::Number(_)) => Operand::Integer(self.integer()?),
            _ => return Err(self.wanted("an address")),
        };
        let base = Box::new(base);
        let offset = self.offset()?;
        if self.take(']') {
            return Ok(Operand::Address { base, offset: offset.unwrap_or(0), loads: true });
        }
        if !self.take(',') {
            return Err(self.wanted("`]`"));
        }
        let base = match offset {
            Some(offset) => Box::new(Operand::Address { base, offset, loads: false }),
            None => base,
        };
        self.expect('{')?;
        let coordinates = self.list('}', Parser::single)?;
        self.expect(']')?;
        Ok(Operand::Tensor { base, coordinates })
    }

    /// `+8`, `-8` or `+-8`, if there is one.
    fn offset(&mut self) -> Result<Option<i64>, PtxError> {
        let negative = match self.peek() {
            Some(Token::Mark('+')) => false,
            Some(Token::Mark('-')) => true,
            _ => return Ok(None),
        };
        self.at += 1;
        let negative = negative != self.take('-');
        let value = i128::from(self.integer()?);
        let offset = i64::try_from(if negative { -value } else { value });
        offset.map(Some).map_err(|_| self.wanted_before("an offset of 64 bits"))
    }
}
