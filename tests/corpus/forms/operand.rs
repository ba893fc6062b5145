//! How operands of `wgmma` lie in shared memory (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout").

use crate::map::swizzled;
use crate::values::Format;

/// Numbers of an operand: by row of A or column of B, and then by k. Those of a sum: by row and column.
pub(crate) type Matrix = Vec<Vec<i32>>;

/// Bytes of a row of the swizzle, 16 for none, and which dimension's neighbours lie in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) row: usize,
    /// M or N, not K.
    pub(crate) mn: bool,
}

pub(crate) const LAYOUTS: [Layout; 8] = {
    let mut layouts = [Layout { row: 16, mn: false }; 8];
    let mut place = 0;
    while place < 8 {
        layouts[place] = Layout { row: 16 << (place / 2), mn: place % 2 == 1 };
        place += 1;
    }
    layouts
};

/// An operand in shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    pub(crate) layout: Layout,
    /// Rows of A or columns of B.
    pub(crate) lines: usize,
    pub(crate) depth: usize,
    /// With room between its pieces, or in their other order; else as copies of boxes leave it.
    pub(crate) loose: bool,
    /// Lines of 128 bytes before it, from a multiple of 1024 on.
    pub(crate) base: usize,
}

impl Operand {
    /// Numbers of 16 bits in a row.
    pub(crate) fn per_row(&self) -> usize {
        self.layout.row / 2
    }

    /// Lengths along the rows, and across them.
    pub(crate) fn sides(&self) -> (usize, usize) {
        if self.layout.mn { (self.lines, self.depth) } else { (self.depth, self.lines) }
    }

    /// The leading and the stride dimension byte offset.
    fn offsets(&self) -> (usize, usize) {
        let Operand { layout: Layout { row, mn }, lines, depth, loose, .. } = *self;
        match (row, mn, loose) {
            (16, false, false) => (16 * lines, 128),
            (16, false, true) => (128, 16 * depth + 128),
            (16, true, false) => (128, 16 * depth),
            (16, true, true) => (16 * lines + 128, 128),
            // Of no meaning where rows are along K.
            (row, false, _) => (16, 8 * row * (1 + usize::from(loose))),
            (row, true, false) => (depth * row, 8 * row),
            (row, true, true) => (2 * depth * row + 8 * row, 16 * row),
        }
    }

    /// Bytes from one row's worth of numbers to the next along the rows.
    pub(crate) fn piece(&self) -> usize {
        let (leading, stride) = self.offsets();
        match (self.layout.row, self.layout.mn) {
            (16, false) | (17.., true) => leading,
            (16, true) => stride,
            _ => self.lines.div_ceil(8) * stride,
        }
    }

    /// Where a number would lie without a swizzle, from the operand's first byte on.
    fn plain(&self, line: usize, k: usize) -> usize {
        let Layout { row, mn } = self.layout;
        let (along, across) = if mn { (line, k) } else { (k, line) };
        let (leading, stride) = self.offsets();
        let eight = if (row, mn) == (16, true) { leading } else { stride };
        along / self.per_row() * self.piece() + along % self.per_row() * 2 + across / 8 * eight + across % 8 * row
    }

    /// The operand's bytes: what is no number of it is NaN.
    pub(crate) fn image(&self, numbers: &Matrix, format: Format) -> Vec<u8> {
        let mut image = Vec::new();
        for (line, numbers) in numbers.iter().enumerate() {
            for (k, number) in numbers.iter().enumerate() {
                let at = 128 * self.base + swizzled(self.plain(line, k), self.layout.row);
                if image.len() < at + 2 {
                    image.resize(at + 2, 0xff);
                }
                image[at..at + 2].copy_from_slice(&format.bytes_of((*number).into()));
            }
        }
        image
    }

    /// The descriptor for a step, which takes 16 numbers along K; the address that `start` counts from is to be added.
    pub(crate) fn descriptor(&self, start: usize, step: usize) -> u64 {
        let (leading, stride) = self.offsets();
        let mode = match self.layout.row {
            16 => 0,
            32 => 3,
            64 => 2,
            _ => 1,
        };
        let start = start + 128 * self.base + self.plain(0, 16 * step);
        let fields = [(start / 16, 0), (leading / 16, 16), (stride / 16, 32), (self.base, 49), (mode, 62)];
        fields.into_iter().fold(0, |bits, (field, at)| bits | (field as u64) << at)
    }
}
