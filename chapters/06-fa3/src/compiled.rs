//! The kernels of the exercise, compiled and run.

// The launches: their arguments are addresses. A simulated GPU checks them, and nothing there is undefined.
#![allow(unsafe_code)]

use crate::{COLUMNS, LANES, ROWS};
use device::nvrtc::Nvrtc;
use device::{
    Arg, Buffer, Counters, Device, DeviceError, Element, Image, LaunchShape, Module, OutOfBoundsFill, Source, Stream,
    Swizzle, TensorMap, Tiling,
};

/// The kernels of the steps, for the checks. They include the learner's file.
pub(crate) const STEPS: &str = include_str!("steps.cu");

/// Threads of a block: `THREADS` of the kernel.
const THREADS: usize = COLUMNS + LANES;

/// Instructions of all warps after which a launch is taken to hang. No check needs a tenth of it.
const STEP_LIMIT: u64 = 1 << 18;

/// The kernels of `steps.cu` and of a text in the place of `mine.cu`, on a simulated GPU of their own.
#[derive(Debug)]
pub struct Compiled {
    device: Device,
    stream: Stream,
    module: Module,
}

/// A matrix in device memory, as a kernel is told of it.
#[derive(Debug)]
pub struct Matrix {
    map: TensorMap,
    /// The map shows it.
    _numbers: Buffer,
}

impl Compiled {
    /// Compiles `text`.
    ///
    /// # Errors
    /// There is no NVRTC; the text does not compile; the simulator cannot read what came of it.
    pub fn new(text: &str) -> Result<Self, DeviceError> {
        // Beside the learner's file stand those of the folder `kernels`.
        let header = |name: &str| if name == "mine.cu" { Some(text) } else { device::file(name) };
        let source = Source::new("steps.cu", STEPS, &[], header);
        let ptx = Nvrtc::find()?.ptx(&source, "sm_90a")?.code;
        let device = Device::simulated();
        let module = device.load(&Image::Ptx(String::from_utf8_lossy(&ptx).into_owned()))?;
        Ok(Compiled { stream: device.stream()?, device, module })
    }

    /// The simulated GPU, for the memory of arguments.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A matrix with these numbers, [`COLUMNS`] a row. That without a row has a map of one that nobody wrote.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn matrix(&self, numbers: &[f32]) -> Result<Matrix, DeviceError> {
        let row = size_of::<f32>() * COLUMNS;
        let buffer = if numbers.is_empty() { self.device.alloc(row)? } else { self.device.upload(numbers)? };
        let rows = (numbers.len() / COLUMNS).max(1) as u64;
        let all = row as u64 * rows;
        let map = self.device.tensor_map(&Tiling {
            element: Element::F32,
            address: buffer.address(),
            lengths: &[COLUMNS as u64, rows, 1, 1],
            strides: &[row as u64, all, all],
            tile: &[COLUMNS as u32, ROWS as u32, 1, 1],
            swizzle: Swizzle::None,
            fill: OutOfBoundsFill::Zeros,
        })?;
        Ok(Matrix { map, _numbers: buffer })
    }

    /// Runs a kernel on one block, warps and copies in the order that `seed` draws, and counts what it did.
    ///
    /// # Errors
    /// There is no such kernel; the kernel does what no kernel may do.
    pub fn run(&self, kernel: &str, args: &[Arg], seed: u64) -> Result<Counters, DeviceError> {
        let shape = LaunchShape { grid: [1; 3], block: [THREADS as u32, 1, 1], cluster: [1; 3], shared_bytes: 0 };
        let kernel = self.module.kernel(kernel)?;
        let Device::Simulated(simulator) = &self.device else { unreachable!("it was made above") };
        simulator.set_schedule(seed);
        simulator.set_step_limit(STEP_LIMIT);
        simulator.take_counters();
        // SAFETY: the device is simulated. It holds the arguments against the kernel's and every address against its
        // memory.
        unsafe { kernel.launch(&self.stream, shape, args)? };
        Ok(simulator.take_counters().pop().map_or_else(Counters::default, |(_, counters)| counters))
    }
}

impl Matrix {
    /// The argument for it.
    pub fn arg(&self) -> Arg<'_> {
        Arg::TensorMap(&self.map)
    }
}
