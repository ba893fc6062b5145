//! Lines 4 to 11 of the listing for a task: its rows in panels or in groups of few, the tiles of its keys past all of them.

use super::few::{self, Few};
use super::panel::Panel;
use super::tile::{Buffers, KeyPieces, KeyTile, Number, is_usual, is_usual_shape, prefetch};
use super::vector::{Product, Vector};
use super::{KEYS, PLAIN, Row};
use crate::Tiles;
use attention::{Head, NoMeter};
use half::bf16;
use online_softmax::State;
use std::any::Any;
use std::array;
use std::cell::Cell;
use std::ops::Range;

/// Lines 4 to 11: streams `keys` past `rows`, which share k and v, and hands the state of each row to `done`, in order. `P`
/// multiplies for many rows, `V` for few.
///
/// `R` keys or channels are computed at once, as many as leave the accumulators, `R` vectors of `P`, in registers.
#[inline(always)]
pub(super) fn stream<P: Product + 'static, V: Vector, const R: usize>(
    heads: &[Head],
    rows: &[Row],
    keys: Range<usize>,
    done: &mut dyn FnMut(&mut State),
) {
    let mut scratch = Scratch::<P>::take();
    let Scratch { numbers, panels, s, buffers } = &mut *scratch;
    let mut unusual = Unusual::default();
    // Whether the rows are few must not depend on how they are cut into tasks.
    let (groups, panels) = if heads[0].q_len * heads.len() <= P::V::LANES / 2 {
        (stream_few::<V>(heads, rows, numbers, keys.clone(), &mut unusual, buffers), &mut [][..])
    } else {
        let count = rows.len().div_ceil(P::V::LANES);
        panels.resize_with(panels.len().max(count), Panel::new);
        let panels = &mut panels[..count];
        stream_panels::<P, R>(heads, rows, numbers, keys.clone(), &mut unusual, (panels, s, buffers));
        (Vec::new(), panels)
    };
    let (mut state, mut place) = (State::empty(heads[0].d_v()), 0);
    let mut mended = |state: &mut State| {
        unusual.mend(heads, rows[place], place, &keys, state);
        place += 1;
        done(state);
    };
    for few in groups {
        few.states(&mut state, &mut mended);
    }
    for panel in panels {
        panel.states(&mut state, &mut mended);
    }
    scratch.put_back();
}

/// Lines 6 and 7, dividing the keys: the tiles of `keys`.
fn tiles(head: &Head, keys: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    Tiles { rows: 1, keys: KEYS }.over(keys, head.k_len)
}

#[inline(always)]
fn stream_panels<P: Product, const R: usize>(
    heads: &[Head],
    rows: &[Row],
    numbers: &mut Vec<f32>,
    keys: Range<usize>,
    unusual: &mut Unusual,
    (panels, s, buffers): (&mut [Panel<P>], &mut Vec<P::V>, &mut Buffers),
) {
    let (head, lanes, count) = (&heads[0], P::V::LANES, panels.len());
    for (panel, rows) in panels.iter_mut().zip(rows.chunks(lanes)) {
        unusual.load_rows(heads, rows, numbers);
        panel.start(heads, rows, numbers);
    }
    for keys in tiles(head, keys) {
        let mut next = prefetch(head, keys.start + KEYS..keys.start + 2 * KEYS);
        let tile = KeyTile::load_for::<P>(head, keys, buffers, &mut unusual.keys);
        for (panel, unusual) in panels.iter_mut().zip(unusual.rows.chunks_mut(lanes)) {
            // While each panel is at work, the memory fetches its share of the next tile.
            next.by_ref().take(KEYS.div_ceil(count)).for_each(drop);
            panel.stream::<R>(heads, &tile, s, unusual);
        }
    }
}

