//! The layer of multi-head latent attention: its three forms against a definition in f64 and against each other, what its
//! cache holds, what it refuses, and what it costs.

mod cost;
mod definition;
mod errors;
mod forms;
