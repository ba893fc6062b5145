//! The checks of chapter 4, in the order of its steps. Each step's checks use that step alone.

use crate::laws::*;
use crate::subject::{self, Fa2, Tiles, merge, stream, traffic, update};
use attention::{
    Attention, AttentionError, DEFAULT_FAST_MEMORY, Mask, NoMeter, Output, Problem, Traffic, TrafficMeter,
};
use fa1::Fa1;
use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use proptest::sample::select;
use std::num::NonZeroUsize;
use testkit::problems::{Spec, problems};
use testkit::{
    ByHand, Row, alone, by_hand, by_hand_with_nan, check_by_hand, must, rows, scores_with_nan, update_keeps_nan,
};

/// Fast memories from little more than one row and one key of 128 channels to the default.
fn fast_memory() -> impl Strategy<Value = usize> {
    select(vec![4 * 520, 5000, 16 * 1024, DEFAULT_FAST_MEMORY])
}

/// Fast memories of one row and one key of one channel, with two of v; of two rows; of three rows and two keys; and of many.
fn small_memory() -> impl Strategy<Value = usize> {
    select(vec![28usize, 44, 96, 1024])
}

fn splits() -> impl Strategy<Value = NonZeroUsize> {
    select(vec![1, 2, 3, 5, 17, 32, 55, 97, 133]).prop_map(|n| NonZeroUsize::new(n).unwrap())
}

/// The rung with splits as asked for.
fn fa2<M: attention::Meter>(fast_memory: usize, meter: M, splits: Option<usize>) -> Fa2<M> {
    let fa2 = Fa2::new(fast_memory, meter);
    match splits.and_then(NonZeroUsize::new) {
        Some(splits) => fa2.with_splits(splits),
        None => fa2,
    }
}

