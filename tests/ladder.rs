//! The ladder climbed on drawn problems: every rung against the oracle and against the rung below it.
//!
//! `PROPTEST_CASES=20000 cargo test --release -p flash-ladder-tests --test ladder` climbs it as often as you like.

use attention::{AttentionError, Output, TrafficMeter, oracle};
use ladder::registry::{RUNGS, Settings, attention};
use proptest::prelude::*;
use proptest::sample::select;
use testkit::problems::{Spec, latents, problems};
use testkit::{OwnedProblem, forward_on_canaries, judge, judge_against};

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
        if rung.latents && (problem.kv_heads() > 1 || !problem.values_are_keys()) {
            let refusal = attention.supports(&problem);
            prop_assert!(matches!(refusal, Err(AttentionError::Unsupported { .. })), "{}: {refusal:?}", rung.name);
            continue;
        }
        let input = rung.input(&owned);
        let problem = input.problem();
        let (output, weights) = (forward_on_canaries(attention.as_ref(), &problem)?, attention.weights(&problem));
        let verdict = judge(&problem, &truth, &output, weights);
        prop_assert!(verdict.passes(), "{} against the oracle: {verdict}", rung.name);
        if let Some((name, below, weights_below)) = &below {
            let verdict = judge_against(&problem, &truth, (&output, weights), (below, *weights_below));
            prop_assert!(verdict.passes(), "{} against {name}: {verdict}", rung.name);
        }
        below = Some((rung.name, output, weights));
    }
    Ok(())
}

/// Every number of an output as it is stored, canaries too.
fn bits(output: &Output) -> (Vec<u64>, Vec<u32>) {
    let o = output.o.view().to_f64().iter().map(|x| x.to_bits()).collect();
    (o, output.lse.iter().map(|x| x.to_bits()).collect())
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

    /// Whatever the pages, tiles have the same rows, so every bit is the same.
    #[test]
    fn pages_change_no_bit(spec in problems(), settings in settings(), page in 1usize..=70, seed in any::<u64>()) {
        let owned = spec.build();
        let paged = owned.paged(page, seed);
        for (rung, contiguous) in [("paged", "fa2"), ("paged-simd", "fa2-simd")] {
            let forward = |name, owned: &OwnedProblem| {
                let rung = attention(name, settings).expect("a name of the registry");
                forward_on_canaries(rung.as_ref(), &owned.problem())
            };
            let (found, wanted) = (forward(rung, &paged)?, forward(contiguous, &owned)?);
            prop_assert!(bits(&found) == bits(&wanted), "{rung} differs from {contiguous}");
            prop_assert!(bits(&forward(rung, &owned)?) == bits(&wanted), "{rung} without pages differs from {contiguous}");
        }
        // The oracle sums in an order that depends on strides.
        let (found, wanted) = (oracle::truth(&paged.problem()), oracle::truth(&owned.problem()));
        let close = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= 1e-9 * b.abs() || (a.is_nan() && b.is_nan());
        prop_assert!(found.o.iter().zip(&wanted.o).all(close) && found.lse.iter().zip(&wanted.lse).all(close), "the oracle");
    }

    #[test]
    fn every_meter_counts_the_traffic_of_its_algorithm(spec in problems(), settings in settings()) {
        let owned = spec.build();
        for rung in RUNGS {
            let Some(counts) = rung.counts() else { continue };
            let (meter, input) = (TrafficMeter::default(), rung.input(&owned));
            let problem = input.problem();
            counts.build(settings, &meter).forward(&problem)?;
            prop_assert_eq!(meter.traffic(), counts.traffic(&problem, settings)?, "{}", rung.name);
        }
    }
}
