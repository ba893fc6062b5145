//! Memory, and who touched it.

use thiserror::Error;

/// The memory of a simulated device: allocations at addresses of 64 bits.
#[derive(Debug)]
pub struct Memory;

/// A call that memory cannot serve.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MemoryError {
    /// There is not as much.
    #[error("memory of the simulated device: found {free} bytes free, wanted {bytes}")]
    Full {
        /// How much was asked for.
        bytes: u64,
        /// How much is free.
        free: u64,
    },
    /// The addresses are not all in one allocation.
    #[error("address {address:#x}: found {found}, wanted {bytes} bytes of one allocation")]
    Address {
        /// The first address.
        address: u64,
        /// How many bytes from there.
        bytes: u64,
        /// What is there.
        found: String,
    },
}

impl Memory {
    /// Memory of that many bytes.
    pub fn new(_capacity: u64) -> Self {
        todo!()
    }

    /// Bytes that are not allocated.
    pub fn free_bytes(&self) -> u64 {
        todo!()
    }

    /// An allocation, aligned to 256 bytes, none of its bytes written; one of no bytes has an address too.
    ///
    /// # Errors
    /// [`MemoryError::Full`].
    pub fn alloc(&mut self, _bytes: u64) -> Result<u64, MemoryError> {
        todo!()
    }

    /// Gives an allocation back. Its addresses are not used again soon.
    ///
    /// # Errors
    /// No allocation begins there.
    pub fn free(&mut self, _address: u64) -> Result<(), MemoryError> {
        todo!()
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// [`MemoryError::Address`].
    pub fn write(&mut self, _address: u64, _bytes: &[u8]) -> Result<(), MemoryError> {
        todo!()
    }

    /// Reads bytes; those that were never written are 0.
    ///
    /// # Errors
    /// [`MemoryError::Address`].
    pub fn read(&self, _address: u64, _bytes: &mut [u8]) -> Result<(), MemoryError> {
        todo!()
    }

    /// Writes the same byte everywhere.
    ///
    /// # Errors
    /// [`MemoryError::Address`].
    pub fn fill(&mut self, _address: u64, _bytes: u64, _byte: u8) -> Result<(), MemoryError> {
        todo!()
    }
}
