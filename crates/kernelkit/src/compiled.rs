//! The kernels of an exercise, compiled and run.

// The launches: their arguments are addresses. A simulated GPU checks them, and nothing there is undefined.
#![allow(unsafe_code)]

use crate::Exercise;
use device::nvrtc::Nvrtc;
use device::{Arg, Counters, Device, DeviceError, Image, LaunchShape, Module, Source, Stream};

/// The kernels of the checks with a text in the place of the learner's file, on a simulated GPU of their own.
#[derive(Debug)]
pub struct Compiled {
    device: Device,
    stream: Stream,
    module: Module,
    step_limit: u64,
}

impl Exercise {
    /// Compiles `text` with these macros. It may include the files of the folder `kernels`.
    ///
    /// # Errors
    /// There is no NVRTC; the text does not compile; the simulator cannot read what came of it.
    pub fn compile(&self, text: &str, defines: &[(&str, &str)]) -> Result<Compiled, DeviceError> {
        let header = |name: &str| if name == "mine.cu" { Some(text) } else { device::file(name) };
        let ptx = Nvrtc::find()?.ptx(&Source::new("steps.cu", self.steps, defines, header), self.arch)?.code;
        let device = Device::simulated();
        let module = device.load(&Image::Ptx(String::from_utf8_lossy(&ptx).into_owned()))?;
        Ok(Compiled { stream: device.stream()?, device, module, step_limit: self.step_limit })
    }
}

impl Compiled {
    /// The simulated GPU, for the memory of arguments.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Runs a kernel on a grid of blocks of that many threads, warps and copies in the order that `seed` draws, and counts what it
    /// did.
    ///
    /// # Errors
    /// There is no such kernel, or the shape is none; the kernel does what no kernel may do.
    pub fn run(
        &self,
        kernel: &str,
        (grid, threads): ([u32; 2], u32),
        args: &[Arg],
        seed: u64,
    ) -> Result<Counters, DeviceError> {
        let [x, y] = grid;
        let shape = LaunchShape { grid: [x, y, 1], block: [threads, 1, 1], cluster: [1; 3], shared_bytes: 0 };
        let kernel = self.module.kernel(kernel)?;
        let Device::Simulated(simulator) = &self.device else { unreachable!("it was made above") };
        simulator.set_schedule(seed);
        simulator.set_step_limit(self.step_limit);
        simulator.take_counters();
        // SAFETY: the device is simulated. It holds the arguments against the kernel's and every address against its memory.
        unsafe { kernel.launch(&self.stream, shape, args)? };
        Ok(simulator.take_counters().pop().map_or_else(Counters::default, |(_, counters)| counters))
    }
}
