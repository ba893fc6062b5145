//! A GPU of NVIDIA, through its driver.
//!
//! Every call makes the device's primary context current on the calling thread, as the CUDA runtime does: libraries of one
//! process share it. Memory is moved by calls that wait for all that the device has to do, before and after: whoever reads
//! what a kernel wrote needs no stream for it, and a launch finds what was written before. Handles can go to any thread.

// The library is C.
#![allow(unsafe_code)]

mod driver;
mod graph;
mod launch;
mod memory;
mod module;
mod stream;
mod tensor_map;

pub(crate) use graph::Graph;
pub(crate) use memory::Buffer;
pub(crate) use module::{Kernel, Module};
pub(crate) use stream::{Event, Stream};
pub use tensor_map::TensorMap;

use crate::DeviceError;
use crate::attributes::Attributes;
use cudarc::driver::sys;
use driver::{Handle, call};
use std::ffi::c_char;
use std::sync::Arc;

/// Devices that are looked at: more than a machine has.
const MOST_DEVICES: usize = 64;

/// How many devices the driver shows. No context is created. See [`cuda_devices`](crate::cuda_devices).
pub(crate) fn count() -> Result<usize, DeviceError> {
    driver::driver()?;
    let mut count = 0;
    // SAFETY: the driver writes one number.
    unsafe { call!(cuDeviceGetCount(&mut count)) }?;
    let count = usize::try_from(count).ok().filter(|&count| count > 0).ok_or_else(driver::no_device)?;
    Ok(count.min(MOST_DEVICES))
}

/// Name and attributes of every device, without a context. See [`cuda_attributes`](crate::cuda_attributes).
pub(crate) fn list() -> Result<Vec<(String, Attributes)>, DeviceError> {
    (0..count()?).map(|ordinal| describe(get(ordinal)?)).collect()
}

/// Does `work`, and leaves the calling thread's current context as it was. See [`keeping_context`](crate::keeping_context).
pub(crate) fn keeping_context<T, E: From<DeviceError>>(work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    driver::driver()?;
    let mut context = std::ptr::null_mut();
    // SAFETY: the driver writes one handle, or null.
    unsafe { call!(cuCtxGetCurrent(&mut context)) }?;
    let done = work();
    // SAFETY: the context was current, so it is live; null is none.
    let restored = unsafe { call!(cuCtxSetCurrent(context)) };
    done.and_then(|done| restored.map(|()| done).map_err(E::from))
}

/// A device with its primary context. A clone is the same device.
#[derive(Clone, Debug)]
pub struct Gpu(Arc<Context>);

#[derive(Debug)]
struct Context {
    device: sys::CUdevice,
    context: Handle<sys::CUctx_st>,
    name: String,
    attributes: Attributes,
}

impl Gpu {
    pub(crate) fn new(ordinal: usize) -> Result<Self, DeviceError> {
        let count = count()?;
        if ordinal >= count {
            return Err(DeviceError::value(
                "device",
                ordinal,
                format!("less than {count}, the devices that CUDA shows"),
            ));
        }
        let device = get(ordinal)?;
        let (name, attributes) = describe(device)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the device comes from the driver, which writes one handle. It is released once, in `drop`.
        unsafe { call!(cuDevicePrimaryCtxRetain(&mut context, device)) }?;
        Ok(Gpu(Arc::new(Context { device, context: Handle(context), name, attributes })))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    pub(crate) fn memory_free(&self) -> Result<usize, DeviceError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two numbers.
        unsafe { call!(cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok(free)
    }

    /// Makes the context current on this thread.
    fn bind(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained as long as this value lives.
        unsafe { call!(cuCtxSetCurrent(self.0.context.0)) }
    }

    /// Makes the context current and waits for all work of the device.
    fn idle(&self) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: it takes no argument.
        unsafe { call!(cuCtxSynchronize()) }
    }
}

impl PartialEq for Gpu {
    /// Whether both are the same device: a process has one primary context on each.
    fn eq(&self, other: &Self) -> bool {
        self.0.device == other.0.device
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `new` retained it, and everything made in it holds this value and is gone. A failure leaves nothing to do.
        let _ = unsafe { call!(cuDevicePrimaryCtxRelease_v2(self.device)) };
    }
}

fn get(ordinal: usize) -> Result<sys::CUdevice, DeviceError> {
    let mut device = 0;
    // SAFETY: the driver writes one number, and refuses an ordinal that it does not know.
    unsafe { call!(cuDeviceGet(&mut device, ordinal as i32)) }?;
    Ok(device)
}

fn describe(device: sys::CUdevice) -> Result<(String, Attributes), DeviceError> {
    use sys::CUdevice_attribute_enum as Of;
    let number = |of| {
        let mut value = 0;
        // SAFETY: the device comes from the driver, which writes one number.
        unsafe { call!(cuDeviceGetAttribute(&mut value, of, device)) }?;
        Ok::<u32, DeviceError>(value.max(0) as u32)
    };
    let mut name = [0u8; 256];
    // SAFETY: the driver writes at most the length given, with a 0 at the end; the last byte stays 0.
    unsafe { call!(cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), name.len() as i32 - 1, device)) }?;
    let mut memory_bytes = 0;
    // SAFETY: the driver writes one number.
    unsafe { call!(cuDeviceTotalMem_v2(&mut memory_bytes, device)) }?;
    let attributes = Attributes {
        compute_capability: (
            number(Of::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(Of::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: number(Of::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        threads_per_block: number(Of::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        shared_per_block: number(Of::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        l2_bytes: number(Of::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        memory_bytes,
        driver: driver::driver()?,
    };
    Ok((printable(&name), attributes))
}

/// A text that ends with a 0, on a terminal: nothing in it moves the cursor.
fn printable(text: &[u8]) -> String {
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_printed_without_what_controls_a_terminal() {
        assert_eq!(printable(b"NVIDIA H200\0rest"), "NVIDIA H200");
        assert_eq!(printable(b"a\x1b[2Jb\nc\xffd\xc2\x9be"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\u{fffd}e");
        assert_eq!(printable(b""), "");
    }
}
