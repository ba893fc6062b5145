//! What a device is.

/// Properties of a device that decide how a kernel is laid out on it. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Major and minor number of the instruction set: (9, 0) for Hopper.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Threads of a block, at most.
    pub threads_per_block: u32,
    /// Shared memory that a block may have, static and dynamic together, once it has opted in.
    pub shared_per_block: u32,
    /// The level-2 cache; 0 if it has none.
    pub l2_bytes: usize,
    /// The device's memory.
    pub memory_bytes: usize,
    /// The CUDA version that the driver knows: 1000 times the major and 10 times the minor number, 13000 for 13.0; 0 for a
    /// simulated device.
    pub driver: u32,
}
