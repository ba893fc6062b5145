//! The checks of chapter 6, in the order of its steps. Each step's checks use that step alone.

use crate::laws::*;
use crate::subject::TEXT;
use chapter_06_fa3::{ROWS, STAGES};
use kernelkit::{Tests, named};
use proptest::prelude::*;
use testkit::{config, must};

/// Orders of warps and copies in which a step is tried. The first has one warp run after another, as far as each gets.
const ORDERS: std::ops::Range<u64> = 0..20;

/// All of them, with their names.
pub(crate) fn all() -> Tests {
    named![
        step_1_init_by_hand,
        step_1_init_shows_barriers_to_copies,
        step_2_fill_by_hand,
        step_2_fill_of_any_tile,
        step_3_wait_full_in_many_orders,
        step_4_have_read_in_many_orders,
        step_5_wait_empty_in_many_orders,
        step_6_sums_by_hand,
        step_6_sums_of_no_row,
        step_6_sums_of_tiles_that_are_no_multiple_of_two,
        step_6_sums_of_any_rows,
        step_6_sums_copies_each_tile_once,
    ]
}

fn kernels() -> Kernels<'static> {
    Kernels::new(TEXT)
}

/// Fewer cases, as each takes long on a simulated GPU.
fn few() -> ProptestConfig {
    let config = config();
    ProptestConfig { cases: config.cases.div_ceil(8), ..config }
}

fn step_1_init_by_hand() {
    must(init_makes_barriers_for_who_arrives(&kernels()));
}

fn step_1_init_shows_barriers_to_copies() {
    let kernels = kernels();
    ORDERS.for_each(|seed| must(init_shows_barriers_to_copies(&kernels, seed)));
}

fn step_2_fill_by_hand() {
    let kernels = kernels();
    // The first tile; one in the other stage; one that ends behind the last row, and one that is not there.
    for (rows, n) in [(ROWS, 0), (2 * ROWS, 1), (ROWS + 3, 1), (ROWS, 2)] {
        must(fill_brings_the_tile(&kernels, rows, n, 0));
    }
}

fn step_2_fill_of_any_tile() {
    let kernels = kernels();
    proptest!(few(), |(rows in 1usize..40, n in 0usize..6, seed in 0u64..1000)| {
        fill_brings_the_tile(&kernels, rows, n, seed)?;
    });
}

fn step_3_wait_full_in_many_orders() {
    let kernels = kernels();
    ORDERS.for_each(|seed| must(wait_full_waits_for_the_tile(&kernels, seed)));
}

fn step_4_have_read_in_many_orders() {
    let kernels = kernels();
    for (seed, n) in ORDERS.zip((0..STAGES).cycle()) {
        must(have_read_speaks_for_all_that_was_read(&kernels, n, seed));
    }
}

fn step_5_wait_empty_in_many_orders() {
    let kernels = kernels();
    ORDERS.for_each(|seed| must(wait_empty_waits_for_the_readers(&kernels, seed)));
}

fn step_6_sums_by_hand() {
    let kernels = kernels();
    // As many tiles as stages, and twice as many.
    for rows in [STAGES * ROWS, 2 * STAGES * ROWS] {
        ORDERS.for_each(|seed| must(kernel_adds_up_the_columns(&kernels, rows, seed).map(drop)));
    }
}

fn step_6_sums_of_no_row() {
    let kernels = kernels();
    ORDERS.for_each(|seed| must(kernel_adds_up_the_columns(&kernels, 0, seed).map(drop)));
}

fn step_6_sums_of_tiles_that_are_no_multiple_of_two() {
    let kernels = kernels();
    // One row; one tile; two and a row; five.
    for rows in [1, ROWS, 2 * ROWS + 1, 5 * ROWS] {
        ORDERS.for_each(|seed| must(kernel_adds_up_the_columns(&kernels, rows, seed).map(drop)));
    }
}

fn step_6_sums_of_any_rows() {
    let kernels = kernels();
    proptest!(few(), |(rows in 0usize..100, seed in 0u64..1000)| {
        kernel_adds_up_the_columns(&kernels, rows, seed)?;
    });
}

fn step_6_sums_copies_each_tile_once() {
    let kernels = kernels();
    for rows in [0, 3, ROWS, 5 * ROWS - 1] {
        must(kernel_copies_each_tile_once(&kernels, rows));
    }
}
