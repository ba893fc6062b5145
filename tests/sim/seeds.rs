//! Right kernels under many schedules: no false alarm, and the same bits.

use crate::set_schedule;
use attention::{Attention, DType, Mask, Output, oracle};
use device::Device;
use ladder::registry::{DEVICE_RUNGS, DeviceRung, device_rung};
use ndarray::ArrayD;
use proptest::prelude::*;
use rayon::prelude::*;
use testkit::problems::{AlibiKind, BatchKind, Spec, problems};
use testkit::{forward_on_canaries, judge};

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

/// Problems for every kernel of every rung that takes them; the last for those that take more than a scale and a mask.
fn specs() -> Vec<Spec> {
    let short = |spec: Spec| Spec { lengths: vec![(2, 140), (1, 70)], group: 3, ..spec };
    let options = Spec { softcap: 2.0, sinks: true, alibi: Some(AlibiKind::PerHead), ..spec(DType::Bf16, 40) };
    vec![
        spec(DType::F32, 40),
        spec(DType::F16, 104),
        spec(DType::Bf16, 64),
        spec(DType::Bf16, 37),
        short(spec(DType::F16, 64)),
        short(spec(DType::Bf16, 128)),
        short(options.clone()),
        options,
        // More tiles of keys than a ring of two stages.
        Spec {
            lengths: vec![(40, 340), (17, 300)],
            batch: BatchKind::Packed,
            dtype: DType::Bf16,
            ..Spec::plain(40, 340, 128)
        },
    ]
}

/// For each kernel of `fa3`: several tiles of rows for a block, one after the other, and more tiles of keys than a ring has stages.
/// With options, of sequences of different lengths, too.
fn specs_of_fa3() -> Vec<Spec> {
    let widths = [(64, 64), (128, 128), (192, 128), (256, 256)];
    let plain = |(d, d_v)| Spec { d_v, group: 3, dtype: DType::F16, mask: Mask::Causal, ..Spec::plain(70, 256, d) };
    let capped = |width| Spec {
        lengths: vec![(140, 200), (40, 130)],
        batch: BatchKind::Packed,
        softcap: 2.0,
        group: 1,
        ..plain(width)
    };
    widths.into_iter().flat_map(|width| [plain(width), capped(width)]).collect()
}

#[test]
fn no_schedule_raises_an_alarm_or_changes_a_bit() {
    let seeds = std::env::var("SIM_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("SIM_SEEDS is a number"));
    assert!(seeds > 1, "one schedule is nothing to compare");
    let owned: Vec<_> = specs().iter().map(Spec::build).collect();
    let forms = |rung: &DeviceRung| rung.forms(&Device::simulated()).unwrap();
    let of_fa3: Vec<_> = specs_of_fa3().iter().map(Spec::build).collect();
    let fa3 = device_rung("fa3").unwrap();
    let runs: Vec<_> = owned
        .iter()
        .flat_map(|owned| DEVICE_RUNGS.iter().map(move |rung| (owned, rung)))
        .chain(of_fa3.iter().map(|owned| (owned, fa3)))
        .filter(|(owned, rung)| rung.takes.problem(&owned.problem()))
        .flat_map(|(owned, rung)| forms(rung).into_iter().map(move |form| (owned, rung, form)))
        .collect();
    runs.par_iter().for_each(|(owned, rung, form)| {
        let problem = owned.problem();
        let run = |seed| {
            set_schedule(form.device(), seed);
            let output = forward_on_canaries(form, &problem);
            output.unwrap_or_else(|error| panic!("{}, seed {seed}: {error}, {problem:?}", rung.name))
        };
        let first = run(0);
        let verdict = judge(&problem, &oracle::truth(&problem), &first, form.weights(&problem));
        assert!(verdict.passes(), "{}: {verdict}, {problem:?}", rung.name);
        let first = bits(first);
        for seed in 1..seeds {
            assert!(bits(run(seed)) == first, "{}, seed {seed}: other bits, {problem:?}", rung.name);
        }
    });
    println!("{} problems and forms under {seeds} schedules", runs.len());
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
            for form in rung.forms(&Device::simulated()).unwrap() {
                let run = |seed| {
                    set_schedule(form.device(), seed);
                    forward_on_canaries(&form, &owned.problem())
                };
                let (plain, drawn) = (run(0), run(seed));
                prop_assert!(drawn.is_ok(), "{}: {:?}", rung.name, drawn.err());
                prop_assert!(bits(drawn?) == bits(plain?), "{}: other bits than under seed 0", rung.name);
            }
        }
    }
}
