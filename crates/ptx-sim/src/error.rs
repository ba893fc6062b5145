//! Errors.

use thiserror::Error;

/// A text that is not PTX, or PTX that is not known here.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("PTX line {line}: {what}")]
pub struct PtxError {
    /// The line, from 1.
    pub line: u32,
    /// What is wrong with it: what was found and what was wanted.
    pub what: String,
}

impl PtxError {
    pub(crate) fn new(line: u32, what: impl Into<String>) -> Self {
        PtxError { line, what: what.into() }
    }
}
