//! Chapter 4, the exercise: FlashAttention-2, Algorithm 1 of Dao (arXiv 2307.08691).
//!
//! Six functions are yours, in this order: [`Tiles::fit`], [`Tiles::over`], [`update`], [`stream`], [`merge`],
//! [`traffic`]. The rest is given. `cargo run --release -- check 4` says how far you are, and `--hint` helps.
//!
//! The loops of FlashAttention-1 change places: a tile of queries stays in fast memory with its o, m and l while the keys
//! stream past. `Fa2::rows`, which is given, does one tile of rows: it cuts the keys into splits, streams each, merges
//! them and finishes every row. What a row knows is the [`State`] of chapter 2.
//!
//! [`Head::scores`] and [`Head::accumulate`] take rows and keys each as a pair `(range, view)`. Their docs, and those of
//! [`weight`]: crates/attention/src/head.rs, or `cargo doc -p attention --open`. [`AttentionError::Value`] is in
//! crates/attention/src/error.rs.

#![allow(unused, clippy::todo, reason = "what the functions still to be written will use is already here")]

use attention::{
    Attention, AttentionError, DEFAULT_FAST_MEMORY, Head, LSE_BYTES, Mask, Meter, NoMeter, OutputMut, Problem, RowsMut,
    Traffic, supports_contiguous, weight, wide,
};
use ndarray::{Array1, Array2, ArrayViewMut1, ArrayViewMut2};
use online_softmax::State;
use rayon::prelude::*;
use std::num::NonZeroUsize;
use std::ops::Range;

/// Bytes of one element of a tile, and of a partial result.
const F32: usize = size_of::<f32>();

/// Keys of one split, about: long enough that merging costs little beside it.
const SPLIT_KEYS: usize = 2048;

/// Rows and keys of a tile: B_r and B_c of the listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// B_r, rows of q and o.
    pub rows: usize,
    /// B_c, rows of k and v.
    pub keys: usize,
}

impl Tiles {
    /// Step 1. The tiles that fit `fast_memory` bytes of f32 elements.
    ///
    /// In fast memory lie tiles of q and o (B_r rows), of k and v (B_c rows), and S (B_r x B_c). k and v get a quarter,
    /// rounded down, but at least one key; then as many rows as still fit beside them.
    ///
    /// First hint: with `M = fast_memory / 4` elements and `c = d + d_v`, `B_c = floor(M / 4 c)`. What is left is
    /// `M - B_c c`, and one row takes `c` of it for q and o, and B_c for its part of S.
    ///
    /// # Errors
    /// [`AttentionError::Value`] if not even one row and one key fit: name "fast_memory", found "100 bytes", wanted "at
    /// least 1028 bytes, for one row of q, k, v and o", with the numbers of the call.
    pub fn fit(fast_memory: usize, d: usize, d_v: usize) -> Result<Self, AttentionError> {
        todo!("step 1, Tiles::fit")
    }

    /// Step 2. The key tiles that cover `keys`, on the fixed grid of multiples of B_c up to `k_len`; none for no keys.
    ///
    /// With tiles of 4 keys, `over(5..10, 11)` is `4..8` and `8..11`.
    ///
    /// First hint: the first tile is the one that holds `keys.start`, the last the one that holds `keys.end - 1`.
    pub fn over(self, keys: Range<usize>, k_len: usize) -> impl Iterator<Item = Range<usize>> + Clone {
        todo!("step 2, Tiles::over");
        // The compiler wants to see an iterator; replace this line by your own.
        std::iter::empty()
    }
}

