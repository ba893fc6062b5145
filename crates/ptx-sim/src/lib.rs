//! A simulated GPU: runs PTX on the CPU and reports races.

mod clock;
mod counters;
mod error;
mod exec;
mod fault;
mod float;
mod lanes;
mod launch;
mod lower;
mod memory;
mod program;
mod ptx;
mod races;

pub use counters::{Counters, Flops, Global, Shared};
pub use error::PtxError;
pub use fault::{Fault, FaultKind, Site, SourceLine};
pub use launch::{Kernel, LaunchError, Module, Schedule, Shape};
pub use memory::{Memory, MemoryError};
