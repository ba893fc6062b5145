//! What each step of chapter 6 must do, as laws that take the compiled kernels: the checks apply them to the code under
//! test, and `wrong.rs` proves that each rejects a wrong step.

use chapter_06_fa3::{COLUMNS, EXERCISE, LANES, Matrix, ROWS, STAGES, THREADS};
use device::{Arg, Counters, DeviceError};
use kernelkit::Compiled;
use proptest::prelude::*;

/// Tiles that the checks of the waits have go through the ring: `TILES` of `steps.cu`.
const TILES: usize = 7;

/// Of all kernels.
const ONE_BLOCK: ([u32; 2], u32) = ([1, 1], THREADS as u32);

/// The kernels of a text.
pub(crate) struct Kernels<'a> {
    text: &'a str,
    compiled: Compiled,
}

impl<'a> Kernels<'a> {
    /// Compiles them.
    ///
    /// # Panics
    /// If they do not compile, or if there is no compiler, with the words of [`Exercise::told`](kernelkit::Exercise::told).
    pub(crate) fn new(text: &'a str) -> Self {
        let compiled = EXERCISE.compile(text, &[]).unwrap_or_else(|error| panic!("{}", EXERCISE.told(text, &error)));
        Kernels { text, compiled }
    }

    /// Runs a kernel on `rows` rows of [`numbers`], with room for `found` numbers and some more arguments, in an order
    /// drawn by the seed. Gives what it stored and what it did.
    fn run(
        &self,
        kernel: &str,
        (rows, found): (usize, usize),
        more: &[i32],
        seed: u64,
    ) -> Result<(Vec<f32>, Counters), TestCaseError> {
        let failed = |error: DeviceError| TestCaseError::fail(EXERCISE.told(self.text, &error));
        let matrix = Matrix::new(self.compiled.device(), &numbers(rows)).map_err(failed)?;
        let out = self.compiled.device().upload(&vec![f32::NAN; found]).map_err(failed)?;
        let address = (found > 0).then(|| Arg::U64(out.address()));
        let more = more.iter().map(|number| Arg::I32(*number));
        let args: Vec<Arg> = [matrix.arg()].into_iter().chain(address).chain(more).collect();
        let counters = self.compiled.run(kernel, ONE_BLOCK, &args, seed).map_err(failed)?;
        Ok((out.to_vec().map_err(failed)?, counters))
    }
}

/// Rows of small integers above 0, so that sums of them are exact. No two tiles are the same.
fn numbers(rows: usize) -> Vec<f32> {
    (0..rows * COLUMNS).map(|x| (1 + (x * x + x / ROWS) % 251) as f32).collect()
}

/// The sum of each column of some rows, of those that are there.
fn column_sums(rows: std::ops::Range<usize>, all: usize) -> Vec<f32> {
    let numbers = numbers(all);
    let of = |column: usize| rows.clone().filter(|row| *row < all).map(|row| numbers[row * COLUMNS + column]).sum();
    (0..COLUMNS).map(of).collect()
}

/// Each number of `found` is that of `wanted`, one a column.
fn same(what: &str, found: &[f32], wanted: &[f32]) -> Result<(), TestCaseError> {
    for (column, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        prop_assert!(found == wanted, "{what}: column {column} is {found}, wanted {wanted}");
    }
    Ok(())
}

/// Phases of `full` take one arrival, those of `empty` one of each warp that reads.
pub(crate) fn init_makes_barriers_for_who_arrives(kernels: &Kernels) -> Result<(), TestCaseError> {
    let failed = |error: DeviceError| TestCaseError::fail(EXERCISE.told(kernels.text, &error));
    let arrivals = kernels.compiled.device().upload(&[0u32; 2 * STAGES]).map_err(failed)?;
    kernels.compiled.run("step_1", ONE_BLOCK, &[Arg::U64(arrivals.address())], 0).map_err(failed)?;
    let warps = (COLUMNS / LANES) as u32;
    for (place, found) in arrivals.to_vec::<u32>().map_err(failed)?.into_iter().enumerate() {
        let (name, wanted) = if place < STAGES { ("full", 1) } else { ("empty", warps) };
        let stage = place % STAGES;
        prop_assert!(
            found == wanted,
            "{name} of stage {stage}: phase 0 is over after {found} arrivals, wanted {wanted}: one thread copies, \
             {warps} warps read"
        );
    }
    Ok(())
}

