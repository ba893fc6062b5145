//! A simulated GPU: runs PTX on the CPU and reports races.

mod memory;
mod ptx;
mod error;

pub use error::PtxError;
