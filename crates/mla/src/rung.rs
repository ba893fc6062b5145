//! The rung `mla-absorbed`: attention of many query heads on one kv head whose values are the first channels of its keys.

use attention::{Attention, AttentionError, Head, OutputMut, Problem, RowsMut, accumulate, supports_f32_arithmetic};
use fa2::{Tiles, merge, shared_tiles, update};
use ndarray::{Array1, Array2, Axis, s};
use online_softmax::State;
use rayon::prelude::*;
use std::num::NonZeroUsize;
use std::ops::Range;

/// Keys of one split, about: for up to 128 rows 140 million operations, beside which a merge is nothing.
const SPLIT_KEYS: usize = 512;

/// FlashAttention-2 for latents: one kv head, its values the first d_v channels of its keys, in the same memory.
///
/// A tile of keys is loaded once, and is both K_j and V_j, for a tile of rows of all query heads: with 128 heads a decoding
/// step does 128 products with each number that it loads. Everything else is Algorithm 1 of FlashAttention-2 and the pieces
/// of [`fa2`]. Short sequences have their keys split. Results do not depend on threads, nor on the other sequences of a
/// batch.
///
/// What it does not do: keep to a fast memory of a given size. A tile of 128 rows of 576 channels with its o and a tile of
/// 64 keys take 3/4 MiB in f32, about an L2 cache.
#[derive(Clone, Copy, Debug)]
pub struct MlaAbsorbed {
    tiles: Tiles,
    splits: Option<NonZeroUsize>,
}

impl Default for MlaAbsorbed {
    /// Tiles of 128 rows, and of 64 keys.
    fn default() -> Self {
        MlaAbsorbed { tiles: Tiles { rows: 128, keys: 64 }, splits: None }
    }
}

impl MlaAbsorbed {
    /// The rung with tiles of `rows` rows of all heads together, but at least one of each head, and of `keys` keys.
    pub fn new(rows: NonZeroUsize, keys: NonZeroUsize) -> Self {
        MlaAbsorbed { tiles: Tiles { rows: rows.get(), keys: keys.get() }, splits: None }
    }

    /// The same rung with the keys of every tile of rows cut into `splits` parts, or into single key tiles if there are
    /// fewer.
    pub fn with_splits(self, splits: NonZeroUsize) -> Self {
        MlaAbsorbed { splits: Some(splits), ..self }
    }

    /// Lines 4 to 15 for the same rows of every query head.
    fn tile(&self, problem: &Problem, mut outs: Vec<RowsMut>) {
        let heads: Vec<Head> = outs.iter().map(|out| problem.head(out.sequence, out.head)).collect();
        let (rows, k_len) = (outs[0].rows.clone(), heads[0].k_len);
        let visible = heads[0].visible_to_any(rows.clone());
        let single = heads.len() * heads[0].q_len <= self.tiles.rows;
        let wanted = if single { NonZeroUsize::new(k_len.div_ceil(SPLIT_KEYS)) } else { NonZeroUsize::new(1) };
        let splits = self.tiles.splits(self.splits.or(wanted), heads[0].q_len, k_len);
        let parts = (0..splits).into_par_iter().map(|part| {
            let keys = self.tiles.part(part, splits, visible.clone(), k_len);
            stream(&heads, rows.clone(), self.tiles.over(keys, k_len))
        });
        let mut states = merge(parts.collect()).into_iter();
        for (head, out) in heads.iter().zip(&mut outs) {
            for (i, state) in rows.clone().zip(&mut states) {
                let (o, lse) = state.finish(head.sink);
                out.store(i, o.view(), lse);
            }
        }
    }
}

/// Lines 4 to 11: the states of `rows` of each head in turn, after streaming the given key tiles past all of them.
// ANCHOR: stream
fn stream(heads: &[Head], rows: Range<usize>, key_tiles: impl Iterator<Item = Range<usize>>) -> Vec<State> {
    let (each, all, d_v) = (rows.len(), heads.len() * rows.len(), heads[0].d_v());
    // Lines 4 and 5, with the heads one behind the other.
    let mut q_i = Array2::zeros((all, heads[0].d()));
    for (head, mut q_i) in heads.iter().zip(q_i.axis_chunks_iter_mut(Axis(0), each)) {
        q_i.assign(&head.q.load(rows.clone()));
    }
    let mut o = Array2::zeros((all, d_v));
    let mut l = Array1::zeros(all);
    let mut m = Array1::from_elem(all, f32::NEG_INFINITY);
    for keys in key_tiles {
        // Lines 6 and 7: load K_j. V_j is its first d_v columns.
        let k_j = heads[0].k.load(keys.clone());
        let v_j = k_j.slice(s![.., ..d_v]);
        // Line 8: S = Q_i K_j^T for all heads at once, then what makes each head's scores of it.
        let mut s = q_i.dot(&k_j.t());
        for (head, s) in heads.iter().zip(s.axis_chunks_iter_mut(Axis(0), each)) {
            head.finish_scores(rows.clone(), keys.clone(), s);
        }
        // Lines 9 and 10.
        update(s.view_mut(), o.view_mut(), l.view_mut(), m.view_mut());
        accumulate(s.view(), v_j, o.view_mut(), |row, key| {
            heads[row / each].attends(rows.start + row % each, keys.start + key)
        });
    }
    o.outer_iter().zip(l).zip(m).map(|((o, l), m)| State { m, l, o: o.to_owned() }).collect()
}
// ANCHOR_END: stream

impl Attention for MlaAbsorbed {
    fn name(&self) -> &'static str {
        "mla-absorbed"
    }

    fn supports(&self, problem: &Problem) -> Result<(), AttentionError> {
        supports_f32_arithmetic(self.name(), problem)?;
        let unsupported = |what: &str| Err(AttentionError::Unsupported { rung: self.name(), what: what.into() });
        if problem.kv_heads() > 1 {
            return unsupported("more than one kv head");
        }
        if !problem.values_are_keys() {
            return unsupported("values that are not the first channels of the keys");
        }
        Ok(())
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        self.supports(problem)?;
        let tiles = shared_tiles(problem, out, self.tiles.rows)?;
        tiles.into_par_iter().for_each(|outs| self.tile(problem, outs));
        Ok(())
    }
}
