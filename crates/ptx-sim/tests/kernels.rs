//! The kernels of this project load, and what their marks are told by counts.

use flate2::read::GzDecoder;
use ptx_sim::{Memory, Module, Schedule, Shape};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

#[test]
fn every_prebuilt_kernel_loads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/prebuilt");
    let mut count = 0;
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let mut text = String::new();
        if path.extension().is_some_and(|end| end == "gz") {
            GzDecoder::new(File::open(&path).unwrap()).read_to_string(&mut text).unwrap();
        } else {
            text = fs::read_to_string(&path).unwrap();
        }
        let module = Module::load(&text, &mut Memory::new(1 << 20));
        let module = module.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(module.kernels().count() > 0, "{}", path.display());
        count += 1;
    }
    assert!(count >= 11);
}

/// Two warps write what each of the clocks says in their 6th instruction: one after the other under seed 0.
#[test]
fn clocks_count_the_instructions_of_all_warps_of_a_block() {
    for (clock, bits) in [("%clock", 32), ("%clock64", 64), ("%globaltimer", 64)] {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry clocks(.param .u64 out)\n{{\n\
             .reg .b32 %r<4>;\n.reg .b64 %d<4>;\nld.param.u64 %d0, [out];\nmov.u32 %r0, %tid.x;\n\
             mul.wide.u32 %d1, %r0, 8;\nadd.s64 %d1, %d0, %d1;\nmov.u64 %d2, 0;\n\
             mov.b{bits} {to}, {clock};\n{widen}st.global.u64 [%d1], %d2;\nret;\n}}\n",
            to = if bits == 32 { "%r1" } else { "%d2" },
            widen = if bits == 32 { "cvt.u64.u32 %d2, %r1;\n" } else { "" },
        );
        let mut memory = Memory::new(1 << 20);
        let kernel = Module::load(&text, &mut memory).unwrap().kernel("clocks").unwrap();
        let out = memory.alloc(8 * 64).unwrap();
        let shape = Shape { grid: [1, 1, 1], block: [64, 1, 1], shared_bytes: 0 };
        let counters = kernel.launch(&mut memory, shape, &[&out.to_le_bytes()], Schedule { seed: 0, steps: 1000 });
        let of_a_warp = counters.unwrap().instructions.values().sum::<u64>() / 2;
        let mut bytes = [0; 8 * 64];
        memory.read(out, &mut bytes).unwrap();
        for (thread, eight) in bytes.chunks_exact(8).enumerate() {
            let found = u64::from_le_bytes(eight.try_into().unwrap());
            assert_eq!(found, 6 + of_a_warp * (thread as u64 / 32), "{clock} in thread {thread}");
        }
    }
}
