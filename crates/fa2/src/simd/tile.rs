//! Tiles of keys and values, as the vectors want them.

use super::vector::Product;
use attention::{Head, Rows};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use ndarray::s;
use std::borrow::Cow;
use std::ops::Range;

/// Largest magnitude with which no product, sum or score here can overflow, for up to 2^20 channels.
pub(super) const LARGEST: f32 = (1u64 << 50) as f32;

/// Smallest magnitude of a value whose products in BF16 arithmetic, which has no subnormals, lose nothing that counts.
const SMALLEST: f32 = 1.0 / (1u128 << 100) as f32;

/// A number that is not finite, or far from any that attention meets. The plain algorithm takes care of those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unusual;

/// Lines 6 and 7: K_j and V_j, for every query head that shares them.
pub(super) struct KeyTile<'a> {
    pub(super) keys: Range<usize>,
    /// `[keys, d / DEPTH]`
    pub(super) k: Cow<'a, [f32]>,
    /// `[keys / DEPTH, d_v]`
    pub(super) v: Cow<'a, [f32]>,
}

impl<'a> KeyTile<'a> {
    /// Keys that are f32 already stay where they are, if their rows lie one behind the other.
    #[inline(always)]
    pub(super) fn load<P: Product>(head: &'a Head, keys: Range<usize>) -> Result<Self, Unusual> {
        if P::DEPTH == 2
            && let (Rows::Bf16(k), Rows::Bf16(v)) = (&head.k, &head.v)
        {
            let (k, v) = (k.slice(s![keys.clone(), ..]), v.slice(s![keys.clone(), ..]));
            let (k, v) = (k.as_standard_layout(), v.as_standard_layout());
            let slices = k.as_slice().zip(v.as_slice()).expect("standard layout");
            return Self::pairs(keys, slices, head.d(), head.d_v());
        }
        let (k, v) = (widen(&head.k, keys.clone()), widen(&head.v, keys.clone()));
        if usual(&k) && usual(&v) { Ok(KeyTile { keys, k, v }) } else { Err(Unusual) }
    }

    /// The same tile with zeros behind the channels of each row, up to whole vectors of `lanes`.
    #[inline(always)]
    pub(super) fn padded(self, [d, d_v]: [usize; 2], lanes: usize) -> Self {
        KeyTile { keys: self.keys, k: pad(self.k, d, lanes), v: pad(self.v, d_v, lanes) }
    }

    /// Pairs of channels of k, and pairs of keys of v. An odd one out has a 0 beside it.
    #[inline(always)]
    fn pairs(keys: Range<usize>, (k, v): (&[bf16], &[bf16]), d: usize, d_v: usize) -> Result<Self, Unusual> {
        let magnitude = |x: &bf16| x.to_bits() & 0x7FFF;
        let [largest, smallest] = [LARGEST, SMALLEST].map(|x| bf16::from_f32(x).to_bits());
        let most = k.iter().chain(v).fold(0, |most, x| magnitude(x).max(most));
        // 0 wraps around to the largest number there is.
        let least = v.iter().fold(u16::MAX, |least, x| magnitude(x).wrapping_sub(1).min(least));
        if most > largest || least < smallest - 1 {
            return Err(Unusual);
        }
        let pair = |low: bf16, high: bf16| f32::from_bits(u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16);
        let mut k_pairs = Vec::with_capacity(keys.len() * d.div_ceil(2));
        for k in k.chunks_exact(d) {
            let (whole, odd) = k.as_chunks::<2>();
            k_pairs.extend(whole.iter().map(|&[low, high]| pair(low, high)));
            k_pairs.extend(odd.iter().map(|&low| pair(low, bf16::ZERO)));
        }
        let mut v_pairs = Vec::with_capacity(keys.len().div_ceil(2) * d_v);
        for v in v.chunks(2 * d_v) {
            match v.split_at(d_v) {
                (low, []) => v_pairs.extend(low.iter().map(|&low| pair(low, bf16::ZERO))),
                (low, high) => v_pairs.extend(low.iter().zip(high).map(|(&low, &high)| pair(low, high))),
            }
        }
        Ok(KeyTile { keys, k: Cow::Owned(k_pairs), v: Cow::Owned(v_pairs) })
    }
}

#[inline(always)]
fn pad(rows: Cow<[f32]>, d: usize, lanes: usize) -> Cow<[f32]> {
    if d.is_multiple_of(lanes) {
        return rows;
    }
    let padded = d.next_multiple_of(lanes);
    let mut copy = vec![0.0; rows.len() / d * padded];
    for (row, copy) in rows.chunks_exact(d).zip(copy.chunks_exact_mut(padded)) {
        copy[..d].copy_from_slice(row);
    }
    Cow::Owned(copy)
}

/// As [`Rows::load`], but without a copy where none is needed, and quick for rows without gaps.
#[inline(always)]
pub(super) fn widen<'a>(rows: &'a Rows, range: Range<usize>) -> Cow<'a, [f32]> {
    match rows {
        Rows::F32(f32s) => {
            if let Some(f32s) = f32s.slice(s![range.clone(), ..]).to_slice() {
                return Cow::Borrowed(f32s);
            }
        }
        Rows::Bf16(bf16s) => {
            if let Some(bf16s) = bf16s.slice(s![range.clone(), ..]).to_slice() {
                return bf16s.iter().map(|x| f32::from_bits(u32::from(x.to_bits()) << 16)).collect();
            }
        }
        Rows::F16(f16s) => {
            if let Some(f16s) = f16s.slice(s![range.clone(), ..]).to_slice() {
                return Cow::Owned(f16s.to_f32_vec());
            }
        }
        _ => {}
    }
    Cow::Owned(rows.load(range).into_raw_vec_and_offset().0)
}

#[inline(always)]
pub(super) fn usual(x: &[f32]) -> bool {
    x.iter().fold(0, |most, x| x.abs().to_bits().max(most)) <= LARGEST.to_bits()
}
