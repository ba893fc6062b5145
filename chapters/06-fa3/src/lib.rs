//! Chapter 6, the exercise: the barriers between a thread that has tiles copied and the threads that read them.
//!
//! Yours is `src/mine.cu`, beside this file. `cargo run --release -- check 6` says how far you are, and `--hint` helps.
//! The kernel is compiled by NVRTC, which `ladder doctor` says how to install, and runs on a simulated GPU: you need
//! none, and no Hopper.
//!
//! Here is the host's side, which is given. [`Compiled`] compiles and launches, [`Matrix`] is what tiles are copied
//! from, and [`told`] says what a kernel did wrong, and in which line.

mod compiled;
mod told;

pub use compiled::{Compiled, Matrix};
pub use told::told;

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
