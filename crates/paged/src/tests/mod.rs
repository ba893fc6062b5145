//! The manager against a naive one, and its laws one by one.

mod audit;
mod laws;
mod machine;
mod model;
mod pools;
mod threads;