#[inline(always)]
fn stream_few<V: Vector>(
    heads: &[Head],
    rows: &[Row],
    numbers: &mut Vec<f32>,
    keys: Range<usize>,
    unusual: &mut Unusual,
    buffers: &mut Buffers,
) -> Vec<Few<V>> {
    let head = &heads[0];
    let mut groups = Vec::new();
    for rows in rows.chunks(few::ROWS) {
        unusual.load_rows(heads, rows, numbers);
        groups.push(Few::<V>::new(heads, rows, numbers));
    }
    let mut s = array::from_fn(|_| Vec::with_capacity(KEYS));
    for keys in tiles(head, keys) {
        if let Some(tile) = KeyPieces::<f32>::in_place(head, keys.clone(), V::LANES) {
            stream_tile(&mut groups, heads, &tile, &mut s, &mut unusual.rows);
        } else if let Some(tile) = KeyPieces::<bf16>::in_place(head, keys.clone(), V::LANES) {
            stream_tile(&mut groups, heads, &tile, &mut s, &mut unusual.rows);
        } else {
            let tile = KeyTile::load(head, keys, V::LANES, buffers, &mut unusual.keys).into();
            stream_tile(&mut groups, heads, &tile, &mut s, &mut unusual.rows);
        }
    }
    groups
}

/// One tile past all groups of few rows. The first of them fetches the next tile, row by row, as it goes.
#[inline(always)]
fn stream_tile<V: Vector, T: Number>(
    groups: &mut [Few<V>],
    heads: &[Head],
    tile: &KeyPieces<T>,
    s: &mut few::Scores,
    unusual: &mut [bool],
) {
    let mut next = prefetch(&heads[0], tile.keys.start + KEYS..tile.keys.start + 2 * KEYS);
    for (few, unusual) in groups.iter_mut().zip(unusual.chunks_mut(few::ROWS)) {
        few.stream(heads, tile, s, unusual, &mut next);
    }
}

/// What is left to the plain algorithm: numbers that are not finite, or far from any that attention meets.
#[derive(Default)]
struct Unusual {
    /// For each query row, whether its numbers or scores are so.
    rows: Vec<bool>,
    /// Keys whose k or v are so.
    keys: Vec<usize>,
}

impl Unusual {
    /// Line 4: loads some more query rows in f32, `[rows, d]`, and looks at their numbers.
    #[inline(always)]
    fn load_rows(&mut self, heads: &[Head], rows: &[Row], numbers: &mut Vec<f32>) {
        let (d, shape) = (heads[0].d(), is_usual_shape(&heads[0]));
        numbers.resize(rows.len() * d, 0.0);
        for (&(head, i), numbers) in rows.iter().zip(numbers.chunks_exact_mut(d)) {
            heads[head].q.load_row(i, numbers);
            self.rows.push(!shape || !is_usual(numbers));
        }
    }

    /// Computes the state of the row at `place` again if it is unusual itself or sees an unusual key.
    fn mend(&self, heads: &[Head], (head, i): Row, place: usize, keys: &Range<usize>, state: &mut State) {
        let head = &heads[head];
        let hidden_by_bias = |j| head.bias.is_some_and(|bias| bias[[i, j]] == f32::NEG_INFINITY);
        let sees = |&j: &usize| head.visible(i).contains(&j) && !hidden_by_bias(j);
        if self.rows[place] || self.keys.iter().any(sees) {
            let tiles = PLAIN.over(keys.clone(), head.k_len);
            state.clone_from(&crate::stream(head, i..i + 1, tiles, &NoMeter)[0]);
        }
    }
}

/// The memory of a task. A thread keeps it for its next task: to the allocator it is large enough to be given back to the
/// system each time, and to come back page by page, zeroed.
struct Scratch<P: Product> {
    numbers: Vec<f32>,
    panels: Vec<Panel<P>>,
    s: Vec<P::V>,
    buffers: Buffers,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<dyn Any>>> = const { Cell::new(None) };
}

impl<P: Product + 'static> Scratch<P> {
    /// What the thread has put back, or nothing yet.
    fn take() -> Box<Self> {
        let kept = SCRATCH.take().and_then(|kept| kept.downcast().ok());
        kept.unwrap_or_else(|| {
            let (numbers, panels, s) = (Vec::new(), Vec::new(), Vec::new());
            Box::new(Scratch { numbers, panels, s, buffers: Buffers::default() })
        })
    }

    fn put_back(self: Box<Self>) {
        SCRATCH.set(Some(self));
    }
}
