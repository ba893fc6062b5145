//! The driver's library: found, tried and asked for its version before anything else calls it.
//!
//! cudarc has the types and finds the library. Its functions are not called: they panic where the driver's are not there, and
//! an answer that their enum lacks is undefined behaviour.

use crate::DeviceError;
use cudarc::driver::sys;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

/// The answer of a function that did what it should.
const SUCCESS: u32 = sys::CUresult::CUDA_SUCCESS as u32;

/// Declares the functions of the driver that are called here, and what finds them. Their answers are plain numbers: a newer
/// driver's may be none of those that cudarc's enum has.
macro_rules! functions {
    ($($function:ident($($argument:ty),*);)*) => {
        /// Functions of the driver.
        #[allow(non_snake_case)]
        pub(super) struct Functions {
            $(pub(super) $function: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        // The arguments are those that cudarc has for it.
        $(const _: unsafe fn($($argument),*) -> sys::CUresult = sys::$function;)*

        impl Functions {
            fn of(library: &'static Library) -> Result<Self, DeviceError> {
                // SAFETY: the types are the driver's, and its library stays.
                Ok(unsafe { Functions { $($function: symbol(library, stringify!($function))?,)* } })
            }
        }
    };
}

// All of them are in the driver of CUDA 12.0.
functions! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut sys::CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, sys::CUdevice);
    cuDeviceTotalMem_v2(*mut usize, sys::CUdevice);
    cuDeviceGetAttribute(*mut c_int, sys::CUdevice_attribute, sys::CUdevice);
    cuDevicePrimaryCtxRetain(*mut sys::CUcontext, sys::CUdevice);
    cuDevicePrimaryCtxRelease_v2(sys::CUdevice);
    cuCtxGetCurrent(*mut sys::CUcontext);
    cuCtxSetCurrent(sys::CUcontext);
    cuCtxSynchronize();
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut sys::CUdeviceptr, usize);
    cuMemFree_v2(sys::CUdeviceptr);
    cuMemcpyHtoD_v2(sys::CUdeviceptr, *const c_void, usize);
    cuMemcpyDtoH_v2(*mut c_void, sys::CUdeviceptr, usize);
    cuMemsetD8_v2(sys::CUdeviceptr, c_uchar, usize);
    cuModuleLoadDataEx(*mut sys::CUmodule, *const c_void, c_uint, *mut sys::CUjit_option, *mut *mut c_void);
    cuModuleUnload(sys::CUmodule);
    cuModuleGetFunction(*mut sys::CUfunction, sys::CUmodule, *const c_char);
    cuFuncGetAttribute(*mut c_int, sys::CUfunction_attribute, sys::CUfunction);
    cuFuncSetAttribute(sys::CUfunction, sys::CUfunction_attribute, c_int);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, sys::CUfunction, c_int, usize);
    cuLaunchKernelEx(*const sys::CUlaunchConfig, sys::CUfunction, *mut *mut c_void, *mut *mut c_void);
    cuStreamCreate(*mut sys::CUstream, c_uint);
    cuStreamSynchronize(sys::CUstream);
    cuStreamDestroy_v2(sys::CUstream);
    cuStreamWaitEvent(sys::CUstream, sys::CUevent, c_uint);
    cuStreamIsCapturing(sys::CUstream, *mut sys::CUstreamCaptureStatus);
    cuStreamBeginCapture_v2(sys::CUstream, sys::CUstreamCaptureMode);
    cuStreamEndCapture(sys::CUstream, *mut sys::CUgraph);
    cuGraphInstantiateWithFlags(*mut sys::CUgraphExec, sys::CUgraph, c_ulonglong);
    cuGraphDestroy(sys::CUgraph);
    cuGraphExecDestroy(sys::CUgraphExec);
    cuGraphLaunch(sys::CUgraphExec, sys::CUstream);
    cuEventCreate(*mut sys::CUevent, c_uint);
    cuEventRecord(sys::CUevent, sys::CUstream);
    cuEventSynchronize(sys::CUevent);
    cuEventElapsedTime(*mut f32, sys::CUevent, sys::CUevent);
    cuEventDestroy_v2(sys::CUevent);
    cuTensorMapEncodeTiled(
        *mut sys::CUtensorMap,
        sys::CUtensorMapDataType,
        sys::cuuint32_t,
        *mut c_void,
        *const sys::cuuint64_t,
        *const sys::cuuint64_t,
        *const sys::cuuint32_t,
        *const sys::cuuint32_t,
        sys::CUtensorMapInterleave,
        sys::CUtensorMapSwizzle,
        sys::CUtensorMapL2promotion,
        sys::CUtensorMapFloatOOBfill
    );
}

