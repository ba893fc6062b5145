//! The canonical layouts (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", "Strides" and "Swizzling Modes"):
//! where a descriptor puts the elements of an operand.
//!
//! Eight elements of 16 bits that are neighbours along the *major* dimension lie together: a *unit* of 16 bytes. An operand is
//! a grid of units: K-major, two along K for each row of M or N; MN-major, one for each eight rows of M or N along each K. So
//! a place is a *line*, the number along the other dimension, and a unit of that line. A *row* of the swizzle has 2, 4 or 8
//! units (32, 64 or 128 bytes), none without a swizzle. Of the offsets between units:
//!
//! | | from unit to unit | from line to line |
//! |--|--|--|
//! | K-major, no swizzle | leading | 16, after 8 lines stride |
//! | K-major, swizzled | 16 | a row, after 8 lines stride |
//! | MN-major, no swizzle | stride | 16, after 8 lines leading |
//! | MN-major, swizzled | 16, after a row leading | a row, after 8 lines stride |
//!
//! The swizzle then works on the address that comes out of it: bits 7 and up change bits 4 and up by an exclusive or, one bit
//! of each for 32 bytes, two for 64, three for 128. It is the address in shared memory and not the distance from the start: an
//! operand that begins away from its pattern's beginning has other units than its writer meant, unless the base offset says
//! where the pattern begins.

use super::descriptor::{Descriptor, Swizzle};

/// Bytes of a unit.
pub(crate) const UNIT: u32 = 16;

/// Lines that lie together.
const LINES: u64 = 8;

/// The dimension along which neighbours lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Major {
    K,
    Mn,
}

impl Descriptor {
    /// The address in shared memory of a unit of a line.
    pub(crate) fn address(&self, major: Major, line: u32, unit: u32) -> u64 {
        let (line, unit, each) = (u64::from(line), u64::from(unit), u64::from(UNIT));
        let row = self.swizzle.units();
        let (across, down) = match (major, self.swizzle) {
            (Major::K, Swizzle::None) => (unit * self.leading, self.stride),
            (Major::K, _) => (unit * each, self.stride),
            (Major::Mn, Swizzle::None) => (unit * self.stride, self.leading),
            (Major::Mn, _) => (unit % row * each + unit / row * self.leading, self.stride),
        };
        self.swizzled(self.start + across + line % LINES * row * each + line / LINES * down)
    }

    fn swizzled(&self, address: u64) -> u64 {
        // Bits 7 and up count rows of 128 bytes, from where the pattern begins.
        let row = (address >> 7).wrapping_sub(self.base_offset);
        address ^ (row & (self.swizzle.units() - 1)) << 4
    }
}

impl Swizzle {
    /// Units of a row.
    fn units(self) -> u64 {
        match self {
            Swizzle::None => 1,
            Swizzle::Bytes32 => 2,
            Swizzle::Bytes64 => 4,
            Swizzle::Bytes128 => 8,
        }
    }
}

#[cfg(test)]
mod tests;
