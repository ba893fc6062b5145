//! Functions (section 5.4.6 and 11.1) and what stands before their bodies (section 11.4).

use super::{Parser, Token};
use crate::PtxError;
use crate::ptx::{Function, Variable};

impl Parser<'_> {
    /// `.entry` or `.func` with its body; none for a declaration.
    pub(super) fn function(&mut self) -> Result<Option<Function>, PtxError> {
        let line = self.line();
        let entry = self.take_dot("entry");
        if !entry {
            self.directive("func")?;
        }
        let returns = if entry { Vec::new() } else { self.parameters()? };
        let name = self.word("the name of a function")?.to_owned();
        let params = self.parameters()?;
        let max_threads = self.limits()?;
        if self.take(';') {
            return Ok(None);
        }
        self.loc = None;
        let body = self.block()?;
        Ok(Some(Function { name, entry, returns, params, max_threads, body, line }))
    }

    /// `(.param .b64 a, .param .b32 b)`, or nothing.
    fn parameters(&mut self) -> Result<Vec<Variable>, PtxError> {
        if !self.take('(') || self.take(')') {
            return Ok(Vec::new());
        }
        self.list(')', Parser::parameter)
    }

    /// `.maxntid` or `.reqntid`, the product. Limits of registers and of blocks of a multiprocessor change no result; clusters
    /// would, and are refused.
    fn limits(&mut self) -> Result<Option<u32>, PtxError> {
        let mut max_threads = None;
        loop {
            match self.peek() {
                Some(Token::Dot("maxntid" | "reqntid")) => max_threads = Some(self.threads()?),
                Some(Token::Dot("minnctapersm" | "maxnctapersm" | "maxnreg" | "maxclusterrank")) => {
                    self.at += 1;
                    self.natural()?;
                }
                Some(Token::Dot("noreturn")) => self.at += 1,
                Some(Token::Dot("pragma")) => self.pragma()?,
                Some(Token::Mark('{' | ';')) => return Ok(max_threads),
                _ => return Err(self.wanted("`{`, `;` or a limit of the function")),
            }
        }
    }

    /// `.maxntid x, y, z`
    fn threads(&mut self) -> Result<u32, PtxError> {
        let (line, mut product, mut dimensions) = (self.line(), 1_u32, 0);
        self.at += 1;
        loop {
            let threads = self.natural()?;
            dimensions += 1;
            product = product
                .checked_mul(threads)
                .filter(|&product| product > 0 && dimensions <= 3)
                .ok_or_else(|| PtxError::new(line, "found no block of threads, wanted 1 to 3 sizes of at least 1"))?;
            if !self.take(',') {
                return Ok(product);
            }
        }
    }
}
