//! What each step of chapter 5 must do, as laws that take the compiled kernels: the checks apply them to the code under test,
//! and `wrong.rs` proves that each rejects a wrong step.

use attention::{DType, Mask, Problem, oracle};
use chapter_05_cuda_fa2::{CudaFa2, EXERCISE, KEYS, ROWS};
use device::{Arg, Buffer, Counters, DeviceError};
use kernelkit::Compiled;
use proptest::prelude::*;
use testkit::problems::Spec;
use testkit::{Row, RowTruth, all_close, all_shown, channels, close, forward_on_canaries, judge, shown};

/// The kernels of a text, for a number of channels.
pub(crate) struct Kernels<'a> {
    text: &'a str,
    channels: usize,
    compiled: Compiled,
}

impl<'a> Kernels<'a> {
    /// Compiles them.
    ///
    /// # Panics
    /// If they do not compile, or if there is no compiler, with the words of [`Exercise::told`](kernelkit::Exercise::told).
    pub(crate) fn new(text: &'a str, channels: usize) -> Self {
        let compiled = EXERCISE
            .compile(text, &[("HEAD_DIM", &channels.to_string())])
            .unwrap_or_else(|error| panic!("{}", EXERCISE.told(text, &error)));
        Kernels { text, channels, compiled }
    }

    fn upload(&self, numbers: &[f32]) -> Result<Buffer, TestCaseError> {
        self.compiled.device().upload(numbers).map_err(|error| self.failed(error))
    }

    fn download(&self, buffer: &Buffer) -> Result<Vec<f32>, TestCaseError> {
        buffer.to_vec().map_err(|error| self.failed(error))
    }

    /// Runs a block of the kernel of a step, its warps in an order drawn by the seed.
    fn run(&self, kernel: &str, threads: usize, args: &[Arg], seed: u64) -> Result<Counters, TestCaseError> {
        self.compiled.run(kernel, ([1, 1], threads as u32), args, seed).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: DeviceError) -> TestCaseError {
        TestCaseError::fail(EXERCISE.told(self.text, &error))
    }
}

/// The argument for the memory of a buffer.
fn at(buffer: &Buffer) -> Arg<'static> {
    Arg::U64(buffer.address())
}

/// Each row sees the keys that the mask lets it see, counted one by one; also a row behind the last.
pub(crate) fn rows_see_what_the_mask_shows(
    kernels: &Kernels,
    (q_len, k_len): (usize, usize),
    causal: bool,
) -> Result<(), TestCaseError> {
    let rows = q_len + 2;
    let ends = kernels.upload(&vec![0.0; rows])?;
    let args = [at(&ends), Arg::I32(q_len as i32), Arg::I32(k_len as i32), Arg::Bytes(&[u8::from(causal)])];
    kernels.run("step_1", rows, &args, 0)?;
    for (i, found) in kernels.download(&ends)?.into_iter().map(|end| end.to_bits() as i32).enumerate() {
        let wanted = (0..k_len).filter(|j| !causal || j + q_len <= i + k_len).count();
        prop_assert!(
            found == wanted as i32,
            "row {i} of {q_len}, {k_len} keys, causal {causal}: the end is {found}, wanted {wanted}"
        );
    }
    Ok(())
}

/// The tile has the rows of the matrix from `first` on and zeros behind its end, and nothing else is read.
pub(crate) fn load_fills_the_tile(
    kernels: &Kernels,
    len: usize,
    first: usize,
    seed: u64,
) -> Result<Counters, TestCaseError> {
    let channels = kernels.channels;
    let numbers: Vec<f32> = (1..=len * channels).map(|x| x as f32).collect();
    let (loaded, matrix) = (kernels.upload(&vec![f32::NAN; KEYS * channels])?, kernels.upload(&numbers)?);
    let args = [at(&loaded), at(&matrix), Arg::I32(len as i32), Arg::I32(first as i32)];
    let counters = kernels.run("step_2", ROWS, &args, seed)?;
    for (j, found) in kernels.download(&loaded)?.chunks(channels).enumerate() {
        let row = first + j;
        let wanted = if row < len { &numbers[row * channels..][..channels] } else { &vec![0.0; channels] };
        prop_assert!(
            found == wanted,
            "a matrix of {len} rows of {channels} numbers, loaded from row {first} on: row {j} of the tile is {found:?}, \
             wanted {wanted:?}"
        );
    }
    Ok(counters)
}

