//! Memory of a device.

use crate::{DeviceError, cuda, simulated};
use bytemuck::{AnyBitPattern, NoUninit};

/// Bytes in a device's memory, freed when dropped: then the device finishes its work first. Dropped while a stream of the same
/// thread is captured, it spoils the capture and is not freed.
#[derive(Debug)]
pub enum Buffer {
    /// On a GPU.
    Cuda(cuda::Buffer),
    /// On a simulated device.
    Simulated(simulated::Buffer),
}

impl Buffer {
    /// Where it begins in the device's memory: a multiple of 256, or 0 for a buffer of no bytes.
    pub fn address(&self) -> u64 {
        match self {
            Buffer::Cuda(buffer) => buffer.address(),
            Buffer::Simulated(buffer) => buffer.address(),
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Buffer::Cuda(buffer) => buffer.len(),
            Buffer::Simulated(buffer) => buffer.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies elements into it, from that byte on.
    ///
    /// # Errors
    /// They would end beyond its end; a stream of this thread is captured; the driver fails, also over work that it was given
    /// before.
    pub fn write<T: NoUninit>(&self, offset_bytes: usize, data: &[T]) -> Result<(), DeviceError> {
        let data = bytemuck::cast_slice(data);
        match self {
            Buffer::Cuda(buffer) => buffer.write(offset_bytes, data),
            Buffer::Simulated(buffer) => buffer.write(offset_bytes, data),
        }
    }

    /// Copies elements out of it, from that byte on.
    ///
    /// # Errors
    /// They would end beyond its end; a stream of this thread is captured; the driver fails, also over work that it was given
    /// before.
    pub fn read<T: AnyBitPattern>(&self, offset_bytes: usize, data: &mut [T]) -> Result<(), DeviceError> {
        match self {
            Buffer::Cuda(buffer) => buffer.read(offset_bytes, data),
            Buffer::Simulated(buffer) => buffer.read(offset_bytes, data),
        }
    }

    /// All of it, as elements.
    ///
    /// # Errors
    /// Its length is no multiple of an element's; otherwise as [`read`](Buffer::read).
    pub fn to_vec<T: AnyBitPattern>(&self) -> Result<Vec<T>, DeviceError> {
        let element = size_of::<T>();
        if element == 0 || !self.len().is_multiple_of(element) {
            let wanted = format!("a multiple of {element}, the size of an element");
            return Err(DeviceError::value("buffer", format!("{} bytes", self.len()), wanted));
        }
        let mut data = vec![T::zeroed(); self.len() / element];
        self.read(0, &mut data)?;
        Ok(data)
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// A stream of this thread is captured; the driver fails, also over work that it was given before.
    pub fn fill(&self, byte: u8) -> Result<(), DeviceError> {
        match self {
            Buffer::Cuda(buffer) => buffer.fill(byte),
            Buffer::Simulated(buffer) => buffer.fill(byte),
        }
    }
}

/// The address of that many bytes from an offset on, all within a buffer of `len` bytes.
pub(crate) fn place(what: &str, address: u64, len: usize, offset: usize, bytes: usize) -> Result<u64, DeviceError> {
    let end = offset.checked_add(bytes).filter(|&end| end <= len);
    end.map(|_| address + offset as u64).ok_or_else(|| {
        DeviceError::value(what, format!("{bytes} bytes from byte {offset} on"), format!("an end within {len}"))
    })
}
