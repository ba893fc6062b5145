//! Memory of the device.

use super::Gpu;
use super::driver::{self, call};
use crate::{DeviceError, memory};
use bytemuck::AnyBitPattern;
use cudarc::driver::sys::CUresult;

/// Bytes in the device's memory. See [`Buffer`](crate::Buffer).
#[derive(Debug)]
pub struct Buffer {
    gpu: Gpu,
    address: u64,
    bytes: usize,
}

impl Gpu {
    pub(crate) fn alloc(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.bind()?;
        let mut address = 0;
        if bytes > 0 {
            // SAFETY: the driver writes one address. It is freed once, in `drop`.
            let answer = unsafe { (driver::functions()?.cuMemAlloc_v2)(&mut address, bytes) };
            if answer == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 {
                return Err(DeviceError::Memory { bytes, free: self.memory_free()? });
            }
            driver::checked("cuMemAlloc_v2", answer)?;
        }
        Ok(Buffer { gpu: self.clone(), address, bytes })
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
        let bytes = data.len();
        let address = memory::place("write", self.address, self.bytes, offset_bytes, bytes)?;
        if bytes > 0 {
            self.gpu.idle()?;
            // SAFETY: `place` has checked that the bytes are within this allocation, and the slice has as many.
            unsafe { call!(cuMemcpyHtoD_v2(address, data.as_ptr().cast(), bytes)) }?;
            // The copy may have left the host alone; a stream must not start before it is there.
            self.gpu.idle()?;
        }
        Ok(())
    }

    /// See [`Buffer::read`](crate::Buffer::read).
    pub(crate) fn read<T: AnyBitPattern>(&self, offset_bytes: usize, data: &mut [T]) -> Result<(), DeviceError> {
        let bytes = size_of_val(data);
        let address = memory::place("read", self.address, self.bytes, offset_bytes, bytes)?;
        if bytes > 0 {
            self.gpu.idle()?;
            // SAFETY: `place` has checked that the bytes are within this allocation, the slice has as many, and any bytes are
            // a value of its type.
            unsafe { call!(cuMemcpyDtoH_v2(data.as_mut_ptr().cast(), address, bytes)) }?;
        }
        Ok(())
    }

    /// See [`Buffer::fill`](crate::Buffer::fill).
    pub(crate) fn fill(&self, byte: u8) -> Result<(), DeviceError> {
        if self.bytes > 0 {
            self.gpu.idle()?;
            // SAFETY: the whole of this allocation is set.
            unsafe { call!(cuMemsetD8_v2(self.address, byte, self.bytes)) }?;
            // The host does not wait for it by itself.
            self.gpu.idle()?;
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // A failure leaves nothing to do: the context is broken, and its memory goes with it. One of `idle` is an earlier
            // kernel's.
            let _ = self.gpu.idle();
            // SAFETY: `alloc` has allocated it, and nobody else frees it.
            let _ = unsafe { call!(cuMemFree_v2(self.address)) };
        }
    }
}