/// Calls a function of the driver; its failure is an error that names it.
macro_rules! call {
    ($function:ident($($argument:expr),*)) => {
        $crate::cuda::driver::functions().and_then(|functions| {
            $crate::cuda::driver::checked(stringify!($function), (functions.$function)($($argument),*))
        })
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
    static READY: OnceLock<Result<u32, DeviceError>> = OnceLock::new();
    READY.get_or_init(start).clone()
}

fn start() -> Result<u32, DeviceError> {
    // SAFETY: it takes no pointer.
    let started = unsafe { (functions()?.cuInit)(0) };
    if started == sys::CUresult::CUDA_ERROR_NO_DEVICE as u32 {
        return Err(no_device());
    }
    checked("cuInit", started)?;
    let mut version = 0;
    // SAFETY: the driver writes one number.
    unsafe { call!(cuDriverGetVersion(&mut version)) }?;
    match u32::try_from(version) {
        Ok(version) if version >= 12000 => Ok(version),
        Ok(version) => {
            let (major, minor) = (version / 1000, version % 1000 / 10);
            Err(missing(format!("found a driver of CUDA {major}.{minor}, wanted 12.0 or newer (driver 525)")))
        }
        Err(_) => Err(missing(format!("found a driver that says {version} for CUDA's version, wanted 12000 or more"))),
    }
}

/// The driver's functions. Looks once in the life of the process.
pub(super) fn functions() -> Result<&'static Functions, DeviceError> {
    static FOUND: OnceLock<Result<Functions, DeviceError>> = OnceLock::new();
    let find = || {
        Functions::of(
            library()
                .ok_or_else(|| missing("found no libcuda that loads, wanted NVIDIA's driver 525 or newer".into()))?,
        )
    };
    FOUND.get_or_init(find).as_ref().map_err(Clone::clone)
}

/// The driver's library, if it is there.
fn library() -> Option<&'static Library> {
    // SAFETY: loading a library runs its initialisers; the driver's are made for that. `culib` panics where it is not present.
    unsafe { sys::is_culib_present().then(|| sys::culib()) }
}

/// A function of the driver.
///
/// # Safety
/// It has that type.
unsafe fn symbol<T: Copy>(library: &'static Library, name: &str) -> Result<T, DeviceError> {
    // SAFETY: the caller's.
    unsafe { library.get::<T>(name) }
        .map(|symbol| *symbol)
        .map_err(|_| missing(format!("found a libcuda without {name}, wanted NVIDIA's driver 525 or newer")))
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
pub(super) fn checked(call: &'static str, answer: u32) -> Result<(), DeviceError> {
    if answer == SUCCESS {
        return Ok(());
    }
    let name = told("cuGetErrorName", answer).unwrap_or_else(|| format!("error {answer}"));
    let message = told("cuGetErrorString", answer).unwrap_or_else(|| "unknown".into());
    Err(DeviceError::Driver { call, name, message })
}

/// What one of the driver's functions says about an answer, if it knows it.
fn told(function: &str, answer: u32) -> Option<String> {
    type Tell = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;
    // SAFETY: the type is the driver's.
    let tell: Tell = unsafe { symbol(library()?, function) }.ok()?;
    let mut text = std::ptr::null();
    // SAFETY: it takes any number, and writes a pointer to a text of its own, which stays, or null.
    let known = unsafe { tell(answer, &mut text) } == SUCCESS && !text.is_null();
    // SAFETY: it is such a text.
    known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_no_driver_is_known_to_give_is_an_error_with_its_number() {
        let wanted = DeviceError::Driver { call: "cuInit", name: "error 12345".into(), message: "unknown".into() };
        assert_eq!(checked("cuInit", 12345), Err(wanted));
        assert_eq!(checked("cuInit", 0), Ok(()));
    }
}
