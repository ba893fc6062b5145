//! What a kernel did wrong, and where.

use std::fmt;

/// What a kernel did wrong, and where. It prints as a report of some lines.
#[derive(Clone, Debug)]
pub struct Fault;

impl fmt::Display for Fault {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}

impl std::error::Error for Fault {}
