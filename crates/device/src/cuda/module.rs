//! Compiled kernels on the device.

use super::Gpu;
use super::driver::{self, Handle, call};
use crate::{DeviceError, Image, LaunchShape, Resources, elf};
use cudarc::driver::sys;
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// Compiled kernels, loaded.
#[derive(Clone, Debug)]
pub struct Module(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    gpu: Gpu,
    module: Handle<sys::CUmod_st>,
}

/// A kernel, ready to be launched. It keeps its module.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(super) module: Module,
    pub(super) function: Handle<sys::CUfunc_st>,
    pub(super) name: String,
    resources: Resources,
}

/// Bytes for what the driver's assembler says about PTX.
const LOG_BYTES: usize = 8192;

impl Gpu {
    pub(crate) fn load(&self, image: &Image) -> Result<Module, DeviceError> {
        let ptx;
        let data: *const c_void = match image {
            Image::Cubin(bytes) if elf::is_whole(bytes) => bytes.as_ptr().cast(),
            Image::Cubin(bytes) => {
                return Err(DeviceError::value(
                    "image",
                    format!("{} bytes that are no cubin", bytes.len()),
                    "a whole ELF file",
                ));
            }
            // The driver tells the two apart by themselves.
            Image::Ptx(text) if text.as_bytes().starts_with(elf::MAGIC) => {
                return Err(DeviceError::value("image", "an ELF file as PTX", "text"));
            }
            Image::Ptx(text) => {
                ptx = CString::new(text.as_str())
                    .map_err(|_| DeviceError::value("image", "PTX with a zero byte", "text"))?;
                ptx.as_ptr().cast()
            }
        };
        self.bind()?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [
            sys::CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), LOG_BYTES as *mut c_void];
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is a whole ELF file or a text with a 0 at its end; the log has the length that is given with it;
        // the driver writes one handle, which is unloaded once, in `drop`.
        unsafe { call!(cuModuleLoadDataEx(&mut module, data, 2, options.as_mut_ptr(), values.as_mut_ptr())) }
            .map_err(|error| with_log(error, &log))?;
        Ok(Module(Arc::new(Loaded { gpu: self.clone(), module: Handle(module) })))
    }
}

/// The error of a load with what the assembler said.
fn with_log(error: DeviceError, log: &[u8]) -> DeviceError {
    let log = String::from_utf8_lossy(log.split(|&byte| byte == 0).next().unwrap_or_default()).trim().to_string();
    match error {
        DeviceError::Driver { call, name, message } if !log.is_empty() => {
            DeviceError::Driver { call, name, message: format!("{message}: {log}") }
        }
        error => error,
    }
}

impl Module {
    /// See [`Module::kernel`](crate::Module::kernel).
    pub(crate) fn kernel(&self, name: &str) -> Result<Kernel, DeviceError> {
        let unknown = || DeviceError::unknown_kernel(name);
        let c_name = CString::new(name).map_err(|_| unknown())?;
        self.gpu().bind()?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a 0, and the driver writes one handle.
        let answer =
            unsafe { (driver::functions()?.cuModuleGetFunction)(&mut function, self.0.module.0, c_name.as_ptr()) };
        if answer == sys::CUresult::CUDA_ERROR_NOT_FOUND as u32 {
            return Err(unknown());
        }
        driver::checked("cuModuleGetFunction", answer)?;
        use sys::CUfunction_attribute_enum as Of;
        let number = |of| {
            let mut value = 0;
            // SAFETY: the function belongs to the module, and the driver writes one number.
            unsafe { call!(cuFuncGetAttribute(&mut value, of, function)) }?;
            Ok::<u32, DeviceError>(value.max(0) as u32)
        };
        let resources = Resources {
            registers: number(Of::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            shared_bytes: number(Of::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            local_bytes: number(Of::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            max_threads: number(Of::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        };
        Ok(Kernel { module: self.clone(), function: Handle(function), name: name.into(), resources })
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }
}

impl Kernel {
    /// See [`Kernel::resources`](crate::Kernel::resources).
    pub(crate) fn resources(&self) -> Resources {
        self.resources
    }

    /// See [`Kernel::blocks_per_multiprocessor`](crate::Kernel::blocks_per_multiprocessor).
    pub(crate) fn blocks_per_multiprocessor(&self, threads: u32, dynamic_shared: u32) -> Result<u32, DeviceError> {
        let block = LaunchShape::of_a_block(threads, dynamic_shared);
        block.check(&self.name, self.module.gpu().attributes(), self.resources)?;
        self.allow_shared(dynamic_shared)?;
        let mut blocks = 0;
        // SAFETY: the function belongs to the module, which is loaded, and the driver writes one number.
        unsafe {
            call!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                self.function.0,
                threads as i32,
                dynamic_shared as usize
            ))
        }?;
        Ok(blocks.max(0) as u32)
    }

    /// Makes the context current, and lets the kernel have dynamic shared memory beyond the 48 KiB a block that every kernel
    /// has with its static memory. What it may have is always set to all that it can: no launch lowers it for another.
    pub(super) fn allow_shared(&self, dynamic: u32) -> Result<(), DeviceError> {
        const WITHOUT_ASKING: u64 = 48 << 10;
        let gpu = self.module.gpu();
        gpu.bind()?;
        if u64::from(self.resources.shared_bytes) + u64::from(dynamic) <= WITHOUT_ASKING {
            return Ok(());
        }
        let all = gpu.attributes().shared_per_block.saturating_sub(self.resources.shared_bytes) as i32;
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to the module, which is loaded.
        unsafe { call!(cuFuncSetAttribute(self.function.0, attribute, all)) }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // A kernel of it may still run. A failure leaves nothing to do.
        let _ = self.gpu.idle();
        // SAFETY: `load` has loaded it, and no kernel of it is left.
        let _ = unsafe { call!(cuModuleUnload(self.module.0)) };
    }
}
