//! Where the bytes of a box of a tensor lie, in global and in shared memory (PTX ISA, "Tensors").

use super::Trouble;
use crate::fault::FaultKind;
use crate::float::{Round, TF32, round};
use crate::tensor_map::{Layout, Swizzle};

/// Bytes that lie together in both memories.
pub(super) struct Piece {
    pub(super) shared: u64,
    /// `None` outside of the tensor.
    pub(super) global: Option<u64>,
    pub(super) bytes: u32,
}

/// Elements of single precision as a load rounds them to TF32, whose 19 bits are the upper ones.
pub(super) fn round_to_tf32(elements: &mut [u8]) {
    for element in elements.as_chunks_mut::<4>().0 {
        let bits = round(f32::from_le_bytes(*element).into(), TF32, Round::Nearest) as u32;
        *element = (bits << 13).to_le_bytes();
    }
}

/// The map, for a copy with so many coordinates; for any, if there are none.
pub(super) fn read_map(bytes: &[u8; 128], coordinates: usize) -> Result<Layout, Trouble> {
    let wrong = |what: String| Trouble::new(FaultKind::TensorMap, what);
    let map = Layout::decode(bytes).ok_or_else(|| {
        wrong("found bytes that are no tensor map of this device, or were changed since, wanted one".into())
    })?;
    if coordinates > 0 && map.rank != coordinates {
        let found = map.rank;
        return Err(wrong(format!(
            "found a map of {found} dimensions, wanted {coordinates}, as the copy has coordinates"
        )));
    }
    Ok(map)
}

/// The pieces of a box at these coordinates, whose bytes begin at an address of shared memory.
pub(super) fn boxed(map: &Layout, at: &[i32], shared: u64) -> Vec<Piece> {
    let row_bytes = map.box_sizes[0] * map.element_bytes;
    let rows: u32 = map.box_sizes[1..map.rank].iter().product();
    let mut pieces = Vec::new();
    for row in 0..rows {
        let to = shared + u64::from(row) * u64::from(row_bytes);
        let from = row_start(map, at, row);
        // The elements of the row that are in the tensor.
        let sizes = (i64::from(at[0]), map.sizes[0] as i64, i64::from(map.box_sizes[0]));
        let inside = from.map_or((0, 0), |_| ((-sizes.0).clamp(0, sizes.2), (sizes.1 - sizes.0).clamp(0, sizes.2)));
        let byte = |element: i64| element as u32 * map.element_bytes;
        let (first, behind) = (byte(inside.0), byte(inside.1.max(inside.0)));
        let start = from.map(|from| from.wrapping_add_signed(i64::from(at[0]) * i64::from(map.element_bytes)));
        for (from, to_byte, global) in [(0, first, None), (first, behind, start), (behind, row_bytes, None)] {
            cut(map, to, from..to_byte, global, &mut pieces);
        }
    }
    pieces
}

/// Where the first element of a row of a box would lie, were its innermost coordinate 0; `None` if it is not in the tensor.
/// Addresses beyond all others are no tensor's, and say so when they are read.
fn row_start(map: &Layout, at: &[i32], row: u32) -> Option<u64> {
    let (mut address, mut rest) = (i128::from(map.address), row);
    for (axis, at) in at.iter().enumerate().take(map.rank).skip(1) {
        let place = i64::from(*at) + i64::from(rest % map.box_sizes[axis]);
        rest /= map.box_sizes[axis];
        if place < 0 || place as u64 >= map.sizes[axis] {
            return None;
        }
        address += i128::from(place) * i128::from(map.strides[axis]);
    }
    Some(u64::try_from(address).unwrap_or(u64::MAX - (1 << 20)))
}

/// Adds some bytes of a row, in as many pieces as the swizzle makes of them.
fn cut(map: &Layout, row: u64, bytes: std::ops::Range<u32>, global: Option<u64>, pieces: &mut Vec<Piece>) {
    const ATOM: u32 = 16;
    let mut from = bytes.start;
    while from < bytes.end {
        let to = if map.swizzle == Swizzle::None { bytes.end } else { bytes.end.min((from / ATOM + 1) * ATOM) };
        let shared = swizzled(map.swizzle, row + u64::from(from));
        let global = global.map(|start| start.wrapping_add(from.into()));
        pieces.push(Piece { shared, global, bytes: to - from });
        from = to;
    }
}

/// Where a byte of a box lies whose place without a swizzle is this address: the number of its 16 bytes among those of the
/// swizzle's width is changed by bits of the address above 128.
fn swizzled(swizzle: Swizzle, address: u64) -> u64 {
    let bits = match swizzle {
        Swizzle::None => 0,
        Swizzle::B32 => 0x10,
        Swizzle::B64 => 0x30,
        Swizzle::B128 => 0x70,
    };
    address ^ (address >> 3 & bits)
}
