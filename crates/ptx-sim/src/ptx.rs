//! PTX as it is written: the tree that the reader makes of a text.
//!
//! The reader knows PTX's grammar and no instruction: an opcode is a name with modifiers. What they mean, and whether they are
//! known, is decided where a program is made of the tree.

mod ast;

pub(crate) use ast::*;
