//! The checks of chapter 5, in the order of its steps. Each step's checks use that step alone.

use crate::laws::*;
use crate::subject::TEXT;
use attention::Mask;
use chapter_05_cuda_fa2::{CudaFa2, KEYS, ROWS};
use kernelkit::{Tests, named};
use proptest::prelude::*;
use proptest::sample::select;
use testkit::problems::{Magnitude, Spec};
use testkit::{Also, ByHand, Row, by_hand, by_hand_with_nan, check_by_hand, config, must, rows, scores_with_nan};

/// All of them, with their names.
pub(crate) fn all() -> Tests {
    named![
        step_1_visible_by_hand,
        step_1_visible_of_any_lengths,
        step_2_load_by_hand,
        step_2_load_of_any_rows,
        step_2_load_reads_whole_sectors,
        step_3_scores_by_hand,
        step_3_scores_of_any_keys,
        step_4_update_by_hand,
        step_4_update_of_a_hidden_tile_by_hand,
        step_4_update_of_any_row,
        step_4_update_keeps_nan,
        step_5_finish_by_hand,
        step_5_finish_of_any_row,
        step_6_fa2_by_hand,
        step_6_fa2_has_no_race_in_any_order_of_warps,
        step_6_fa2_agrees_on_small_heads,
        step_6_fa2_is_nan_where_nan_is_seen,
        step_6_fa2_agrees_with_the_oracle,
        step_6_fa2_moves_what_algorithm_1_moves,
    ]
}

fn kernels(channels: usize) -> Kernels<'static> {
    Kernels::new(TEXT, channels)
}

/// Fewer cases, where each takes long on a simulated GPU.
fn few() -> ProptestConfig {
    let config = config();
    ProptestConfig { cases: config.cases.div_ceil(8), ..config }
}

fn step_1_visible_by_hand() {
    let kernels = kernels(1);
    for (lengths, causal) in [((2, 3), false), ((3, 3), true), ((2, 5), true), ((5, 2), true)] {
        must(rows_see_what_the_mask_shows(&kernels, lengths, causal));
    }
}

fn step_1_visible_of_any_lengths() {
    let kernels = kernels(1);
    proptest!(config(), |(q_len in 1usize..70, k_len in 0usize..70, causal: bool)| {
        rows_see_what_the_mask_shows(&kernels, (q_len, k_len), causal)?;
    });
}

fn step_2_load_by_hand() {
    let kernels = kernels(1);
    // All rows are there; some lie behind the end; none is there.
    for (len, first) in [(2 * KEYS, KEYS), (KEYS + 1, KEYS), (0, 0)] {
        must(load_fills_the_tile(&kernels, len, first, 0).map(drop));
    }
}

fn step_2_load_of_any_rows() {
    // Tiles of fewer numbers than threads, of as many and a few, and of a number that is no multiple of them.
    for kernels in [1, 9, 20].map(kernels) {
        proptest!(few(), |(len in 0usize..30, tile in 0usize..4, seed in 0u64..1000)| {
            load_fills_the_tile(&kernels, len, KEYS * tile, seed)?;
        });
    }
}

fn step_2_load_reads_whole_sectors() {
    must(load_reads_whole_sectors(&kernels(16)));
}

fn step_3_scores_by_hand() {
    let keys: Vec<Vec<f32>> = (0..KEYS).map(|j| vec![j as f32, 1.0]).collect();
    // Key 8 is the first of the tile. The row sees all of it; then keys 8 to 10; then none of it.
    for end in [16, 11, 3] {
        must(scores_are_line_8(&kernels(2), (&[2.0, -1.0], &keys), 0.5, (8, end)));
    }
}

fn step_3_scores_of_any_keys() {
    let kernels = kernels(5);
    let number = || (-8i8..=8).prop_map(|x| f32::from(x) / 4.0);
    let row = || prop::collection::vec(number(), 5);
    let keys = || prop::collection::vec(row(), KEYS);
    proptest!(config(), |(q in row(), keys in keys(), scale in select(vec![1.0f32, 0.125, -3.0]), tile in 0i32..3, end in 0i32..30)| {
        scores_are_line_8(&kernels, (&q, &keys), scale, (tile * KEYS as i32, end))?;
    });
}

fn step_4_update_by_hand() {
    let kernels = kernels(2);
    // Before: one key of score 0 and value 6. The tile: one key ln 2 higher, so that the old weight halves.
    must(update_is_lines_9_and_10(&kernels, &Row { before: vec![(0.0, 6.0)], tile: vec![2f32.ln()] }));
    // The row has seen its largest score before.
    must(update_is_lines_9_and_10(&kernels, &Row { before: vec![(3.0, 6.0), (1.0, -1.0)], tile: vec![0.0, 2.0] }));
    // The row has seen nothing before.
    must(update_is_lines_9_and_10(&kernels, &Row { before: vec![], tile: vec![-1000.0, -1000.0] }));
}

