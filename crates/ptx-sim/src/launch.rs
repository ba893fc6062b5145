//! What a program calls: modules, kernels and launches.

use crate::{Counters, Fault, Memory, PtxError};
use thiserror::Error;

/// Kernels from a text, with the variables that they share.
#[derive(Clone, Debug)]
pub struct Module;

/// A kernel of a module.
#[derive(Clone, Debug)]
pub struct Kernel;

/// How many blocks of how many threads run a kernel, and what each block has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

/// Which of the orders that the memory model allows is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Seed 0 runs one warp after another as far as each gets; any other draws warps, and when copies land.
    pub seed: u64,
    /// Instructions of all warps after which the kernel is taken to hang.
    pub steps: u64,
}

/// Why a launch did not end well.
#[derive(Clone, Debug, Error)]
pub enum LaunchError {
    /// An argument or the shape does not fit the kernel; nothing was run.
    #[error("{kernel}: {what}: found {found}, wanted {wanted}")]
    Shape {
        /// The kernel.
        kernel: String,
        /// What it is.
        what: String,
        /// Its value.
        found: String,
        /// What would do.
        wanted: String,
    },
    /// The kernel did something wrong.
    #[error(transparent)]
    Fault(Box<Fault>),
}

impl Module {
    /// Reads a text and puts its variables into memory, where they stay as long as the memory.
    ///
    /// # Errors
    /// It is not PTX, or has an instruction that is not simulated: the line and what it is. There is no memory for it.
    pub fn load(_text: &str, _memory: &mut Memory) -> Result<Module, PtxError> {
        todo!()
    }

    /// The kernel of that name.
    pub fn kernel(&self, _name: &str) -> Option<Kernel> {
        todo!()
    }

    /// The names of its kernels, in the text's order.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        todo!()
    }

    /// The size of each parameter, in bytes.
    pub fn parameters(&self) -> &[u32] {
        todo!()
    }

    /// Static shared memory of a block, in bytes.
    pub fn shared_bytes(&self) -> u32 {
        todo!()
    }

    /// Threads of a block, at most: what the kernel was compiled for, or 1024.
    pub fn max_threads(&self) -> u32 {
        todo!()
    }

    /// Runs the kernel to its end. The arguments are the bytes of each parameter.
    ///
    /// # Errors
    /// [`LaunchError::Shape`] before anything is run; [`LaunchError::Fault`] at the first thing that the kernel does wrong.
    pub fn launch(
        &self,
        _memory: &mut Memory,
        _shape: Shape,
        _arguments: &[&[u8]],
        _schedule: Schedule,
    ) -> Result<Counters, LaunchError> {
        todo!()
    }
}
