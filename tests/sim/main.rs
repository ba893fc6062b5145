//! The kernels on the simulated GPU: right ones pass under every schedule, wrong ones are caught, and what they do is counted.
//!
//! `SIM_SEEDS=1000 cargo test --release -p flash-ladder-tests --test sim seeds` tries as many schedules as you like.

mod counts;
mod edit;
mod mutants;
mod seeds;

use device::Device;

/// Makes launches on a simulated device take the schedule of a seed.
fn set_schedule(device: &Device, seed: u64) {
    let Device::Simulated(simulator) = device else { unreachable!("a device that is not simulated") };
    simulator.set_schedule(seed);
}
