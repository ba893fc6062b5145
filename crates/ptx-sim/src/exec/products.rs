//! `wgmma.mma_async`: operands in shared memory, and the product (PTX ISA, "wgmma.mma_async").
//!
//! A warp of the four has 16 rows of A and D, and all of B. All that a product reads of memory is checked when it is issued: that
//! it is there, written, fenced for the async proxy, and ordered before. All threads of the warps that read a place must know
//! of it: of A those of the warp whose rows they are, of B all. From then on a write there conflicts, until one of the threads
//! has waited and the writer knows of that. So when the product is computed makes no difference to a right program, and the
//! schedule draws it: at any time until the wait, in the order in which they were issued.

use super::Trouble;
use super::access::uninitialised;
use super::block::Block;
use super::warpgroup::{WARPS, threads_of, uniform, warps_of};
use crate::clock::TOGETHER;
use crate::fault::FaultKind;
use crate::fragments::{self, TileA, TileB};
use crate::lanes::{Lanes, Source};
use crate::program::{Left, Operand, Product, ScaleD};
use crate::races::{By, Kind};
use crate::wgmma::{Descriptor, Major, UNIT};
use std::ops::Range;

/// Products of a warpgroup that are not computed, at most: a long queue's first ones are not drawn later.
const MOST_WAITING: usize = 64;

/// Rows of A that a warp has, and units of eight rows or columns.
const ROWS: u32 = 16;
const UNITS: u32 = 2;

/// A product that is not computed yet.
pub(super) struct InFlight {
    /// The number of its group.
    pub(super) group: u32,
    step: u32,
    a: Option<Descriptor>,
    b: Descriptor,
    /// D is added to.
    adds: bool,
}

/// Part of an operand: lines and units.
type Part = (Range<u32>, Range<u32>);

impl Block<'_, '_> {
    /// The four warps issue a product.
    pub(super) fn begin_product(&mut self, number: usize, step: u32, product: &Product) -> Result<(), Trouble> {
        let a = match &product.a {
            Left::Registers(_) => None,
            Left::Shared(operand) => Some((self.descriptor(number, "A", *operand)?, operand.major)),
        };
        let b = self.descriptor(number, "B", product.b)?;
        let adds = self.adds(number, product)?;
        if let Some((descriptor, major)) = a {
            for warp in warps_of(number) {
                self.clocks.meet(threads_of(warp..warp + 1));
                self.read_operand(number, step, ("A", descriptor, major), rows_of(major, (warp % WARPS) as u32))?;
            }
        }
        self.clocks.meet(threads_of(warps_of(number)));
        self.read_operand(number, step, ("B", b, product.b.major), columns_of(product))?;
        // It takes as long as many instructions on registers.
        let cost = product.columns as u64 / 8;
        self.grid.steps_left = self.grid.steps_left.saturating_sub(cost);
        let group = &mut self.warpgroups[number];
        let a = a.map(|(descriptor, _)| descriptor);
        group.products.push_back(InFlight { group: group.committed, step, a, b, adds });
        if group.products.len() > MOST_WAITING {
            self.compute_product(number);
        }
        Ok(())
    }

    /// What a descriptor says, which must be the same for all threads.
    fn descriptor(&self, number: usize, matrix: &str, operand: Operand) -> Result<Descriptor, Trouble> {
        let of = |warp: usize| -> Lanes<u64> { self.warps[warp].registers.get(operand.descriptor) };
        let [bits, ..] = of(number * WARPS);
        for warp in warps_of(number) {
            if let Some(other) = of(warp).into_iter().find(|other| *other != bits) {
                let what = format!(
                    "threads of a warpgroup have different descriptors of {matrix}: {bits:#x}, and {other:#x} in warp {warp}"
                );
                return Err(Trouble::new(FaultKind::Divergence, what));
            }
        }
        let illegal =
            |what| Trouble::new(FaultKind::Descriptor, format!("descriptor {bits:#018x} of {matrix}: {what}"));
        Descriptor::decode(bits).map_err(illegal)
    }

    /// Whether D is added to, which must be the same for all threads.
    fn adds(&self, number: usize, product: &Product) -> Result<bool, Trouble> {
        let condition = match product.scale_d {
            ScaleD::Constant(adds) => return Ok(adds),
            ScaleD::Predicate(condition) => condition,
        };
        let mut adds = warps_of(number).map(|warp| uniform(self.warps[warp].registers.holds(condition)));
        let first = adds.next().flatten();
        match first {
            Some(first) if adds.all(|other| other == Some(first)) => Ok(first),
            _ => Err(Trouble::new(FaultKind::Divergence, "threads of a warpgroup have different predicates scale-d")),
        }
    }

