//! Kernels as a compiler writes them: `ring.ptx` is what NVRTC 13.0 makes of `ring.cu` for `compute_90a` with `-lineinfo`, but
//! for the folder in which it was, and ptxas 13.0 assembles it for sm_90a without a warning.

use ptx_sim::{Element, Fault, FaultKind, LaunchError, Memory, Module, OutOfBoundsFill, Schedule, Shape};
use ptx_sim::{Swizzle, Tiling};

const PTX: &str = include_str!("ring.ptx");

const TILES: u32 = 5;
/// Halves of a tile.
const TILE: u32 = 16 * 64;

/// The halves that the ring leaves.
fn ring(ptx: &str, seed: u64) -> Result<Vec<u16>, Box<Fault>> {
    let mut memory = Memory::new(1 << 20);
    let module = Module::load(ptx, &mut memory).unwrap_or_else(|error| panic!("{error}"));
    let bytes = u64::from(2 * TILES * TILE);
    let (input, out) = (memory.alloc(bytes).unwrap(), memory.alloc(bytes).unwrap());
    let halves: Vec<u8> = (0..TILES * TILE).flat_map(|half| (half as u16).to_le_bytes()).collect();
    memory.write(input, &halves).unwrap();
    let map = |address| {
        let map = Tiling {
            element: Element::U16,
            address,
            lengths: &[64, u64::from(16 * TILES)],
            strides: &[128],
            tile: &[64, 16],
            swizzle: Swizzle::B128,
            fill: OutOfBoundsFill::Zeros,
        };
        map.encode().unwrap()
    };
    let shape = Shape { grid: [1, 1, 1], block: [256, 1, 1], shared_bytes: 0 };
    let arguments: [&[u8]; 3] = [&map(input), &map(out), &TILES.to_le_bytes()];
    let schedule = Schedule { seed, steps: 1 << 20 };
    match module.kernel("ring").unwrap().launch(&mut memory, shape, &arguments, schedule) {
        Ok(_) => {}
        Err(LaunchError::Fault(fault)) => return Err(fault),
        Err(refused) => panic!("{refused}"),
    }
    let mut read = vec![0; bytes as usize];
    memory.read(out, &mut read).unwrap();
    Ok(read.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect())
}

#[test]
fn a_ring_of_tiles_between_two_warpgroups() {
    let wanted: Vec<u16> = (0..TILES * TILE).map(|half| half as u16 + 1).collect();
    for seed in 0..12 {
        let out = ring(PTX, seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        assert_eq!(out, wanted, "seed {seed}");
    }
}

#[test]
fn what_is_left_out_of_it_is_found_at_its_line() {
    let without = |line: &str| {
        assert!(PTX.contains(line), "{line}");
        PTX.replace(line, "")
    };
    // The line of the kernel, from which a function is called that is one instruction.
    let found = |ptx: &str| {
        let fault = ring(ptx, 3).expect_err("a fault");
        let called_at = fault.at.as_ref().and_then(|site| site.source.as_ref()?.called_at.clone());
        (fault.kind, called_at.map(|(_, line)| line), fault.to_string())
    };
    let line = |words: &str| {
        let place = include_str!("ring.cu").lines().position(|line| line.contains(words)).unwrap();
        Some(place as u32 + 1)
    };
    let (kind, at, report) = found(&without("fence.proxy.async.shared::cta;"));
    assert_eq!(kind, FaultKind::ProxyFence, "{report}");
    assert!(at == line("load(stage[s]") || at == line("store(result"), "{report}");
    let (kind, _, report) = found(&without("fence.mbarrier_init.release.cluster;"));
    assert_eq!(kind, FaultKind::ProxyFence, "{report}");
    let (kind, _, report) = found(&without("cp.async.bulk.wait_group.read 0;"));
    assert_eq!(kind, FaultKind::InFlight, "{report}");
    let (kind, _, report) = found(&PTX.replacen("mov.u32 \t%r92, 2048;", "mov.u32 \t%r92, 4096;", 1));
    assert!(matches!(kind, FaultKind::Deadlock), "{report}");
}

#[test]
fn a_line_in_and_a_line_out() {
    for seed in 0..20 {
        let mut memory = Memory::new(1 << 20);
        let module = Module::load(PTX, &mut memory).unwrap();
        let (input, out) = (memory.alloc(512).unwrap(), memory.alloc(512).unwrap());
        let words: Vec<u8> = (1..129u32).flat_map(u32::to_le_bytes).collect();
        memory.write(input, &words).unwrap();
        let shape = Shape { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 512 };
        let arguments: [&[u8]; 2] = [&input.to_le_bytes(), &out.to_le_bytes()];
        let schedule = Schedule { seed, steps: 1 << 16 };
        let done = module.kernel("line").unwrap().launch(&mut memory, shape, &arguments, schedule);
        let counters = done.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!((counters.global_reads.bytes, counters.global_reads.sectors), (512, 16));
        assert_eq!((counters.global_writes.bytes, counters.global_writes.requests), (512, 1));
        let mut read = [0; 512];
        memory.read(out, &mut read).unwrap();
        let wanted: Vec<u8> = (1..129u32).flat_map(|word| (3 * word).to_le_bytes()).collect();
        assert_eq!(read.as_slice(), wanted);
    }
}
