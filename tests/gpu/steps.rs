//! The steps in which a kernel was made: each is right, and does what it is for.

use attention::{Attention, DType, oracle};
use cuda_fa2::STEPS;
use device::{Counters, Device};
use ladder::registry::{DEVICE_RUNGS, DeviceRung};
use libtest_mimic::Failed;
use rayon::prelude::*;
use testkit::problems::Spec;
use testkit::{forward_on_canaries, judge};

/// Rows and keys, four tiles of 64 keys, for two blocks of four warps.
const N: usize = 256;
const TILES: u64 = 4;
const WARPS: u64 = 8;

pub(crate) fn steps_of_a_kernel_are_right_and_do_what_they_are_for(device: &Device) -> Result<(), Failed> {
    let rung = DEVICE_RUNGS.iter().find(|rung| rung.has_steps()).ok_or("no rung with steps")?;
    let one = |step| {
        // A simulated device runs one launch at a time, so each step has one of its own.
        let device = if let Device::Simulated(_) = device { Device::simulated() } else { device.clone() };
        run(&device, rung, step)
    };
    let counted = (0..STEPS.len()).into_par_iter().map(one).collect::<Result<Vec<_>, String>>()?;
    match counted.into_iter().collect::<Option<Vec<Counters>>>() {
        Some(counted) => do_what_they_are_for(&counted),
        None => Ok(()),
    }
}

/// Holds a step's results against the oracle; what its kernel did, if that was counted.
fn run(device: &Device, rung: &DeviceRung, step: usize) -> Result<Option<Counters>, String> {
    let name = STEPS[step].name;
    let told = |error: &dyn std::fmt::Display| format!("{name}: {error}");
    let owned = Spec { dtype: DType::F16, ..Spec::plain(N, N, 128) }.build();
    let problem = owned.problem();
    let attention = rung.build(device).map_err(|error| told(&error))?;
    // The kernels that it has loaded by now are not the step's.
    attention.forward(&problem).map_err(|error| told(&error))?;
    let attention = attention.at_step(&STEPS[step]);
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

/// What a step is for is seen in what its kernel does.
fn do_what_they_are_for(counted: &[Counters]) -> Result<(), Failed> {
    let of = |opcode: &str| -> Vec<u64> {
        let all = |counters: &Counters| {
            let named = counters.instructions.iter().filter(|(name, _)| name.starts_with(opcode));
            named.map(|(_, count)| count).sum()
        };
        counted.iter().map(all).collect()
    };
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
    Ok(())
}
