//! Rung 3: FlashAttention-1, Algorithm 1 of Dao et al. (arXiv 2205.14135), line by line.
//!
//! Tiles of k and v are loaded once into a fast memory of M bytes; for each of them the whole of q, o, l and m passes
//! through it, tile by tile. No score ever reaches slow memory, so the extra memory is O(N). The traffic is
//! Theta(N^2 d^2 / M): less than standard attention's Theta(N d + N^2) only where M is well above d^2 elements.
//!
//! Differences from the listing: block sizes round down, so that the tiles fit; masks, bias, sinks and lse are the
//! options of every rung; as in the listing, no tile is skipped, even where the mask hides all of it. Work is split
//! over batch and heads only.

mod blocks;

pub use blocks::{Blocks, formula, traffic};

use attention::{
    Attention, AttentionError, DEFAULT_FAST_MEMORY, Head, LSE_BYTES, Meter, NoMeter, OutputMut, Problem, RowsMut,
    sink_factor, supports_f32_arithmetic, weight,
};
use ndarray::{Array1, Array2, ArrayViewMut1, ArrayViewMut2, s};
use rayon::prelude::*;
use std::ops::Range;

/// Bytes of one element of o in slow memory, and of l and of m.
const F32: usize = size_of::<f32>();

/// FlashAttention-1 with a fast memory of a given size.
#[derive(Clone, Copy, Debug)]
pub struct Fa1<M = NoMeter> {
    fast_memory: usize,
    meter: M,
}

impl Default for Fa1 {
    fn default() -> Self {
        Fa1::new(DEFAULT_FAST_MEMORY, NoMeter)
    }
}

impl<M: Meter> Fa1<M> {
    /// The rung with `fast_memory` bytes, its traffic counted by `meter`.
    pub fn new(fast_memory: usize, meter: M) -> Self {
        Fa1 { fast_memory, meter }
    }

    fn blocks(&self, problem: &Problem) -> Result<Blocks, AttentionError> {
        Blocks::fit(self.fast_memory, problem.d().max(problem.d_v())) // line 1
    }

    fn head(&self, head: &Head, blocks: Blocks, out: RowsMut) {
        let (d, d_v, size) = (head.d(), head.d_v(), head.q.dtype().size());
        // Line 2: O, l, m in slow memory.
        let mut o = Array2::<f32>::zeros((head.q_len, d_v));
        let mut l = Array1::<f32>::zeros(head.q_len);
        let mut m = Array1::from_elem(head.q_len, f32::NEG_INFINITY);
        let state = F32 * (d_v + 2);
        self.meter.allocate(state * head.q_len);
        self.meter.write(state * head.q_len);

        // Lines 3 and 4, dividing into blocks, are the two `tiles`.
        for keys in tiles(head.k_len, blocks.keys) {
            // Lines 5 and 6.
            let (k_j, v_j) = (head.k.load(keys.clone()), head.v.load(keys.clone()));
            self.meter.read(size * keys.len() * (d + d_v));
            for rows in tiles(head.q_len, blocks.rows) {
                // Lines 7 and 8.
                let q_i = head.q.load(rows.clone());
                let mut o_i = o.slice_mut(s![rows.clone(), ..]);
                let (l_i, m_i) = (l.slice_mut(s![rows.clone()]), m.slice_mut(s![rows.clone()]));
                self.meter.read((size * d + state) * rows.len());
                // Line 9.
                let mut s_ij = Array2::zeros((rows.len(), keys.len()));
                head.scores((rows.clone(), q_i.view()), (keys.clone(), k_j.view()), s_ij.view_mut());
                // Lines 10 to 12: s_ij becomes the weights of V_j, and O_i makes room for them.
                update(s_ij.view_mut(), o_i.view_mut(), l_i, m_i);
                head.accumulate((rows.clone(), s_ij.view()), (keys.clone(), v_j.view()), o_i);
                // Lines 12 and 13: O_i, l_i, m_i go back.
                self.meter.write(state * rows.len());
            }
        }
        self.finish(head, (o, l, m), out); // line 16
        self.meter.release(state * head.q_len);
    }

    /// Reads o, l and m once more to apply the sink, take the lse, and round o to its type.
    fn finish(&self, head: &Head, (o, l, m): (Array2<f32>, Array1<f32>, Array1<f32>), mut out: RowsMut) {
        for (i, o_i) in o.rows().into_iter().enumerate() {
            if l[i] == 0.0 {
                out.store(i, o_i, f32::NEG_INFINITY);
            } else {
                out.store(i, (&o_i * sink_factor(head.sink, m[i], l[i])).view(), m[i] + l[i].ln());
            }
        }
        self.meter.read(F32 * o.len() + 2 * F32 * l.len());
        self.meter.write(head.q.dtype().size() * o.len() + LSE_BYTES * l.len());
    }
}

/// Lines 10 to 12 of the listing, up to the product `P~ V_j` that the caller adds.
///
/// On return `s` holds `diag(l_new)^-1 e^(m~ - m_new) P~`, and `o` holds
/// `diag(l_new)^-1 diag(l) e^(m - m_new) O`. A row that sees no key of the tile has weights 0 and keeps its o, l, m.
fn update(mut s: ArrayViewMut2<f32>, mut o: ArrayViewMut2<f32>, mut l: ArrayViewMut1<f32>, mut m: ArrayViewMut1<f32>) {
    for (r, mut s) in s.rows_mut().into_iter().enumerate() {
        // Line 10: m~ = rowmax(S), P~ = exp(S - m~), l~ = rowsum(P~).
        let m_tile = s.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        s.mapv_inplace(|s| weight(s, m_tile));
        let l_tile = s.sum();
        if l_tile == 0.0 {
            continue;
        }
        // Line 11: m_new = max(m, m~), l_new = e^(m - m_new) l + e^(m~ - m_new) l~.
        let m_new = m[r].max(m_tile);
        let (old, new) = (weight(m[r], m_new), weight(m_tile, m_new));
        let l_new = old * l[r] + new * l_tile;
        // Line 12: O = diag(l_new)^-1 (diag(l) e^(m - m_new) O + e^(m~ - m_new) P~ V).
        o.row_mut(r).mapv_inplace(|o| l[r] * old / l_new * o);
        s.mapv_inplace(|p| new / l_new * p);
        // Line 13.
        l[r] = l_new;
        m[r] = m_new;
    }
}

impl<M: Meter + Send> Attention for Fa1<M> {
    fn name(&self) -> &'static str {
        "fa1"
    }

    fn supports(&self, problem: &Problem) -> Result<(), AttentionError> {
        supports_f32_arithmetic(self.name(), problem)?;
        self.blocks(problem).map(drop)
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        self.supports(problem)?;
        let blocks = self.blocks(problem)?;
        out.heads(problem)?.into_par_iter().filter(|out| !out.rows.is_empty()).for_each(|out| {
            self.head(&problem.head(out.sequence, out.head), blocks, out);
        });
        Ok(())
    }
}

/// The ranges that divide `0..len` into tiles of `tile`, the last perhaps shorter.
fn tiles(len: usize, tile: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(tile).map(move |start| start..len.min(start.saturating_add(tile)))
}
