//! What a block manager may answer in place of a result.

use crate::{BlockId, SequenceId};
use thiserror::Error;

/// Why a call was refused. Every error comes before any work is done: counts, tables, the cache and the order in which
/// blocks are reused are what they were. Only tables made by hand can fail on the way, where they list blocks that nobody holds.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ManagerError {
    /// A setting or an extra key holds a value out of range.
    #[error("{name}: found {found}, wanted {wanted}")]
    Value {
        /// The setting's name.
        name: &'static str,
        /// Its value.
        found: String,
        /// The values that would do.
        wanted: String,
    },
    /// There is no such sequence: never admitted, or freed.
    #[error("sequence: found {0}, wanted one that is live")]
    UnknownSequence(SequenceId),
    /// A block that nobody holds cannot be shared or given back: never allocated, freed, or the null block.
    #[error("block: found {0}, wanted one that is held")]
    UnknownBlock(BlockId),
    /// Too few blocks are left. It may do later, when others have been freed.
    #[error("blocks: found {free} unheld, wanted {wanted}")]
    OutOfBlocks {
        /// Blocks that nobody holds and that the call would not have taken from the cache.
        free: usize,
        /// Blocks that the call needs.
        wanted: usize,
    },
    /// Even with every block unheld the prompt would not fit with one token to generate. It never will.
    #[error("prompt: found {tokens} tokens, which with one more take {wanted} blocks, wanted at most {most}")]
    NeverFits {
        /// Tokens of the prompt.
        tokens: usize,
        /// Blocks that the prompt and one token need.
        wanted: usize,
        /// Blocks of the pool, without the null block.
        most: usize,
    },
    /// The sequence would outgrow the columns of its block table.
    #[error("length: found {tokens} tokens, wanted at most {most}")]
    TooLong {
        /// Tokens that the sequence would have.
        tokens: usize,
        /// Tokens for which a block table has columns.
        most: usize,
    },
    /// Memory for the manager's own lists could not be had.
    #[error("blocks: found no memory for the lists of {0}")]
    Memory(usize),
}
