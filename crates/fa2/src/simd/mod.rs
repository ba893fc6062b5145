//! FlashAttention-2 at the machine's limit: the same listing on the vectors of the CPU.
//!
//! [`algorithm`](crate::row_tile) is the text to read first; [`Fa2Simd`] computes the same, and the ladder checks that it
//! does. Where the time goes: at d = 128 a score costs 128 multiply-adds for S and 128 for O, an exponential, and half a
//! dozen instructions more. So the two products must run at the rate at which the CPU starts FMAs, and the rest must be few
//! and vectors too. What brings that about, each in a file of its own:
//!
//! - `stream.rs`: the loop over the tiles of keys, lines 4 to 11 of the listing.
//! - `panel.rs`: query rows in the lanes, so that neither k nor v is transposed, and no sum goes across lanes.
//! - `few.rs`: channels in the lanes for few query rows, where memory is the limit.
//! - `vector.rs`: `a b + c`, `e^x` and the like for SSE2, AVX2 and AVX-512; BF16 pairs where the CPU has them.
//! - `tile.rs`: tiles of k and v: f32 where they lie, the rest widened once for all the rows that use them.
//! - `level.rs`: one copy of all that for each kind of CPU, and the choice among them.
//!
//! # Sizes
//!
//! A task is a tile of query rows of all query heads that share a kv head: each tile of k and v is loaded once for all of
//! them. Up to 512 rows with their q and o, f32 at d = 128, take 512 KiB, a tile of 128 keys and values 128 KiB, and the
//! next one, which is fetched meanwhile, as much: together they stay in an L2 cache of 1 MiB, while the 16 KiB each of q, o
//! and S of one panel stay near L1. What comes from beyond L2 is used for 512 rows: 256 FLOPs for each byte of f32, so
//! that a core at 200 GFLOP/s asks for less than 1 GB/s.
//!
//! Where all query rows fit one such tile, as in decoding, the keys are split too, and the splits run in parallel. K and V of one
//! split fill 1 MiB, an L2 cache: shorter ones would move between the caches of cores what one of them may hold already,
//! longer ones leave cores idle. The merge reads and writes d_v + 2 numbers for each row and split: nothing
//! for the few rows of decoding, and little beside the work of many.
//!
//! Under a causal mask later rows have more keys. Tasks are taken one by one, the last rows of a head first, so that what
//! threads wait for at the end is short.
//!
//! Which keys share a tile or a split follows from the shapes of the sequence alone: results are the same bit for bit for
//! any number of threads and any neighbours in the batch.
//!
//! # What it leaves to the plain rung
//!
//! Rows that meet numbers beyond 2^50 or not finite, whose scores may overflow, are computed by [`stream`](crate::stream),
//! one by one. Soft caps, ALiBi and biases are added pair by pair by [`Head::score`], at about half the speed. Traffic is not
//! metered: the caches of the CPU decide what moves.

mod few;
mod level;
mod panel;
mod stream;
mod tile;
mod vector;

use crate::{Tiles, merge, shared_tiles};
use attention::{
    Attention, AttentionError, DType, Head, OutputMut, Problem, RowsMut, Sequence, supports_contiguous,
    supports_f32_arithmetic,
};
use online_softmax::State;
use rayon::prelude::*;
use std::mem;
use std::ops::Range;

pub use level::Simd;

/// Most query rows of a task, over all heads that share k and v: or one of each head, if there are more.
const ROWS: usize = 512;

/// Keys of a tile.
const KEYS: usize = 128;

/// Bytes of k and v that one split streams.
const SPLIT_BYTES: usize = 1 << 20;

/// Tiles of the plain algorithm where it takes over: a divisor of [`KEYS`], so that splits end where its tiles do.
const PLAIN: Tiles = Tiles { rows: 64, keys: 64 };

/// A query row: the place of its head among those that share k and v, and the row in it.
type Row = (usize, usize);

/// FlashAttention-2 on the vector units of the CPU: the listing of [`Fa2`](crate::Fa2), checked against it.
///
/// Results are the same bit for bit for any number of threads and any neighbours in the batch, on CPUs with the same level
/// of [`Simd`]. Beyond inputs and outputs a thread keeps a MiB or two at d = 128; splits of keys add d_v + 2 numbers for
/// each row and split until they are merged.
#[derive(Clone, Copy, Debug)]
pub struct Fa2Simd {
    simd: Simd,
}

