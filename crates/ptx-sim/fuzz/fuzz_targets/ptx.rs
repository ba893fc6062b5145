//! `cargo +nightly fuzz run ptx`, in crates/ptx-sim: any text is a module or an error, and any kernel of it ends well or with
//! a fault.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ptx_sim::{Memory, Module, Schedule, Shape};

fuzz_target!(|input: (u64, &str)| {
    let (seed, text) = input;
    let mut memory = Memory::new(1 << 20);
    let Ok(module) = Module::load(text, &mut memory) else { return };
    let Ok(address) = memory.alloc(4096) else { return };
    let names: Vec<String> = module.kernels().map(str::to_string).collect();
    for kernel in names.iter().filter_map(|name| module.kernel(name)) {
        let arguments: Vec<Vec<u8>> = kernel
            .parameters()
            .iter()
            .map(|bytes| address.to_le_bytes().into_iter().cycle().take(*bytes as usize).collect())
            .collect();
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        let shape = Shape { grid: [2, 1, 1], block: [48, 1, 1], shared_bytes: 64 };
        let schedule = Schedule { seed, steps: 2000 };
        if let Err(error) = kernel.launch(&mut memory, shape, &arguments, schedule) {
            let _ = error.to_string();
        }
    }
});
