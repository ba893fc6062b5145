//! Algorithm 1 of FlashAttention-2 for a panel: as many query rows as two vectors have lanes, each row in a lane.
//!
//! With the rows in the lanes, every line of the listing is a loop over plain vectors. S^T = K Q^T and O^T += V^T P^T both
//! multiply a *number* of k or v, read where it lies, by a *vector* of q or p, packed once: neither k nor v is ever
//! transposed. The maximum, the weights and the sum of a row stay in its lane: no sum goes across lanes.

use super::Row;
use super::tile::{KeyTile, is_usual_score};
use super::vector::{Product, Vector};
use attention::Head;
use online_softmax::State;
use std::array;
use std::ops::Range;

/// Query rows that share k and v, and what they have seen so far.
pub(super) struct Panel<P: Product> {
    rows: Vec<Row>,
    /// The keys that each row sees.
    visible: Vec<Range<usize>>,
    /// The query rows on their way into the lanes, `[d, LANES]`.
    lanes: Vec<f32>,
    /// `[d / DEPTH]`
    q: Vec<P::V>,
    /// `[d_v]`
    o: Vec<P::V>,
    m: P::V,
    l: P::V,
}

impl<P: Product> Panel<P> {
    /// A panel of no rows.
    #[inline(always)]
    pub(super) fn new() -> Self {
        let zero = P::V::splat(0.0);
        Panel {
            rows: Vec::new(),
            visible: Vec::new(),
            lanes: Vec::new(),
            q: Vec::new(),
            o: Vec::new(),
            m: zero,
            l: zero,
        }
    }

    /// Lines 4 and 5: Q_i on chip, O = 0, l = 0, m = -inf. Lanes without a row hold zeros, and nobody reads what they get.
    #[inline(always)]
    pub(super) fn start(&mut self, heads: &[Head], rows: &[Row], numbers: &[f32]) {
        let (d, d_v) = (heads[0].d(), heads[0].d_v());
        self.lanes.clear();
        self.lanes.resize(d.next_multiple_of(P::DEPTH) * P::V::LANES, 0.0);
        for (row, numbers) in numbers.chunks_exact(d).enumerate() {
            let lane = self.lanes[row..].iter_mut().step_by(P::V::LANES);
            lane.zip(numbers).for_each(|(lane, number)| *lane = *number);
        }
        self.q.clear();
        for channels in self.lanes.chunks_exact(P::DEPTH * P::V::LANES) {
            let low = P::V::load(channels);
            self.q.push(if P::DEPTH == 2 { P::pack(low, P::V::load(&channels[P::V::LANES..])) } else { low });
        }
        self.o.clear();
        self.o.resize(d_v, P::V::splat(0.0));
        (self.m, self.l) = (P::V::splat(f32::NEG_INFINITY), P::V::splat(0.0));
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        self.visible.clear();
        self.visible.extend(rows.iter().map(|&(head, i)| heads[head].visible(i)));
    }

    /// Lines 6 to 10 for one tile of keys, `R` keys or channels at once. `unusual` is set for rows with such scores.
    #[inline(always)]
    pub(super) fn stream<const R: usize>(
        &mut self,
        heads: &[Head],
        tile: &KeyTile,
        s: &mut Vec<P::V>,
        unusual: &mut [bool],
    ) {
        // The part of the tile that some row sees, from a whole step on.
        let from = self.visible.iter().map(|keys| keys.start).min().unwrap_or(0).max(tile.keys.start);
        let to = self.visible.iter().map(|keys| keys.end).max().unwrap_or(0).min(tile.keys.end);
        if from >= to {
            return;
        }
        let from = from - (from - tile.keys.start) % P::DEPTH;
        self.scores::<R>(heads, tile, from..to, s);
        if !heads.iter().all(Head::only_scales) {
            self.adjust(heads, from..to, s, unusual);
        }
        let rescale = self.weights(s);
        if P::DEPTH == 2 {
            for step in 0..s.len() / 2 {
                s[step] = P::pack(s[2 * step], s[2 * step + 1]);
            }
        }
        let v = &tile.v[(from - tile.keys.start) / P::DEPTH * self.o.len()..];
        self.accumulate::<R>(v, &s[..s.len() / P::DEPTH], rescale);
    }

    /// Line 8: S = Q K^T, scaled and masked if there is nothing more to a score, and padded with hidden keys to whole steps.
    #[inline(always)]
    fn scores<const R: usize>(&self, heads: &[Head], tile: &KeyTile, keys: Range<usize>, s: &mut Vec<P::V>) {
        let hidden = P::V::splat(f32::NEG_INFINITY);
        s.resize(keys.len().next_multiple_of(P::DEPTH), hidden);
        s[keys.len()..].fill(hidden);
        let only_scales = heads.iter().all(Head::only_scales);
        let scale = if only_scales { heads[0].scale } else { 1.0 };
        let steps = self.q.len();
        let k = &tile.k[(keys.start - tile.keys.start) * steps..(keys.end - tile.keys.start) * steps];
        let s = &mut s[..keys.len()];
        let whole = s.len() / R * R;
        for (s, k) in s.chunks_exact_mut(R).zip(k.chunks_exact(R * steps)) {
            self.dot::<R>(k, scale, s);
        }
        for (s, k) in s[whole..].chunks_exact_mut(1).zip(k[whole * steps..].chunks_exact(steps)) {
            self.dot::<1>(k, scale, s);
        }
        if only_scales {
            self.mask(keys, s);
        }
    }

