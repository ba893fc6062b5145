//! What kernels do, counted, is what formulas say beforehand.

use crate::simulated;
use attention::Attention;
use device::{Counters, Device};
use ladder::registry::DEVICE_RUNGS;
use std::collections::HashMap;
use testkit::problems::Spec;

/// Queries and keys, and channels.
const N: u64 = 256;
const D: u64 = 64;
/// Bytes of an f32.
const E: u64 = 4;
/// Bytes of a sequence's lengths and starts, which each thread reads.
const SEQUENCE: u64 = 20;

/// Bytes read and written, passes over the banks, bank conflicts.
type Counts = (u64, u64, Option<u64>, u64);

/// What all kernels of chapter 5 did on one head without a mask.
fn counted() -> HashMap<String, Counters> {
    let spec = Spec::plain(N as usize, N as usize, D as usize);
    let kernels = DEVICE_RUNGS.iter().flat_map(|rung| {
        let owned = rung.takes.narrowed(spec.clone()).build();
        let device = simulated(0);
        rung.build(&device).unwrap().forward(&owned.problem()).unwrap();
        let Device::Simulated(simulator) = &device else { unreachable!() };
        simulator.take_counters()
    });
    kernels.collect()
}

/// Blocks of 256 threads, each of which stores two tiles of 32 x 32 and reads so many times for each of 32 steps.
fn naive_passes(blocks_and_tiles: u64, reads: u64) -> u64 {
    blocks_and_tiles * (2 * 32 + 8 * 32 * reads)
}

fn predicted() -> [(&'static str, Counts); 6] {
    let (scores, rows) = (E * N * N, E * N * D);
    let (state, lse) = (E * 2 * N, E * N);
    let naive_scores = (4 * scores + SEQUENCE * 64 * 256, scores, Some(naive_passes(64 * 2, 5)), 0);
    let naive_softmax = (3 * scores + (SEQUENCE - E) * N * 32, scores + lse, Some(0), 0);
    // A value is read again for each of four rows: not at all where the weight is 0.
    let naive_output = (2 * scores + 8 * rows + SEQUENCE * 16 * 256, rows, Some(naive_passes(16 * 8, 8)), 0);
    // Keys and values, two passes of all rows, and at the end l and m once a number of O.
    let fa1_reads = 2 * rows + 2 * (2 * rows + state) + 3 * rows + state;
    let fa1 = (fa1_reads + SEQUENCE * 512, 3 * (rows + state) + rows + lse, None, 0);
    // A step of a product reads 4 times 16 bytes a lane, each in 4 passes. Stores of Q and K take 2 passes in place of 1, those
    // of P 8 in place of 4.
    let (warps, tiles) = (2 * 4, N / 64);
    let fa2_passes = warps * (2 * 64 + tiles * (2 * 64 * 4 * 4 + 2 * 32 + 8 * 4 + 16 * 8));
    let fa2_conflicts = warps * (64 + tiles * (32 + 16 * 4));
    let fa2_simt = (rows + 2 * 2 * rows + SEQUENCE * 2 * 128, rows + lse, Some(fa2_passes), fa2_conflicts);
    // In F16, 128 rows a block of 256 threads.
    let fa2 = ((1 + 2 * N / 128) * rows / 2 + SEQUENCE * (N / 128) * 256, rows / 2 + lse, None, 0);
    [
        ("naive_scores", naive_scores),
        ("naive_softmax", naive_softmax),
        ("naive_output", naive_output),
        ("fa1", fa1),
        ("fa2_simt", fa2_simt),
        ("fa2", fa2),
    ]
}

#[test]
fn kernels_do_what_formulas_say() {
    let counted = counted();
    for (kernel, (read, written, passes, conflicts)) in predicted() {
        let Counters { global_reads, global_writes, shared, .. } = &counted[kernel];
        assert_eq!((global_reads.bytes, global_writes.bytes), (read, written), "{kernel}");
        assert_eq!(shared.passes, passes.unwrap_or(shared.passes), "{kernel}");
        assert_eq!(shared.conflicts, conflicts, "{kernel}");
    }
    assert_eq!(counted.len(), predicted().len());
}
