//! Right kernels under many schedules: no false alarm, and the same bits.

use crate::simulated;
use attention::{DType, Mask, Output};
use ladder::registry::DEVICE_RUNGS;
use ndarray::ArrayD;
use proptest::prelude::*;
use rayon::prelude::*;
use testkit::forward_on_canaries;
use testkit::problems::{BatchKind, Spec, problems};

/// Schedules where `SIM_SEEDS` does not say.
const SEEDS: u64 = 20;

/// A few tiles of rows and keys, the last ones not full.
fn spec(dtype: DType, d: usize) -> Spec {
    Spec {
        lengths: vec![(40, 45), (17, 40)],
        batch: BatchKind::KeyLens,
        kv_heads: 1,
        group: 2,
        dtype,
        mask: Mask::Causal,
        ..Spec::plain(40, 45, d)
    }
}

#[test]
fn no_schedule_raises_an_alarm_or_changes_a_bit() {
    let seeds = std::env::var("SIM_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("SIM_SEEDS is a number"));
    assert!(seeds > 1, "one schedule is nothing to compare");
    let specs =
        [(DType::F32, 40), (DType::F16, 72), (DType::Bf16, 40), (DType::Bf16, 37)].map(|(dtype, d)| spec(dtype, d));
    let takers = |spec: &Spec| {
        let dtype = spec.dtype;
        DEVICE_RUNGS.iter().filter(move |rung| rung.takes.dtypes.contains(&dtype))
    };
    let runs: Vec<_> = specs.iter().flat_map(|spec| takers(spec).map(move |rung| (spec, rung))).collect();
    runs.par_iter().for_each(|(spec, rung)| {
        let owned = spec.build();
        let run = |seed| {
            let output = forward_on_canaries(&rung.build(&simulated(seed)).unwrap(), &owned.problem());
            bits(output.unwrap_or_else(|error| panic!("{} {}, seed {seed}: {error}", rung.name, spec.dtype)))
        };
        let first = run(0);
        (1..seeds).into_par_iter().for_each(|seed| {
            assert!(run(seed) == first, "{} {}, seed {seed}: other bits", rung.name, spec.dtype);
        });
    });
}

/// Every number of an output as it is stored, canaries too.
fn bits(output: Output) -> (ArrayD<u64>, ArrayD<u32>) {
    (output.o.view().to_f64().mapv(f64::to_bits), output.lse.mapv(f32::to_bits))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any problem under any schedule: what fails is shrunk to a small problem and a small seed.
    #[test]
    fn drawn_schedules_change_nothing(spec in problems(), seed: u64) {
        let spec = Spec { kv_heads: 1, group: spec.group.min(2), ..spec };
        for rung in DEVICE_RUNGS {
            let owned = rung.takes.narrowed(spec.clone()).build();
            let run = |seed| forward_on_canaries(&rung.build(&simulated(seed)).unwrap(), &owned.problem());
            let (drawn, plain) = (run(seed), run(0));
            prop_assert!(drawn.is_ok(), "{}: {:?}", rung.name, drawn.err());
            prop_assert!(bits(drawn?) == bits(plain?), "{}: other bits than under seed 0", rung.name);
        }
    }
}
