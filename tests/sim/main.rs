//! The kernels on the simulated GPU: right ones pass under every schedule, wrong ones are caught, and what they do is counted.
//!
//! `SIM_SEEDS=1000 cargo test --release -p flash-ladder-tests --test sim seeds` tries as many schedules as you like.

mod counts;
mod edit;
mod mutants;
mod seeds;

use device::Device;

/// A simulated device whose launches take the schedule of a seed.
fn simulated(seed: u64) -> Device {
    let device = Device::simulated();
    if let Device::Simulated(simulator) = &device {
        simulator.set_schedule(seed);
    }
    device
}
