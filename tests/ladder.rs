//! The ladder climbed on drawn problems: every rung against the oracle and against the rung below it.
//!
//! `PROPTEST_CASES=20000 cargo test --release -p flash-ladder-tests --test ladder` climbs it as often as you like.

use attention::{AttentionError, TrafficMeter, oracle};
use ladder::registry::{RUNGS, Settings};
use proptest::prelude::*;
use proptest::sample::select;
use testkit::problems::{Spec, latents, problems};
use testkit::{forward_on_canaries, judge, judge_against};

/// Fast memories from little more than one row of 128 channels to the default, so that tiles are small and large.
fn settings() -> impl Strategy<Value = Settings> {
    select(vec![4 * 520, 5000, 20_000, 100 * 1024]).prop_map(|fast_memory| Settings { fast_memory })
}

/// Takes every rung past the problem, but those that take latents alone where it has none.
fn climb(spec: &Spec, settings: Settings) -> Result<(), TestCaseError> {
    let owned = spec.build();
    let problem = owned.problem();
    let truth = oracle::truth(&problem);
    let mut below = None;
    for rung in RUNGS {
        let attention = rung.build(settings);
        // Without a key there are no values in other memory, so that such a rung may take the problem all the same.
        let refusal = attention.supports(&problem).err();
        if rung.latents && !spec.values_are_keys && matches!(refusal, Some(AttentionError::Unsupported { .. })) {
            continue;
        }
        let (output, weights) = (forward_on_canaries(attention.as_ref(), &problem)?, attention.weights(&problem));
        let verdict = judge(&problem, &truth, &output, weights);
        prop_assert!(verdict.passes(), "{} against the oracle: {verdict}", rung.name);
        if let Some((name, below)) = &below {
            let verdict = judge_against(&problem, &truth, &output, below, weights);
            prop_assert!(verdict.passes(), "{} against {name}: {verdict}", rung.name);
        }
        below = Some((rung.name, output));
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_rung_agrees_with_the_one_below(spec in problems(), settings in settings()) {
        climb(&spec, settings)?;
    }

    #[test]
    fn every_rung_agrees_with_the_one_below_on_latents(spec in latents(), settings in settings()) {
        climb(&spec, settings)?;
    }

    #[test]
    fn every_meter_counts_the_traffic_of_its_algorithm(spec in problems(), settings in settings()) {
        let owned = spec.build();
        let problem = owned.problem();
        for rung in RUNGS {
            let Some(counts) = rung.counts() else { continue };
            let meter = TrafficMeter::default();
            counts.build(settings, &meter).forward(&problem)?;
            prop_assert_eq!(meter.traffic(), counts.traffic(&problem, settings)?, "{}", rung.name);
        }
    }
}
