//! Chapter 4: the other loop order, one division, and independent row tiles.

use attention::{Attention, DEFAULT_FAST_MEMORY, Mask, NoMeter, Output, TrafficMeter};
use fa1::Fa1;
use fa2::{Fa2, Tiles};
use proptest::prelude::*;
use proptest::sample::select;
use std::num::NonZeroUsize;
use testkit::problems::{Spec, problems};

/// Fast memories from little more than one row and one key of 128 channels to the default.
fn fast_memory() -> impl Strategy<Value = usize> {
    select(vec![4 * 520, 5000, 16 * 1024, DEFAULT_FAST_MEMORY])
}

fn splits() -> impl Strategy<Value = NonZeroUsize> {
    select(vec![1, 2, 3, 5, 17, 32, 55, 97, 133]).prop_map(|n| NonZeroUsize::new(n).unwrap())
}

fn with_threads(threads: usize, rung: &(impl Attention + ?Sized), spec: &Spec) -> Output {
    let owned = spec.build();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| rung.forward(&owned.problem()).unwrap())
}

/// The bits of o and lse, so that NaN equals itself.
fn bits(output: &Output) -> (Vec<u64>, Vec<u32>) {
    let o = output.o.view().to_f64();
    (o.iter().map(|x| x.to_bits()).collect(), output.lse.iter().map(|x| x.to_bits()).collect())
}

proptest! {
    #[test]
    fn fa2_agrees_with_the_oracle(spec in problems(), fast_memory in fast_memory()) {
        testkit::check(&Fa2::new(fast_memory, NoMeter), &spec)?;
    }

    #[test]
    fn fa2_agrees_with_fa1(spec in problems(), fast_memory in fast_memory()) {
        testkit::check_against(&Fa2::new(fast_memory, NoMeter), &Fa1::default(), &spec)?;
    }

    #[test]
    fn any_number_of_splits_agrees_with_the_oracle(
        spec in problems(), fast_memory in fast_memory(), splits in splits(),
    ) {
        testkit::check(&Fa2::new(fast_memory, NoMeter).with_splits(splits), &spec)?;
    }

    #[test]
    fn the_meter_counts_what_algorithm_1_moves(
        spec in problems(), fast_memory in fast_memory(), splits in prop::option::of(splits()),
    ) {
        let owned = spec.build();
        let problem = owned.problem();
        let meter = TrafficMeter::default();
        let mut metered = Fa2::new(fast_memory, &meter);
        let mut plain = Fa2::new(fast_memory, NoMeter);
        if let Some(splits) = splits {
            (metered, plain) = (metered.with_splits(splits), plain.with_splits(splits));
        }
        metered.forward(&problem)?;
        prop_assert_eq!(meter.traffic(), fa2::traffic(&problem, &plain)?);
    }

    #[test]
    fn threads_change_no_bit(spec in problems(), fast_memory in fast_memory(), splits in splits()) {
        let fa2 = Fa2::new(fast_memory, NoMeter).with_splits(splits);
        prop_assert_eq!(bits(&with_threads(1, &fa2, &spec)), bits(&with_threads(3, &fa2, &spec)));
    }
}

#[test]
fn long_keys_are_split_without_being_asked() {
    let spec = Spec { group: 4, mask: Mask::Causal, ..Spec::plain(3, 9000, 64) };
    testkit::check(&Fa2::default(), &spec).unwrap();
    let owned = spec.build();
    let meter = TrafficMeter::default();
    Fa2::new(DEFAULT_FAST_MEMORY, &meter).forward(&owned.problem()).unwrap();
    let unsplit = Fa2::default().with_splits(NonZeroUsize::MIN);
    assert!(meter.traffic().written > fa2::traffic(&owned.problem(), &unsplit).unwrap().written);
}

#[test]
fn tiles_fill_the_memory_and_no_more() {
    for fast_memory in [2080, 5000, 16 * 1024, DEFAULT_FAST_MEMORY, 1 << 20] {
        for (d, d_v) in [(1, 1), (64, 64), (128, 128), (192, 64)] {
            let Ok(Tiles { rows, keys }) = Tiles::fit(fast_memory, d, d_v) else {
                assert!(fast_memory < 4 * (2 * (d + d_v) + 1), "M = {fast_memory}, d = {d}, d_v = {d_v}");
                continue;
            };
            let bytes = |rows: usize| 4 * ((rows + keys) * (d + d_v) + rows * keys);
            assert!(bytes(rows) <= fast_memory && bytes(rows + 1) > fast_memory, "M = {fast_memory}, d = {d}");
        }
    }
}

#[test]
fn the_formula_is_close_at_4096() {
    let windows = [Mask::window(512, 0), Mask::window(100, 100), Mask::window(-1, 300), Mask::window(700, -1)];
    let masks = [Mask::Full, Mask::Causal].map(|mask| (mask, 0.01)).into_iter();
    for (mask, within) in masks.chain(windows.map(|mask| (mask, 0.02))) {
        for d in [64, 128] {
            let owned = Spec { mask, ..Spec::plain(4096, 4096, d) }.build();
            let counted = fa2::traffic(&owned.problem(), &Fa2::default()).unwrap().total() as f64;
            let ratio = fa2::formula(&owned.problem(), &Fa2::default()).unwrap() / counted;
            assert!((ratio - 1.0).abs() < within, "{mask:?}, d = {d}: {ratio}");
        }
    }
}

#[test]
fn fa2_moves_less_than_fa1_by_the_ratio_of_their_passes() {
    // Each pass of FA1 over a key tile moves q, o twice, l and m twice: 3 d + 4 elements a row. Each row tile of FA2
    // moves k and v: 2 d elements a key. At M = 100 KiB and d = 64 that is 41 passes of 196 against 39 of 128.
    let owned = Spec::plain(4096, 4096, 64).build();
    let problem = owned.problem();
    let fa1 = fa1::traffic(&problem, DEFAULT_FAST_MEMORY).unwrap().total() as f64;
    let fa2 = fa2::traffic(&problem, &Fa2::default()).unwrap().total() as f64;
    let computed = (41.0 * 196.0) / (39.0 * 128.0);
    assert!((fa1 / fa2 / computed - 1.0).abs() < 0.03, "{} times less, {computed} computed", fa1 / fa2);
}

#[test]
fn a_causal_mask_halves_the_traffic() {
    let traffic = |mask: Mask| {
        let owned = Spec { mask, ..Spec::plain(4096, 4096, 64) }.build();
        fa2::traffic(&owned.problem(), &Fa2::default()).unwrap().total() as f64
    };
    let ratio = traffic(Mask::Full) / traffic(Mask::Causal);
    assert!((1.85..2.0).contains(&ratio), "{ratio}");
}
