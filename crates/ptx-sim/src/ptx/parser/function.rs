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
        let (max_threads, max_registers) = self.limits()?;
        if self.take(';') {
            return Ok(None);
        }
        self.loc = None;
        let body = self.block()?;
        Ok(Some(Function { name, entry, returns, params, max_threads, max_registers, body, line }))
    }

    /// `(.param .b64 a, .param .b32 b)`, or nothing.
    fn parameters(&mut self) -> Result<Vec<Variable>, PtxError> {
        if !self.take('(') || self.take(')') {
            return Ok(Vec::new());
        }
        self.list(')', Parser::parameter)
    }

    /// `.maxntid` or `.reqntid`, the product, and `.maxnreg`. How many blocks a multiprocessor is to have changes no result;
    /// clusters of more than one block would, and are refused.
    fn limits(&mut self) -> Result<(Option<u32>, Option<u32>), PtxError> {
        let (mut max_threads, mut max_registers) = (None, None);
        loop {
            match self.peek() {
                Some(Token::Dot("maxntid" | "reqntid")) => max_threads = Some(self.threads()?),
                Some(Token::Dot("maxnreg")) => {
                    self.at += 1;
                    max_registers = Some(self.natural()?);
                }
                Some(Token::Dot("reqnctapercluster")) => {
                    let line = self.line();
                    let blocks = self.threads()?;
                    if blocks != 1 {
                        let what = format!("found clusters of {blocks} blocks, wanted one block a cluster");
                        return Err(PtxError::new(line, what));
                    }
                }
                Some(Token::Dot("explicitcluster")) => self.at += 1,
                Some(Token::Dot("minnctapersm" | "maxnctapersm" | "maxclusterrank")) => {
                    self.at += 1;
                    self.natural()?;
                }
                Some(Token::Dot("noreturn")) => self.at += 1,
                Some(Token::Dot("pragma")) => self.pragma()?,
                Some(Token::Mark('{' | ';')) => return Ok((max_threads, max_registers)),
                _ => return Err(self.wanted("`{`, `;` or a limit of the function")),
            }
        }
    }

    /// `.maxntid x, y, z`, and what is written like it: the product.
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
