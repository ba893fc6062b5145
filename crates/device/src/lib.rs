//! One interface to a GPU, or to a simulated one: memory, modules, launches, streams, graphs, and how a kernel's source gets
//! there.
//!
//! A rung on the GPU should read as its algorithm, and what a driver wants of a program stand in one place. That place is here.
//! [`Device`] is small and safe but for one call, the [launch](Kernel::launch) of a kernel, whose arguments nothing can check.
//!
//! - **Nothing of CUDA is needed to build, link or start.** The driver (NVIDIA's 525 or newer, which is CUDA 12.0) and the
//!   compiler [NVRTC](nvrtc) are looked for when they are asked for; what is missing is an [error](DeviceError) that says so.
//! - **Kernels are the files of the folder `kernels`**, which are in the program. A [`Variant`] is one way to compile one of
//!   them. [`Device::compile`] compiles it with NVRTC for the device at hand and keeps the result on disk, in the folder
//!   `flash-ladder` of the user's cache folder. Where NVRTC is missing, the [prebuilt] PTX does, which the driver compiles.
//! - **Memory moves by calls that wait.** [`Buffer::read`] waits for all work of the device, so that no order of streams can be
//!   wrong; nothing is copied while a kernel runs. Kernels on one stream run in order.
//! - **A simulated GPU is a device too.** [`Device::simulated`] needs neither a GPU nor CUDA: it runs the PTX of kernels on
//!   the CPU, one launch after another, and a launch that does what no kernel may do (a race, a wait for nobody, an address
//!   out of range) is an [error](DeviceError::Simulated) with the line in the kernel's source. A [`Simulator`] draws the
//!   order in which warps run, and counts what they do. It is right, not fast: it has no clock, no registers or caches to run
//!   out of, no clusters of several blocks, and reads no machine code.
//!
//! It does not choose tiles or grids, plan a workspace, or pool memory: each rung does what its algorithm needs.
//!
//! ```
//! use device::{Arg, Device, DeviceError, Image, LaunchShape};
//!
//! fn run(device: &Device, doubling: &Image) -> Result<Vec<f32>, DeviceError> {
//!     let numbers = device.upload(&[1.0f32, 2.0, 3.0])?;
//!     let kernel = device.load(doubling)?.kernel("doubling")?;
//!     let stream = device.stream()?;
//!     let shape = LaunchShape { grid: [1, 1, 1], block: [32, 1, 1], cluster: [1, 1, 1], shared_bytes: 0 };
//!     // SAFETY: the kernel takes an address and a count, and doubles that many numbers from there on.
//!     unsafe { kernel.launch(&stream, shape, &[Arg::U64(numbers.address()), Arg::U32(3)])? };
//!     numbers.to_vec()
//! }
//!
//! let device = Device::cuda(0).unwrap_or_else(|missing| {
//!     println!("{missing}");
//!     Device::simulated()
//! });
//! println!("{}: {} bytes free", device.name(), device.memory_free()?);
//! # Ok::<(), DeviceError>(())
//! ```

pub mod assembly;
mod attributes;
mod cache;
mod cuda;
pub mod elf;
mod error;
mod launch;
mod memory;
mod module;
pub mod nvrtc;
pub mod occupancy;
pub mod prebuilt;
mod simulated;
mod stream;
mod variant;

pub use attributes::Attributes;
pub use cuda::{Gpu, TensorMap};
pub use error::DeviceError;
pub use launch::{Arg, LaunchShape};
pub use memory::Buffer;
pub use module::{Image, Kernel, Module, Resources};
pub use ptx_sim::{Counters, Element, Flops, Global, OutOfBoundsFill, Shared, Swizzle, Tiling};
pub use simulated::Simulator;
pub use stream::{Event, Graph, Stream};
pub use variant::{Source, Variant, file, files};

use bytemuck::NoUninit;
use nvrtc::Nvrtc;

/// A device that runs kernels. A clone is the same device; any thread may use it.
///
/// What belongs to a device is an enum over both arms, as this is one: [`Buffer`], [`Stream`], [`Event`], [`Graph`], [`Module`]
/// and [`Kernel`]. A [`TensorMap`] is bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Device {
    /// A GPU of NVIDIA.
    Cuda(Gpu),
    /// A simulated GPU.
    Simulated(Simulator),
}

