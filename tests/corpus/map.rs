//! Tensor maps of programs, over buffers that are there only while a program runs, and what a copy of a box does.

use device::{Element, OutOfBoundsFill, Swizzle, Tiling};

pub(crate) const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

/// A tensor in the input or in the output, the innermost axis first, and the tile of it that a copy moves.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    pub(crate) of_output: bool,
    /// Bytes of the buffer before the tensor.
    pub(crate) start: usize,
    pub(crate) element: Element,
    pub(crate) lengths: Vec<u64>,
    pub(crate) strides: Vec<u64>,
    pub(crate) tile: Vec<u32>,
    pub(crate) swizzle: Swizzle,
    pub(crate) fill: OutOfBoundsFill,
}

impl Map {
    /// As a device takes it, for a buffer at that address.
    pub(crate) fn tiling(&self, buffer: u64) -> Tiling<'_> {
        Tiling {
            element: self.element,
            address: buffer + self.start as u64,
            lengths: &self.lengths,
            strides: &self.strides,
            tile: &self.tile,
            swizzle: self.swizzle,
            fill: self.fill,
        }
    }

    /// Bytes of a box.
    pub(crate) fn box_bytes(&self) -> usize {
        (self.tile.iter().product::<u32>() * self.element.bytes()) as usize
    }

    /// The elements of a box at these coordinates: where each lies in shared memory, from the box's first byte on,
    /// which is at a multiple of 1024, and where in the buffer, if it is of the tensor.
    pub(crate) fn boxed(&self, at: &[i32]) -> Vec<(usize, Option<usize>)> {
        let size = self.element.bytes() as usize;
        let each = (0..self.box_bytes() / size).map(|number| {
            let mut rest = number;
            let place = at.iter().zip(&self.tile).map(|(at, side)| {
                let along = rest % *side as usize;
                rest /= *side as usize;
                i64::from(*at) + along as i64
            });
            let place: Vec<i64> = place.collect();
            (swizzled(number * size, width(self.swizzle)), self.place(&place))
        });
        each.collect()
    }

    fn place(&self, at: &[i64]) -> Option<usize> {
        let inside = at.iter().zip(&self.lengths).all(|(at, length)| (0..*length as i64).contains(at));
        inside.then(|| {
            let strides = [u64::from(self.element.bytes())].into_iter().chain(self.strides.iter().copied());
            self.start + at.iter().zip(strides).map(|(at, stride)| *at as usize * stride as usize).sum::<usize>()
        })
    }
}

/// Bytes of a swizzle's row; 16 where there is none.
pub(crate) fn width(swizzle: Swizzle) -> usize {
    match swizzle {
        Swizzle::None => 16,
        Swizzle::B32 => 32,
        Swizzle::B64 => 64,
        Swizzle::B128 => 128,
    }
}

/// Where a byte of rows of that width lies that without a swizzle would lie so far behind the pattern's beginning: the
/// 16 bytes that it is of change places within their row by the number of the line of 128 bytes.
pub(crate) fn swizzled(byte: usize, row: usize) -> usize {
    byte ^ (byte / 128 % (row / 16) * 16)
}
