//! Right kernels under many schedules: no false alarm, and the same bits.

use crate::simulated;
use attention::{DType, Mask};
use ladder::registry::DEVICE_RUNGS;
use testkit::problems::{BatchKind, Spec};
use testkit::forward_on_canaries;

/// Schedules where `SIM_SEEDS` does not say.
const SEEDS: u64 = 20;

#[test]
fn no_schedule_raises_an_alarm_or_changes_a_bit() {
    let seeds = std::env::var("SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    for (dtype, d) in [(DType::F32, 40), (DType::F16, 72)] {
        let spec = Spec {
            lengths: vec![(40, 45), (17, 40)],
            batch: BatchKind::KeyLens,
            kv_heads: 1,
            group: 2,
            dtype,
            mask: Mask::Causal,
            ..Spec::plain(40, 45, d)
        };
        let owned = spec.build();
        for rung in DEVICE_RUNGS {
            let mut first = None;
            for seed in 0..seeds {
                let attention = rung.build(&simulated(seed)).unwrap();
                let output = forward_on_canaries(&attention, &owned.problem());
                let output = output.unwrap_or_else(|error| panic!("{} {dtype}, seed {seed}: {error}", rung.name));
                let bits = (output.o.view().to_f64(), output.lse);
                assert!(*first.get_or_insert_with(|| bits.clone()) == bits, "{} {dtype}: seed {seed}", rung.name);
            }
        }
    }
}