    // ANCHOR: dot
    /// The products of `R` keys with every row.
    #[inline(always)]
    fn dot<const R: usize>(&self, k: &[f32], scale: f32, s: &mut [P::V]) {
        let steps = self.q.len();
        let k: [&[f32]; R] = array::from_fn(|r| &k[r * steps..][..steps]);
        let mut acc = [P::V::splat(0.0); R];
        for (step, &q) in self.q.iter().enumerate() {
            for r in 0..R {
                acc[r] = P::multiply(acc[r], P::V::splat(k[r][step]), q);
            }
        }
        for (s, acc) in s.iter_mut().zip(acc) {
            *s = acc.mul(P::V::splat(scale));
        }
    }
    // ANCHOR_END: dot

    /// Hides keys from the rows that do not see them.
    #[inline(always)]
    fn mask(&self, keys: Range<usize>, s: &mut [P::V]) {
        if self.visible.iter().all(|visible| visible.start <= keys.start && visible.end >= keys.end) {
            return;
        }
        let within = |key: usize| (key.clamp(keys.start, keys.end) - keys.start) as f32;
        let from: P::V = P::V::from_fn(|lane| self.visible.get(lane).map_or(0.0, |visible| within(visible.start)));
        let to: P::V =
            P::V::from_fn(|lane| self.visible.get(lane).map_or(keys.len() as f32, |visible| within(visible.end)));
        let hidden = P::V::splat(f32::NEG_INFINITY);
        for (j, s) in s.iter_mut().enumerate() {
            let j = P::V::splat(j as f32);
            *s = j.select_below(from, hidden, j.select_below(to, *s, hidden));
        }
    }

    /// The scores of heads with more than a scale and a mask, pair by pair, from the products.
    fn adjust(&self, heads: &[Head], keys: Range<usize>, s: &mut [P::V], unusual: &mut [bool]) {
        for (j, s) in keys.zip(s) {
            let dots = *s;
            *s = P::V::from_fn(|lane| {
                let Some(&(head, i)) = self.rows.get(lane) else { return 0.0 };
                let s = heads[head].score(dots.lane(lane), i, j);
                unusual[lane] |= !is_usual_score(s);
                s
            });
        }
    }

    // ANCHOR: weights
    /// Line 9, and the factor of line 10: s becomes P~ = e^(S - m_new).
    #[inline(always)]
    fn weights(&mut self, s: &mut [P::V]) -> P::V {
        let old = self.m;
        for &s in s.iter() {
            self.m = self.m.max(s);
        }
        // With every score -inf so far, m is -inf too, and the differences would be NaN.
        let m = P::V::splat(f32::NEG_INFINITY).select_below(self.m, self.m, P::V::splat(0.0));
        let rescale = old.sub(m).exp();
        let mut sum = P::V::splat(0.0);
        for s in s {
            *s = s.sub(m).exp();
            sum = sum.add(*s);
        }
        self.l = self.l.mul_add(rescale, sum);
        rescale
    }
    // ANCHOR_END: weights

    /// Line 10: O = diag(rescale) O + P~ V.
    #[inline(always)]
    fn accumulate<const R: usize>(&mut self, v: &[f32], p: &[P::V], rescale: P::V) {
        let d_v = self.o.len();
        let v = &v[..p.len() * d_v];
        for channel in (0..d_v - d_v % R).step_by(R) {
            self.channels::<R>(channel, v, p, rescale);
        }
        for channel in d_v - d_v % R..d_v {
            self.channels::<1>(channel, v, p, rescale);
        }
    }

    /// Line 10 for `R` channels.
    #[inline(always)]
    fn channels<const R: usize>(&mut self, channel: usize, v: &[f32], p: &[P::V], rescale: P::V) {
        let d_v = self.o.len();
        let o = &mut self.o[channel..channel + R];
        let mut acc = [P::V::splat(0.0); R];
        for (v, &p) in v.chunks_exact(d_v).zip(p) {
            let v = &v[channel..channel + R];
            for r in 0..R {
                acc[r] = P::multiply(acc[r], P::V::splat(v[r]), p);
            }
        }
        // The sum over a tile is added as one: one by one, long sums of small terms would stand still.
        for r in 0..R {
            o[r] = o[r].mul_add(rescale, acc[r]);
        }
    }

    /// Puts the state of each row into `state`, for `done`, in the order of the rows.
    #[inline(always)]
    pub(super) fn states(&self, state: &mut State, mut done: impl FnMut(&mut State)) {
        let [m, l, o] = [lanes(&[self.m]), lanes(&[self.l]), lanes(&self.o)];
        for row in 0..self.rows.len() {
            (state.m, state.l) = (m[row], l[row]);
            let channels = state.o.as_slice_mut().expect("the memory of an array of its own");
            channels.iter_mut().zip(o.chunks_exact(P::V::LANES)).for_each(|(channel, o)| *channel = o[row]);
            done(state);
        }
    }
}

/// The numbers in `vectors`, `[vectors, LANES]`.
#[inline(always)]
fn lanes<V: Vector>(vectors: &[V]) -> Vec<f32> {
    let mut lanes = vec![0.0; vectors.len() * V::LANES];
    for (vector, lanes) in vectors.iter().zip(lanes.chunks_exact_mut(V::LANES)) {
        vector.store(lanes);
    }
    lanes
}
