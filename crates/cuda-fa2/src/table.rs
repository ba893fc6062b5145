//! `05_table.cu`: the table of sequences written on the device by a kernel that has it as an argument.
//!
//! A copy would do, were it not for where it comes from. The driver may wait for the stream before it takes a copy from memory
//! that is not pinned ("the driver may synchronize with the stream and stage the copy into pinned memory", CUDA driver API, "API
//! synchronization behavior"), and one from pinned memory reads it at a time that nobody knows; in a graph, at every launch.
//! Arguments of a kernel are copied when it is launched ("a region of memory from which the actual kernel parameter will be
//! copied", `cuLaunchKernel`), and a captured launch has its own ("owned by the node", `cuGraphKernelNodeGetParams`): nothing is
//! waited for, nothing must stay, and a graph writes the table that was captured whenever it is launched.

// The launch.
#![allow(unsafe_code)]

use crate::params::Sequence;
use crate::{CudaRung, Plan};
use device::{Arg, DeviceError, LaunchShape, Stream, Variant};

/// `THREADS` of the kernel, and the bytes of a `Piece`.
const THREADS: u32 = 256;
const PIECE: usize = 200 * size_of::<Sequence>();

pub(crate) static VARIANTS: [Variant; 1] =
    [Variant { file: "05_table.cu", name: "i32", defines: &[], arch: "sm_80", kernels: &[("put_table", THREADS, 0)] }];

impl CudaRung {
    /// Puts into a stream what writes the plan's [table of sequences](Plan::sequences) on the device, for a
    /// [launch](Self::launch) that comes behind it there. It waits for nothing, and the plan may go when it returns. It can be
    /// captured once it has run before, and the graph keeps the table.
    ///
    /// # Errors
    /// The kernel does not compile; it is first needed in a capture; the driver fails.
    ///
    /// # Safety
    /// The address, a multiple of 4, is that of live memory of this rung's device with room for the table until the stream is
    /// done, where nothing else is read or written. In a [capture](Stream::capture) this holds whenever the graph is launched,
    /// and the rung is not dropped before it.
    pub unsafe fn put_sequences(&self, plan: &Plan, address: u64, stream: &Stream) -> Result<(), DeviceError> {
        if plan.is_empty() || plan.sequences().is_empty() {
            return Ok(());
        }
        let kernel = self.kernel(&VARIANTS[0], "put_table", stream)?;
        let shape = LaunchShape { grid: [1; 3], block: [THREADS, 1, 1], cluster: [1; 3], shared_bytes: 0 };
        for (place, table) in plan.sequences().chunks(PIECE).enumerate() {
            let mut piece = [0; PIECE];
            piece[..table.len()].copy_from_slice(table);
            let to = Arg::U64(address + (place * PIECE) as u64);
            let count = Arg::I32((table.len() / size_of::<i32>()) as i32);
            // SAFETY: the arguments are those of `put_table`, which writes as many words as the piece has of the table, where
            // the caller has promised room.
            unsafe { kernel.launch(stream, shape, &[to, count, Arg::Bytes(&piece)])? };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NAIVE, Shape, TRITON};
    use attention::{DType, Options};
    use device::Device;

    #[test]
    fn the_kernel_has_the_sizes_that_are_launched_and_arguments_fit() {
        let text = device::file("05_table.cu").unwrap();
        assert!(text.contains(&format!("constexpr int THREADS = {THREADS};")));
        assert!(text.contains(&format!("constexpr int WORDS = {};", PIECE / size_of::<i32>())));
        assert!(size_of::<u64>() + size_of::<i32>() + PIECE <= 4096);
    }

    /// Sequences of 1, 2, ... keys and a row or none, one behind the other.
    fn ragged(count: usize) -> Shape {
        let keys = |i: usize| i * (i + 1) / 2;
        let place = |i: usize| attention::Sequence { q: i.div_ceil(2)..(i + 1).div_ceil(2), k: keys(i)..keys(i + 1) };
        Shape { packed: true, sequences: (0..count).map(place).collect(), ..Shape::one(DType::F16) }
    }

    #[test]
    fn the_table_is_written_and_nothing_else() {
        let device = Device::simulated();
        let (rung, stream) = (CudaRung::new(&NAIVE, &device).unwrap(), device.stream().unwrap());
        // As many as fill a piece, and one less and more.
        for count in [1, 199, 200, 201, 450] {
            let plan = rung.plan(&ragged(count), &Options::default()).unwrap();
            let table = plan.sequences();
            assert_eq!(table.len(), count * size_of::<Sequence>());
            let memory = device.alloc(table.len() + 512).unwrap();
            let wanted = [&[0xa5; 256], table, &[0xa5; 256]].concat();
            // SAFETY: the memory is the test's own, and has 256 bytes before and behind the table's place.
            let put = |stream: &Stream| unsafe { rung.put_sequences(&plan, memory.address() + 256, stream) };
            memory.fill(0xa5).unwrap();
            put(&stream).unwrap();
            assert_eq!(memory.to_vec::<u8>().unwrap(), wanted, "{count}");
            // A graph has the table.
            let graph = stream.capture(put).unwrap();
            memory.fill(0xa5).unwrap();
            graph.launch(&stream).unwrap();
            assert_eq!(memory.to_vec::<u8>().unwrap(), wanted, "{count}");
        }
    }

    #[test]
    fn it_is_not_loaded_in_a_capture_nor_launched_for_nothing() {
        let device = Device::simulated();
        let (rung, stream) = (CudaRung::new(&TRITON, &device).unwrap(), device.stream().unwrap());
        let put = |shape: &Shape| {
            let plan = rung.plan(shape, &Options::default()).unwrap();
            // SAFETY: nothing is launched, as the kernel is not loaded.
            stream.capture(|stream| unsafe { rung.put_sequences(&plan, 0, stream) })
        };
        let early = put(&Shape::one(DType::F16)).unwrap_err().to_string();
        assert_eq!(
            early,
            "stream: found one that is captured, and put_table not loaded, wanted a call like it before the capture"
        );
        assert!(put(&ragged(0)).is_ok());
    }
}
