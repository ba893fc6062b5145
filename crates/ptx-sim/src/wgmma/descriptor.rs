//! The matrix descriptor (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", "Matrix Descriptor Format"): 64
//! bits that say where an operand begins, how far its pieces are apart and how they are swizzled.
//!
//! | bits | what |
//! |--|--|
//! | 0 to 13 | start address / 16 |
//! | 16 to 29 | leading dimension byte offset / 16 |
//! | 32 to 45 | stride dimension byte offset / 16 |
//! | 49 to 51 | base offset |
//! | 62 and 63 | swizzling mode |
//!
//! All others are 0.

use thiserror::Error;

/// A matrix descriptor, whose offsets and address are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(super) start: u64,
    /// Between pieces along the leading dimension; what that means is the layout's to say.
    pub(super) leading: u64,
    /// Between pieces along the other dimension.
    pub(super) stride: u64,
    /// Where the swizzle's pattern begins, in rows of 128 bytes after a multiple of 1024.
    pub(super) base_offset: u64,
    pub(super) swizzle: Swizzle,
}

/// How many bytes of an operand stand in a row whose pieces of 16 bytes change places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swizzle {
    None,
    Bytes32,
    Bytes64,
    Bytes128,
}

/// Bits that mean nothing.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum IllegalDescriptor {
    #[error("{after}, bits {first} to {last}: found {found:#x}, wanted 0")]
    Reserved { after: &'static str, first: u32, last: u32, found: u64 },
    #[error("base offset, bits 49 to 51: found {0}, wanted 0 where nothing is swizzled")]
    BaseOffset(u64),
}

/// Bits without a meaning: what stands before them, the first and the last.
const RESERVED: [(&str, u32, u32); 4] = [
    ("reserved bits behind the start address", 14, 15),
    ("reserved bits behind the leading dimension byte offset", 30, 31),
    ("reserved bits behind the stride dimension byte offset", 46, 48),
    ("reserved bits behind the base offset", 52, 61),
];

impl Descriptor {
    /// What the bits of a register say.
    ///
    /// # Errors
    /// The first field that has what it may not have.
    pub(crate) fn decode(bits: u64) -> Result<Descriptor, IllegalDescriptor> {
        for (after, first, last) in RESERVED {
            match field(bits, first, last) {
                0 => {}
                found => return Err(IllegalDescriptor::Reserved { after, first, last, found }),
            }
        }
        let swizzle = match field(bits, 62, 63) {
            0 => Swizzle::None,
            1 => Swizzle::Bytes128,
            2 => Swizzle::Bytes64,
            _ => Swizzle::Bytes32,
        };
        let base_offset = field(bits, 49, 51);
        if swizzle == Swizzle::None && base_offset != 0 {
            return Err(IllegalDescriptor::BaseOffset(base_offset));
        }
        let [start, leading, stride] = [0, 16, 32].map(|first| 16 * field(bits, first, first + 13));
        Ok(Descriptor { start, leading, stride, base_offset, swizzle })
    }
}

/// Some bits, the last one included.
fn field(bits: u64, first: u32, last: u32) -> u64 {
    bits >> first & ((1 << (last - first + 1)) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_isa_has_them() {
        let bits = 0x2040 | 0x0011 << 16 | 0x0040 << 32 | 5 << 49 | 1 << 62;
        let (start, leading, stride) = (0x20400, 0x110, 0x400);
        let wanted = Descriptor { start, leading, stride, base_offset: 5, swizzle: Swizzle::Bytes128 };
        assert_eq!(Descriptor::decode(bits), Ok(wanted));
        let all = 0x3fff | 0x3fff << 16 | 0x3fff << 32;
        let (start, leading, stride) = (0x3fff0, 0x3fff0, 0x3fff0);
        for (mode, swizzle) in [(0, Swizzle::None), (2, Swizzle::Bytes64), (3, Swizzle::Bytes32)] {
            let wanted = Descriptor { start, leading, stride, base_offset: 0, swizzle };
            assert_eq!(Descriptor::decode(all | mode << 62), Ok(wanted));
        }
    }

    #[test]
    fn every_bit_without_a_meaning_is_refused_by_the_name_of_its_place() {
        for bit in 0..64 {
            let field = match bit {
                14 | 15 => "start address, bits 14 to 15: found",
                30 | 31 => "leading dimension byte offset, bits 30 to 31: found",
                46..=48 => "stride dimension byte offset, bits 46 to 48: found",
                52..=61 => "base offset, bits 52 to 61: found",
                _ => continue,
            };
            let refused = Descriptor::decode(1 << bit | 1 << 62).unwrap_err().to_string();
            assert!(refused.contains(field), "bit {bit}: {refused}");
        }
        for base_offset in 1..8 {
            assert_eq!(Descriptor::decode(base_offset << 49), Err(IllegalDescriptor::BaseOffset(base_offset)));
            assert!(Descriptor::decode(base_offset << 49 | 2 << 62).is_ok());
        }
    }
}
