//! The structs that kernels take by value, as `kernels/tile/problem.cuh` and the kernel files have them, field by field.

use bytemuck::{Pod, Zeroable};

/// A tensor in device memory; strides in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Tensor {
    pub(crate) data: u64,
    pub(crate) batch: i64,
    pub(crate) head: i64,
    pub(crate) row: i64,
    pub(crate) channel: i64,
}

/// One sequence of the batch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Sequence {
    pub(crate) batch: i32,
    pub(crate) q_start: i32,
    pub(crate) q_len: i32,
    pub(crate) k_start: i32,
    pub(crate) k_len: i32,
}

/// The options of a call; addresses are 0 for what is not asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Options {
    pub(crate) scale: f32,
    pub(crate) softcap: f32,
    pub(crate) left: i32,
    pub(crate) right: i32,
    pub(crate) sinks: u64,
    pub(crate) slopes: Tensor,
    pub(crate) bias: Tensor,
}

/// Everything that all kernels are told.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Problem {
    pub(crate) q: Tensor,
    pub(crate) k: Tensor,
    pub(crate) v: Tensor,
    pub(crate) o: Tensor,
    pub(crate) lse: Tensor,
    pub(crate) options: Options,
    pub(crate) sequences: u64,
    pub(crate) batch: i32,
    pub(crate) heads: i32,
    pub(crate) group: i32,
    pub(crate) d: i32,
    pub(crate) d_v: i32,
    pub(crate) row_tiles: i32,
    pub(crate) q_len: i32,
    pub(crate) k_len: i32,
}

/// `Scores` of `05_naive.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct Scores {
    pub(crate) data: u64,
    pub(crate) q_len: i32,
    pub(crate) k_len: i32,
}

/// `Splits` of `tile/splits.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Splits {
    pub(crate) o: u64,
    pub(crate) m: u64,
    pub(crate) l: u64,
    pub(crate) count: i32,
    pub(crate) padding: i32,
}

/// `Schedule` of `tile/jobs.cuh`: the tiles of rows that blocks share out which stay until all are done.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Schedule {
    /// Tiles of all heads.
    pub(crate) tiles: i32,
    /// Heads of all sequences whose tiles come before those of others.
    pub(crate) section: i32,
    /// The address of a count of 4 bytes; 0 where each block takes every so many.
    pub(crate) next: u64,
}

/// `Blocks` of `05_fa1.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Blocks {
    pub(crate) rows: i32,
    pub(crate) keys: i32,
}

/// `Running` of `05_fa1.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct Running {
    pub(crate) o: u64,
    pub(crate) l: u64,
    pub(crate) m: u64,
    pub(crate) q_len: i32,
    pub(crate) padding: i32,
}