fn predicted(problem: &Problem, fast_memory: usize, splits: Option<usize>) -> Result<Traffic, AttentionError> {
    traffic(problem, &fa2(fast_memory, NoMeter, splits))
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

#[test]
fn step_1_fit_by_hand() {
    for (fast_memory, d, rows, keys) in [(100 * 1024, 64, 107, 50), (100 * 1024, 128, 68, 25), (36, 2, 1, 1)] {
        let found = Tiles::fit(fast_memory, d, d);
        let wanted = Ok(Tiles { rows, keys });
        assert!(found == wanted, "M = {fast_memory} bytes, d = d_v = {d}: found {found:?}, wanted {wanted:?}");
    }
}

#[test]
fn step_2_over_by_hand() {
    must(tiles_cover_the_keys(Tiles::over, 4, 5..10, 11));
    must(tiles_cover_the_keys(Tiles::over, 4, 0..0, 11));
    must(tiles_cover_the_keys(Tiles::over, 4, 6..6, 11));
    must(tiles_cover_the_keys(Tiles::over, 4, 8..11, 11));
}

#[test]
fn step_3_update_by_hand() {
    // Before: one key of score 0 and value 6. The tile: one key ln 2 higher, so that the old weight halves.
    must(update_is_lines_9_and_10(update, &[Row { before: vec![(0.0, 6.0)], tile: vec![2f32.ln()] }]));
}

#[test]
fn step_3_update_of_rows_with_their_own_maxima_by_hand() {
    // Row 0 sees its largest score in the tile, row 1 has seen it before: each has a maximum and a sum of its own.
    let rows = [
        Row { before: vec![(0.0, 3.0)], tile: vec![1.0, 2.0] },
        Row { before: vec![(3.0, 6.0), (1.0, -1.0)], tile: vec![0.0, 2.0] },
    ];
    must(update_is_lines_9_and_10(update, &rows));
}

#[test]
fn step_3_update_of_a_hidden_tile_changes_nothing() {
    let hidden = vec![f32::NEG_INFINITY; 2];
    must(update_is_lines_9_and_10(update, &[Row { before: vec![(1.0, 3.0)], tile: hidden.clone() }]));
    must(update_is_lines_9_and_10(update, &[Row { before: vec![], tile: hidden }]));
}

#[test]
fn step_3_update_of_a_nan_score_is_nan() {
    must(update_keeps_nan(update, &Row { before: vec![], tile: vec![f32::NAN; 2] }));
    must(update_keeps_nan(update, &Row { before: vec![(1.0, 3.0)], tile: vec![f32::NAN, f32::NEG_INFINITY] }));
}

#[test]
fn step_4_stream_by_hand() {
    let case = ByHand { q: vec![0.0, 1.0], keys: vec![(0.0, 2.0), (1.0, 4.0)], causal: false, ..ByHand::default() };
    must(stream_is_lines_4_to_11(stream, &case, 1));
}

#[test]
fn step_4_stream_of_three_keys_in_tiles_of_two_by_hand() {
    let keys = vec![(1.0, 2.0), (2.0, 3.0), (0.0, 5.0)];
    let case = ByHand { q: vec![1.0, -1.0], keys, ..ByHand::default() };
    must(stream_is_lines_4_to_11(stream, &case, 2));
}

#[test]
fn step_4_stream_of_scores_with_more_than_a_product_by_hand() {
    // A scale and a bias, then a soft cap, then ALiBi.
    ByHand::scores_with_more().iter().for_each(|case| must(stream_is_lines_4_to_11(stream, case, 2)));
}

#[test]
fn step_5_merge_by_hand() {
    // Weights 1 and, ln 3 higher, 3: the first part counts a quarter.
    must(merge_is_row_by_row(merge, &[Row { before: vec![(0.0, 8.0)], tile: vec![3f32.ln()] }]));
}

#[test]
fn step_6_traffic_by_hand() {
    // Four rows and five keys of one channel in F32; 36 bytes hold two rows and one key. Two row tiles: q 16 and twice
    // k and v 40 are read, o and lse 32 written. A causal mask hides the last two keys from the first row tile.
    must_move(Mask::Full, (4, 5), 36, Traffic { read: 16 + 2 * 40, written: 32 });
    must_move(Mask::Causal, (4, 5), 36, Traffic { read: 16 + 24 + 40, written: 32 });
}

#[test]
fn step_6_traffic_in_tiles_of_two_keys_by_hand() {
    // 68 bytes hold three rows and two keys. Six rows and seven keys: two row tiles and four key tiles, the last of one
    // key. Without a mask q 24 and twice k and v 56. A causal mask lets rows 0 to 2 see keys 0 to 3, two whole key tiles
    // or 32 bytes, and rows 3 to 5 all keys. A window of one key before the row's own: rows 0 to 2 see keys 0 to 3, rows
    // 3 to 5 keys 3 to 6, of which key 3 lies in a tile with key 2, so keys 2 to 6 are loaded.
    must_move(Mask::Full, (6, 7), 68, Traffic { read: 24 + 2 * 56, written: 48 });
    must_move(Mask::Causal, (6, 7), 68, Traffic { read: 24 + 32 + 56, written: 48 });
    must_move(Mask::window(1, 0), (6, 7), 68, Traffic { read: 24 + 32 + 40, written: 48 });
}

/// Fails unless the traffic of one head of one channel in F32 is predicted so.
fn must_move(mask: Mask, (rows, keys): (usize, usize), fast_memory: usize, wanted: Traffic) {
    let owned = Spec { mask, ..Spec::plain(rows, keys, 1) }.build();
    let found = predicted(&owned.problem(), fast_memory, None).unwrap();
    assert!(
        found == wanted,
        "{rows} rows, {keys} keys, d = d_v = 1, M = {fast_memory} bytes, mask {mask:?}: found {found:?}, wanted {wanted:?} \
         (bytes: q 4, o 4 and lse 4 a row, k and v 8 a key)"
    );
}

proptest! {
    #![proptest_config(testkit::config())]

    #[test]
    fn step_1_fit_fills_the_memory_and_no_more(fast_memory in 0usize..5000, d in 1usize..20, d_v in 1usize..20) {
        tiles_fill_the_memory(Tiles::fit, (fast_memory, d, d_v))?;
    }

    #[test]
    fn step_2_over_covers_the_keys(tile in 1usize..6, start in 0usize..20, len in 0usize..20, more in 0usize..6) {
        tiles_cover_the_keys(Tiles::over, tile, start..start + len, start + len + more)?;
    }

    #[test]
    fn step_3_update_of_any_rows(rows in rows()) {
        update_is_lines_9_and_10(update, &rows)?;
    }

    #[test]
    fn step_3_update_keeps_nan(mut rows in rows(), tile in scores_with_nan()) {
        update_keeps_nan(update, &Row { tile, ..rows.remove(0) })?;
    }

    #[test]
    fn step_4_stream_of_any_tiles(case in by_hand(), tile in 1usize..4) {
        stream_is_lines_4_to_11(stream, &case, tile)?;
    }

    #[test]
    fn step_5_merge_of_any_rows(rows in rows()) {
        merge_is_row_by_row(merge, &rows)?;
    }

    #[test]
    fn step_6_traffic_is_the_listings(
        spec in problems(), fast_memory in fast_memory(), splits in prop::option::of(splits()),
    ) {
        traffic_is_the_listings(predicted, &spec, fast_memory, splits.map(NonZeroUsize::get))?;
    }

    #[test]
    fn step_7_rung_agrees_on_small_heads(case in by_hand(), fast_memory in small_memory()) {
        check_by_hand(&Fa2::new(fast_memory, NoMeter), &case)?;
    }

    #[test]
    fn step_7_rung_is_nan_where_nan_is_seen(
        case in by_hand_with_nan(), fast_memory in small_memory(), splits in prop::option::of(2usize..4),
    ) {
        check_by_hand(&fa2(fast_memory, NoMeter, splits), &case)?;
    }

    #[test]
    fn step_7_rung_agrees_with_the_oracle(spec in problems(), fast_memory in fast_memory()) {
        testkit::check(&Fa2::new(fast_memory, NoMeter), &spec)?;
    }

    #[test]
    fn step_7_rung_agrees_with_fa1(spec in problems(), fast_memory in fast_memory()) {
        testkit::check_against(&Fa2::new(fast_memory, NoMeter), &Fa1::default(), &spec)?;
    }

    #[test]
    fn step_7_rung_agrees_with_the_oracle_in_any_splits(
        spec in problems(), fast_memory in fast_memory(), splits in splits(),
    ) {
        testkit::check(&Fa2::new(fast_memory, NoMeter).with_splits(splits), &spec)?;
    }

    #[test]
    fn step_7_rung_moves_what_algorithm_1_moves(
        spec in problems(), fast_memory in fast_memory(), splits in prop::option::of(splits()),
    ) {
        let (meter, splits) = (TrafficMeter::default(), splits.map(NonZeroUsize::get));
        the_meter_counts_the_listing(&fa2(fast_memory, &meter, splits), &meter, &spec, fast_memory, splits)?;
    }

    #[test]
    fn step_7_rung_gives_the_same_bits_in_any_threads(
        spec in problems(), fast_memory in fast_memory(), splits in splits(),
    ) {
        let fa2 = Fa2::new(fast_memory, NoMeter).with_splits(splits);
        let same = bits(&with_threads(1, &fa2, &spec)) == bits(&with_threads(3, &fa2, &spec));
        prop_assert!(same, "one thread and three give results that differ in a bit");
    }
}

#[test]
fn step_7_rung_ignores_a_hidden_value() {
    must(check_by_hand(&Fa2::default(), &ByHand::hidden_nan()));
}

#[test]
fn step_7_rung_of_a_nan_query_is_nan() {
    let case =
        ByHand { q: vec![f32::NAN, 1.0], keys: vec![(1.0, 4.0), (2.0, 6.0)], causal: false, ..ByHand::default() };
    must(check_by_hand(&Fa2::default(), &case));
}

#[test]
fn step_7_rung_splits_long_keys_without_being_asked() {
    let spec = Spec { group: 4, mask: Mask::Causal, ..Spec::plain(3, 9000, 64) };
    must(testkit::check(&Fa2::default(), &spec));
    let owned = spec.build();
    let meter = TrafficMeter::default();
    Fa2::new(DEFAULT_FAST_MEMORY, &meter).forward(&owned.problem()).unwrap();
    let unsplit = Fa2::default().with_splits(NonZeroUsize::MIN);
    assert!(meter.traffic().written > traffic(&owned.problem(), &unsplit).unwrap().written);
}

/// Counts the heap of this program, since a meter counts only what it is told.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

#[test]
fn step_7_rung_takes_no_heap_for_all_scores() {
    let run = |n: usize| {
        let owned = Spec::plain(n, n, 8).build();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let (problem, before) = (owned.problem(), HEAP.current_usage());
        HEAP.reset_peak_usage();
        pool.install(|| Fa2::default().forward(&problem)).unwrap();
        HEAP.peak_usage() - before
    };
    // What is still to be written, or panics, does so here.
    run(8);
    let n = 2048;
    let heap = alone("checks::step_7_rung_takes_no_heap_for_all_scores", || run(n));
    let (most, all) = (n * n / 2, 4 * n * n);
    assert!(
        heap < most,
        "{n} rows and keys of 8 channels take {heap} bytes of heap in 2 threads, wanted less than {most}: all of S would \
         be {all}"
    );
}

#[test]
fn step_7_rung_formula_is_close_at_4096() {
    let windows = [Mask::window(512, 0), Mask::window(100, 100), Mask::window(-1, 300), Mask::window(700, -1)];
    let masks = [Mask::Full, Mask::Causal].map(|mask| (mask, 0.01)).into_iter();
    for (mask, within) in masks.chain(windows.map(|mask| (mask, 0.02))) {
        for d in [64, 128] {
            let owned = Spec { mask, ..Spec::plain(4096, 4096, d) }.build();
            let counted = traffic(&owned.problem(), &Fa2::default()).unwrap().total() as f64;
            let ratio = subject::formula(&owned.problem(), &Fa2::default()).unwrap() / counted;
            assert!((ratio - 1.0).abs() < within, "{mask:?}, d = {d}: {ratio}");
        }
    }
}

#[test]
fn step_7_rung_moves_less_than_fa1_by_the_ratio_of_their_passes() {
    // Each pass of FA1 over a key tile moves q, o twice, l and m twice: 3 d + 4 elements a row. Each row tile of FA2
    // moves k and v: 2 d elements a key. At M = 100 KiB and d = 64 that is 41 passes of 196 against 39 of 128.
    let owned = Spec::plain(4096, 4096, 64).build();
    let problem = owned.problem();
    let fa1 = fa1::traffic(&problem, DEFAULT_FAST_MEMORY).unwrap().total() as f64;
    let fa2 = traffic(&problem, &Fa2::default()).unwrap().total() as f64;
    let computed = (41.0 * 196.0) / (39.0 * 128.0);
    assert!((fa1 / fa2 / computed - 1.0).abs() < 0.03, "{} times less, {computed} computed", fa1 / fa2);
}

#[test]
fn step_7_rung_halves_its_traffic_under_a_causal_mask() {
    let traffic = |mask: Mask| {
        let owned = Spec { mask, ..Spec::plain(4096, 4096, 64) }.build();
        traffic(&owned.problem(), &Fa2::default()).unwrap().total() as f64
    };
    let ratio = traffic(Mask::Full) / traffic(Mask::Causal);
    assert!((1.85..2.0).contains(&ratio), "{ratio}");
}