/// A warp that reads 32 neighbouring numbers touches the sectors in which they lie, and one more where they begin within one.
pub(crate) fn load_reads_whole_sectors(kernels: &Kernels) -> Result<(), TestCaseError> {
    let reads = load_fills_the_tile(kernels, 3 * KEYS, KEYS, 0)?.global_reads;
    let (least, most) = (reads.bytes / 32, reads.bytes / 32 + reads.requests);
    prop_assert!(
        reads.sectors <= most,
        "a tile of {KEYS} rows of {} numbers is {} bytes, {least} sectors; the warps asked for {} in {} requests, wanted at \
         most {most}: do neighbouring threads take neighbouring numbers?",
        kernels.channels,
        reads.bytes,
        reads.sectors,
        reads.requests
    );
    Ok(())
}

/// Each score is the scaled product, by f64, or -inf from the key `end` on.
pub(crate) fn scores_are_line_8(
    kernels: &Kernels,
    (q, keys): (&[f32], &[Vec<f32>]),
    scale: f32,
    (first, end): (i32, i32),
) -> Result<(), TestCaseError> {
    let (found, q_i) = (kernels.upload(&[f32::NAN; KEYS])?, kernels.upload(q)?);
    let k = kernels.upload(&keys.concat())?;
    let args = [at(&found), at(&q_i), at(&k), Arg::F32(scale), Arg::I32(first), Arg::I32(end)];
    kernels.run("step_3", 1, &args, 0)?;
    for (j, (found, key)) in kernels.download(&found)?.into_iter().zip(keys).enumerate() {
        let dot: f64 = q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
        let wanted = if first + (j as i32) < end { f64::from(scale) * dot } else { f64::NEG_INFINITY };
        prop_assert!(
            close(found, wanted),
            "q {q:?}, key {key:?}, scale {scale}, keys before {end} seen: the score of key {first} + {j} is {found}, wanted {}",
            shown(wanted)
        );
    }
    Ok(())
}

/// The state of a row, o, l and m one behind the other.
fn state(truth: &RowTruth) -> Vec<f32> {
    let RowTruth { m, l, o } = *truth;
    [o[0], o[1], l, m].map(|x| x as f32).into()
}

/// After a tile, o, l and m are those of all keys so far. A hidden key's value is NaN.
pub(crate) fn update_is_lines_9_and_10(kernels: &Kernels, row: &Row) -> Result<(), TestCaseError> {
    let tile: Vec<(f32, f32)> = row.tile.iter().zip(1u8..).map(|(&s, v)| (s, f32::from(v))).collect();
    let (found, before) = updated(kernels, row, &tile)?;
    let after = RowTruth::of(&[row.before.as_slice(), &tile].concat());
    let (o, wanted) = (&found[..2], state(&after));
    let at = format!("{before}, tile {}", in_words(&tile));
    prop_assert!(close(found[3], after.m), "{at}: m is {}, wanted {}", found[3], wanted[3]);
    prop_assert!(close(found[2], after.l), "{at}: l is {}, wanted {}", found[2], wanted[2]);
    prop_assert!(all_close(o, &after.o), "{at}: o is {:?}, wanted {:?}", all_shown(o), all_shown(&after.o));
    Ok(())
}

/// After a tile with a NaN among its scores, l and o are NaN.
pub(crate) fn update_keeps_nan(kernels: &Kernels, row: &Row) -> Result<(), TestCaseError> {
    let tile: Vec<(f32, f32)> = row.tile.iter().map(|&s| (s, 1.0)).collect();
    let (found, before) = updated(kernels, row, &tile)?;
    let (o, l) = (&found[..2], found[2]);
    let kept = l.is_nan() && o.iter().all(|o| o.is_nan());
    prop_assert!(kept, "{before}, tile scores {:?}: l is {l} and o {o:?}, wanted NaN", row.tile);
    Ok(())
}

/// The state of a row after a tile of keys, and in words what it was before.
fn updated(kernels: &Kernels, row: &Row, tile: &[(f32, f32)]) -> Result<(Vec<f32>, String), TestCaseError> {
    let before = RowTruth::of(&row.before);
    let mut scores = [f32::NEG_INFINITY; KEYS];
    let mut values = vec![f32::NAN; 2 * KEYS];
    for (j, &(s, v)) in tile.iter().enumerate() {
        scores[j] = s;
        if s != f32::NEG_INFINITY {
            values[2 * j..][..2].copy_from_slice(&channels(v));
        }
    }
    let (found, s, v) = (kernels.upload(&state(&before))?, kernels.upload(&scores)?, kernels.upload(&values)?);
    kernels.run("step_4", 1, &[at(&found), at(&s), at(&v)], 0)?;
    let words = format!("before (m {}, l {}, o {:?})", shown(before.m), shown(before.l), all_shown(&before.o));
    Ok((kernels.download(&found)?, words))
}

