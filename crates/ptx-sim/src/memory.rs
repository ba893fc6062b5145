//! The memory of a simulated device, which knows where its allocations lie and which of their bytes were written.
//!
//! Addresses are above 2^40, so that a kernel that keeps one in 32 bits fails. Allocations are far apart and their addresses
//! are never used again, so that a wrong index or an old pointer meets nothing. Who touched what when is not kept here: that
//! is [`races`](crate::races).

mod bytes;
mod outside;
#[cfg(test)]
mod tests;

pub(crate) use bytes::Bytes;
pub(crate) use outside::Outside;

use std::collections::VecDeque;
use std::ops::Range;
use thiserror::Error;

/// Where the first allocation lies.
const FIRST: u64 = 0x700_0000_0000;
/// What each address of an allocation is a multiple of.
const ALIGNMENT: u64 = 256;
/// Addresses left free between allocations.
const GUARD: u64 = 1 << 20;
/// How many of the latest allocations that were given back are known as such.
const REMEMBERED: usize = 4096;

/// The memory of a simulated device: allocations at addresses of 64 bits.
#[derive(Debug)]
pub struct Memory {
    capacity: u64,
    used: u64,
    /// The next allocation's address, unless there are no addresses any more.
    next: Option<u64>,
    /// Sorted by address: the newest is the last.
    allocations: Vec<Allocation>,
    /// The allocation that was last used by a kernel.
    last: usize,
    /// The addresses of the latest that were given back, in the order in which they were.
    freed: VecDeque<Range<u64>>,
}

#[derive(Debug)]
struct Allocation {
    start: u64,
    bytes: Bytes,
}

impl Allocation {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Where in it an access lies, if all of it does.
    #[inline]
    fn offset(&self, address: u64, bytes: u64) -> Option<usize> {
        let offset = address.wrapping_sub(self.start);
        let room = self.len().checked_sub(offset)?;
        (bytes <= room).then_some(offset as usize)
    }
}

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
    pub fn new(capacity: u64) -> Self {
        Self { capacity, used: 0, next: Some(FIRST), allocations: Vec::new(), last: 0, freed: VecDeque::new() }
    }

    /// Bytes that are not allocated.
    pub fn free_bytes(&self) -> u64 {
        self.capacity - self.used
    }

    /// An allocation, aligned to 256 bytes, none of its bytes written; one of no bytes has an address too.
    ///
    /// # Errors
    /// [`MemoryError::Full`].
    pub fn alloc(&mut self, bytes: u64) -> Result<u64, MemoryError> {
        let full = MemoryError::Full { bytes, free: self.free_bytes() };
        if bytes > self.free_bytes() {
            return Err(full);
        }
        let Some(start) = self.next else { return Err(full) };
        let Some(end) = start.checked_add(bytes) else { return Err(full) };
        let Some(bytes) = usize::try_from(bytes).ok().and_then(Bytes::try_new) else { return Err(full) };
        self.next = end.checked_add(GUARD).and_then(|next| next.checked_next_multiple_of(ALIGNMENT));
        self.used += bytes.len() as u64;
        self.allocations.push(Allocation { start, bytes });
        Ok(start)
    }

    /// Gives an allocation back. Its addresses are never used again.
    ///
    /// # Errors
    /// No allocation begins there.
    pub fn free(&mut self, address: u64) -> Result<(), MemoryError> {
        let Ok(index) = self.allocations.binary_search_by_key(&address, |allocation| allocation.start) else {
            let found = format!("no allocation's beginning but {}", self.around(address, 0));
            return Err(MemoryError::Address { address, bytes: 0, found });
        };
        let allocation = self.allocations.remove(index);
        self.used -= allocation.len();
        if self.freed.len() == REMEMBERED {
            self.freed.pop_front();
        }
        // One of no bytes is remembered by its address.
        self.freed.push_back(address..address + allocation.len().max(1));
        Ok(())
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// [`MemoryError::Address`].
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let (index, offset) = self.locate(address, bytes.len() as u64)?;
        self.allocations[index].bytes.write(offset, bytes);
        Ok(())
    }

    /// Reads bytes; those that were never written are 0.
    ///
    /// # Errors
    /// [`MemoryError::Address`].
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let (index, offset) = self.locate(address, bytes.len() as u64)?;
        bytes.copy_from_slice(self.allocations[index].bytes.raw(offset, bytes.len()));
        Ok(())
    }

    /// Writes the same byte everywhere.
    ///
    /// # Errors
    /// [`MemoryError::Address`].
    pub fn fill(&mut self, address: u64, bytes: u64, byte: u8) -> Result<(), MemoryError> {
        let (index, offset) = self.locate(address, bytes)?;
        // It lies in an allocation, so it has no more bytes than a `usize` counts.
        self.allocations[index].bytes.fill(offset, bytes as usize, byte);
        Ok(())
    }

    /// The allocation in which all of an access lies, and where in it.
    ///
    /// # Errors
    /// What is there instead.
    #[inline]
    pub(crate) fn allocation(&mut self, address: u64, bytes: u32) -> Result<(&mut Bytes, usize), Outside> {
        let bytes = u64::from(bytes);
        let last = self.allocations.get(self.last).and_then(|allocation| allocation.offset(address, bytes));
        let offset = match last {
            Some(offset) => offset,
            None => {
                let (index, offset) = self.find(address, bytes).ok_or_else(|| self.around(address, bytes))?;
                self.last = index;
                offset
            }
        };
        Ok((&mut self.allocations[self.last].bytes, offset))
    }

    fn locate(&self, address: u64, bytes: u64) -> Result<(usize, usize), MemoryError> {
        self.find(address, bytes).ok_or_else(|| MemoryError::Address {
            address,
            bytes,
            found: self.around(address, bytes).to_string(),
        })
    }

    /// The index of the allocation in which all of an access lies, and where in it.
    fn find(&self, address: u64, bytes: u64) -> Option<(usize, usize)> {
        let index = self.allocations.partition_point(|allocation| allocation.start <= address).checked_sub(1)?;
        Some((index, self.allocations[index].offset(address, bytes)?))
    }

    /// What lies where an access does not lie in an allocation.
    #[cold]
    fn around(&self, address: u64, bytes: u64) -> Outside {
        if let Some(range) = self.freed.iter().find(|range| range.contains(&address)) {
            return Outside::Freed { start: range.start };
        }
        let after = self.allocations.partition_point(|allocation| allocation.start <= address);
        if let Some(allocation) = after.checked_sub(1).map(|before| &self.allocations[before]) {
            let (start, len) = (allocation.start, allocation.len());
            if address - start < len.saturating_add(GUARD / 2) {
                let end = address.saturating_add(bytes);
                return match end.checked_sub(start + len) {
                    None | Some(0) => Outside::Inside { start, len, at: address - start },
                    Some(by) => Outside::Beyond { start, len, by },
                };
            }
        }
        match self.allocations.get(after) {
            Some(Allocation { start, bytes }) if start - address <= GUARD / 2 => {
                Outside::Before { start: *start, len: bytes.len() as u64, by: start - address }
            }
            _ => Outside::Nowhere,
        }
    }
}
