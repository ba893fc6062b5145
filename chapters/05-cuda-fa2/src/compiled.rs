//! The kernels of the exercise, compiled and run.

// The launches: their arguments are addresses. A simulated GPU checks them, and nothing there is undefined.
#![allow(unsafe_code)]

use device::nvrtc::Nvrtc;
use device::{Arg, Counters, Device, DeviceError, Image, LaunchShape, Module, Source, Stream};

/// The kernels of the steps, for the checks. They include the learner's file.
const STEPS: &str = include_str!("steps.cu");

/// Instructions of all warps after which a launch is taken to hang. No check needs a tenth of it.
const STEP_LIMIT: u64 = 1 << 22;

/// The kernels of `steps.cu` and of a text in the place of `mine.cu`, on a simulated GPU of their own.
#[derive(Debug)]
pub struct Compiled {
    device: Device,
    stream: Stream,
    module: Module,
}

impl Compiled {
    /// Compiles `text` for that many channels.
    ///
    /// # Errors
    /// There is no NVRTC; the text does not compile; the simulator cannot read what came of it.
    pub fn new(text: &str, channels: usize) -> Result<Self, DeviceError> {
        let channels = channels.to_string();
        let defines = [("HEAD_DIM", channels.as_str())];
        let source = Source::new("steps.cu", STEPS, &defines, |name| (name == "mine.cu").then_some(text));
        let ptx = Nvrtc::find()?.ptx(&source, "sm_80")?.code;
        let device = Device::simulated();
        let module = device.load(&Image::Ptx(String::from_utf8_lossy(&ptx).into_owned()))?;
        Ok(Compiled { stream: device.stream()?, device, module })
    }

    /// The simulated GPU, for the memory of arguments.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Runs a kernel on a grid of blocks of that many threads, the warps in the order that `seed` draws, and counts what it did.
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
        let shape =
            LaunchShape { grid: [grid[0], grid[1], 1], block: [threads, 1, 1], cluster: [1; 3], shared_bytes: 0 };
        let kernel = self.module.kernel(kernel)?;
        let Device::Simulated(simulator) = &self.device else { unreachable!("it was made above") };
        simulator.set_schedule(seed);
        simulator.set_step_limit(STEP_LIMIT);
        simulator.take_counters();
        // SAFETY: the device is simulated. It holds the arguments against the kernel's and every address against its memory.
        unsafe { kernel.launch(&self.stream, shape, args)? };
        Ok(simulator.take_counters().pop().map_or_else(Counters::default, |(_, counters)| counters))
    }
}
