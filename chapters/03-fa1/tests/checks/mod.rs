//! The checks of chapter 3, in the order of its steps. Each step's checks use that step alone.

use crate::laws::*;
use crate::subject::{self, Blocks, Fa1, finish, head, traffic, update};
use attention::{Attention, DEFAULT_FAST_MEMORY, NoMeter, Traffic, TrafficMeter};
use online_softmax::OnlineSoftmax;
use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use proptest::sample::select;
use testkit::problems::{Spec, problems};
use testkit::{
    ByHand, Row, alone, by_hand, by_hand_with_nan, check_by_hand, must, rows, scores_with_nan, update_keeps_nan,
};

const NO_SINK: f32 = f32::NEG_INFINITY;

/// Fast memories from one row of 128 channels to the default.
fn fast_memory() -> impl Strategy<Value = usize> {
    select(vec![16 * 128, 5000, 16 * 1024, DEFAULT_FAST_MEMORY])
}

/// Fast memories of one, two and three rows of two channels, and one of many.
fn small_memory() -> impl Strategy<Value = usize> {
    select(vec![32usize, 64, 96, 1024])
}

/// Tiles of one to three rows and keys.
fn blocks() -> impl Strategy<Value = Blocks> {
    (1usize..=3, 1usize..=3).prop_map(|(rows, keys)| Blocks { rows, keys })
}

/// One head of N rows and d channels, in bytes moved.
fn counted(n: usize, d: usize, fast_memory: usize) -> f64 {
    let owned = Spec::plain(n, n, d).build();
    traffic(&owned.problem(), fast_memory).unwrap().total() as f64
}

fn standard(n: usize, d: usize) -> f64 {
    let owned = Spec::plain(n, n, d).build();
    naive::traffic(&owned.problem()).total() as f64
}

#[test]
fn step_1_fit_gives_the_block_sizes_of_line_1() {
    for (fast_memory, d, rows, keys) in [
        (100 * 1024, 64, 64, 100),
        (100 * 1024, 128, 50, 50),
        (100 * 1024, 576, 11, 11),
        (16 * 64, 64, 1, 1),
        (16 * 64 + 15, 64, 1, 1),
    ] {
        let found = Blocks::fit(fast_memory, d);
        let wanted = Ok(Blocks { rows, keys });
        assert!(found == wanted, "M = {fast_memory} bytes, d = {d}: found {found:?}, wanted {wanted:?}");
    }
}

#[test]
fn step_1_fit_refuses_a_memory_too_small_for_one_row() {
    must(blocks_are_line_1(Blocks::fit, 16 * 64 - 1, 64));
}

#[test]
fn step_2_update_by_hand() {
    // Before: two keys of score 0, so l = 2 and o = 6. The tile: one key of score ln 2, which weighs as much as both.
    let row = Row { before: vec![(0.0, 3.0), (0.0, 9.0)], tile: vec![2f32.ln()] };
    must(update_is_lines_10_to_13(update, &[row]));
}

#[test]
fn step_2_update_of_rows_with_their_own_maxima_by_hand() {
    // Row 0 sees its largest score in the tile, row 1 has seen it before: each has a maximum and a sum of its own.
    let rows = [
        Row { before: vec![(0.0, 3.0)], tile: vec![1.0, 2.0] },
        Row { before: vec![(3.0, 6.0), (1.0, -1.0)], tile: vec![0.0, 2.0] },
    ];
    must(update_is_lines_10_to_13(update, &rows));
}

#[test]
fn step_2_update_of_a_hidden_tile_changes_nothing() {
    let hidden = vec![f32::NEG_INFINITY; 2];
    must(update_is_lines_10_to_13(update, &[Row { before: vec![(1.0, 3.0)], tile: hidden.clone() }]));
    must(update_is_lines_10_to_13(update, &[Row { before: vec![], tile: hidden }]));
}

#[test]
fn step_2_update_of_a_nan_score_is_nan() {
    must(update_keeps_nan(update, &Row { before: vec![], tile: vec![f32::NAN; 2] }));
    must(update_keeps_nan(update, &Row { before: vec![(1.0, 3.0)], tile: vec![f32::NAN, f32::NEG_INFINITY] }));
}

