//! Memory of the device.

use super::Simulator;
use crate::{DeviceError, memory};
use bytemuck::AnyBitPattern;

/// Bytes in the device's memory. See [`Buffer`](crate::Buffer).
#[derive(Debug)]
pub struct Buffer {
    simulator: Simulator,
    address: u64,
    bytes: usize,
}

impl Simulator {
    pub(crate) fn alloc(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        let mut state = self.idle()?;
        let address = if bytes > 0 { state.memory.alloc(bytes as u64)? } else { 0 };
        Ok(Buffer { simulator: self.clone(), address, bytes })
    }
}

impl Buffer {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// See [`Buffer::write`](crate::Buffer::write).
    pub(crate) fn write(&self, offset_bytes: usize, data: &[u8]) -> Result<(), DeviceError> {
        let address = memory::place("write", self.address, self.bytes, offset_bytes, data.len())?;
        if !data.is_empty() {
            self.simulator.idle()?.memory.write(address, data)?;
        }
        Ok(())
    }

    /// See [`Buffer::read`](crate::Buffer::read).
    pub(crate) fn read<T: AnyBitPattern>(&self, offset_bytes: usize, data: &mut [T]) -> Result<(), DeviceError> {
        let mut bytes = vec![0; size_of_val(data)];
        let address = memory::place("read", self.address, self.bytes, offset_bytes, bytes.len())?;
        if !bytes.is_empty() {
            self.simulator.idle()?.memory.read(address, &mut bytes)?;
            for (element, bytes) in data.iter_mut().zip(bytes.chunks_exact(size_of::<T>())) {
                *element = bytemuck::pod_read_unaligned(bytes);
            }
        }
        Ok(())
    }

    /// See [`Buffer::fill`](crate::Buffer::fill).
    pub(crate) fn fill(&self, byte: u8) -> Result<(), DeviceError> {
        if self.bytes > 0 {
            self.simulator.idle()?.memory.fill(self.address, self.bytes as u64, byte)?;
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes > 0
            && let Ok(mut state) = self.simulator.idle()
        {
            // It was allocated there, and nobody else frees it: there is nothing to fail.
            let _ = state.memory.free(self.address);
        }
    }
}
