//! Memory of the device.

use super::Gpu;
use super::driver::{self, call};
use crate::DeviceError;
use bytemuck::{AnyBitPattern, NoUninit};
use cudarc::driver::sys::CUresult;
use std::mem::size_of;

/// Bytes in the device's memory, freed when dropped: then the device finishes its work first. Dropped while a stream of the
/// same thread is captured, it spoils the capture and is not freed.
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

    pub(crate) fn upload<T: NoUninit>(&self, data: &[T]) -> Result<Buffer, DeviceError> {
        let buffer = self.alloc(size_of_val(data))?;
        buffer.write(0, data)?;
        Ok(buffer)
    }
}

impl Buffer {
    /// Where it begins in the device's memory: a multiple of 256, or 0 for a buffer of no bytes.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies elements into it, from that byte on.
    ///
    /// # Errors
    /// They would end beyond its end; the driver fails, also over work that it was given before.
    pub fn write<T: NoUninit>(&self, offset_bytes: usize, data: &[T]) -> Result<(), DeviceError> {
        let bytes = size_of_val(data);
        let address = self.place("write", offset_bytes, bytes)?;
        if bytes > 0 {
            self.gpu.idle()?;
            // SAFETY: `place` has checked that the bytes are within this allocation, and the slice has as many.
            unsafe { call!(cuMemcpyHtoD_v2(address, data.as_ptr().cast(), bytes)) }?;
            // The copy may have left the host alone; a stream must not start before it is there.
            self.gpu.idle()?;
        }
        Ok(())
    }

    /// Copies elements out of it, from that byte on.
    ///
    /// # Errors
    /// They would end beyond its end; the driver fails, also over work that it was given before.
    pub fn read<T: AnyBitPattern>(&self, offset_bytes: usize, data: &mut [T]) -> Result<(), DeviceError> {
        let bytes = size_of_val(data);
        let address = self.place("read", offset_bytes, bytes)?;
        if bytes > 0 {
            self.gpu.idle()?;
            // SAFETY: `place` has checked that the bytes are within this allocation, the slice has as many, and any bytes are
            // a value of its type.
            unsafe { call!(cuMemcpyDtoH_v2(data.as_mut_ptr().cast(), address, bytes)) }?;
        }
        Ok(())
    }

    /// All of it, as elements.
    ///
    /// # Errors
    /// Its length is no multiple of an element's; the driver fails, also over work that it was given before.
    pub fn to_vec<T: AnyBitPattern>(&self) -> Result<Vec<T>, DeviceError> {
        let element = size_of::<T>();
        if element == 0 || !self.bytes.is_multiple_of(element) {
            let wanted = format!("a multiple of {element}, the size of an element");
            return Err(DeviceError::value("buffer", format!("{} bytes", self.bytes), wanted));
        }
        let mut data = vec![T::zeroed(); self.bytes / element];
        self.read(0, &mut data)?;
        Ok(data)
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// The driver fails, also over work that it was given before.
    pub fn fill(&self, byte: u8) -> Result<(), DeviceError> {
        if self.bytes > 0 {
            self.gpu.idle()?;
            // SAFETY: the whole of this allocation is set.
            unsafe { call!(cuMemsetD8_v2(self.address, byte, self.bytes)) }?;
            // The host does not wait for it by itself.
            self.gpu.idle()?;
        }
        Ok(())
    }

    /// The address of that many bytes from an offset on, all within the buffer.
    fn place(&self, what: &str, offset: usize, bytes: usize) -> Result<u64, DeviceError> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes);
        end.map(|_| self.address + offset as u64).ok_or_else(|| {
            DeviceError::value(
                what,
                format!("{bytes} bytes from byte {offset} on"),
                format!("an end within {}", self.bytes),
            )
        })
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