fn step_4_update_of_a_hidden_tile_by_hand() {
    let kernels = kernels(2);
    for before in [vec![(1.0, 3.0)], vec![]] {
        must(update_is_lines_9_and_10(&kernels, &Row { before, tile: vec![f32::NEG_INFINITY; 2] }));
    }
}

fn step_4_update_of_any_row() {
    let kernels = kernels(2);
    proptest!(config(), |(rows in rows())| {
        rows.iter().try_for_each(|row| update_is_lines_9_and_10(&kernels, row))?;
    });
}

fn step_4_update_keeps_nan() {
    let kernels = kernels(2);
    proptest!(config(), |(mut rows in rows(), tile in scores_with_nan())| {
        update_keeps_nan(&kernels, &Row { tile, ..rows.remove(0) })?;
    });
}

fn step_5_finish_by_hand() {
    let kernels = kernels(2);
    // Weights 1 and, ln 3 higher, 3; then a row that saw no key.
    for keys in [&[(0.0, 8.0), (3f32.ln(), 4.0)][..], &[]] {
        must(finish_is_lines_12_to_15(&kernels, keys));
    }
}

fn step_5_finish_of_any_row() {
    let kernels = kernels(2);
    proptest!(config(), |(rows in rows())| {
        rows.iter().try_for_each(|row| finish_is_lines_12_to_15(&kernels, &row.before))?;
    });
}

fn step_6_fa2_by_hand() {
    let rung = CudaFa2::new(TEXT);
    let keys = vec![(1.0, 2.0), (2.0, 3.0), (0.0, 5.0)];
    for causal in [false, true] {
        must(check_by_hand(&rung, &ByHand { q: vec![1.0, -1.0], keys: keys.clone(), causal, ..ByHand::default() }));
    }
    must(check_by_hand(&rung, &ByHand::hidden_nan()));
}

fn step_6_fa2_has_no_race_in_any_order_of_warps() {
    let mut rung = CudaFa2::new(TEXT);
    for (seed, mask) in (0..8).zip([Mask::Full, Mask::Causal].into_iter().cycle()) {
        rung = rung.with_schedule(seed);
        // A tile of rows and one row more; two tiles of keys and some more.
        must(kernel_agrees_with_the_oracle(&rung, &Spec { mask, ..Spec::plain(ROWS + 1, 2 * KEYS + 3, 8) }));
    }
}

/// Small heads with nothing in their scores that this kernel does not do.
fn plain(case: ByHand) -> ByHand {
    ByHand { also: Also::Nothing, ..case }
}

fn step_6_fa2_agrees_on_small_heads() {
    let rung = CudaFa2::new(TEXT);
    proptest!(config(), |(case in by_hand().prop_map(plain))| check_by_hand(&rung, &case)?);
}

fn step_6_fa2_is_nan_where_nan_is_seen() {
    let rung = CudaFa2::new(TEXT);
    proptest!(config(), |(case in by_hand_with_nan().prop_map(plain))| check_by_hand(&rung, &case)?);
}

/// Problems with several heads and sequences, round the edges of tiles.
fn specs() -> impl Strategy<Value = Spec> {
    let q_len = select(vec![0, 1, 5, 31, 33, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 3]);
    let k_len = prop_oneof![0..4 * KEYS, select(vec![KEYS - 1, KEYS, KEYS + 1, 70])];
    let lengths = prop::collection::vec((q_len, k_len), 1..=2);
    let channels = || select(vec![1usize, 3, 8]);
    let magnitude = select(vec![
        Magnitude::Normal { qk: 1.0, v: 1.0 },
        Magnitude::Normal { qk: 30.0, v: 1e3 },
        Magnitude::EqualKeys,
    ]);
    let shape = (lengths, 1usize..=2, 1usize..=3, channels(), channels());
    let options = (select(vec![Mask::Full, Mask::Causal]), magnitude, any::<u64>());
    (shape, options).prop_map(|((lengths, kv_heads, group, d, d_v), (mask, magnitude, seed))| Spec {
        lengths,
        kv_heads,
        group,
        d_v,
        mask,
        magnitude,
        seed,
        ..Spec::plain(0, 0, d)
    })
}

fn step_6_fa2_agrees_with_the_oracle() {
    let rung = CudaFa2::new(TEXT);
    proptest!(few(), |(spec in specs())| kernel_agrees_with_the_oracle(&rung, &spec)?);
}

fn step_6_fa2_moves_what_algorithm_1_moves() {
    // Under a causal mask the first tile of rows sees one tile of keys, the second nine, the third ten.
    let lengths = (2 * ROWS + 1, 2 * ROWS + 1 - 7 * KEYS);
    for mask in [Mask::Full, Mask::Causal] {
        let plain = Spec::plain(lengths.0, lengths.1, 2);
        must(kernel_moves_what_algorithm_1_moves(TEXT, &Spec { mask, group: 2, ..plain }));
    }
}
