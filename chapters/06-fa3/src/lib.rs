//! Chapter 6, the exercise: the barriers between a thread that has tiles copied and the threads that read them.
//!
//! Yours is `src/mine.cu`, beside this file. `cargo run --release -- check 6` says how far you are, and `--hint` helps.
//! The kernel is compiled by NVRTC, which `ladder doctor` says how to install, and runs on a simulated GPU: you need
//! none, and no Hopper.
//!
//! Here is the host's side, which is given. [`EXERCISE`] compiles and launches, and says what a kernel did wrong, and in
//! which line. [`Matrix`] is what tiles are copied from.

mod matrix;
mod names;

pub use matrix::Matrix;

use kernelkit::Exercise;

/// The learner's kernel.
pub const MINE: &str = include_str!("mine.cu");

/// Tiles that shared memory has room for: `STAGES` of the kernel.
pub const STAGES: usize = 2;

/// Rows of a tile: `ROWS` of the kernel.
pub const ROWS: usize = 8;

/// Columns of a matrix, and threads that read: `COLUMNS` of the kernel.
pub const COLUMNS: usize = 128;

/// Threads of a warp.
pub const LANES: usize = 32;

/// Threads of a block: `THREADS` of the kernel.
pub const THREADS: usize = COLUMNS + LANES;

/// The exercise. No check needs a tenth of its instructions.
pub static EXERCISE: Exercise = Exercise {
    file: "chapters/06-fa3/src/mine.cu",
    steps: include_str!("steps.cu"),
    arch: "sm_90a",
    step_limit: 1 << 18,
    with_names: names::with_names,
};