#[test]
fn step_3_head_on_four_tiles_by_hand() {
    // Two rows and two keys in tiles of one: S = [[0, 0], [0, 1]].
    let case = ByHand { q: vec![0.0, 1.0], keys: vec![(0.0, 2.0), (1.0, 4.0)], causal: false, ..ByHand::default() };
    must(head_is_lines_2_to_15(head, &case, Blocks { rows: 1, keys: 1 }));
}

#[test]
fn step_3_head_on_a_short_last_tile_by_hand() {
    // Three rows and three keys in tiles of two: the last tile of each is one short.
    let keys = vec![(1.0, 2.0), (2.0, 3.0), (0.0, 5.0)];
    let case = ByHand { q: vec![1.0, -1.0, 2.0], keys, ..ByHand::default() };
    must(head_is_lines_2_to_15(head, &case, Blocks { rows: 2, keys: 2 }));
}

#[test]
fn step_3_head_on_scores_with_more_than_a_product_by_hand() {
    // A scale and a bias, then a soft cap, then ALiBi.
    for case in ByHand::scores_with_more() {
        must(head_is_lines_2_to_15(head, &case, Blocks { rows: 1, keys: 2 }));
    }
}

#[test]
fn step_4_finish_by_hand() {
    // Weights 1 and 3 on values 8 and 4: o is 5 and stays, and lse is ln 4 of row 0. Row 1 has a maximum of 2.
    must(finish_is_one_more_pass(finish, &[vec![(0.0, 8.0), (3f32.ln(), 4.0)], vec![(2.0, 3.0)]], NO_SINK));
}

#[test]
fn step_4_finish_of_a_row_that_saw_no_key() {
    must(finish_is_one_more_pass(finish, &[vec![]], NO_SINK));
}

#[test]
fn step_4_finish_of_a_nan_row_is_nan() {
    must(finish_keeps_nan(finish));
}

#[test]
fn step_5_traffic_by_hand() {
    // Three rows and three keys of one channel, in F32, and tiles of one row and two keys: two passes. Read: k and v 24,
    // twice q 12 and o, l, m 36, and o, l, m once more. Written: o, l, m three times, then o and lse.
    let owned = Spec::plain(3, 3, 1).build();
    let found = traffic(&owned.problem(), 32).unwrap();
    let wanted = Traffic { read: 24 + 2 * 48 + 36, written: 3 * 36 + 24 };
    assert!(
        found == wanted,
        "3 rows, 3 keys, d = 1, M = 32 bytes: found {found:?}, wanted {wanted:?} (bytes: q 4, o, l and m 12, the result 4 \
         and lse 4 a row, k and v 8 a key)"
    );
}

proptest! {
    #![proptest_config(testkit::config())]

    #[test]
    fn step_1_fit_of_any_memory(fast_memory in 0usize..5000, d in 1usize..20) {
        blocks_are_line_1(Blocks::fit, fast_memory, d)?;
    }

    #[test]
    fn step_2_update_of_any_rows(rows in rows()) {
        update_is_lines_10_to_13(update, &rows)?;
    }

    #[test]
    fn step_2_update_keeps_nan(mut rows in rows(), tile in scores_with_nan()) {
        update_keeps_nan(update, &Row { tile, ..rows.remove(0) })?;
    }

    #[test]
    fn step_3_head_of_any_tiles(case in by_hand(), blocks in blocks()) {
        head_is_lines_2_to_15(head, &case, blocks)?;
    }

    #[test]
    fn step_4_finish_of_any_rows(rows in rows(), sink in select(vec![NO_SINK, 0.0, 2.0])) {
        let keys: Vec<_> = rows.into_iter().map(|row| row.before).collect();
        finish_is_one_more_pass(finish, &keys, sink)?;
    }

    #[test]
    fn step_5_traffic_is_the_listings(spec in problems(), fast_memory in fast_memory()) {
        traffic_is_the_listings(traffic, &spec, fast_memory)?;
    }

    #[test]
    fn step_6_rung_agrees_on_small_heads(case in by_hand(), fast_memory in small_memory()) {
        check_by_hand(&Fa1::new(fast_memory, NoMeter), &case)?;
    }

    #[test]
    fn step_6_rung_is_nan_where_nan_is_seen(case in by_hand_with_nan(), fast_memory in small_memory()) {
        check_by_hand(&Fa1::new(fast_memory, NoMeter), &case)?;
    }

    #[test]
    fn step_6_rung_agrees_with_the_oracle(spec in problems(), fast_memory in fast_memory()) {
        testkit::check(&Fa1::new(fast_memory, NoMeter), &spec)?;
    }

    #[test]
    fn step_6_rung_agrees_with_online_softmax(spec in problems(), fast_memory in fast_memory()) {
        testkit::check_against(&Fa1::new(fast_memory, NoMeter), &OnlineSoftmax::default(), &spec)?;
    }

    #[test]
    fn step_6_rung_moves_what_algorithm_1_moves(spec in problems(), fast_memory in fast_memory()) {
        the_meter_counts_the_listing(Fa1::new, &TrafficMeter::default(), &spec, fast_memory)?;
    }
}

