//! Marks that kernels keep of what they do, and when: `tile/trace.cuh` compiled in, and the memory for them.

// The launch that tells the kernels where they go.
#![allow(unsafe_code)]

use bytemuck::{Pod, Zeroable};
use device::{Arg, Buffer, Device, DeviceError, LaunchShape, Module, Stream};

/// The macro that has kernels keep marks: how many a thread has room for.
pub(crate) const TRACE: &str = "TRACE";

/// Threads of a warpgroup, each of which has a track.
const WARPGROUP: u32 = 128;

/// The marks of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// The multiprocessor's clock when it began and when it ended.
    pub clock: [u64; 2],
    /// Nanoseconds of the device's timer at the same two moments; on a simulated device the clock again.
    pub nanoseconds: [u64; 2],
    /// How many marks it set, of which there may have been room for fewer.
    pub count: u32,
    /// The lower half of the clock, and what it had done, by its place in `Did` of `tile/trace.cuh`.
    pub marks: Vec<[u32; 2]>,
}

/// `Track` of `tile/trace.cuh`, but for its marks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct Head {
    clock: [u64; 2],
    nanoseconds: [u64; 2],
    count: u32,
    unused: u32,
}

/// Memory for the marks of a block.
#[derive(Debug)]
pub(crate) struct Marks {
    buffer: Buffer,
    most: u32,
}

impl Marks {
    /// Makes room for a block of so many threads, and tells the kernels of a module that was compiled for as many marks.
    pub(crate) fn new(
        device: &Device,
        stream: &Stream,
        module: &Module,
        threads: u32,
        block: u32,
        most: u32,
    ) -> Result<Marks, DeviceError> {
        let tracks = threads / WARPGROUP;
        let marks = Marks { buffer: device.alloc(tracks as usize * track_bytes(most))?, most };
        marks.buffer.fill(0)?;
        let once = LaunchShape { grid: [1; 3], block: [1; 3], cluster: [1; 3], shared_bytes: 0 };
        // SAFETY: the kernel takes an address and a number, and keeps both. Kernels of the module write to no more than that many
        // tracks of the block, and the rung that launches them owns the memory.
        unsafe {
            module.kernel("trace_to")?.launch(stream, once, &[Arg::U64(marks.buffer.address()), Arg::U32(block)])?;
        }
        stream.synchronize()?;
        Ok(marks)
    }

    /// What has been kept.
    pub(crate) fn read(&self) -> Result<Vec<Track>, DeviceError> {
        let bytes = self.buffer.to_vec::<u8>()?;
        Ok(bytes.chunks_exact(track_bytes(self.most)).map(|track| decode(track, self.most)).collect())
    }
}

fn track_bytes(most: u32) -> usize {
    size_of::<Head>() + most as usize * size_of::<[u32; 2]>()
}

fn decode(track: &[u8], most: u32) -> Track {
    let (head, marks) = track.split_at(size_of::<Head>());
    let Head { clock, nanoseconds, count, .. } = bytemuck::pod_read_unaligned(head);
    let marks = marks.chunks_exact(size_of::<[u32; 2]>()).take(count.min(most) as usize);
    Track { clock, nanoseconds, count, marks: marks.map(bytemuck::pod_read_unaligned).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_without_room_are_counted_and_not_read() {
        let head = Head { clock: [5, 9], nanoseconds: [1, 3], count: 3, unused: 0 };
        let mut bytes = bytemuck::bytes_of(&head).to_vec();
        bytes.extend(bytemuck::bytes_of(&[[6u32, 0], [7, 4]]));
        assert_eq!(bytes.len(), track_bytes(2));
        let (clock, nanoseconds) = (head.clock, head.nanoseconds);
        let wanted = Track { clock, nanoseconds, count: 3, marks: vec![[6, 0], [7, 4]] };
        assert_eq!(decode(&bytes, 2), wanted);
    }
}
