//! Kernels, from their PTX.

use super::stream::Launch;
use super::{Simulator, Stream};
use crate::{Arg, DeviceError, Image, LaunchShape, Resources, occupancy};
use ptx_sim::Shape;

/// Kernels, loaded. Their variables stay in memory as long as the device.
#[derive(Clone, Debug)]
pub struct Module {
    simulator: Simulator,
    module: ptx_sim::Module,
}

/// A kernel, ready to be launched.
#[derive(Clone, Debug)]
pub struct Kernel {
    simulator: Simulator,
    kernel: ptx_sim::Kernel,
}

impl Simulator {
    pub(crate) fn load(&self, image: &Image) -> Result<Module, DeviceError> {
        let Image::Ptx(text) = image else {
            return Err(DeviceError::value("image", "machine code", "PTX, which is what a simulated device reads"));
        };
        let module = ptx_sim::Module::load(text, &mut self.idle()?.memory)?;
        Ok(Module { simulator: self.clone(), module })
    }
}

impl Module {
    /// See [`Module::kernel`](crate::Module::kernel).
    pub(crate) fn kernel(&self, name: &str) -> Result<Kernel, DeviceError> {
        let kernel = self.module.kernel(name).ok_or_else(|| DeviceError::unknown_kernel(name))?;
        Ok(Kernel { simulator: self.simulator.clone(), kernel })
    }
}

impl Kernel {
    /// See [`Kernel::resources`](crate::Kernel::resources).
    pub(crate) fn resources(&self) -> Resources {
        let (shared_bytes, max_threads) = (self.kernel.shared_bytes(), self.kernel.max_threads());
        Resources { registers: 0, shared_bytes, local_bytes: 0, max_threads }
    }

    /// See [`Kernel::blocks_per_multiprocessor`](crate::Kernel::blocks_per_multiprocessor).
    pub(crate) fn blocks_per_multiprocessor(&self, threads: u32, dynamic_shared: u32) -> Result<u32, DeviceError> {
        self.check(LaunchShape::of_a_block(threads, dynamic_shared))?;
        let Resources { registers, shared_bytes, .. } = self.resources();
        let blocks = occupancy::blocks_per_multiprocessor("sm_90", threads, registers, shared_bytes + dynamic_shared);
        Ok(blocks.expect("the rules of sm_90 are known"))
    }

    /// See [`Kernel::launch`](crate::Kernel::launch).
    pub(crate) fn launch(&self, stream: &Stream, shape: LaunchShape, args: &[Arg]) -> Result<(), DeviceError> {
        if stream.simulator != self.simulator {
            return Err(DeviceError::other_device("stream", "kernel"));
        }
        self.check(shape)?;
        let refuse = |what: &str, found: String, wanted: &str| {
            Err(DeviceError::value(format!("{}: {what}", self.kernel.name()), found, wanted))
        };
        if shape.cluster != [1; 3] {
            return refuse("cluster", format!("{:?}", shape.cluster), "[1, 1, 1]: clusters are not simulated");
        }
        let LaunchShape { grid, block, shared_bytes, .. } = shape;
        let arguments = args.iter().map(|arg| arg.bytes().to_vec()).collect();
        stream.put(Launch { kernel: self.kernel.clone(), shape: Shape { grid, block, shared_bytes }, arguments })
    }

    fn check(&self, shape: LaunchShape) -> Result<(), DeviceError> {
        shape.check(self.kernel.name(), self.simulator.attributes(), self.resources())
    }
}
