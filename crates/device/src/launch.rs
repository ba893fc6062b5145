//! Shapes and arguments of a launch.

use crate::{Attributes, DeviceError, Resources, TensorMap};

/// How many blocks of how many threads run a kernel, and what each block has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Blocks of a cluster along x, y and z, which divide the grid's; [1, 1, 1] for no clusters.
    pub cluster: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// A struct by value: its bytes, as `bytemuck::bytes_of` gives them.
    Bytes(&'a [u8]),
    /// An `unsigned int`.
    U32(u32),
    /// An `int`.
    I32(i32),
    /// An address, or an `unsigned long long`.
    U64(u64),
    /// A `float`.
    F32(f32),
    /// A `const __grid_constant__ CUtensorMap`.
    TensorMap(&'a TensorMap),
}

/// Blocks of a cluster that every device with clusters can have.
const PORTABLE_CLUSTER: u64 = 8;

impl LaunchShape {
    /// One block of that many threads and bytes of dynamic shared memory.
    pub(crate) fn of_a_block(threads: u32, shared_bytes: u32) -> Self {
        LaunchShape { grid: [1; 3], block: [threads, 1, 1], cluster: [1; 3], shared_bytes }
    }

    /// Holds it against what a device and a kernel can.
    pub(crate) fn check(&self, kernel: &str, device: &Attributes, resources: Resources) -> Result<(), DeviceError> {
        let refuse = |what: String, found: u64, wanted: String| {
            Err(DeviceError::value(format!("{kernel}: {what}"), found, wanted))
        };
        let axes = [
            ("grid", self.grid, [i32::MAX as u32, 65535, 65535]),
            ("block", self.block, [device.threads_per_block, device.threads_per_block, 64]),
            ("cluster", self.cluster, self.grid),
        ];
        for (what, sizes, most) in axes {
            for ((axis, size), most) in ["x", "y", "z"].iter().zip(sizes).zip(most) {
                if size == 0 || size > most {
                    return refuse(format!("{what}.{axis}"), size.into(), format!("1 to {most}"));
                }
            }
        }
        let product = |sizes: [u32; 3]| sizes.iter().map(|&size| u64::from(size)).product::<u64>();
        let most_threads = resources.max_threads.min(device.threads_per_block);
        if product(self.block) > most_threads.into() {
            return refuse("threads of a block".into(), product(self.block), format!("at most {most_threads}"));
        }
        let shared = u64::from(self.shared_bytes) + u64::from(resources.shared_bytes);
        if shared > device.shared_per_block.into() {
            let wanted = format!("at most {} bytes", device.shared_per_block);
            return refuse("shared memory of a block".into(), shared, wanted);
        }
        let blocks = product(self.cluster);
        let most_blocks = if device.compute_capability >= (9, 0) { PORTABLE_CLUSTER } else { 1 };
        if blocks > most_blocks {
            return refuse("blocks of a cluster".into(), blocks, format!("at most {most_blocks}"));
        }
        for (grid, cluster) in self.grid.iter().zip(self.cluster) {
            if !grid.is_multiple_of(cluster) {
                return refuse("grid".into(), (*grid).into(), format!("a multiple of the cluster's {cluster}"));
            }
        }
        Ok(())
    }
}

impl Arg<'_> {
    /// Its bytes, as the kernel finds them.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Arg::Bytes(bytes) => bytes,
            Arg::U32(value) => bytemuck::bytes_of(value),
            Arg::I32(value) => bytemuck::bytes_of(value),
            Arg::U64(value) => bytemuck::bytes_of(value),
            Arg::F32(value) => bytemuck::bytes_of(value),
            Arg::TensorMap(map) => map.bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An H100, as NVIDIA's tables have it.
    const HOPPER: Attributes = Attributes {
        compute_capability: (9, 0),
        multiprocessors: 132,
        threads_per_block: 1024,
        shared_per_block: 232_448,
        l2_bytes: 50 << 20,
        memory_bytes: 80 << 30,
        driver: 13000,
    };
    const RESOURCES: Resources = Resources { registers: 128, shared_bytes: 1024, local_bytes: 0, max_threads: 512 };
    const SHAPE: LaunchShape =
        LaunchShape { grid: [12, 3, 2], block: [256, 2, 1], cluster: [2, 1, 2], shared_bytes: 231_424 };

    fn refused(shape: LaunchShape, device: &Attributes) -> String {
        shape.check("k", device, RESOURCES).unwrap_err().to_string()
    }

    #[test]
    fn a_shape_at_every_limit_passes_and_one_beyond_is_refused_by_name() {
        assert_eq!(SHAPE.check("k", &HOPPER, RESOURCES), Ok(()));
        for (shape, words) in [
            (LaunchShape { grid: [0, 3, 2], ..SHAPE }, "k: grid.x: found 0, wanted 1 to 2147483647"),
            (LaunchShape { grid: [12, 65536, 2], ..SHAPE }, "k: grid.y: found 65536, wanted 1 to 65535"),
            (LaunchShape { grid: [1 << 31, 1, 1], ..SHAPE }, "k: grid.x: found 2147483648, wanted 1 to 2147483647"),
            (LaunchShape { block: [1025, 1, 1], ..SHAPE }, "k: block.x: found 1025, wanted 1 to 1024"),
            (LaunchShape { block: [1, 1, 65], ..SHAPE }, "k: block.z: found 65, wanted 1 to 64"),
            (LaunchShape { block: [1, 0, 1], ..SHAPE }, "k: block.y: found 0, wanted 1 to 1024"),
            (LaunchShape { block: [171, 3, 1], ..SHAPE }, "k: threads of a block: found 513, wanted at most 512"),
            (
                LaunchShape { shared_bytes: 231_425, ..SHAPE },
                "k: shared memory of a block: found 232449, wanted at most 232448 bytes",
            ),
            (
                LaunchShape { shared_bytes: u32::MAX, ..SHAPE },
                "k: shared memory of a block: found 4294968319, wanted at most 232448 bytes",
            ),
            (LaunchShape { cluster: [4, 3, 1], ..SHAPE }, "k: blocks of a cluster: found 12, wanted at most 8"),
            (LaunchShape { cluster: [5, 1, 1], ..SHAPE }, "k: grid: found 12, wanted a multiple of the cluster's 5"),
            (LaunchShape { cluster: [1, 0, 1], ..SHAPE }, "k: cluster.y: found 0, wanted 1 to 3"),
        ] {
            assert_eq!(refused(shape, &HOPPER), words);
        }
        let ampere = Attributes { compute_capability: (8, 0), ..HOPPER };
        assert_eq!(refused(SHAPE, &ampere), "k: blocks of a cluster: found 4, wanted at most 1");
        assert_eq!(LaunchShape { cluster: [1; 3], ..SHAPE }.check("k", &ampere, RESOURCES), Ok(()));
    }
}
