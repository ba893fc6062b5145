//! Tile sizes from a memory budget, and the traffic that follows from them.

use crate::{F32, Fa2};
use attention::{AttentionError, LSE_BYTES, Mask, Meter, OutputMut, Problem, RowsMut, Traffic, wide};
use std::num::NonZeroUsize;
use std::ops::Range;

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
    /// The tiles that fit `fast_memory` bytes of f32 elements.
    ///
    /// In fast memory lie tiles of q and o (B_r rows), of k and v (B_c rows), and S (B_r x B_c); l and m, two numbers a row,
    /// are not counted. Each row of q that
    /// fits saves a pass over k and v, while a longer key tile saves nothing, so k and v get a quarter and the rest
    /// goes to rows.
    ///
    /// ```
    /// assert_eq!(fa2::Tiles::fit(100 * 1024, 64, 64)?, fa2::Tiles { rows: 107, keys: 50 });
    /// # Ok::<(), attention::AttentionError>(())
    /// ```
    ///
    /// # Errors
    /// [`AttentionError::Value`] if not even one row and one key fit.
    // ANCHOR: fit
    pub fn fit(fast_memory: usize, d: usize, d_v: usize) -> Result<Self, AttentionError> {
        let (elements, channels) = (fast_memory / F32, d + d_v);
        let keys = (elements / 4 / channels).max(1);
        let rows = elements.saturating_sub(keys.saturating_mul(channels)) / (channels + keys);
        if rows == 0 {
            return Err(AttentionError::Value {
                name: "fast_memory",
                found: format!("{fast_memory} bytes"),
                wanted: format!(
                    "at least {} bytes, for one row of q, k, v and o",
                    wide(F32) * (2 * wide(channels) + 1)
                ),
            });
        }
        Ok(Tiles { rows, keys })
    }
    // ANCHOR_END: fit

    /// The key tiles that cover `keys`, on the fixed grid of multiples of B_c up to `k_len`; none for no keys.
    ///
    /// ```
    /// let tiles = fa2::Tiles { rows: 8, keys: 4 };
    /// assert_eq!(tiles.over(5..10, 11).collect::<Vec<_>>(), [4..8, 8..11]);
    /// ```
    pub fn over(self, keys: Range<usize>, k_len: usize) -> impl Iterator<Item = Range<usize>> + Clone {
        let first = keys.start / self.keys;
        let end = if keys.is_empty() { first } else { keys.end.div_ceil(self.keys) };
        (first..end).map(move |tile| tile * self.keys..k_len.min((tile + 1) * self.keys))
    }

    // ANCHOR: splits
    /// How many parts the keys of a row tile are cut into: as many as `asked`, else one, but more for a sequence whose
    /// `q_len` rows are a single tile; never more than there are key tiles.
    pub fn splits(self, asked: Option<NonZeroUsize>, q_len: usize, k_len: usize) -> usize {
        let wanted = match asked {
            Some(splits) => splits.get(),
            None if q_len <= self.rows => k_len.div_ceil(SPLIT_KEYS),
            None => 1,
        };
        wanted.clamp(1, k_len.div_ceil(self.keys).max(1))
    }
    // ANCHOR_END: splits

    /// The part of `keys` that belongs to split `part` of `splits`, which end where key tiles do; perhaps none.
    pub fn part(self, part: usize, splits: usize, keys: Range<usize>, k_len: usize) -> Range<usize> {
        let split = k_len.div_ceil(self.keys).div_ceil(splits).max(1) * self.keys;
        keys.start.max(part * split)..keys.end.min((part + 1) * split)
    }
}

/// The rows of all heads that share k and v, cut into tiles of about `rows` rows together, at least one of each head: for
/// each sequence and kv head its tiles in order, each with a piece for every query head of the group.
///
/// # Errors
/// Those of [`OutputMut::heads`].
pub fn shared_tiles<'a>(
    problem: &Problem,
    out: &'a mut OutputMut,
    rows: usize,
) -> Result<Vec<Vec<RowsMut<'a>>>, AttentionError> {
    let group = problem.heads() / problem.kv_heads();
    let mut heads = out.heads(problem)?;
    heads.sort_by_key(|out| (out.sequence, out.head));
    let mut heads = heads.into_iter();
    let mut all = Vec::new();
    while heads.len() > 0 {
        let tiles = heads.by_ref().take(group).map(|out| out.tiles((rows / group).max(1)).into_iter());
        let mut tiles: Vec<_> = tiles.collect();
        while let Some(tile) = tiles.iter_mut().map(Iterator::next).collect::<Option<Vec<_>>>() {
            all.push(tile);
        }
    }
    Ok(all)
}

/// The traffic of Algorithm 1, by its own count: q and o once, and for each tile of rows every key tile that one of
/// its rows sees. A row tile cut into n > 1 splits loads q n times, and writes and reads n partial results.
///
/// # Errors
/// Those of [`Tiles::fit`].
pub fn traffic<M: Meter>(problem: &Problem, fa2: &Fa2<M>) -> Result<Traffic, AttentionError> {
    let tiles = fa2.tiles(problem)?;
    let [heads, d, d_v, size] = [problem.heads(), problem.d(), problem.d_v(), problem.dtype().size()].map(wide);
    let mask = problem.options().mask;
    let mut traffic = Traffic::default();
    for sequence in problem.sequences() {
        let (q_len, k_len) = (sequence.q.len(), sequence.k.len());
        let mut loaded = 0;
        for start in (0..q_len).step_by(tiles.rows) {
            let last = q_len.min(start + tiles.rows) - 1;
            let (from, to) = (mask.visible(start, q_len, k_len).start, mask.visible(last, q_len, k_len).end);
            if from < to {
                loaded += wide(k_len.min(to.next_multiple_of(tiles.keys)) - from / tiles.keys * tiles.keys);
            }
        }
        let (splits, q_len) = (wide(fa2.splits(tiles, q_len, k_len)), wide(q_len));
        let partial = if splits > 1 { splits * q_len * wide(F32) * (d_v + 2) } else { 0 };
        let read = size * (splits * q_len * d + loaded * (d + d_v)) + partial;
        traffic.add(heads, read, q_len * (size * d_v + wide(LSE_BYTES)) + partial);
    }
    Ok(traffic)
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