/// Step 3, lines 9 and 10 of the listing, up to the product `P~ V_j` that [`stream`] adds to `o`.
///
/// `s` is `[rows, keys]`, `o` `[rows, d_v]`, `l` and `m` `[rows]`. For each row:
///
/// line 9: `m_new = max(m, max_j s_j)`, `p~_j = e^(s_j - m_new)`, `l = e^(m - m_new) l + sum_j p~_j`;
/// line 10: `o` becomes `e^(m - m_new) o`. The listing prints the inverse of that factor, which is a slip.
///
/// On return `s` holds p~. Nothing is divided: that is line 12, once. A row whose scores in the tile are all -inf keeps its
/// o, l and m. A NaN score must give NaN: a row is not to be left out because `m_new == -inf`, since `f32::max` drops NaN.
///
/// First hint: as in chapter 3 every row has its own maximum and sum. [`weight`] is `e^(s - m)`, and 0 for -inf.
pub fn update(
    mut s: ArrayViewMut2<f32>,
    mut o: ArrayViewMut2<f32>,
    mut l: ArrayViewMut1<f32>,
    mut m: ArrayViewMut1<f32>,
) {
    todo!("step 3, update")
}

/// Step 4, lines 4 to 11: the states of `rows` after streaming the given key tiles past them.
///
/// line 4: load Q_i; line 5: o = 0, l = 0, m = -inf, in fast memory;
/// lines 6 and 7: for each key tile, load K_j and V_j;
/// line 8: `S = Q_i K_j^T`; lines 9 and 10: [`update`], then `O += P~ V_j`.
///
/// The meter counts q once and k and v of every tile, with elements of `head.q.dtype().size()` bytes. o, l and m never
/// leave fast memory.
///
/// First hint: it is the inner part of chapter 3's loops, without the loads and stores of o, l and m.
pub fn stream(
    head: &Head,
    rows: Range<usize>,
    key_tiles: impl Iterator<Item = Range<usize>>,
    meter: &impl Meter,
) -> Vec<State> {
    todo!("step 4, stream")
}

/// Step 5. The states of the rows over all keys, from their states over each part of the keys: `parts[p][r]` is row r over
/// part p. No part gives no row.
///
/// First hint: row by row it is [`State::merge`] of chapter 2.
pub fn merge(parts: Vec<Vec<State>>) -> Vec<State> {
    todo!("step 5, merge")
}

/// Step 6. The traffic of Algorithm 1 predicted from the shapes, without running it: q and o once, and for each tile of
/// rows every key tile that one of its rows sees. With n > 1 splits each loads q, so q counts n times, and n partial
/// results of `4 (d_v + 2)` bytes a row are written and read.
///
/// `fa2.tiles(problem)?` and `fa2.splits(tiles, q_len, k_len)` are the tiles and the number of splits.
///
/// First hint: without a mask and splits it is q, o and lse once, and k and v once for each of the T_r row tiles. With a
/// mask, the keys that a row tile sees run from the first that its first row sees to the last that its last row sees, and
/// whole tiles of the grid are loaded. [`wide`] and [`Traffic::add`] are as in chapter 3.
///
/// # Errors
/// Those of [`Tiles::fit`].
pub fn traffic<M: Meter>(problem: &Problem, fa2: &Fa2<M>) -> Result<Traffic, AttentionError> {
    todo!("step 6, traffic")
}

/// Bytes by the closed formula `heads * e (N_q + T_r K)(d + d_v)`, with `T_r = ceil(N_q / B_r)`, e the bytes of an
/// element and K the keys that a tile of rows loads: N_k without a mask.
///
/// With one, K is what a row sees on average, and for each side with a limit half of `B_r + B_c`: the limit moves by B_r
/// within a tile of rows, and the grid of key tiles adds half of B_c. A last, short tile of rows counts like a full one
/// though it sees most under a right limit alone and least under a left one, which shifts K by half of what it lacks.
///
/// # Errors
/// Those of [`Tiles::fit`].
pub fn formula<M: Meter>(problem: &Problem, fa2: &Fa2<M>) -> Result<f64, AttentionError> {
    let tiles = fa2.tiles(problem)?;
    let channels = (problem.dtype().size() * (problem.d() + problem.d_v())) as f64;
    let (b_r, b_c) = (tiles.rows as f64, tiles.keys as f64);
    let mask = problem.options().mask;
    let (left, right) = match mask {
        Mask::Full => (0.0, 0.0),
        Mask::Causal => (0.0, 1.0),
        Mask::Window { left, right } => (f64::from(left.is_some()), f64::from(right.is_some())),
    };
    let bytes = problem.sequences().iter().filter(|sequence| !sequence.q.is_empty()).map(|sequence| {
        let (q_len, k_len) = (sequence.q.len() as f64, sequence.k.len() as f64);
        let t_r = (q_len / b_r).ceil();
        let row = mask.pairs(sequence.q.len(), sequence.k.len()) / q_len;
        let loaded = row + (left + right) * (b_r + b_c) / 2.0 + (right - left) * (t_r * b_r - q_len) / 2.0;
        channels * (q_len + t_r * loaded.clamp(0.0, k_len))
    });
    Ok(problem.heads() as f64 * bytes.sum::<f64>())
}

