//! Tiles of keys and values, as the vectors want them.

use super::vector::{Product, Vector};
use attention::dtype::Element;
use attention::{Head, KvRows, Rows};
use half::bf16;
use ndarray::{ArrayView1, ArrayView2, Axis, CowArray, Ix2, concatenate};
use std::borrow::Cow;
use std::ops::Range;

/// The largest usual magnitude of a number or a score. Beyond, products and sums may overflow.
const LARGEST: f32 = (1u64 << 50) as f32;

/// The smallest usual magnitude but 0 of a value in BF16, whose products know no subnormals.
const SMALLEST: f32 = 1.0 / (1u128 << 100) as f32;

/// Whether no product of usual numbers can overflow, for these channels and this scale.
pub(super) fn is_usual_shape(head: &Head) -> bool {
    let channels = head.d() as f64 * f64::from(head.scale.abs()).max(1.0);
    f64::from(LARGEST).powi(2) * channels < f64::from(f32::MAX)
}

/// Whether differences of such a score with others are what they should be.
pub(super) fn is_usual_score(s: f32) -> bool {
    s.abs() <= LARGEST || s == f32::NEG_INFINITY
}

/// Lines 6 and 7: K_j and V_j, for every query head that shares them.
pub(super) struct KeyTile<'a> {
    pub(super) keys: Range<usize>,
    /// `[keys, d / DEPTH]`
    pub(super) k: &'a [f32],
    /// `[keys / DEPTH, d_v]`
    pub(super) v: &'a [f32],
}

/// Lines 6 and 7 for few query rows: K_j and V_j, each in as many pieces as it lies in.
pub(super) struct KeyPieces<'a, T = f32> {
    pub(super) keys: Range<usize>,
    /// Together `[keys, d]`
    pub(super) k: Vec<&'a [T]>,
    /// Together `[keys, d_v]`
    pub(super) v: Vec<&'a [T]>,
}

/// A number that a vector can be loaded with.
pub(super) trait Number: Element {
    fn load<V: Vector>(x: &[Self]) -> V;
    fn are_usual(x: &[Self]) -> bool;
}

impl Number for f32 {
    #[inline(always)]
    fn load<V: Vector>(x: &[f32]) -> V {
        V::load(x)
    }
    #[inline(always)]
    fn are_usual(x: &[f32]) -> bool {
        is_usual(x)
    }
}

impl Number for bf16 {
    #[inline(always)]
    fn load<V: Vector>(x: &[bf16]) -> V {
        V::load_bf16(x)
    }
    #[inline(always)]
    fn are_usual(x: &[bf16]) -> bool {
        is_usual_bf16(x, 0.0)
    }
}

/// Memory for tiles that cannot stay where they are, used again for each tile.
#[derive(Default)]
pub(super) struct Buffers {
    k: Vec<f32>,
    v: Vec<f32>,
}

impl<'a> KeyTile<'a> {
    /// Loads a tile, each row with zeros behind it up to a multiple of `lanes`. Rows with unusual numbers come as zeros, so
    /// that no query row feels them that does not attend them, and are added to `unusual`.
    #[inline(always)]
    pub(super) fn load(
        head: &'a Head,
        keys: Range<usize>,
        lanes: usize,
        Buffers { k, v }: &'a mut Buffers,
        unusual: &mut Vec<usize>,
    ) -> Self {
        let k = load(&head.k, keys.clone(), lanes, k, unusual);
        let v = load(&head.v, keys.clone(), lanes, v, unusual);
        KeyTile { keys, k, v }
    }

    /// Loads a tile for products of `P`.
    #[inline(always)]
    pub(super) fn load_for<P: Product>(
        head: &'a Head,
        keys: Range<usize>,
        buffers: &'a mut Buffers,
        unusual: &mut Vec<usize>,
    ) -> Self {
        if P::DEPTH == 2 {
            let (k, v) = (bf16_rows(&head.k, keys.clone()), bf16_rows(&head.v, keys.clone()));
            Self::load_pairs(k, v, keys, buffers, unusual)
        } else {
            Self::load(head, keys, 1, buffers, unusual)
        }
    }

