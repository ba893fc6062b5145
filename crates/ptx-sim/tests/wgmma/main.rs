//! `wgmma`: products against plain ones, whatever shape, type, source and layout; and what kernels do wrong with it.

mod compiled;
mod faults;
mod fed;
mod harness;
mod hostile;
mod products;
