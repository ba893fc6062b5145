//! `05_ceiling.cu`: what a device does at best, measured: the lines that speeds are held against.

// The launches.
#![allow(unsafe_code)]

use device::{Arg, Buffer, Device, DeviceError, Kernel, LaunchShape, Stream, Variant};

/// `THREADS`, `CHAINS` and `FLIGHT` of the kernels.
const THREADS: u32 = 256;
const CHAINS: u32 = 16;
const FLIGHT: usize = 4;

/// Bytes that a block of the copy reads.
const PIECE: usize = THREADS as usize * FLIGHT * 16;

/// Launches of which the best counts.
pub const RUNS: usize = 8;

/// What each launch of multiply-adds takes, in milliseconds.
pub const RUN_MS: f64 = 20.0;

/// Bytes that a copy reads: more than any cache holds.
const BYTES: usize = 1 << 30;

pub(crate) static VARIANTS: [Variant; 1] = [Variant {
    file: "05_ceiling.cu",
    name: "f32",
    defines: &[],
    arch: "sm_80",
    kernels: &[("fma_ceiling", THREADS, 0), ("copy_ceiling", THREADS, 0)],
}];

/// What a device does at best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceiling {
    /// Floating-point operations a second of independent f32 multiply-adds, which are two operations each.
    pub flops: f64,
    /// Bytes a second of a copy within the device's memory, those that are read and those that are written.
    pub copied: f64,
}

/// Measures what a device does at best, in a second or so: the best of [`RUNS`] launches of [`RUN_MS`] of multiply-adds, and
/// of as many copies of 1 GiB, or of a quarter of the free memory if that is less.
///
/// # Errors
/// The kernels do not compile; the driver fails.
pub fn ceiling(device: &Device) -> Result<Ceiling, DeviceError> {
    let module = device.compile(&VARIANTS[0])?;
    let (multiply_adds, copy) = (module.kernel("fma_ceiling")?, module.kernel("copy_ceiling")?);
    Ok(Ceiling { flops: flops(device, &multiply_adds)?, copied: copied(device, &copy)? })
}

fn flops(device: &Device, kernel: &Kernel) -> Result<f64, DeviceError> {
    let blocks = device.attributes().multiprocessors * kernel.blocks_per_multiprocessor(THREADS, 0)?;
    let threads = blocks as usize * THREADS as usize;
    let out = device.alloc(threads * size_of::<f32>())?;
    let stream = device.stream()?;
    let run = |steps: i32| {
        let args = [Arg::U64(out.address()), Arg::I32(steps), Arg::F32(0.999), Arg::F32(0.1)];
        // SAFETY: each thread writes the f32 of its number to `out`, which has one for each.
        unsafe { timed(kernel, &stream, blocks, &args) }
    };
    let operations = |steps: i32| 2.0 * f64::from(CHAINS) * f64::from(steps) * threads as f64;
    // The first launch is slow, the second tells how long the others are to be.
    const FEW: i32 = 1 << 12;
    run(FEW)?;
    let steps = (f64::from(FEW) * RUN_MS / run(FEW)?).ceil() as i32;
    let speeds = (0..RUNS).map(|_| Ok(operations(steps) / run(steps)? * 1e3));
    best(speeds)
}

fn copied(device: &Device, kernel: &Kernel) -> Result<f64, DeviceError> {
    let blocks = BYTES.min(device.memory_free()? / 4) / PIECE;
    let [from, to]: [Buffer; 2] = [device.alloc(blocks * PIECE)?, device.alloc(blocks * PIECE)?];
    from.fill(0x5a)?;
    let stream = device.stream()?;
    let run = || {
        let args = [Arg::U64(to.address()), Arg::U64(from.address())];
        // SAFETY: each block reads PIECE bytes of `from` and writes as many of `to`, which have as many for each.
        let milliseconds = unsafe { timed(kernel, &stream, blocks as u32, &args) }?;
        Ok(2.0 * (blocks * PIECE) as f64 / milliseconds * 1e3)
    };
    best((0..RUNS).map(|_| run()))
}

fn best(mut speeds: impl Iterator<Item = Result<f64, DeviceError>>) -> Result<f64, DeviceError> {
    speeds.try_fold(0.0, |best: f64, speed| Ok(best.max(speed?)))
}

/// The milliseconds of one launch.
///
/// # Safety
/// As [`Kernel::launch`].
unsafe fn timed(kernel: &Kernel, stream: &Stream, blocks: u32, args: &[Arg]) -> Result<f64, DeviceError> {
    let shape = LaunchShape { grid: [blocks, 1, 1], block: [THREADS, 1, 1], cluster: [1; 3], shared_bytes: 0 };
    let start = stream.record()?;
    // SAFETY: the caller's promise.
    unsafe { kernel.launch(stream, shape, args)? };
    Ok(stream.record()?.elapsed_ms(&start)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_have_the_numbers_that_are_counted_with() {
        let text = device::file("05_ceiling.cu").unwrap();
        for (name, value) in [("THREADS", THREADS as usize), ("CHAINS", CHAINS as usize), ("FLIGHT", FLIGHT)] {
            assert!(text.contains(&format!("constexpr int {name} = {value};")), "{name}");
        }
    }
}
