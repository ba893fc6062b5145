//! Chapter 3: tiles change the traffic and not the result.

use attention::{Attention, DEFAULT_FAST_MEMORY, NoMeter, TrafficMeter};
use fa1::{Blocks, Fa1};
use online_softmax::OnlineSoftmax;
use proptest::prelude::*;
use proptest::sample::select;
use testkit::problems::{Spec, problems};

/// Fast memories from one row of 128 channels to the default.
fn fast_memory() -> impl Strategy<Value = usize> {
    select(vec![16 * 128, 5000, 16 * 1024, DEFAULT_FAST_MEMORY])
}

/// One head of N rows and d channels, in bytes moved.
fn counted(n: usize, d: usize, fast_memory: usize) -> f64 {
    let owned = Spec::plain(n, n, d).build();
    fa1::traffic(&owned.problem(), fast_memory).unwrap().total() as f64
}

fn standard(n: usize, d: usize) -> f64 {
    let owned = Spec::plain(n, n, d).build();
    naive::traffic(&owned.problem()).total() as f64
}

proptest! {
    #[test]
    fn fa1_agrees_with_the_oracle(spec in problems(), fast_memory in fast_memory()) {
        testkit::check(&Fa1::new(fast_memory, NoMeter), &spec)?;
    }

    #[test]
    fn fa1_agrees_with_online_softmax(spec in problems(), fast_memory in fast_memory()) {
        testkit::check_against(&Fa1::new(fast_memory, NoMeter), &OnlineSoftmax::default(), &spec)?;
    }

    #[test]
    fn the_meter_counts_what_algorithm_1_moves(spec in problems(), fast_memory in fast_memory()) {
        let owned = spec.build();
        let problem = owned.problem();
        let meter = TrafficMeter::default();
        Fa1::new(fast_memory, &meter).forward(&problem)?;
        prop_assert_eq!(meter.traffic(), fa1::traffic(&problem, fast_memory)?);
    }
}

#[test]
fn block_sizes_are_those_of_line_1() {
    for (fast_memory, d, rows, keys) in [
        (100 * 1024, 64, 64, 100),
        (100 * 1024, 128, 50, 50),
        (100 * 1024, 576, 11, 11),
        (16 * 64, 64, 1, 1),
        (16 * 64 + 15, 64, 1, 1),
    ] {
        assert_eq!(Blocks::fit(fast_memory, d), Ok(Blocks { rows, keys }), "M = {fast_memory}, d = {d}");
    }
}

#[test]
fn memory_too_small_for_one_row_is_an_error_that_says_how_much() {
    let owned = Spec { d: 8, ..Spec::plain(4, 4, 64) }.build();
    let error = Fa1::new(16 * 64 - 1, NoMeter).forward(&owned.problem()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "fast_memory: found 1023 bytes, wanted at least 1024 bytes, for one row of 64 channels of q, k, v and o"
    );
}

#[test]
fn extra_memory_is_linear() {
    let peak = |n: usize| {
        let owned = Spec::plain(n, n, 8).build();
        let meter = TrafficMeter::default();
        Fa1::new(DEFAULT_FAST_MEMORY, &meter).forward(&owned.problem()).unwrap();
        meter.peak_extra()
    };
    assert_eq!(peak(100), 100 * 4 * (8 + 2));
    assert_eq!(peak(400), 4 * peak(100));
}

#[test]
fn the_formula_is_within_one_percent_at_4096() {
    for (d, fast_memory) in [(64, DEFAULT_FAST_MEMORY), (128, DEFAULT_FAST_MEMORY), (64, 20_000)] {
        let owned = Spec::plain(4096, 4096, d).build();
        let formula = fa1::formula(&owned.problem(), fast_memory).unwrap();
        let ratio = formula / counted(4096, d, fast_memory);
        assert!((ratio - 1.0).abs() < 0.01, "d = {d}, M = {fast_memory}: {ratio}");
    }
}

#[test]
fn traffic_is_quadratic_in_n_and_d_and_inverse_in_m() {
    let base = counted(8192, 64, 64 * 1024);
    for (what, n, d, fast_memory, factor) in [
        ("twice N", 16384, 64, 64 * 1024, 4.0),
        ("twice d", 8192, 128, 64 * 1024, 4.0),
        ("half M", 8192, 64, 32 * 1024, 2.0),
    ] {
        let ratio = counted(n, d, fast_memory) / base;
        assert!((ratio / factor - 1.0).abs() < 0.03, "{what}: {ratio} times the traffic, {factor} expected");
    }
}

#[test]
fn fa1_pays_at_64_channels_and_not_at_128() {
    let n = 4096;
    assert!(counted(n, 64, 100 * 1024) < standard(n, 64) * 0.55);
    assert!(counted(n, 128, 100 * 1024) > standard(n, 128) * 1.5);
    // At d = 128 the gain begins between 190 and 200 KiB.
    assert!(counted(n, 128, 190 * 1024) > standard(n, 128));
    assert!(counted(n, 128, 200 * 1024) < standard(n, 128));
}
