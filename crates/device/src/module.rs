//! Compiled kernels on a device.

// A launch is unsafe.
#![allow(unsafe_code)]

use crate::{Arg, DeviceError, LaunchShape, Stream, cuda, simulated};

/// What can be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// Machine code for one architecture, an ELF file.
    Cubin(Vec<u8>),
    /// PTX, which the driver compiles, and caches by itself, and a simulated device reads.
    Ptx(String),
}

/// Compiled kernels, loaded. A clone is the same module; it is unloaded when all clones and kernels of it are dropped, after
/// the device's work.
#[derive(Clone, Debug)]
pub enum Module {
    /// On a GPU.
    Cuda(cuda::Module),
    /// On a simulated device.
    Simulated(simulated::Module),
}

/// A kernel, ready to be launched. It keeps its module.
#[derive(Clone, Debug)]
pub enum Kernel {
    /// On a GPU.
    Cuda(cuda::Kernel),
    /// On a simulated device.
    Simulated(simulated::Kernel),
}

/// What a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread; 0 on a simulated device, where none are assigned.
    pub registers: u32,
    /// Static shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Local memory of a thread, in bytes: spilled registers, and arrays that are indexed at run time; 0 on a simulated device.
    pub local_bytes: u32,
    /// Threads of a block, at most: what its launch bounds and its registers allow.
    pub max_threads: u32,
}

impl Module {
    /// The kernel of that name, as `extern "C"` gives it.
    ///
    /// # Errors
    /// The module has none of that name; the driver fails.
    pub fn kernel(&self, name: &str) -> Result<Kernel, DeviceError> {
        match self {
            Module::Cuda(module) => module.kernel(name).map(Kernel::Cuda),
            Module::Simulated(module) => module.kernel(name).map(Kernel::Simulated),
        }
    }
}

impl Kernel {
    /// What it takes, as the driver tells it for this device, or as the PTX says.
    pub fn resources(&self) -> Resources {
        match self {
            Kernel::Cuda(kernel) => kernel.resources(),
            Kernel::Simulated(kernel) => kernel.resources(),
        }
    }

    /// Blocks of that many threads and bytes of dynamic shared memory that one multiprocessor holds at once, as the driver
    /// tells it. On a simulated device, as many as an H100's would hold if registers set no limit.
    ///
    /// # Errors
    /// No such block can be [launched](Kernel::launch), and the error says why; the driver fails.
    pub fn blocks_per_multiprocessor(&self, threads: u32, dynamic_shared: u32) -> Result<u32, DeviceError> {
        match self {
            Kernel::Cuda(kernel) => kernel.blocks_per_multiprocessor(threads, dynamic_shared),
            Kernel::Simulated(kernel) => kernel.blocks_per_multiprocessor(threads, dynamic_shared),
        }
    }

    /// Puts the kernel into a stream. Dynamic shared memory beyond 48 KiB needs nothing else.
    ///
    /// # Errors
    /// The shape goes beyond what the kernel or the device can, and the error says where; the stream is of another device; the
    /// driver fails. What the kernel itself does wrong shows at a later call; on a simulated device it shows here. That has
    /// no clusters of several blocks.
    ///
    /// # Safety
    /// The arguments fit the kernel's signature in number, order and size. Until the stream has done it, every address in them
    /// lies in a live buffer of this device, which the kernel may access as it does: nothing else writes there what it reads
    /// or writes. In a [capture](Stream::capture) all this holds whenever the graph is launched, and the kernel is not dropped
    /// before the graph. A simulated device checks what it can of this, and nothing there is undefined.
    pub unsafe fn launch(&self, stream: &Stream, shape: LaunchShape, args: &[Arg]) -> Result<(), DeviceError> {
        match (self, stream) {
            // SAFETY: the caller's promise.
            (Kernel::Cuda(kernel), Stream::Cuda(stream)) => unsafe { kernel.launch(stream, shape, args) },
            (Kernel::Simulated(kernel), Stream::Simulated(stream)) => kernel.launch(stream, shape, args),
            _ => Err(DeviceError::other_device("stream", "kernel")),
        }
    }
}
