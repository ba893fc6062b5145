//! One copy of the algorithm for each kind of CPU, and the choice among them.

use super::few::{self, Few};
use super::panel::Panel;
use super::tile::{self, Buffers, KeyTile, Number, is_usual, is_usual_shape, load_rows};
#[cfg(target_arch = "x86_64")]
use super::vector::x86;
use super::vector::{Pair, Portable, Product, Single, Vector};
use super::{KEYS, PLAIN, Row};
use crate::Tiles;
use attention::{Head, NoMeter};
use online_softmax::State;
use std::any::Any;
use std::array;
use std::cell::Cell;
use std::fmt;
use std::ops::Range;

/// The vector instructions that the rung is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    /// What every CPU of its kind has, as SSE2 on x86-64 and NEON on aarch64; a multiplication, then an addition.
    Portable,
    /// AVX2 and FMA: 8 lanes.
    Avx2,
    /// AVX-512F: 16 lanes.
    Avx512,
    /// AVX-512F with BF16: 16 lanes of two BF16 numbers each. F32 and F16 tensors are computed as with [`Simd::Avx512`].
    Avx512Bf16,
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Simd::Portable => "portable",
            Simd::Avx2 => "AVX2",
            Simd::Avx512 => "AVX-512",
            Simd::Avx512Bf16 => "AVX-512-BF16",
        })
    }
}

impl Simd {
    /// The levels that this CPU has.
    pub fn available() -> Vec<Simd> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut))]
        let mut levels = vec![Simd::Portable];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            levels.push(Simd::Avx2);
            if is_x86_feature_detected!("avx512f") {
                levels.push(Simd::Avx512);
                if is_x86_feature_detected!("avx512bf16") {
                    levels.push(Simd::Avx512Bf16);
                }
            }
        }
        levels
    }

    /// The fastest of them.
    ///
    /// A product of BF16 pairs does twice the work of an FMA. AMD's cores start as many of both; Intel's, up to Emerald
    /// Rapids, so few of the former that widening to f32 is faster.
    pub fn best() -> Simd {
        let slow_pairs = |level: &Simd| *level == Simd::Avx512Bf16 && is_intel();
        Simd::available().into_iter().rfind(|level| !slow_pairs(level)).unwrap_or(Simd::Portable)
    }
}

#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    // SAFETY: every x86-64 CPU has CPUID. Newer compilers know.
    #[allow(unsafe_code, unused_unsafe)]
    let vendor = unsafe { std::arch::x86_64::__cpuid(0) };
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
}

#[cfg(not(target_arch = "x86_64"))]
fn is_intel() -> bool {
    false
}