    /// Pairs of channels of k, and pairs of keys of v. An odd one out has a 0 beside it.
    #[inline(always)]
    fn load_pairs(
        k: CowArray<bf16, Ix2>,
        v: CowArray<bf16, Ix2>,
        keys: Range<usize>,
        buffers: &'a mut Buffers,
        unusual: &mut Vec<usize>,
    ) -> Self {
        let (d, d_v) = (k.ncols(), v.ncols());
        let (k, v) = (k.as_standard_layout(), v.as_standard_layout());
        let (Some(k), Some(v)) = (k.as_slice(), v.as_slice()) else { unreachable!("standard layout") };
        let k = without_unusual(k, d, 0.0, keys.start, unusual);
        let v = without_unusual(v, d_v, SMALLEST, keys.start, unusual);
        let pair = |low: bf16, high: bf16| f32::from_bits(u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16);
        buffers.k.clear();
        for k in k.chunks_exact(d) {
            let (whole, odd) = k.as_chunks::<2>();
            buffers.k.extend(whole.iter().map(|&[low, high]| pair(low, high)));
            buffers.k.extend(odd.iter().map(|&low| pair(low, bf16::ZERO)));
        }
        buffers.v.clear();
        for v in v.chunks(2 * d_v) {
            match v.split_at(d_v) {
                (low, []) => buffers.v.extend(low.iter().map(|&low| pair(low, bf16::ZERO))),
                (low, high) => buffers.v.extend(low.iter().zip(high).map(|(&low, &high)| pair(low, high))),
            }
        }
        KeyTile { keys, k: &buffers.k, v: &buffers.v }
    }
}

impl<'a, T: Number> KeyPieces<'a, T> {
    /// A tile where it lies, if its numbers are of the type and usual, and each row is whole vectors of `lanes`.
    #[inline(always)]
    pub(super) fn in_place(head: &'a Head, keys: Range<usize>, lanes: usize) -> Option<Self> {
        let (k, v) = (pieces(&head.k, keys.clone(), lanes)?, pieces(&head.v, keys.clone(), lanes)?);
        Some(KeyPieces { keys, k, v })
    }
}

impl<'a> From<KeyTile<'a>> for KeyPieces<'a> {
    fn from(KeyTile { keys, k, v }: KeyTile<'a>) -> Self {
        KeyPieces { keys, k: vec![k], v: vec![v] }
    }
}

/// A range of rows where they lie, if they are as [`KeyPieces::in_place`] wants them.
#[inline(always)]
fn pieces<'a, T: Number>(rows: &KvRows<'a>, range: Range<usize>, lanes: usize) -> Option<Vec<&'a [T]>> {
    if !rows.channels().is_multiple_of(lanes) {
        return None;
    }
    let pieces = rows.slices(range)?;
    for rows in &pieces {
        if !T::are_usual(rows) {
            return None;
        }
    }
    Some(pieces)
}

/// A range of rows as [`KeyTile::load`] wants them: where they lie, or in `buffer`.
#[inline(always)]
fn load<'a>(
    rows: &'a KvRows,
    range: Range<usize>,
    lanes: usize,
    buffer: &'a mut Vec<f32>,
    unusual: &mut Vec<usize>,
) -> &'a [f32] {
    let d = rows.channels();
    let width = d.next_multiple_of(lanes);
    if d == width
        && let Some(Rows::F32(rows)) = rows.run(range.clone())
        && let Some(rows) = rows.to_slice()
        && is_usual(rows)
    {
        return rows;
    }
    if d < width {
        // What the last tile left between the rows must not come back.
        buffer.clear();
    }
    buffer.resize(range.len() * width, 0.0);
    rows.load_into(range.clone(), width, buffer);
    if !is_usual(buffer) {
        for (key, row) in range.zip(buffer.chunks_exact_mut(width)).filter(|(_, row)| !is_usual(row)) {
            row.fill(0.0);
            unusual.push(key);
        }
    }
    buffer
}