#[test]
fn step_6_rung_ignores_a_hidden_value() {
    must(check_by_hand(&Fa1::default(), &ByHand::hidden_nan()));
}

#[test]
fn step_6_rung_of_a_nan_query_is_nan() {
    let case =
        ByHand { q: vec![f32::NAN, 1.0], keys: vec![(1.0, 4.0), (2.0, 6.0)], causal: false, ..ByHand::default() };
    must(check_by_hand(&Fa1::default(), &case));
}

#[test]
fn step_6_rung_refuses_too_small_a_memory_and_says_how_much() {
    let owned = Spec { d: 8, ..Spec::plain(4, 4, 64) }.build();
    let error = Fa1::new(16 * 64 - 1, NoMeter).forward(&owned.problem()).unwrap_err();
    let wanted =
        "fast_memory: found 1023 bytes, wanted at least 1024 bytes, for one row of 64 channels of q, k, v and o";
    assert!(error.to_string() == wanted, "the error is \"{error}\", wanted \"{wanted}\"");
}

#[test]
fn step_6_rung_has_linear_extra_memory() {
    let peak = |n: usize| {
        let owned = Spec::plain(n, n, 8).build();
        let meter = TrafficMeter::default();
        Fa1::new(DEFAULT_FAST_MEMORY, &meter).forward(&owned.problem()).unwrap();
        meter.peak_extra()
    };
    for n in [100, 400] {
        let (found, wanted) = (peak(n), n as u64 * 4 * (8 + 2));
        assert!(found == wanted, "o, l and m of {n} rows of 8 channels take {wanted} bytes, and {found} are allocated");
    }
}

/// Counts the heap of this program, since a meter counts only what it is told.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

#[test]
fn step_6_rung_takes_no_heap_for_all_scores() {
    let run = |n: usize| {
        let owned = Spec::plain(n, n, 8).build();
        let (problem, before) = (owned.problem(), HEAP.current_usage());
        HEAP.reset_peak_usage();
        Fa1::default().forward(&problem).unwrap();
        HEAP.peak_usage() - before
    };
    // What is still to be written, or panics, does so here.
    run(8);
    let n = 2048;
    let heap = alone("checks::step_6_rung_takes_no_heap_for_all_scores", || run(n));
    let (most, all) = (n * n / 2, 4 * n * n);
    assert!(
        heap < most,
        "{n} rows and keys of 8 channels take {heap} bytes of heap, wanted less than {most}: all of S would be {all}"
    );
}

#[test]
fn step_6_rung_formula_is_within_one_percent_at_4096() {
    for (d, fast_memory) in [(64, DEFAULT_FAST_MEMORY), (128, DEFAULT_FAST_MEMORY), (64, 20_000)] {
        let owned = Spec::plain(4096, 4096, d).build();
        let formula = subject::formula(&owned.problem(), fast_memory).unwrap();
        let ratio = formula / counted(4096, d, fast_memory);
        assert!((ratio - 1.0).abs() < 0.01, "d = {d}, M = {fast_memory}: {ratio}");
    }
}

#[test]
fn step_6_rung_traffic_is_quadratic_in_n_and_d_and_inverse_in_m() {
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
fn step_6_rung_pays_at_64_channels_and_not_at_128() {
    let n = 4096;
    assert!(counted(n, 64, 100 * 1024) < standard(n, 64) * 0.55);
    assert!(counted(n, 128, 100 * 1024) > standard(n, 128) * 1.5);
    // At d = 128 the gain begins between 190 and 200 KiB.
    assert!(counted(n, 128, 190 * 1024) > standard(n, 128));
    assert!(counted(n, 128, 200 * 1024) < standard(n, 128));
}
