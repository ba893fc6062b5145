//! The steps in which kernels were made: each is right, and does what it is for.

use attention::{Attention, DType, oracle};
use cuda_fa2::{Step, texts};
use device::{Counters, Device, file};
use ladder::registry::{DeviceRung, rungs_of};
use libtest_mimic::Failed;
use rayon::prelude::*;
use testkit::problems::Spec;
use testkit::{forward_on_canaries, judge};

/// Rows, and keys.
const N: usize = 256;

/// Fails where it is not seen in what was counted after each of the steps, or in their text.
type Purpose = fn(&[Counters], &[Step]);

/// Of each rung with steps: that what they are for is seen in what its kernel did after each of them.
const PURPOSES: &[(&str, Purpose)] = &[("cuda-fa2", steps_of_fa2), ("fa3", steps_of_fa3)];

pub(crate) fn steps_of_a_kernel_are_right_and_do_what_they_are_for(device: &Device) -> Result<(), Failed> {
    for rung in rungs_of(device).filter(|rung| !rung.steps().is_empty()) {
        let purpose = PURPOSES.iter().find(|(name, _)| *name == rung.name);
        let (_, do_what_they_are_for) = purpose.ok_or_else(|| format!("{}: no check of its steps", rung.name))?;
        let one = |place| {
            // A simulated device runs one launch at a time, so each step has one of its own.
            let device = if let Device::Simulated(_) = device { Device::simulated() } else { device.clone() };
            run(&device, rung, place)
        };
        let counted = (0..rung.steps().len()).into_par_iter().map(one).collect::<Result<Vec<_>, String>>()?;
        if let Some(counted) = counted.into_iter().collect::<Option<Vec<Counters>>>() {
            do_what_they_are_for(&counted, rung.steps());
        }
    }
    Ok(())
}

/// Holds a step's results against the oracle; what its kernel did, if that was counted.
fn run(device: &Device, rung: &DeviceRung, place: usize) -> Result<Option<Counters>, String> {
    let told = |error: &dyn std::fmt::Display| format!("{}, {}: {error}", rung.name, rung.steps()[place].name);
    let owned = Spec { dtype: DType::F16, ..Spec::plain(N, N, 128) }.build();
    let problem = owned.problem();
    let attention = rung.build(device).map_err(|error| told(&error))?;
    // The kernels that it has loaded by now are not the step's.
    attention.forward(&problem).map_err(|error| told(&error))?;
    let attention = attention.at_step(place);
    if let Device::Simulated(simulator) = device {
        simulator.take_counters();
    }
    let output = forward_on_canaries(&attention, &problem).map_err(|error| told(&error))?;
    let verdict = judge(&problem, &oracle::truth(&problem), &output, attention.weights(&problem));
    if !verdict.passes() {
        return Err(told(&verdict));
    }
    let Device::Simulated(simulator) = device else { return Ok(None) };
    Ok(simulator.take_counters().pop().map(|(_, counters)| counters))
}

/// Warp instructions whose names begin so, after each step.
fn instructions(counted: &[Counters], opcode: &str) -> Vec<u64> {
    let all = |counters: &Counters| {
        let named = counters.instructions.iter().filter(|(name, _)| name.starts_with(opcode));
        named.map(|(_, count)| count).sum()
    };
    counted.iter().map(all).collect()
}

/// Two blocks of four warps, and four tiles of 64 keys.
fn steps_of_fa2(counted: &[Counters], _: &[Step]) {
    const WARPS: u64 = 8;
    const TILES: u64 = 4;
    let of = |opcode| instructions(counted, opcode);
    let conflicts: Vec<u64> = counted.iter().map(|counters| counters.shared.conflicts).collect();
    // Eight rows of a matrix in the same banks: 28 passes too many for an ldmatrix.x4, of Q, K and V and of P. Of O some are
    // left.
    let matrices = WARPS * TILES * (16 + 32 + 32 + 8) * 28;
    assert!(conflicts[0] > matrices && conflicts[1] < matrices / 50, "{conflicts:?}");
    // Copies of 16 bytes a lane: Q once in a block, K and V for each.
    let copies = (2 * N as u64 * 128 + 2 * TILES * 2 * 2 * 64 * 128) / 512;
    assert_eq!(of("cp.async.cg"), [0, 0, copies, copies, copies, copies, copies]);
    // One barrier for a tile in place of two, but for the first.
    let barriers = of("bar.sync");
    assert_eq!(barriers[2] - barriers[3], WARPS * (TILES - 1), "{barriers:?}");
    // Two numbers of P for each pair of keys, 32 lanes a store; and their four matrices in one load, 16 rows and 16 keys.
    let (stores, loads) = (of("st.shared"), of("ldmatrix"));
    assert_eq!(stores[4] - stores[5], WARPS * TILES * 32 * 64 / 2 / 32, "{stores:?}");
    assert_eq!(loads[4] - loads[5], WARPS * TILES * 2 * 4, "{loads:?}");
    let instructions = of("");
    // expf is a power of two with seven instructions around it.
    assert!(instructions[3] - instructions[4] > 5 * WARPS * TILES * 64, "{instructions:?}");
    assert!(instructions.windows(2).skip(3).all(|pair| pair[1] < pair[0]), "{instructions:?}");
}

/// Two tiles of rows for two warpgroups each, and two tiles of 128 keys.
fn steps_of_fa3(counted: &[Counters], steps: &[Step]) {
    const BLOCKS: u64 = 2;
    const TILES: u64 = 2;
    /// Of a block, that multiply.
    const WARPS: u64 = 8;
    let of = |opcode| instructions(counted, opcode);
    // Q, K and V by threads, 16 bytes a lane; and by the copy engine, two boxes of 64 channels a tile.
    let tiles = BLOCKS * (1 + 2 * TILES);
    let (copies, boxes) = (tiles * 128 * 128 / 8 / 32, 2 * tiles);
    assert_eq!(of("cp.async.cg"), [copies, 0, 0, 0, 0, 0]);
    assert_eq!(of("cp.async.bulk"), [0, boxes, boxes, boxes, boxes, boxes]);
    // Products of 16 channels for S and of 16 keys for O, of each warp.
    assert_eq!(of("wgmma.mma_async"), [BLOCKS * WARPS * TILES * (8 + 8); 6]);
    // With softmax beside products Q lies in registers. The simulated device has one multiprocessor: one block stays on it.
    let matrices = BLOCKS * WARPS * 128 / 16;
    assert_eq!(of("ldmatrix"), [0, 0, 0, matrices, matrices, matrices]);
    let changes = WARPS + 4;
    assert_eq!(of("setmaxnreg"), [0, 0, BLOCKS * changes, BLOCKS * changes, BLOCKS * changes, changes]);
    // A product is still under way when softmax begins: which counts do not say.
    let under_way = |place: usize| {
        let texts = texts(steps, place).unwrap();
        texts.get("06_fa3.cu").map(String::as_str).or(file("06_fa3.cu")).unwrap().contains("wgmma_wait<1>()")
    };
    assert_eq!([0, 1, 2, 3, 4, 5].map(under_way), [false, false, false, true, true, true]);
    // A turn is passed for each tile of keys, and once before the first, by a warpgroup.
    let (passed, first) = (BLOCKS * WARPS * TILES, WARPS / 2);
    assert_eq!(of("bar.arrive"), [0, 0, 0, 0, passed + BLOCKS * first, passed + first]);
    // Who multiplies computes no address of K and V any more.
    let instructions = of("");
    assert!(instructions[0] > instructions[1] + BLOCKS * WARPS * TILES * 2 * 8 * 5, "{instructions:?}");
}