impl Default for Fa2Simd {
    /// The rung at the best level of this CPU.
    fn default() -> Self {
        Fa2Simd { simd: Simd::best() }
    }
}

impl Fa2Simd {
    /// The rung at one level.
    ///
    /// # Errors
    /// [`AttentionError::Value`] if this CPU lacks it.
    pub fn new(simd: Simd) -> Result<Self, AttentionError> {
        let available = Simd::available();
        if !available.contains(&simd) {
            let available: Vec<String> = available.iter().map(Simd::to_string).collect();
            let wanted = format!("what this CPU has: {}", available.join(", "));
            return Err(AttentionError::Value { name: "simd", found: simd.to_string(), wanted });
        }
        Ok(Fa2Simd { simd })
    }

    /// The level in use.
    pub fn simd(&self) -> Simd {
        self.simd
    }

    /// What [`Attention::forward_into`] does, wherever keys and values lie: for rungs that take pages.
    ///
    /// # Errors
    /// As [`Attention::forward_into`], for F64 tensors too.
    pub fn run(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        supports_f32_arithmetic("fa2-simd", problem)?;
        tasks(problem, out)?.into_iter().par_bridge().for_each(|task| self.task(problem, task));
        Ok(())
    }

    /// Lines 4 to 15 for one task: the same rows of every query head that shares k and v.
    fn task(&self, problem: &Problem, mut outs: Vec<RowsMut>) {
        let heads: Vec<Head> = outs.iter().map(|out| problem.head(out.sequence, out.head)).collect();
        let tile = outs[0].rows.clone();
        let rows: Vec<Row> = (0..heads.len()).flat_map(|head| tile.clone().map(move |i| (head, i))).collect();
        let visible = heads[0].visible_to_any(tile.clone());
        let stream = |split: &Range<usize>, done: &mut dyn FnMut(&mut State)| {
            let keys = visible.start.max(split.start)..visible.end.min(split.end);
            level::stream_at(self.simd, &heads, &rows, keys, done);
        };
        let mut places = rows.iter();
        let mut store = |state: &mut State| {
            let &(head, i) = places.next().expect("as many states as rows");
            // The memory of o goes through all rows: to allocate it for each would cost as much as the row's few last lines.
            let whole = State { o: mem::take(&mut state.o), ..*state };
            let (o, lse) = whole.finish(heads[head].sink);
            outs[head].store(i, o.view(), lse);
            state.o = o;
        };
        match &splits(&heads)[..] {
            [all] => stream(all, &mut store),
            splits => {
                let states = |split| {
                    let mut states = Vec::with_capacity(rows.len());
                    stream(split, &mut |state| states.push(state.clone()));
                    states
                };
                merge(splits.par_iter().map(states).collect()).iter_mut().for_each(store);
            }
        }
    }
}

/// The parts that the keys of `heads` are cut into.
fn splits(heads: &[Head]) -> Vec<Range<usize>> {
    let (head, k_len) = (&heads[0], heads[0].k_len.max(1));
    let keys = match head.q_len * heads.len() {
        0..=ROWS => (SPLIT_BYTES / (head.k.dtype().size() * (head.d() + head.d_v()))).max(1).next_multiple_of(KEYS),
        _ => k_len,
    };
    (0..k_len).step_by(keys).map(|start| start..k_len.min(start + keys)).collect()
}

/// The tasks: tiles of rows that share k and v, the last rows first.
fn tasks<'a>(problem: &Problem, out: &'a mut OutputMut) -> Result<Vec<Vec<RowsMut<'a>>>, AttentionError> {
    let rows = |sequence: &Sequence| problem.heads() * sequence.q.len();
    let all: usize = problem.sequences().iter().map(rows).sum();
    // A few tasks for each thread, where there are rows enough. No result depends on where tiles of rows begin.
    let rows = (all / (8 * rayon::current_num_threads())).clamp(ROWS / 8, ROWS);
    let mut tasks = shared_tiles(problem, out, rows)?;
    tasks.reverse();
    Ok(tasks)
}

impl Attention for Fa2Simd {
    fn name(&self) -> &'static str {
        "fa2-simd"
    }

    fn supports(&self, problem: &Problem) -> Result<(), AttentionError> {
        supports_contiguous(self.name(), problem)
    }

    fn weights(&self, problem: &Problem) -> DType {
        if self.simd == Simd::Avx512Bf16 && problem.dtype() == DType::Bf16 { DType::Bf16 } else { DType::F32 }
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        self.supports(problem)?;
        self.run(problem, out)
    }
}
