//! Algorithm 1 of FlashAttention-2 for few query rows, as in decoding: the channels lie in the lanes.
//!
//! A panel with a handful of rows would leave most lanes idle while k and v stream in from memory, each number for little
//! work. Here a vector holds neighbouring channels of one key, and is read once for `ROWS` query rows. Each score takes a
//! sum across lanes, which costs less than the idle lanes would.

use super::Row;
use super::tile::{KeyPieces, Number, is_usual_score};
use super::vector::Vector;
use attention::Head;
use online_softmax::State;
use std::array;
use std::ops::Range;

/// Rows that share each load of k and v.
pub(super) const ROWS: usize = 4;

/// Up to [`ROWS`] query rows and what they have seen so far.
pub(super) struct Few<V> {
    rows: Vec<Row>,
    /// `[d / LANES, ROWS]`, zeros for rows that are not there and behind the last channel.
    q: Vec<[V; ROWS]>,
    /// `[d_v / LANES, ROWS]`
    o: Vec<[V; ROWS]>,
    m: [f32; ROWS],
    l: [f32; ROWS],
}

/// The scores or weights of one tile, a list for each row, padded with hidden keys to whole vectors.
pub(super) type Scores = [Vec<f32>; ROWS];

impl<V: Vector> Few<V> {
    /// Lines 4 and 5.
    #[inline(always)]
    pub(super) fn new(heads: &[Head], rows: &[Row], numbers: &[f32]) -> Self {
        let d = heads[0].d();
        let number = |row: usize, c: usize| if row < rows.len() && c < d { numbers[row * d + c] } else { 0.0 };
        let mut q = Vec::new();
        for c in (0..d).step_by(V::LANES) {
            q.push(array::from_fn(|row| V::from_fn(|lane| number(row, c + lane))));
        }
        let o = vec![[V::splat(0.0); ROWS]; heads[0].d_v().div_ceil(V::LANES)];
        Few { rows: rows.to_vec(), q, o, m: [f32::NEG_INFINITY; ROWS], l: [0.0; ROWS] }
    }

    /// Lines 6 to 10 for one tile of keys, whose rows are padded to whole vectors. `fetch` makes a step for each key.
    /// `unusual` is set for rows with such scores.
    #[inline(always)]
    pub(super) fn stream<T: Number>(
        &mut self,
        heads: &[Head],
        tile: &KeyPieces<T>,
        s: &mut Scores,
        unusual: &mut [bool],
        fetch: &mut impl Iterator,
    ) {
        self.dot(&tile.k, s, fetch);
        self.scores(heads, tile.keys.clone(), s, unusual);
        let rescale = self.weights(s);
        self.accumulate(&tile.v, s, rescale);
    }

    /// Line 8: Q K^T.
    #[inline(always)]
    fn dot<T: Number>(&self, k: &[&[T]], s: &mut Scores, fetch: &mut impl Iterator) {
        for s in s.iter_mut() {
            s.clear();
        }
        for piece in k {
            for k in piece.chunks_exact(self.q.len() * V::LANES) {
                fetch.next();
                let mut acc = [V::splat(0.0); ROWS];
                for (k, q) in k.chunks_exact(V::LANES).zip(&self.q) {
                    let k: V = T::load(k);
                    for row in 0..ROWS {
                        acc[row] = k.mul_add(q[row], acc[row]);
                    }
                }
                for row in 0..ROWS {
                    s[row].push(acc[row].sum());
                }
            }
        }
    }

    /// Line 8: S from the products, scaled and masked.
    #[inline(always)]
    fn scores(&self, heads: &[Head], keys: Range<usize>, s: &mut Scores, unusual: &mut [bool]) {
        for ((s, &(head, i)), unusual) in s.iter_mut().zip(&self.rows).zip(unusual) {
            let head = &heads[head];
            if head.only_scales() {
                for s in s.iter_mut() {
                    *s *= head.scale;
                }
                let within = |key: usize| key.clamp(keys.start, keys.end) - keys.start;
                let visible = head.visible(i);
                s[..within(visible.start)].fill(f32::NEG_INFINITY);
                s[within(visible.end)..].fill(f32::NEG_INFINITY);
            } else {
                for (s, j) in s.iter_mut().zip(keys.clone()) {
                    *s = head.score(*s, i, j);
                    *unusual |= !is_usual_score(*s);
                }
            }
        }
    }

    /// Line 9, and the factors of line 10.
    #[inline(always)]
    fn weights(&mut self, s: &mut Scores) -> [f32; ROWS] {
        let mut rescale = [1.0; ROWS];
        for (row, s) in s.iter_mut().enumerate() {
            s.resize(s.len().next_multiple_of(V::LANES), f32::NEG_INFINITY);
            let mut m = V::splat(self.m[row]);
            for s in s.chunks_exact(V::LANES) {
                m = m.max(V::load(s));
            }
            let m = m.greatest();
            let shift = if m == f32::NEG_INFINITY { 0.0 } else { m };
            rescale[row] = V::splat(self.m[row] - shift).exp().lane(0);
            self.m[row] = m;
            let mut sum = V::splat(0.0);
            for s in s.chunks_exact_mut(V::LANES) {
                let p = V::load(s).sub(V::splat(shift)).exp();
                p.store(s);
                sum = sum.add(p);
            }
            self.l[row] = self.l[row] * rescale[row] + sum.sum();
        }
        rescale
    }

    /// Line 10: O = diag(rescale) O + P~ V.
    #[inline(always)]
    fn accumulate<T: Number>(&mut self, v: &[&[T]], p: &Scores, rescale: [f32; ROWS]) {
        let mut done = 0;
        while self.o.len() - done >= 4 {
            self.channels::<T, 4>(done, v, p, rescale);
            done += 4;
        }
        for vector in done..self.o.len() {
            self.channels::<T, 1>(vector, v, p, rescale);
        }
    }

    /// Line 10 for `B` vectors of o.
    #[inline(always)]
    fn channels<T: Number, const B: usize>(&mut self, vector: usize, v: &[&[T]], p: &Scores, rescale: [f32; ROWS]) {
        let d_v = self.o.len() * V::LANES;
        let mut acc = [[V::splat(0.0); ROWS]; B];
        let mut key = 0;
        for v in v {
            let [p0, p1, p2, p3] = p.each_ref().map(|p| &p[key..]);
            for ((((v, p0), p1), p2), p3) in v.chunks_exact(d_v).zip(p0).zip(p1).zip(p2).zip(p3) {
                let v = &v[vector * V::LANES..][..B * V::LANES];
                let p = [V::splat(*p0), V::splat(*p1), V::splat(*p2), V::splat(*p3)];
                for b in 0..B {
                    let v: V = T::load(&v[b * V::LANES..]);
                    for row in 0..ROWS {
                        acc[b][row] = p[row].mul_add(v, acc[b][row]);
                    }
                }
            }
            key += v.len() / d_v;
        }
        // As in a panel, the sum over a tile is added as one.
        for (o, acc) in self.o[vector..].iter_mut().zip(acc) {
            for row in 0..ROWS {
                o[row] = o[row].mul_add(V::splat(rescale[row]), acc[row]);
            }
        }
    }

    /// Puts the state of each row into `state`, for `done`, in the order of the rows.
    pub(super) fn states(&self, state: &mut State, mut done: impl FnMut(&mut State)) {
        for row in 0..self.rows.len() {
            (state.m, state.l) = (self.m[row], self.l[row]);
            state.o.iter_mut().enumerate().for_each(|(c, o)| *o = self.o[c / V::LANES][row].lane(c % V::LANES));
            done(state);
        }
    }
}
