//! What lies where an access is not in an allocation.

use thiserror::Error;

/// What lies at addresses that are not all in one allocation, in words that follow "found".
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum Outside {
    /// Nothing, near or far.
    #[error("an address outside every allocation")]
    Nowhere,
    /// It ends that many bytes after the end of an allocation, near enough to be meant for it.
    #[error("an address beyond the end of the allocation of {len} bytes at {start:#x}: by {by} bytes")]
    Beyond { start: u64, len: u64, by: u64 },
    /// It begins that many bytes before an allocation, near enough to be meant for it.
    #[error("an address before the allocation of {len} bytes at {start:#x}: by {by} bytes")]
    Before { start: u64, len: u64, by: u64 },
    /// An allocation that was given back.
    #[error("memory that was freed: the allocation at {start:#x}")]
    Freed { start: u64 },
    /// An allocation, where the beginning of one is wanted.
    #[error("byte {at} of the allocation of {len} bytes at {start:#x}")]
    Inside { start: u64, len: u64, at: u64 },
}
