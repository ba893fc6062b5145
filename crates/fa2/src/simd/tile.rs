//! Tiles of keys and values, as the vectors want them.

use super::Row;
use super::vector::{Product, Vector};
use attention::{Head, Rows};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use ndarray::{ArrayView1, ArrayView2, s};
use std::f64::consts::LOG2_E;
use std::ops::Range;

/// The largest usual magnitude of a number, and of a score with more to it than a product.
pub(super) const LARGEST: f32 = (1u64 << 50) as f32;

/// Smallest magnitude of a value whose products in BF16 arithmetic, which has no subnormals, lose nothing that counts.
const SMALLEST: f32 = 1.0 / (1u128 << 100) as f32;

/// A number that is not finite, or far from any that attention meets. The plain algorithm takes care of those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unusual;

/// Whether no product of usual numbers can overflow, for these channels and this scale.
pub(super) fn usual_shape(head: &Head) -> Result<(), Unusual> {
    let most = f64::from(LARGEST).powi(2) * head.d() as f64 * f64::from(head.scale.abs()).max(1.0) * LOG2_E;
    if most < f64::from(f32::MAX) { Ok(()) } else { Err(Unusual) }
}

/// Lines 6 and 7: K_j and V_j, for every query head that shares them.
pub(super) struct KeyTile<'a, T = f32> {
    pub(super) keys: Range<usize>,
    /// `[keys, d / DEPTH]`
    pub(super) k: &'a [T],
    /// `[keys / DEPTH, d_v]`
    pub(super) v: &'a [T],
}

/// A number that a vector can be loaded with.
pub(super) trait Number: Copy {
    fn load<V: Vector>(x: &[Self]) -> V;
}

impl Number for f32 {
    #[inline(always)]
    fn load<V: Vector>(x: &[f32]) -> V {
        V::load(x)
    }
}

impl Number for bf16 {
    #[inline(always)]
    fn load<V: Vector>(x: &[bf16]) -> V {
        V::load_bf16(x)
    }
}

/// Memory for tiles that cannot stay where they are, used again for each tile.
#[derive(Default)]
pub(super) struct Buffers {
    k: Vec<f32>,
    v: Vec<f32>,
}

impl<'a> KeyTile<'a> {
    /// Loads a tile, each row with zeros behind it up to a multiple of `lanes`.
    #[inline(always)]
    pub(super) fn load(
        head: &'a Head,
        keys: Range<usize>,
        lanes: usize,
        Buffers { k, v }: &'a mut Buffers,
    ) -> Result<Self, Unusual> {
        let (k, v) = (widen(&head.k, keys.clone(), lanes, k), widen(&head.v, keys.clone(), lanes, v));
        if usual(k) && usual(v) { Ok(KeyTile { keys, k, v }) } else { Err(Unusual) }
    }

    /// Loads a tile for products of `P`.
    #[inline(always)]
    pub(super) fn load_for<P: Product>(
        head: &'a Head,
        keys: Range<usize>,
        buffers: &'a mut Buffers,
    ) -> Result<Self, Unusual> {
        match (&head.k, &head.v) {
            (Rows::Bf16(k), Rows::Bf16(v)) if P::DEPTH == 2 => Self::load_pairs(k, v, keys, buffers),
            _ => Self::load(head, keys, 1, buffers),
        }
    }

    /// Pairs of channels of k, and pairs of keys of v. An odd one out has a 0 beside it.
    #[inline(always)]
    fn load_pairs(
        k: &ArrayView2<bf16>,
        v: &ArrayView2<bf16>,
        keys: Range<usize>,
        buffers: &'a mut Buffers,
    ) -> Result<Self, Unusual> {
        let (k, v) = (k.slice(s![keys.clone(), ..]), v.slice(s![keys.clone(), ..]));
        let ([d, d_v], k, v) = ([k.ncols(), v.ncols()], k.as_standard_layout(), v.as_standard_layout());
        let (Some(k), Some(v)) = (k.as_slice(), v.as_slice()) else { unreachable!("standard layout") };
        if !usual_bf16(k, v) {
            return Err(Unusual);
        }
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
        Ok(KeyTile { keys, k: &buffers.k, v: &buffers.v })
    }
}