/// Copies that another thread issues count their bytes at the barriers.
pub(crate) fn init_shows_barriers_to_copies(kernels: &Kernels, seed: u64) -> Result<(), TestCaseError> {
    kernels.run("step_1_copies", (STAGES * ROWS, 0), &[], seed).map(drop)
}

/// The tile is in its stage once the phase of `full` is over, with zeros for rows behind the last.
pub(crate) fn fill_brings_the_tile(kernels: &Kernels, rows: usize, n: usize, seed: u64) -> Result<(), TestCaseError> {
    let (found, _) = kernels.run("step_2", (rows, ROWS * COLUMNS), &[n as i32], seed)?;
    let all = numbers(rows);
    for (r, found) in found.chunks(COLUMNS).enumerate() {
        let row = n * ROWS + r;
        let wanted = if row < rows { &all[row * COLUMNS..][..COLUMNS] } else { &[0.0; COLUMNS] };
        same(&format!("tile {n} of a matrix of {rows} rows: row {r} of the tile"), found, wanted)?;
    }
    Ok(())
}

/// Sums of tiles, by a kernel that stores them one behind the other.
fn sums_of_tiles(kernels: &Kernels, kernel: &str, seed: u64) -> Result<(), TestCaseError> {
    let rows = TILES * ROWS;
    let (found, _) = kernels.run(kernel, (rows, TILES * COLUMNS), &[], seed)?;
    for (n, found) in found.chunks(COLUMNS).enumerate() {
        same(&format!("the sums of tile {n}"), found, &column_sums(n * ROWS..(n + 1) * ROWS, rows))?;
    }
    Ok(())
}

/// Who has waited for a tile finds it whole, in every round; and nobody waits for what does not come.
pub(crate) fn wait_full_waits_for_the_tile(kernels: &Kernels, seed: u64) -> Result<(), TestCaseError> {
    sums_of_tiles(kernels, "step_3", seed)
}

/// A stage is filled again when all its readers have read, and is so as soon as they have said it.
pub(crate) fn have_read_speaks_for_all_that_was_read(
    kernels: &Kernels,
    n: usize,
    seed: u64,
) -> Result<(), TestCaseError> {
    let rows = 2 * STAGES * ROWS;
    let arrivals = (COLUMNS / LANES) as i32;
    let (found, _) = kernels.run("step_4", (rows, COLUMNS), &[n as i32, arrivals], seed)?;
    same(&format!("the sums of tile {n}"), &found, &column_sums(n * ROWS..(n + 1) * ROWS, rows))
}

/// Who has waited for a stage finds it read, in every round but the first; and waits for nothing else.
pub(crate) fn wait_empty_waits_for_the_readers(kernels: &Kernels, seed: u64) -> Result<(), TestCaseError> {
    sums_of_tiles(kernels, "step_5", seed)
}

/// The kernel against plain sums.
pub(crate) fn kernel_adds_up_the_columns(kernels: &Kernels, rows: usize, seed: u64) -> Result<Counters, TestCaseError> {
    let (found, counters) = kernels.run("sums", (rows, COLUMNS), &[rows as i32], seed)?;
    same(&format!("{rows} rows, in tiles of {ROWS}: the sums"), &found, &column_sums(0..rows, rows))?;
    Ok(counters)
}

/// The kernel copies each tile once, and none that is not there.
pub(crate) fn kernel_copies_each_tile_once(kernels: &Kernels, rows: usize) -> Result<(), TestCaseError> {
    let reads = kernel_adds_up_the_columns(kernels, rows, 0)?.global_reads;
    let (bytes, copies) = ((size_of::<f32>() * rows * COLUMNS) as u64, rows.div_ceil(ROWS) as u64);
    prop_assert!(
        (reads.bytes, reads.requests) == (bytes, copies),
        "{rows} rows, in tiles of {ROWS}: found {} copies of {} bytes of the matrix, wanted {copies} of {bytes}",
        reads.requests,
        reads.bytes
    );
    Ok(())
}
