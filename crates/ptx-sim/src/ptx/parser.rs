//! From words to the tree, by recursive descent: one method a form.

mod body;
mod function;
mod operand;
mod variable;

use super::lexer::Token;
use super::number::Number;
use super::{Loc, Module, Pointer, Space};
use crate::PtxError;

/// How deep braces may lie in braces, and how many dimensions an array may have.
const NESTING: usize = 64;

/// Words, and how far they are read.
pub(super) struct Parser<'a> {
    tokens: Vec<(Token<'a>, u32)>,
    at: usize,
    /// Braces around what is read.
    depth: usize,
    /// The last `.loc` of the function.
    loc: Option<Loc>,
    /// Initial bytes of the module's variables until now.
    initialised: u64,
    /// Addresses among the initial bytes of the variable at hand.
    pointers: Vec<Pointer>,
}

impl<'a> Parser<'a> {
    pub(super) fn new(tokens: Vec<(Token<'a>, u32)>) -> Self {
        Parser { tokens, at: 0, depth: 0, loc: None, initialised: 0, pointers: Vec::new() }
    }

    /// The text.
    pub(super) fn module(mut self) -> Result<Module, PtxError> {
        let mut module = Module { target: self.head()?, ..Module::default() };
        while let Some(token) = self.peek() {
            match token {
                Token::Dot("file") => module.files.push(self.file()?),
                Token::Dot("section") => self.section()?,
                Token::Dot("pragma") => self.pragma()?,
                _ => self.definition(&mut module)?,
            }
        }
        Ok(module)
    }

    /// `.version 8.0 .target sm_80 .address_size 64`: the target.
    fn head(&mut self) -> Result<String, PtxError> {
        self.directive("version")?;
        self.number()?;
        self.directive("target")?;
        let target = self.word("a target")?.to_owned();
        while self.take(',') {
            self.word("an option of the target")?;
        }
        if self.take_dot("address_size") {
            if self.peek() != Some(Token::Number("64")) {
                return Err(self.wanted("`64`, as addresses are here"));
            }
            self.at += 1;
        }
        Ok(target)
    }

    /// `.file 1 "path", time, size`
    fn file(&mut self) -> Result<(u32, String), PtxError> {
        self.directive("file")?;
        let file = (self.natural()?, self.text()?.to_owned());
        while self.take(',') {
            self.number()?;
        }
        Ok(file)
    }

    /// `.section .debug_str { ... }`, which says nothing of what a kernel does.
    fn section(&mut self) -> Result<(), PtxError> {
        self.directive("section")?;
        match self.peek() {
            Some(Token::Dot(name)) if name.starts_with("debug_") => self.at += 1,
            _ => return Err(self.wanted("a section of debug information")),
        }
        self.expect('{')?;
        while !self.take('}') {
            if self.peek().is_none() {
                return Err(self.wanted("`}`"));
            }
            self.at += 1;
        }
        Ok(())
    }

    /// `.pragma "nounroll";`
    fn pragma(&mut self) -> Result<(), PtxError> {
        self.directive("pragma")?;
        self.list(';', |parser| parser.text().map(drop))?;
        Ok(())
    }

    /// A function or variables.
    fn definition(&mut self, module: &mut Module) -> Result<(), PtxError> {
        let external = self.linking();
        match self.peek() {
            Some(Token::Dot("entry" | "func")) => module.functions.extend(self.function()?),
            Some(Token::Dot("const" | "global" | "shared")) => module.variables.extend(self.variables(external)?),
            _ => return Err(self.wanted("a function or a variable")),
        }
        Ok(())
    }

    /// Whether it is `.extern`.
    fn linking(&mut self) -> bool {
        let linking = self.peek();
        if let Some(Token::Dot("extern" | "visible" | "weak" | "common")) = linking {
            self.at += 1;
        }
        linking == Some(Token::Dot("extern"))
    }

    fn space(&mut self) -> Option<Space> {
        let space = match self.peek()? {
            Token::Dot("const") => Space::Const,
            Token::Dot("global") => Space::Global,
            Token::Dot("local") => Space::Local,
            Token::Dot("param") => Space::Param,
            Token::Dot("shared") => Space::Shared,
            _ => return None,
        };
        self.at += 1;
        Some(space)
    }
}

/// Single words.
impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|(token, _)| *token)
    }

    /// The line of the next word, or of the last.
    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(_, line)| *line)
    }

    /// The next word is not what was wanted.
    fn wanted(&self, wanted: &str) -> PtxError {
        let found = self.peek().map_or("the end of the text".into(), |token| token.to_string());
        PtxError::new(self.line(), format!("found {found}, wanted {wanted}"))
    }

    /// The word just taken is not what was wanted.
    fn wanted_before(&mut self, wanted: &str) -> PtxError {
        self.at -= 1;
        self.wanted(wanted)
    }

    fn take(&mut self, mark: char) -> bool {
        let is = self.peek() == Some(Token::Mark(mark));
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, mark: char) -> Result<(), PtxError> {
        if self.take(mark) { Ok(()) } else { Err(self.wanted(&format!("`{mark}`"))) }
    }

    fn take_dot(&mut self, name: &str) -> bool {
        let is = self.peek() == Some(Token::Dot(name));
        self.at += usize::from(is);
        is
    }

    fn directive(&mut self, name: &str) -> Result<(), PtxError> {
        if self.take_dot(name) { Ok(()) } else { Err(self.wanted(&format!("`.{name}`"))) }
    }

    fn word(&mut self, wanted: &str) -> Result<&'a str, PtxError> {
        let Some(Token::Word(word)) = self.peek() else { return Err(self.wanted(wanted)) };
        self.at += 1;
        Ok(word)
    }

    fn text(&mut self) -> Result<&'a str, PtxError> {
        let Some(Token::Text(text)) = self.peek() else { return Err(self.wanted("a string")) };
        self.at += 1;
        Ok(text)
    }

    /// A number with no sign.
    fn number(&mut self) -> Result<Number, PtxError> {
        let Some(Token::Number(text)) = self.peek() else { return Err(self.wanted("a number")) };
        let number = Number::of(text).ok_or_else(|| self.wanted("a number"))?;
        self.at += 1;
        Ok(number)
    }

    /// An integer with no sign.
    fn integer(&mut self) -> Result<u64, PtxError> {
        match self.number() {
            Ok(Number::Integer(value)) => Ok(value),
            Ok(_) => Err(self.wanted_before("an integer")),
            Err(_) => Err(self.wanted("an integer")),
        }
    }

    /// An integer of 32 bits with no sign.
    fn natural(&mut self) -> Result<u32, PtxError> {
        u32::try_from(self.integer()?).map_err(|_| self.wanted_before("an integer of 32 bits"))
    }

    /// One or more with commas between them, up to the closing mark.
    fn list<T>(
        &mut self,
        close: char,
        mut each: impl FnMut(&mut Self) -> Result<T, PtxError>,
    ) -> Result<Vec<T>, PtxError> {
        let mut list = vec![each(self)?];
        while !self.take(close) {
            if !self.take(',') {
                return Err(self.wanted(&format!("`,` or `{close}`")));
            }
            list.push(each(self)?);
        }
        Ok(list)
    }
}