impl<'a> KeyTile<'a, bf16> {
    /// A tile of BF16 numbers where they lie, if rows of whole vectors of `lanes` lie there one behind the other.
    #[inline(always)]
    pub(super) fn in_place(head: &'a Head, keys: Range<usize>, lanes: usize) -> Option<Result<Self, Unusual>> {
        let (Rows::Bf16(k), Rows::Bf16(v)) = (&head.k, &head.v) else { return None };
        if !k.ncols().is_multiple_of(lanes) || !v.ncols().is_multiple_of(lanes) {
            return None;
        }
        let (k, v) = (k.slice(s![keys.clone(), ..]).to_slice()?, v.slice(s![keys.clone(), ..]).to_slice()?);
        let usual = |x: &[bf16]| largest_bf16(x) <= bf16::from_f32(LARGEST).to_bits();
        Some(if usual(k) && usual(v) { Ok(KeyTile { keys, k, v }) } else { Err(Unusual) })
    }
}

/// A range of rows in f32, each with zeros behind it up to a multiple of `lanes`: where they lie if that is what they are,
/// else in `buffer`.
#[inline(always)]
fn widen<'a>(rows: &'a Rows, range: Range<usize>, lanes: usize, buffer: &'a mut Vec<f32>) -> &'a [f32] {
    let d = rows.shape()[1];
    let width = d.next_multiple_of(lanes);
    if let Rows::F32(rows) = rows
        && d == width
        && let Some(rows) = rows.slice(s![range.clone(), ..]).to_slice()
    {
        return rows;
    }
    if d < width {
        buffer.clear();
    }
    buffer.resize(range.len() * width, 0.0);
    for (i, out) in range.zip(buffer.chunks_exact_mut(width)) {
        let out = &mut out[..d];
        match rows {
            Rows::F32(rows) => write(rows.row(i), out, |x| x),
            Rows::Bf16(rows) => write(rows.row(i), out, |x| f32::from_bits(u32::from(x.to_bits()) << 16)),
            Rows::F16(rows) => match rows.row(i).to_slice() {
                Some(row) => row.convert_to_f32_slice(out),
                None => write(rows.row(i), out, |x| x.to_f32()),
            },
            Rows::F64(_) | Rows::E4m3(_) => unreachable!("the rung supports neither"),
        }
    }
    buffer
}

#[inline(always)]
fn write<T: Copy>(row: ArrayView1<T>, out: &mut [f32], widen: impl Fn(T) -> f32) {
    match row.as_slice() {
        Some(row) => out.iter_mut().zip(row).for_each(|(out, &x)| *out = widen(x)),
        None => out.iter_mut().zip(row).for_each(|(out, &x)| *out = widen(x)),
    }
}

/// Query rows in f32.
#[inline(always)]
pub(super) fn load_rows(heads: &[Head], rows: &[Row]) -> Result<Vec<Vec<f32>>, Unusual> {
    let load = |&(head, i): &Row| {
        let mut buffer = Vec::new();
        widen(&heads[head].q, i..i + 1, 1, &mut buffer).to_vec()
    };
    let rows: Vec<Vec<f32>> = rows.iter().map(load).collect();
    if rows.iter().all(|row| usual(row)) { Ok(rows) } else { Err(Unusual) }
}

/// Whether the scores and sums of these numbers stay far from overflow.
#[inline(always)]
fn usual(x: &[f32]) -> bool {
    x.iter().fold(0, |most, x| x.abs().to_bits().max(most)) <= LARGEST.to_bits()
}

#[inline(always)]
fn usual_bf16(k: &[bf16], v: &[bf16]) -> bool {
    let [largest, smallest] = [LARGEST, SMALLEST].map(|x| bf16::from_f32(x).to_bits());
    // Of 0 the subtraction makes the largest number there is.
    let least = v.iter().fold(u16::MAX, |least, x| (x.to_bits() & 0x7FFF).wrapping_sub(1).min(least));
    largest_bf16(k).max(largest_bf16(v)) <= largest && least >= smallest - 1
}

/// The bits of the largest magnitude.
#[inline(always)]
fn largest_bf16(x: &[bf16]) -> u16 {
    x.iter().fold(0, |most, x| (x.to_bits() & 0x7FFF).max(most))
}

/// Asks the memory for k and v of `key`, if there is such a key, so that they are in the L2 cache when their tile is loaded.
#[inline(always)]
pub(super) fn prefetch(head: &Head, key: usize) {
    if key < head.k_len {
        for rows in [&head.k, &head.v] {
            match rows {
                Rows::F32(rows) => prefetch_row(rows.row(key)),
                Rows::F16(rows) => prefetch_row(rows.row(key)),
                Rows::Bf16(rows) => prefetch_row(rows.row(key)),
                Rows::F64(_) | Rows::E4m3(_) => {}
            }
        }
    }
}

/// One request for each cache line of 64 bytes of a row without gaps. Elsewhere than on x86-64 it does nothing.
#[inline(always)]
fn prefetch_row<T>(row: ArrayView1<T>) {
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
