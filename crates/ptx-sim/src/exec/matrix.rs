//! `ldmatrix` and `stmatrix` (PTX ISA, "Warp Level Matrix Load Instruction: ldmatrix" and "... Store ...: stmatrix"): 8 x 8
//! matrices of 16 bits between shared memory and lanes.
//!
//! Lanes 8 i to 8 i + 7 have the addresses of the rows of matrix i. Lane `4 r + c / 2` has the elements (r, c) and (r, c + 1)
//! in its register i; transposed, (c, r) and (c + 1, r).

use super::Trouble;
use super::access::{aligned, uninitialised};
use super::block::Block;
use crate::fault::FaultKind;
use crate::lanes::{ALL, Lanes, Source};
use crate::program::Matrix;
use crate::ptx::Space;
use crate::races::{By, Kind};
use std::array;

/// Bytes of a row.
const ROW: usize = 16;

type Elements = [[u16; 8]; 8];

impl Block<'_, '_> {
    pub(super) fn load_matrix(&mut self, warp: usize, matrix: &Matrix, by: By) -> Result<(), Trouble> {
        let rows = self.rows(warp, matrix)?;
        for (number, register) in matrix.registers.iter().enumerate() {
            let mut elements: Elements = [[0; 8]; 8];
            for (row, to) in elements.iter_mut().enumerate() {
                let lane = 8 * number + row;
                let mut bytes = [0; ROW];
                self.row(rows[lane], &mut bytes, By { lane: lane as u8, ..by })
                    .map_err(|trouble| trouble.lane(lane))?;
                *to = array::from_fn(|column| u16::from_le_bytes([bytes[2 * column], bytes[2 * column + 1]]));
            }
            let at = |row: usize, column: usize| {
                u32::from(if matrix.transposed { elements[column][row] } else { elements[row][column] })
            };
            let of = |lane: usize| at(lane / 4, 2 * (lane % 4)) | at(lane / 4, 2 * (lane % 4) + 1) << 16;
            if let Source::Register(target) = register {
                self.warps[warp].registers.put::<u32>(*target, ALL, array::from_fn(of));
            }
        }
        Ok(())
    }

    fn row(&mut self, address: u64, to: &mut [u8; ROW], by: By) -> Result<(), Trouble> {
        aligned(address, ROW)?;
        let at = self.shared_at(address, ROW as u32)?;
        let noted = self.shared_races.access(Kind::Read, address, ROW as u32, &by, false, &self.clocks);
        noted.map_err(|conflict| Trouble::conflict("shared", conflict))?;
        self.shared.read(at, to).map_err(|missing| uninitialised("shared", missing as u64))
    }

    pub(super) fn store_matrix(&mut self, warp: usize, matrix: &Matrix, by: By) -> Result<(), Trouble> {
        let rows = self.rows(warp, matrix)?;
        for (number, register) in matrix.registers.iter().enumerate() {
            let pairs: Lanes<u32> = self.warps[warp].registers.get(*register);
            let mut elements: Elements = [[0; 8]; 8];
            for (lane, pair) in pairs.into_iter().enumerate() {
                for (column, bits) in [(2 * (lane % 4), pair as u16), (2 * (lane % 4) + 1, (pair >> 16) as u16)] {
                    let row = lane / 4;
                    let (row, column) = if matrix.transposed { (column, row) } else { (row, column) };
                    elements[row][column] = bits;
                }
            }
            for (row, from) in elements.iter().enumerate() {
                let lane = 8 * number + row;
                let bytes: [u8; ROW] = array::from_fn(|byte| from[byte / 2].to_le_bytes()[byte % 2]);
                self.write_row(rows[lane], &bytes, By { lane: lane as u8, ..by })
                    .map_err(|trouble| trouble.lane(lane))?;
            }
        }
        Ok(())
    }

    fn write_row(&mut self, address: u64, from: &[u8; ROW], by: By) -> Result<(), Trouble> {
        aligned(address, ROW)?;
        let at = self.shared_at(address, ROW as u32)?;
        let same = self.shared.raw(at, ROW) == from;
        let noted = self.shared_races.access(Kind::Write, address, ROW as u32, &by, same, &self.clocks);
        noted.map_err(|conflict| Trouble::conflict("shared", conflict))?;
        self.shared.write(at, from);
        Ok(())
    }

    /// The addresses of the rows, counted.
    fn rows(&mut self, warp: usize, matrix: &Matrix) -> Result<Lanes<u64>, Trouble> {
        let used = ALL >> (32 - 8 * matrix.registers.len());
        let places = self.places(warp, &matrix.address, used);
        let global = places.iter().take(8 * matrix.registers.len()).position(|(space, _)| *space != Space::Shared);
        if let Some(lane) = global {
            let what = "found an address that is not of shared memory, wanted one";
            return Err(Trouble::new(FaultKind::OutOfBounds, what).lane(lane));
        }
        let addresses = places.map(|(_, address)| address);
        self.grid.counters.shared.count(&addresses, used, ROW as u32);
        Ok(addresses)
    }
}