/// FlashAttention-2 with a fast memory of a given size for each thread.
#[derive(Clone, Copy, Debug)]
pub struct Fa2<M = NoMeter> {
    fast_memory: usize,
    splits: Option<NonZeroUsize>,
    meter: M,
}

impl Default for Fa2 {
    fn default() -> Self {
        Fa2::new(DEFAULT_FAST_MEMORY, NoMeter)
    }
}

impl<M: Meter> Fa2<M> {
    /// The rung with `fast_memory` bytes a thread, its traffic counted by `meter`.
    pub fn new(fast_memory: usize, meter: M) -> Self {
        Fa2 { fast_memory, splits: None, meter }
    }

    /// The same rung with the keys of every row tile cut into `splits` parts, or into single key tiles if there are fewer.
    pub fn with_splits(self, splits: NonZeroUsize) -> Self {
        Fa2 { splits: Some(splits), ..self }
    }

    fn tiles(&self, problem: &Problem) -> Result<Tiles, AttentionError> {
        Tiles::fit(self.fast_memory, problem.d(), problem.d_v()) // line 1
    }

    /// How many parts the keys of a row tile are cut into.
    fn splits(&self, tiles: Tiles, q_len: usize, k_len: usize) -> usize {
        let wanted = match self.splits {
            Some(splits) => splits.get(),
            None if q_len <= tiles.rows => k_len.div_ceil(SPLIT_KEYS),
            None => 1,
        };
        wanted.clamp(1, k_len.div_ceil(tiles.keys).max(1))
    }

    /// Lines 4 to 15 for one tile of rows.
    fn rows(&self, head: &Head, tiles: Tiles, mut out: RowsMut) {
        let splits = self.splits(tiles, head.q_len, head.k_len);
        let split = head.k_len.div_ceil(tiles.keys).div_ceil(splits).max(1) * tiles.keys;
        let visible = head.visible_to_any(out.rows.clone());
        let parts: Vec<Vec<State>> = (0..splits)
            .into_par_iter()
            .map(|part| {
                let keys = visible.start.max(part * split)..visible.end.min((part + 1) * split);
                stream(head, out.rows.clone(), tiles.over(keys, head.k_len), &self.meter)
            })
            .collect();
        let partial = if splits > 1 { splits * out.rows.len() * F32 * (head.d_v() + 2) } else { 0 };
        self.meter.write(partial);
        self.meter.read(partial);
        for (i, state) in out.rows.clone().zip(merge(parts)) {
            let (o, lse) = state.finish(head.sink); // lines 12 and 13
            out.store(i, o.view(), lse); // lines 14 and 15
        }
        self.meter.write(out.rows.len() * (head.q.dtype().size() * head.d_v() + LSE_BYTES));
    }
}

impl<M: Meter + Send> Attention for Fa2<M> {
    fn name(&self) -> &'static str {
        "fa2"
    }

    fn supports(&self, problem: &Problem) -> Result<(), AttentionError> {
        supports_contiguous(self.name(), problem)?;
        self.tiles(problem).map(drop)
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        self.supports(problem)?;
        let tiles = self.tiles(problem)?;
        // Lines 2 and 3: row tiles of every head of every sequence, each a task of its own.
        let row_tiles: Vec<RowsMut> = out.heads(problem)?.into_iter().flat_map(|head| head.tiles(tiles.rows)).collect();
        row_tiles.into_par_iter().for_each(|out| {
            self.rows(&problem.head(out.sequence, out.head), tiles, out);
        });
        Ok(())
    }
}