fn in_words(tile: &[(f32, f32)]) -> String {
    let seen: Vec<_> = tile.iter().filter(|(s, _)| *s != f32::NEG_INFINITY).collect();
    let scores: Vec<f32> = seen.iter().map(|(s, _)| *s).collect();
    let values: Vec<[f32; 2]> = seen.iter().map(|(_, v)| channels(*v)).collect();
    format!("scores {scores:?} of values {values:?}, the rest hidden")
}

/// The output is divided, and lse is m + ln l; a row that saw no key gives 0 and -inf.
pub(crate) fn finish_is_lines_12_to_15(kernels: &Kernels, keys: &[(f32, f32)]) -> Result<(), TestCaseError> {
    let truth = RowTruth::of(keys);
    let (found, of) = (kernels.upload(&[f32::NAN; 3])?, kernels.upload(&state(&truth))?);
    kernels.run("step_5", 1, &[at(&found), at(&of)], 0)?;
    let found = kernels.download(&found)?;
    let (o, lse, wanted) = (&found[..2], found[2], truth.output());
    let (m, l) = (shown(truth.m), shown(truth.l));
    prop_assert!(
        all_close(o, &wanted) && close(lse, truth.lse()),
        "m {m}, l {l}, o {:?}: the output is {:?} and lse {lse}, wanted {:?} and {}",
        all_shown(&truth.o),
        all_shown(o),
        all_shown(&wanted),
        shown(truth.lse())
    );
    Ok(())
}

/// The kernel against the oracle, by the error rule.
pub(crate) fn kernel_agrees_with_the_oracle(kernel: &CudaFa2, spec: &Spec) -> Result<(), TestCaseError> {
    let owned = spec.build();
    let problem = owned.problem();
    let output = forward_on_canaries(kernel, &problem)?;
    let verdict = judge(&problem, &oracle::truth(&problem), &output, DType::F32);
    prop_assert!(verdict.passes(), "{verdict} (o and lse were NaN before the kernel wrote them)");
    Ok(())
}

/// The bytes that Algorithm 1 reads and writes, with the tiles of the kernel.
fn tile_by_tile(problem: &Problem) -> (u64, u64) {
    let channels = problem.d().max(problem.d_v());
    let (mut read, mut written) = (0, 0);
    for (q_len, k_len) in problem.sequences().iter().map(|one| (one.q.len(), one.k.len())) {
        read += 4 * q_len * channels;
        written += 4 * q_len * (channels + 1);
        for last in (0..q_len).step_by(ROWS).map(|first| q_len.min(first + ROWS) - 1) {
            let seen = problem.options().mask.visible(last, q_len, k_len).end;
            read += 2 * 4 * channels * k_len.min(seen.next_multiple_of(KEYS));
        }
    }
    let heads = problem.heads() as u64;
    (heads * read as u64, heads * written as u64)
}

/// The kernel reads q once, k and v once for each tile of rows that sees them, and writes o and lse once.
pub(crate) fn kernel_moves_what_algorithm_1_moves(text: &str, spec: &Spec) -> Result<(), TestCaseError> {
    let owned = spec.build();
    let problem = owned.problem();
    let mut output = attention::Output::empty(&problem)?;
    let failed = |error| TestCaseError::fail(EXERCISE.told(text, &error));
    let counters = CudaFa2::new(text).run(&problem, &mut output.view_mut().heads(&problem)?).map_err(failed)?;
    let (read, written) = tile_by_tile(&problem);
    let found = (counters.global_reads.bytes, counters.global_writes.bytes);
    let causal = problem.options().mask == Mask::Causal;
    prop_assert!(
        found.0 <= read && found.1 <= written,
        "lengths {:?}, {} channels, causal {causal}: the kernel reads {} bytes of device memory and writes {}, wanted at most \
         {read} and {written}: q, o and lse once, k and v in tiles of {KEYS} rows that a tile of {ROWS} rows sees",
        spec.lengths,
        spec.d,
        found.0,
        found.1
    );
    Ok(())
}