/// How many devices CUDA shows, at least 1. Creates no context on any.
///
/// # Errors
/// There is no driver, it is too old, or it shows no device: one sentence says which.
pub fn cuda_devices() -> Result<usize, DeviceError> {
    cuda::count()
}

/// Name and attributes of every device that CUDA shows, in its order. Creates no context on any.
///
/// # Errors
/// As [`cuda_devices`].
pub fn cuda_attributes() -> Result<Vec<(String, Attributes)>, DeviceError> {
    cuda::list()
}

/// Does `work`, and leaves the calling thread's current context as it was, for the sake of other libraries on that thread:
/// otherwise every call on a GPU makes that GPU's context the current one.
///
/// # Errors
/// Those of `work`; there is no driver; it fails.
pub fn keeping_context<T, E: From<DeviceError>>(work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    cuda::keeping_context(work)
}

impl Device {
    /// The device of that number, as CUDA counts them from 0.
    ///
    /// # Errors
    /// As [`cuda_devices`]; there is none of that number; the driver fails.
    pub fn cuda(ordinal: usize) -> Result<Device, DeviceError> {
        Gpu::new(ordinal).map(Device::Cuda)
    }

    /// A new simulated device, with memory of its own.
    pub fn simulated() -> Device {
        Device::Simulated(Simulator::new())
    }

    /// Its name, "NVIDIA H200" or "simulated GPU".
    pub fn name(&self) -> &str {
        match self {
            Device::Cuda(gpu) => gpu.name(),
            Device::Simulated(simulator) => simulator.name(),
        }
    }

    /// What it is.
    pub fn attributes(&self) -> &Attributes {
        match self {
            Device::Cuda(gpu) => gpu.attributes(),
            Device::Simulated(simulator) => simulator.attributes(),
        }
    }

    /// Bytes of its memory that are free, for all programs that use it.
    ///
    /// # Errors
    /// The driver fails.
    pub fn memory_free(&self) -> Result<usize, DeviceError> {
        match self {
            Device::Cuda(gpu) => gpu.memory_free(),
            Device::Simulated(simulator) => Ok(simulator.memory_free()),
        }
    }

