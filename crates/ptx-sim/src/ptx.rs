//! PTX as it is written: the tree that the reader makes of a text.
//!
//! The reader knows PTX's grammar and no instruction: an opcode is a name with modifiers. What they mean, and whether they are
//! known, is decided where a program is made of the tree. What would change the meaning of a kernel and has no place in the
//! tree, as clusters and variables of other modules, is refused.
//!
//! A text may come from anywhere. Time and memory are in proportion to its length, but for initial bytes, of which a module
//! has 64 MiB at most; braces are at most 64 deep.

mod ast;
mod lexer;
mod number;
mod parser;
#[cfg(test)]
mod tests;

pub(crate) use ast::*;

use crate::PtxError;

/// The tree of a text.
///
/// # Errors
/// The first line that is not PTX, or has a form that the tree cannot hold: what was found and what was wanted.
pub(crate) fn read(text: &str) -> Result<Module, PtxError> {
    parser::Parser::new(lexer::tokens(text)?).module()
}
