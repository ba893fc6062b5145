//! Runs programs on a device.

use crate::form::Program;
use device::{Arg, Device, DeviceError, Image, LaunchShape, Stream};

/// What outputs are full of before a program runs, so that what it leaves shows.
pub(crate) const UNWRITTEN: u8 = 0xa5;

/// A device and a stream of it.
pub(crate) struct Runner<'a> {
    device: &'a Device,
    stream: Stream,
}

impl<'a> Runner<'a> {
    pub(crate) fn new(device: &'a Device) -> Result<Self, DeviceError> {
        Ok(Runner { device, stream: device.stream()? })
    }

    /// The outputs of a program.
    #[allow(unsafe_code)]
    pub(crate) fn run(&self, program: &Program) -> Result<Vec<u8>, DeviceError> {
        let kernel = self.device.load(&Image::Ptx(program.text.clone()))?.kernel("program")?;
        let (input, output) = (self.device.upload(&program.input)?, self.device.alloc(program.output_bytes())?);
        output.fill(UNWRITTEN)?;
        let shape = LaunchShape {
            grid: program.grid,
            block: program.block,
            cluster: [1; 3],
            shared_bytes: program.shared_bytes,
        };
        let mut arguments = vec![Arg::U64(input.address()), Arg::U64(output.address())];
        if !program.argument.is_empty() {
            arguments.push(Arg::Bytes(program.argument));
        }
        let maps = program.maps.iter().map(|map| {
            let buffer = if map.of_output { &output } else { &input };
            self.device.tensor_map(&map.tiling(buffer.address()))
        });
        let maps = maps.collect::<Result<Vec<_>, _>>()?;
        arguments.extend(maps.iter().map(Arg::TensorMap));
        // SAFETY: the kernel has these parameters, reads elements of the input columns and writes those of the output
        // columns, one a thread, or the elements of tensors that lie in them; both buffers have as many as there are
        // threads, and reading the second back waits.
        unsafe { kernel.launch(&self.stream, shape, &arguments)? };
        output.to_vec()
    }
}