/// A range of rows of BF16 numbers: where they lie, or together in a copy.
fn bf16_rows<'a>(rows: &KvRows<'a>, range: Range<usize>) -> CowArray<'a, bf16, Ix2> {
    let numbers = |rows| match rows {
        Rows::Bf16(rows) => rows,
        _ => unreachable!("only BF16 problems are computed in pairs"),
    };
    match rows.run(range.clone()) {
        Some(rows) => numbers(rows).into(),
        None => {
            let runs: Vec<ArrayView2<bf16>> = rows.runs(range).map(numbers).collect();
            concatenate(Axis(0), &runs).expect("rows of as many channels").into()
        }
    }
}

#[inline(always)]
pub(super) fn is_usual(x: &[f32]) -> bool {
    x.iter().fold(0, |most, x| x.abs().to_bits().max(most)) <= LARGEST.to_bits()
}

/// Whether all magnitudes but 0 are usual and no smaller than `smallest`.
#[inline(always)]
fn is_usual_bf16(x: &[bf16], smallest: f32) -> bool {
    let [smallest, largest] = [smallest, LARGEST].map(|x| bf16::from_f32(x).to_bits());
    let most = x.iter().fold(0, |most, x| (x.to_bits() & 0x7FFF).max(most));
    if smallest == 0 {
        return most <= largest;
    }
    // Of 0 the subtraction makes the largest number there is.
    let least = x.iter().fold(u16::MAX, |least, x| (x.to_bits() & 0x7FFF).wrapping_sub(1).min(least));
    most <= largest && least >= smallest - 1
}

/// Rows of `d` channels with zeros for those that are not [usual](is_usual_bf16), which are added to `unusual`, counted from
/// `start`.
#[inline(always)]
fn without_unusual<'t>(
    rows: &'t [bf16],
    d: usize,
    smallest: f32,
    start: usize,
    unusual: &mut Vec<usize>,
) -> Cow<'t, [bf16]> {
    if is_usual_bf16(rows, smallest) {
        return Cow::Borrowed(rows);
    }
    let mut rows = rows.to_vec();
    for (key, row) in (start..).zip(rows.chunks_exact_mut(d)).filter(|(_, row)| !is_usual_bf16(row, smallest)) {
        row.fill(bf16::ZERO);
        unusual.push(key);
    }
    Cow::Owned(rows)
}

/// Asks the memory for k and v of one more of `keys` with each step, as far as there are such keys, so that they are in
/// the L2 cache when their tile is loaded.
#[inline(always)]
pub(super) fn prefetch<'h, 'a>(head: &'h Head<'a>, keys: Range<usize>) -> impl Iterator<Item = ((), ())> {
    let keys = keys.start.min(head.k_len)..keys.end.min(head.k_len);
    let rows = move |rows: &'h KvRows<'a>| {
        rows.runs(keys.clone()).flat_map(|run| (0..run.shape()[0]).map(move |i| prefetch_row(&run, i)))
    };
    rows(&head.k).zip(rows(&head.v))
}

#[inline(always)]
fn prefetch_row(rows: &Rows, i: usize) {
    match rows {
        Rows::F32(rows) => prefetch_lines(rows.row(i)),
        Rows::F16(rows) => prefetch_lines(rows.row(i)),
        Rows::Bf16(rows) => prefetch_lines(rows.row(i)),
        Rows::F64(_) | Rows::E4m3(_) => {}
    }
}

/// One request for each cache line of 64 bytes of a row without gaps. Elsewhere than on x86-64 it does nothing.
#[inline(always)]
fn prefetch_lines<T>(row: ArrayView1<T>) {
    for line in row.to_slice().unwrap_or_default().chunks(64 / size_of::<T>()) {
        #[cfg(target_arch = "x86_64")]
        #[allow(unsafe_code)]
        // SAFETY: a hint, which touches no memory by itself, at an address that is in a slice anyway.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast());
        }
        let _ = line;
    }
}
