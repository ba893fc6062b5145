//! The driver's library: found, tried and asked for its version before anything else calls it.
//!
//! cudarc loads it at the first call and panics where it, or a function of it, is not there. So everything here goes through
//! [`driver`], which looks first.

use crate::DeviceError;
use cudarc::driver::sys;
use std::ffi::CStr;
use std::sync::OnceLock;

/// The functions called here. All of them are in the driver of CUDA 12.0.
pub(super) const FUNCTIONS: [&str; 41] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemsetD8_v2",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuLaunchKernelEx",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphLaunch",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuEventDestroy_v2",
    "cuTensorMapEncodeTiled",
];

/// Calls a function of the driver; its failure is an error that names it.
macro_rules! call {
    ($function:ident($($argument:expr),*)) => {
        $crate::cuda::driver::checked(stringify!($function), cudarc::driver::sys::$function($($argument),*))
    };
}
pub(super) use call;

/// A handle of the driver.
#[derive(Debug)]
pub(super) struct Handle<T>(pub(super) *mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

// SAFETY: the driver's functions may be called from any thread, with handles made on any other; each call here makes the
// context current on its own thread first. The pointer is never followed.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above; the driver guards its own state.
unsafe impl<T> Sync for Handle<T> {}

/// The driver, ready: the CUDA version it knows, as 13000 for 13.0. Looks once in the life of the process.
pub(super) fn driver() -> Result<u32, DeviceError> {
    static FOUND: OnceLock<Result<u32, DeviceError>> = OnceLock::new();
    FOUND.get_or_init(find).clone()
}

fn find() -> Result<u32, DeviceError> {
    // SAFETY: loading a library runs its initialisers; the driver's are made for that.
    if !unsafe { sys::is_culib_present() } {
        return Err(missing("found no libcuda that loads, wanted NVIDIA's driver 525 or newer".into()));
    }
    // SAFETY: as above; it is present, so this does not panic.
    let library = unsafe { sys::culib() };
    for function in FUNCTIONS {
        // SAFETY: the symbol is looked for and not called.
        if unsafe { library.get::<unsafe extern "C" fn()>(function) }.is_err() {
            return Err(missing(format!("found a libcuda without {function}, wanted NVIDIA's driver 525 or newer")));
        }
    }
    // SAFETY: it takes no pointer.
    if unsafe { sys::cuInit(0) } == sys::CUresult::CUDA_ERROR_NO_DEVICE {
        return Err(no_device());
    }
    // SAFETY: as above.
    unsafe { call!(cuInit(0)) }?;
    let mut version = 0;
    // SAFETY: the driver writes one number.
    unsafe { call!(cuDriverGetVersion(&mut version)) }?;
    match u32::try_from(version) {
        Ok(version) if version >= 12000 => Ok(version),
        _ => Err(missing(format!("found a driver of CUDA {}, wanted 12.0 or newer (driver 525)", version / 1000))),
    }
}

pub(super) fn no_device() -> DeviceError {
    DeviceError::Missing {
        what: "CUDA device",
        why: "the driver shows none (CUDA_VISIBLE_DEVICES can hide them)".into(),
    }
}

fn missing(why: String) -> DeviceError {
    DeviceError::Missing { what: "CUDA driver", why }
}

/// The answer of one of the driver's functions as a result.
pub(super) fn checked(call: &'static str, answer: sys::CUresult) -> Result<(), DeviceError> {
    if answer == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: the driver writes a pointer to a text of its own, which stays, or null.
    let known = unsafe { sys::cuGetErrorString(answer, &mut text) } == sys::CUresult::CUDA_SUCCESS && !text.is_null();
    // SAFETY: it is such a text.
    let message = if known { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() } else { "unknown".into() };
    Err(DeviceError::Driver { call, name: format!("{answer:?}"), message })
}

#[cfg(test)]
mod tests {
    use super::FUNCTIONS;
    use std::fs;
    use std::path::Path;

    #[test]
    fn every_function_that_is_called_is_looked_for_first() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda");
        let files =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).chain([folder.with_extension("rs")]);
        let sources: Vec<String> = files.map(|file| fs::read_to_string(file).unwrap()).collect();
        let called = sources.iter().flat_map(|source| {
            let calls = source.split("call!(").skip(1).chain(source.split("sys::cu").skip(1));
            calls.filter_map(|rest| rest.split_once('(')).map(|(name, _)| name.trim_start_matches("cu"))
        });
        let mut called: Vec<&str> =
            called.filter(|name| *name != "lib" && name.chars().all(|c| c.is_alphanumeric() || c == '_')).collect();
        let mut listed: Vec<&str> = FUNCTIONS.iter().map(|name| &name[2..]).collect();
        called.sort_unstable();
        called.dedup();
        listed.sort_unstable();
        assert_eq!(called, listed);
    }
}
