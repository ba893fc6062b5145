//! The words of PTX (section 4).

use crate::PtxError;
use logos::Logos;
use std::fmt;

/// A word. Comments and blanks are none.
#[derive(Logos, Clone, Copy, Debug, PartialEq)]
#[logos(skip r"[ \t\r\n\f]+")]
#[logos(skip(r"//[^\n]*", allow_greedy = true))]
#[logos(skip r"/\*([^*]|\*+[^*/])*\*+/")]
pub(super) enum Token<'a> {
    /// "add", "%r1", "$L__BB0_1", "_".
    #[regex(r"[A-Za-z_][A-Za-z0-9_$]*|[$%][A-Za-z0-9_$]+")]
    Word(&'a str),
    /// ".f32", ".shared::cta", without the first dot.
    #[regex(r"\.[A-Za-z0-9_]+(::[A-Za-z0-9_]+)*", |lexer| &lexer.slice()[1..])]
    Dot(&'a str),
    /// Anything that begins as a number does.
    #[regex(r"[0-9][0-9A-Za-z_]*|[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")]
    Number(&'a str),
    /// A string, without its quotation marks.
    #[regex(r#""[^"\n]*""#, |lexer| &lexer.slice()[1..lexer.slice().len() - 1])]
    Text(&'a str),
    /// Punctuation.
    #[regex(r"[{}()\[\]<>,;:@!|+=-]", |lexer| lexer.slice().chars().next())]
    Mark(char),
}

impl fmt::Display for Token<'_> {
    /// As an error shows it: what is long is cut.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(text) | Token::Number(text) => write!(f, "`{text:.40}`"),
            Token::Dot(text) => write!(f, "`.{text:.40}`"),
            Token::Text(text) => write!(f, "`\"{text:.40}\"`"),
            Token::Mark(mark) => write!(f, "`{mark}`"),
        }
    }
}

/// The words of a text and their lines, from 1.
///
/// # Errors
/// A line with a character that no word has, or a comment or string that does not end.
pub(super) fn tokens(text: &str) -> Result<Vec<(Token<'_>, u32)>, PtxError> {
    let (mut tokens, mut line, mut counted) = (Vec::new(), 1, 0);
    for (token, span) in Token::lexer(text).spanned() {
        line += text[counted..span.start].matches('\n').count() as u32;
        counted = span.start;
        match token {
            Ok(token) => tokens.push((token, line)),
            Err(()) => return Err(PtxError::new(line, no_word(&text[span.start..]))),
        }
    }
    Ok(tokens)
}

/// What is wrong with the beginning of this text.
fn no_word(text: &str) -> String {
    if text.starts_with("/*") {
        return "found a comment without an end, wanted `*/`".into();
    }
    if text.starts_with('"') {
        return "found a string without an end, wanted `\"`".into();
    }
    format!("found {:?}, wanted a word of PTX", text.chars().next().unwrap_or_default())
}
