//! The registry of rungs. Everything that walks the ladder walks [`registry::RUNGS`]: the command line, the tests, the
//! benchmarks and the book's tables.
//!
//! The binary of this package, `ladder`, is the command line.

pub mod bench;
pub mod forms;
pub mod kernels;
pub mod registry;
