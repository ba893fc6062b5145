//! Runs programs on a device.

use crate::form::Program;
use device::{Arg, Device, DeviceError, Image, LaunchShape, Stream};

/// What outputs are full of before a program runs, so that what it leaves shows.
pub(crate) const UNWRITTEN: u8 = 0xa5;

/// A device and a stream of it.
pub(crate) struct Runner<'a> {
    device: &'a Device,
    pub(crate) stream: Stream,
}

impl<'a> Runner<'a> {
    pub(crate) fn new(device: &'a Device) -> Result<Self, DeviceError> {
        Ok(Runner { device, stream: device.stream()? })
    }

    /// What is wrong with each program, of which `check` runs one.
    ///
    /// # Errors
    /// That too, and after which program the device runs no other: those behind it were not run.
    pub(crate) fn check_each(
        &self,
        programs: &[&Program],
        mut check: impl FnMut(&Program) -> Result<(), String>,
    ) -> Result<Vec<String>, String> {
        let mut faults = Vec::new();
        for (number, program) in programs.iter().enumerate() {
            let Err(fault) = check(program) else { continue };
            faults.push(fault);
            // An error that has ended the context is the answer of every call from then on.
            if self.stream.synchronize().is_err() {
                let left = programs.len() - number - 1;
                faults.push(format!("{}: the device runs nothing after it, {left} programs not run", program.name));
                return Err(faults.join("\n"));
            }
        }
        Ok(faults)
    }

    /// The outputs of a program.
    pub(crate) fn run(&self, program: &Program) -> Result<Vec<u8>, String> {
        self.outputs(program).map_err(|error| format!("{}: {error}", program.name))
    }

    #[allow(unsafe_code)]
    fn outputs(&self, program: &Program) -> Result<Vec<u8>, DeviceError> {
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