    /// Memory of that many bytes, none of them set; there may be none.
    ///
    /// # Errors
    /// [`DeviceError::Memory`] if it is not to be had; a stream of this thread is captured; the driver fails.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        match self {
            Device::Cuda(gpu) => gpu.alloc(bytes).map(Buffer::Cuda),
            Device::Simulated(simulator) => simulator.alloc(bytes).map(Buffer::Simulated),
        }
    }

    /// Memory that holds these elements.
    ///
    /// # Errors
    /// As [`alloc`](Device::alloc).
    pub fn upload<T: NoUninit>(&self, data: &[T]) -> Result<Buffer, DeviceError> {
        let buffer = self.alloc(size_of_val(data))?;
        buffer.write(0, data)?;
        Ok(buffer)
    }

    /// A new stream.
    ///
    /// # Errors
    /// The driver fails.
    pub fn stream(&self) -> Result<Stream, DeviceError> {
        match self {
            Device::Cuda(gpu) => gpu.stream().map(Stream::Cuda),
            Device::Simulated(simulator) => Ok(Stream::Simulated(simulator.stream())),
        }
    }

    /// Loads compiled kernels.
    ///
    /// # Errors
    /// The image is broken, or not for this device; PTX does not assemble, or has what is not simulated; a stream of this
    /// thread is captured.
    pub fn load(&self, image: &Image) -> Result<Module, DeviceError> {
        match self {
            Device::Cuda(gpu) => gpu.load(image).map(Module::Cuda),
            Device::Simulated(simulator) => simulator.load(image).map(Module::Simulated),
        }
    }

    /// Loads a variant, compiled for this device by NVRTC, or from a cache on disk of what NVRTC made before; or else its
    /// prebuilt PTX. That is taken too where NVRTC is of a newer major version of CUDA than the driver, which could not load
    /// what it makes; where it does not know the device; and where headers of CUDA that the variant includes are missing. A
    /// simulated device takes the prebuilt PTX, and what NVRTC makes where that is not there. Of what Triton compiles every
    /// device takes the prebuilt PTX.
    ///
    /// # Errors
    /// The variant is not for this device; its source does not compile; there is neither NVRTC nor prebuilt PTX.
    pub fn compile(&self, variant: &Variant) -> Result<Module, DeviceError> {
        let attributes = self.attributes();
        let arch = variant.arch_on(attributes.compute_capability)?;
        let source = variant.source()?;
        let image = match self {
            _ if variant.is_triton() => Image::Ptx(prebuilt::ptx(variant)?.into_owned()),
            Device::Cuda(_) => image_for_a_gpu(variant, &source, &arch, attributes.driver)?,
            Device::Simulated(_) => Image::Ptx(ptx(variant, &source)?),
        };
        self.load(&image)
    }

    /// What NVRTC makes of another source for a variant on this device, for trying a change to a kernel: machine code, or PTX
    /// for a simulated device.
    ///
    /// # Errors
    /// The variant is not for this device; the source does not compile; there is no NVRTC.
    pub fn image(&self, variant: &Variant, source: &Source) -> Result<Image, DeviceError> {
        let (nvrtc, arch) = (Nvrtc::find()?, variant.arch_on(self.attributes().compute_capability)?);
        Ok(match self {
            Device::Cuda(_) => Image::Cubin(cubin(nvrtc, source, &arch)?),
            Device::Simulated(_) => Image::Ptx(String::from_utf8_lossy(&nvrtc.ptx(source, variant.arch)?.code).into()),
        })
    }

    /// A tensor map, for a kernel's argument.
    ///
    /// # Errors
    /// The device is older than Hopper; a length, stride or side is out of range, or a simulated device does not have it.
    pub fn tensor_map(&self, tiling: &Tiling) -> Result<TensorMap, DeviceError> {
        match self {
            Device::Cuda(gpu) => gpu.tensor_map(tiling),
            Device::Simulated(_) => Ok(TensorMap::of_bytes(tiling.encode()?)),
        }
    }
}

fn image_for_a_gpu(variant: &Variant, source: &Source, arch: &str, driver: u32) -> Result<Image, DeviceError> {
    match Nvrtc::find().and_then(|nvrtc| nvrtc.serves(source, arch, driver).map(|()| nvrtc)) {
        Ok(nvrtc) => cubin(nvrtc, source, arch).map(Image::Cubin),
        Err(why) => {
            prebuilt::ptx(variant).map(|ptx| Image::Ptx(ptx.into_owned())).map_err(|error| neither(&error, &why))
        }
    }
}

/// The prebuilt PTX, or else NVRTC's.
fn ptx(variant: &Variant, source: &Source) -> Result<String, DeviceError> {
    match (prebuilt::ptx(variant), Nvrtc::find()) {
        (Ok(ptx), _) => Ok(ptx.into_owned()),
        (Err(_), Ok(nvrtc)) => Ok(String::from_utf8_lossy(&nvrtc.ptx(source, variant.arch)?.code).into_owned()),
        (Err(error), Err(why)) => Err(neither(&error, &why)),
    }
}

/// Machine code for an architecture, from the cache if it is there.
fn cubin(nvrtc: &Nvrtc, source: &Source, arch: &str) -> Result<Vec<u8>, DeviceError> {
    let (major, minor) = nvrtc.version();
    let mut options = nvrtc::cubin_options(arch);
    options.push(format!("NVRTC {major}.{minor}"));
    cache::get(cache::folder().as_deref(), &source.hash(&options), || Ok(nvrtc.cubin(source, arch)?.code))
}

fn neither(prebuilt: &DeviceError, nvrtc: &DeviceError) -> DeviceError {
    DeviceError::Missing { what: "compiled kernels", why: format!("{prebuilt}; {nvrtc}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_on_a_device_can_go_to_any_thread() {
        fn sent<T: Send + Sync>() {}
        sent::<Device>();
        sent::<(Buffer, Stream, Event, Graph)>();
        sent::<(Module, Kernel, TensorMap)>();
    }
}
