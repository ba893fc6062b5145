//! Tiles of matrices in the registers of a warp, as `mma` and `wgmma` have them, and their product (PTX ISA, "Warp Level Matrix
//! Instructions: mma", "Asynchronous Warpgroup Level Matrix Register Fragment").
//!
//! Each number lies in one lane: with `g = lane / 4` and `t = lane % 4`, a lane's registers hold of A the rows g and g + 8 and
//! the columns 2 t and 2 t + 1 of each 8, of B the rows 2 t and 2 t + 1 of each 8 and column g, of C and D the rows g and g + 8
//! and the columns 2 t and 2 t + 1.
//!
//! The order of the sum is left open by the ISA. Here it is a sum in f64, rounded once to the type of D.

use crate::float::{self, F16, Round};
use crate::lanes::{ALL, Lanes, Registers, Source, Target};
use half::{bf16, f16};
use std::array;

/// Rows by columns, of which a product may need fewer.
pub(crate) type TileA = [[f64; 16]; 16];
pub(crate) type TileB = [[f64; 8]; 16];
/// What is summed up.
pub(crate) type Sums = [[f64; 8]; 16];

/// The type of A and B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    F16,
    Bf16,
}

/// The type of C or D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accumulator {
    F32,
    F16,
}

impl Factor {
    pub(crate) fn number(self, bits: u16) -> f64 {
        match self {
            Factor::F16 => f16::from_bits(bits).into(),
            Factor::Bf16 => bf16::from_bits(bits).into(),
        }
    }

    /// The two numbers of a register.
    fn pair(self, bits: u32) -> [f64; 2] {
        [bits as u16, (bits >> 16) as u16].map(|bits| self.number(bits))
    }

    /// A, from two registers for each eight columns.
    pub(crate) fn tile_a(self, r: &Registers, from: &[Source]) -> TileA {
        let mut a = [[0.0; 16]; 16];
        for (register, source) in from.iter().enumerate() {
            let pairs: Lanes<u32> = r.get(*source);
            let (row, column) = (8 * (register % 2), 8 * (register / 2));
            for (lane, pair) in pairs.into_iter().enumerate() {
                let (row, column) = (row + lane / 4, column + 2 * (lane % 4));
                [a[row][column], a[row][column + 1]] = self.pair(pair);
            }
        }
        a
    }

    /// B, from a register for each eight rows.
    pub(crate) fn tile_b(self, r: &Registers, from: &[Source]) -> TileB {
        let mut b = [[0.0; 8]; 16];
        for (register, source) in from.iter().enumerate() {
            let pairs: Lanes<u32> = r.get(*source);
            for (lane, pair) in pairs.into_iter().enumerate() {
                let (row, column) = (8 * register + 2 * (lane % 4), lane / 4);
                [b[row][column], b[row + 1][column]] = self.pair(pair);
            }
        }
        b
    }
}

impl Accumulator {
    /// Registers of a tile.
    pub(crate) fn registers(self) -> usize {
        match self {
            Accumulator::F32 => 4,
            Accumulator::F16 => 2,
        }
    }

    pub(crate) fn load(self, r: &Registers, from: &[Source]) -> Sums {
        let mut sums = [[0.0; 8]; 16];
        for (register, source) in from.iter().enumerate() {
            let bits: Lanes<u32> = r.get(*source);
            for (lane, bits) in bits.into_iter().enumerate() {
                let (group, column) = (lane / 4, 2 * (lane % 4));
                match self {
                    Accumulator::F32 => {
                        sums[group + 8 * (register / 2)][column + register % 2] = f32::from_bits(bits).into();
                    }
                    Accumulator::F16 => {
                        let row = &mut sums[group + 8 * register];
                        [row[column], row[column + 1]] = Factor::F16.pair(bits);
                    }
                }
            }
        }
        sums
    }

    pub(crate) fn store(self, r: &mut Registers, to: &[Target], sums: &Sums) {
        let half = |x: f64| float::round(x, F16, Round::Nearest) as u32;
        for (register, target) in to.iter().enumerate() {
            let of = |lane: usize| {
                let (group, column) = (lane / 4, 2 * (lane % 4));
                match self {
                    // As the CPU rounds: to nearest, once.
                    Accumulator::F32 => {
                        float::canonical(sums[group + 8 * (register / 2)][column + register % 2] as f32).to_bits()
                    }
                    Accumulator::F16 => {
                        let row = &sums[group + 8 * register];
                        half(row[column]) | half(row[column + 1]) << 16
                    }
                }
            };
            r.put::<u32>(*target, ALL, array::from_fn(of));
        }
    }
}

/// Adds the product of the first `k` columns of A and rows of B.
#[inline]
pub(crate) fn multiply(a: &TileA, b: &TileB, k: usize, to: &mut Sums) {
    for (row, to) in a.iter().zip(to) {
        let mut sums = *to;
        for (x, row) in row.iter().zip(b).take(k) {
            for (sum, y) in sums.iter_mut().zip(row) {
                *sum += x * y;
            }
        }
        *to = sums;
    }
}