    /// The async proxy reads part of an operand, for threads whose knowledge has been brought together.
    fn read_operand(
        &mut self,
        number: usize,
        step: u32,
        (matrix, descriptor, major): (&str, Descriptor, Major),
        (lines, units): Part,
    ) -> Result<(), Trouble> {
        let (warp, lane) = self.clocks.ticket(self.ticket_of(number));
        let epoch = self.warpgroups[number].committed + 1;
        let by = By { block: self.number, warp, lane, pc: step, epoch };
        for line in lines {
            for unit in units.clone() {
                self.read_unit(descriptor.address(major, line, unit), &by).map_err(|trouble| {
                    let other = if matrix == "A" { "row" } else { "column" };
                    let place = match major {
                        Major::K => format!("{other} {line}, k {}", 8 * unit),
                        Major::Mn => format!("{other} {}, k {line}", 8 * unit),
                    };
                    Trouble { what: format!("{matrix} from {place} on: {}", trouble.what), ..trouble }
                })?;
            }
        }
        Ok(())
    }

    fn read_unit(&mut self, address: u64, by: &By) -> Result<(), Trouble> {
        let at = self.shared_at(address, UNIT)?;
        let noted = self.shared_races.phase_access(Kind::Operand, address, UNIT, by, TOGETHER, &self.clocks);
        noted.map_err(|conflict| Trouble::conflict("shared", conflict))?;
        let mut bytes = [0; UNIT as usize];
        self.shared.read(at, &mut bytes).map_err(|missing| uninitialised("shared", missing as u64))
    }

    /// Computes the first product of a warpgroup. That it can be done was seen when it was issued.
    pub(super) fn compute_product(&mut self, number: usize) {
        let Some(InFlight { step, a, b, adds, .. }) = self.warpgroups[number].products.pop_front() else { return };
        let Some(product) = self.grid.program.steps[step as usize].product() else { return };
        let b = self.tiles_b(product, b);
        let registers = product.accumulator.registers();
        for warp in warps_of(number) {
            let mut a = match (&product.a, a) {
                (Left::Shared(operand), Some(descriptor)) => {
                    self.tile_a(product, descriptor, operand.major, (warp % WARPS) as u32)
                }
                (Left::Registers(from), _) => product.factor.tile_a(&self.warps[warp].registers, from),
                (Left::Shared(_), None) => return,
            };
            if product.negative {
                a.as_flattened_mut().iter_mut().for_each(|x| *x = -*x);
            }
            let warp = &mut self.warps[warp].registers;
            for (b, d) in b.iter().zip(product.d.chunks_exact(registers)) {
                let mut from = [Source::Constant(0); 4];
                from.iter_mut().zip(d).for_each(|(source, target)| *source = Source::Register(*target));
                let mut sums = [[0.0; 8]; 16];
                if adds {
                    sums = product.accumulator.load(warp, &from[..registers]);
                }
                fragments::multiply(&a, b, 16, &mut sums);
                product.accumulator.store(warp, d, &sums);
            }
        }
    }

    /// The rows of A that a warp has.
    fn tile_a(&self, product: &Product, descriptor: Descriptor, major: Major, warp: u32) -> TileA {
        let mut a = [[0.0; 16]; 16];
        let (lines, units) = rows_of(major, warp);
        for (line, from) in lines.enumerate() {
            for (unit, at) in units.clone().enumerate() {
                for (place, x) in self.unit(product, descriptor.address(major, from, at)).into_iter().enumerate() {
                    match major {
                        Major::K => a[line][8 * unit + place] = x,
                        Major::Mn => a[8 * unit + place][line] = x,
                    }
                }
            }
        }
        a
    }

    /// B, a tile for each eight columns.
    fn tiles_b(&self, product: &Product, descriptor: Descriptor) -> Vec<TileB> {
        let mut tiles = vec![[[0.0; 8]; 16]; product.columns / 8];
        let (lines, units) = columns_of(product);
        for line in lines {
            for unit in units.clone() {
                let numbers = self.unit(product, descriptor.address(product.b.major, line, unit));
                let (line, unit) = (line as usize, unit as usize);
                match product.b.major {
                    Major::Mn => tiles[unit][line] = numbers,
                    Major::K => {
                        for (place, x) in numbers.into_iter().enumerate() {
                            tiles[line / 8][8 * unit + place][line % 8] = x;
                        }
                    }
                }
            }
        }
        tiles
    }

    /// The eight numbers of a unit.
    fn unit(&self, product: &Product, address: u64) -> [f64; 8] {
        let bytes = self.shared.raw(address as usize, UNIT as usize);
        std::array::from_fn(|place| product.factor.number(u16::from_le_bytes([bytes[2 * place], bytes[2 * place + 1]])))
    }
}

/// Where the rows of A are that a warp has.
fn rows_of(major: Major, warp: u32) -> Part {
    match major {
        Major::K => (ROWS * warp..ROWS * (warp + 1), 0..UNITS),
        Major::Mn => (0..ROWS, UNITS * warp..UNITS * (warp + 1)),
    }
}

/// Where B is.
fn columns_of(product: &Product) -> Part {
    let columns = product.columns as u32;
    match product.b.major {
        Major::K => (0..columns, 0..UNITS),
        Major::Mn => (0..ROWS, 0..columns / 8),
    }
}