/// Lines 4 to 11 of the listing: the states of `rows`, which share k and v, after streaming `keys` past them.
///
/// `simd` must be one of [`Simd::available`].
pub(super) fn stream(simd: Simd, heads: &[Head], rows: &[Row], keys: Range<usize>) -> Vec<State> {
    match simd {
        Simd::Portable => stream_with::<Single<Pair<Portable>>, Portable, 4>(heads, rows, keys),
        // SAFETY: the caller has one of the levels whose features have been detected.
        #[cfg(target_arch = "x86_64")]
        #[allow(unsafe_code)]
        simd => unsafe {
            match simd {
                Simd::Avx2 => stream_avx2(heads, rows, keys),
                Simd::Avx512Bf16 if heads[0].q.dtype() == attention::DType::Bf16 => stream_bf16(heads, rows, keys),
                _ => stream_avx512(heads, rows, keys),
            }
        },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("not among Simd::available()"),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn stream_avx2(heads: &[Head], rows: &[Row], keys: Range<usize>) -> Vec<State> {
    stream_with::<Single<Pair<x86::Avx2>>, x86::Avx2, 6>(heads, rows, keys)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn stream_avx512(heads: &[Head], rows: &[Row], keys: Range<usize>) -> Vec<State> {
    stream_with::<Single<Pair<x86::Avx512>>, x86::Avx512, 8>(heads, rows, keys)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn stream_bf16(heads: &[Head], rows: &[Row], keys: Range<usize>) -> Vec<State> {
    stream_with::<x86::Bf16Pairs, x86::Avx512, 8>(heads, rows, keys)
}

/// `R` keys or channels at once, as many as leave the accumulators `R` x two vectors in registers.
#[inline(always)]
fn stream_with<P: Product + 'static, V: Vector, const R: usize>(
    heads: &[Head],
    rows: &[Row],
    keys: Range<usize>,
) -> Vec<State> {
    let head = &heads[0];
    let numbers = load_rows(heads, rows);
    let mut unusual = Unusual::new(head, &numbers);
    let tiles = Tiles { rows: 1, keys: KEYS }.over(keys.clone(), head.k_len);
    let mut states = Vec::with_capacity(rows.len());
    let mut scratch = Scratch::<P>::take();
    if head.q_len * heads.len() <= P::V::LANES / 2 {
        let mut groups = Vec::new();
        for (rows, numbers) in rows.chunks(few::ROWS).zip(numbers.chunks(few::ROWS * head.d())) {
            groups.push(Few::<V>::new(heads, rows, numbers));
        }
        let mut s = array::from_fn(|_| Vec::with_capacity(KEYS));
        for keys in tiles {
            if let Some(tile) = KeyTile::in_place(head, keys.clone(), V::LANES) {
                stream_few(&mut groups, heads, &tile, &mut s, &mut unusual.rows);
            } else {
                let tile = KeyTile::load(head, keys, V::LANES, &mut scratch.buffers, &mut unusual.keys);
                stream_few(&mut groups, heads, &tile, &mut s, &mut unusual.rows);
            }
        }
        groups.iter().for_each(|few| states.extend(few.states(head.d_v())));
    } else {
        let count = rows.len().div_ceil(P::V::LANES);
        if scratch.panels.len() < count {
            scratch.panels.resize_with(count, Panel::new);
        }
        let panels = &mut scratch.panels[..count];
        for ((panel, rows), numbers) in
            panels.iter_mut().zip(rows.chunks(P::V::LANES)).zip(numbers.chunks(P::V::LANES * head.d()))
        {
            panel.start(heads, rows, numbers);
        }
        for keys in tiles {
            let mut next = keys.start + KEYS..keys.start + 2 * KEYS;
            let tile = KeyTile::load_for::<P>(head, keys, &mut scratch.buffers, &mut unusual.keys);
            for (panel, unusual) in panels.iter_mut().zip(unusual.rows.chunks_mut(P::V::LANES)) {
                // While each panel is at work, the memory fetches its share of the next tile.
                next.by_ref().take(KEYS.div_ceil(count)).for_each(|key| tile::prefetch(head, key));
                panel.stream::<R>(heads, &tile, &mut scratch.s, unusual);
            }
        }
        panels.iter().for_each(|panel| states.extend(panel.states()));
    }
    scratch.put_back();
    unusual.mend(heads, rows, keys, &mut states);
    states
}

/// One tile past all groups of few rows. The first of them fetches the next tile, row by row, as it goes.
#[inline(always)]
fn stream_few<V: Vector, T: Number>(
    groups: &mut [Few<V>],
    heads: &[Head],
    tile: &KeyTile<T>,
    s: &mut few::Scores,
    unusual: &mut [bool],
) {
    let mut groups = groups.iter_mut().zip(unusual.chunks_mut(few::ROWS));
    if let Some((few, unusual)) = groups.next() {
        few.stream(heads, tile, s, unusual, true);
    }
    for (few, unusual) in groups {
        few.stream(heads, tile, s, unusual, false);
    }
}

/// What is left to the plain algorithm: numbers that are not finite, or far from any that attention meets.
struct Unusual {
    /// For each query row, whether its numbers or scores are so.
    rows: Vec<bool>,
    /// Keys whose k or v are so.
    keys: Vec<usize>,
}

impl Unusual {
    fn new(head: &Head, numbers: &[f32]) -> Self {
        let shape = is_usual_shape(head);
        let rows = numbers.chunks_exact(head.d()).map(|q| !shape || !is_usual(q)).collect();
        Unusual { rows, keys: Vec::new() }
    }

    /// Computes again the states of rows that are unusual themselves or see an unusual key.
    fn mend(&self, heads: &[Head], rows: &[Row], keys: Range<usize>, states: &mut [State]) {
        for ((&unusual, &(head, i)), state) in self.rows.iter().zip(rows).zip(states) {
            let head = &heads[head];
            let hidden_by_bias = |j| head.bias.is_some_and(|bias| bias[[i, j]] == f32::NEG_INFINITY);
            let sees = |&j: &usize| head.visible(i).contains(&j) && !hidden_by_bias(j);
            if unusual || self.keys.iter().any(sees) {
                let tiles = PLAIN.over(keys.clone(), head.k_len);
                state.clone_from(&crate::stream(head, i..i + 1, tiles, &NoMeter)[0]);
            }
        }
    }
}

/// The memory of a task. A thread keeps it for its next task: to the allocator it is large enough to be given back to the
/// system each time, and to come back page by page, zeroed.
struct Scratch<P: Product> {
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
        kept.unwrap_or_else(|| Box::new(Scratch { panels: Vec::new(), s: Vec::new(), buffers: Buffers::default() }))
    }

    fn put_back(self: Box<Self>) {
        SCRATCH.set(Some(self));
    }
}
