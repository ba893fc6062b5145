//! `cargo +nightly fuzz run ptx`, in crates/ptx-sim: no text makes the reader panic, hang or take memory beyond measure.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ptx_sim::{Memory, Module};

fuzz_target!(|text: &str| {
    let _ = Module::load(text, &mut Memory::new(1 << 20));
});
