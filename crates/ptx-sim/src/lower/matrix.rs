//! `mma.sync` of f16 and bf16 (PTX ISA, "Warp Level Matrix Instructions: mma"): D = A B + C, A of 16 x k, B of k x 8.
//!
//! Each number lies in one lane: with `g = lane / 4` and `t = lane % 4`, a lane's registers hold of A the rows g and g + 8 and
//! the columns 2 t and 2 t + 1 of each 8, of B the rows 2 t and 2 t + 1 of each 8 and column g, of C and D the rows g and g + 8
//! and the columns 2 t and 2 t + 1.
//!
//! The order of the sum is left open by the ISA. Here it is a sum in f64, rounded once to the type of D.

use super::{Lowered, Lowering, Modifiers, Result};
use crate::float::{self, F16, F32, Round};
use crate::lanes::{ALL, LANES, Lanes, Registers, Source, Target};
use crate::program::Unit;
use crate::ptx::{Instruction, Type};

/// An instruction's form and registers.
struct Mma {
    k: usize,
    /// Whether a and b are f16, or else bf16.
    half: bool,
    d: Vec<Target>,
    d_type: Type,
    a: Vec<Source>,
    b: Vec<Source>,
    c: Vec<Source>,
    c_type: Type,
}

impl<'a> Lowering<'a> {
    pub(super) fn mma(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        for modifier in ["sync", "aligned", "row", "col"] {
            m.wanted("form", &[(modifier, ())])?;
        }
        let k = m.wanted("shape", &[("m16n8k8", 8), ("m16n8k16", 16)])?;
        let [d_type, a_type, b_type, c_type] = [m.ty()?, m.ty()?, m.ty()?, m.ty()?];
        let accumulates = |ty| matches!(ty, Type::F32) || a_type == Type::F16 && ty == Type::F16;
        if a_type != b_type || !matches!(a_type, Type::F16 | Type::Bf16) || !accumulates(d_type) || !accumulates(c_type)
        {
            return Err(m.error("not simulated for these types"));
        }
        let [d, a, b, c] = self.operands(i)?;
        let register = |ty| if ty == Type::F32 { (Type::F32, 4) } else { (Type::B32, 2) };
        let ((d_register, d_count), (c_register, c_count)) = (register(d_type), register(c_type));
        let d = Self::elements(d).iter().map(|one| self.target(one, d_register)).collect::<Result<Vec<_>>>()?;
        let (a, b, c) = (self.sources(a, Type::B32)?, self.sources(b, Type::B32)?, self.sources(c, c_register)?);
        for (what, found, wanted) in
            [("d", d.len(), d_count), ("a", a.len(), k / 4), ("b", b.len(), k / 8), ("c", c.len(), c_count)]
        {
            if found != wanted {
                return Err(m.error(format!("{what}: found {found} registers, wanted {wanted}")));
            }
        }
        let mma = Mma { k, half: a_type == Type::F16, d, d_type, a, b, c, c_type };
        Ok(Lowered::compute(move |r, _| mma.run(r)).whole_warp().work(Unit::Tensor, (2 * 16 * 8 * k / LANES) as u32))
    }
}

impl Mma {
    fn run(&self, r: &mut Registers) {
        let (mut a, mut b) = ([[0.0; 16]; 16], [[0.0; 8]; 16]);
        for (register, source) in self.a.iter().enumerate() {
            let pairs: Lanes<u32> = r.get(*source);
            let (row, column) = (8 * (register % 2), 8 * (register / 2));
            for (lane, pair) in pairs.into_iter().enumerate() {
                let (row, column) = (row + lane / 4, column + 2 * (lane % 4));
                [a[row][column], a[row][column + 1]] = self.numbers(pair);
            }
        }
        for (register, source) in self.b.iter().enumerate() {
            let pairs: Lanes<u32> = r.get(*source);
            for (lane, pair) in pairs.into_iter().enumerate() {
                let (row, column) = (8 * register + 2 * (lane % 4), lane / 4);
                [b[row][column], b[row + 1][column]] = self.numbers(pair);
            }
        }
        let mut result = [[0.0; 8]; 16];
        self.accumulators(r, &mut result);
        for (row, sums) in result.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                *sum = (0..self.k).fold(*sum, |sum, place| sum + a[row][place] * b[place][column]);
            }
        }
        self.store(r, &result);
    }

    /// The two numbers of a register.
    fn numbers(&self, pair: u32) -> [f64; 2] {
        [pair as u16, (pair >> 16) as u16]
            .map(|bits| if self.half { half::f16::from_bits(bits).into() } else { half::bf16::from_bits(bits).into() })
    }

    fn accumulators(&self, r: &Registers, to: &mut [[f64; 8]; 16]) {
        for (register, source) in self.c.iter().enumerate() {
            let bits: Lanes<u32> = r.get(*source);
            for (lane, bits) in bits.into_iter().enumerate() {
                let (group, column) = (lane / 4, 2 * (lane % 4));
                if self.c_type == Type::F32 {
                    to[group + 8 * (register / 2)][column + register % 2] = f32::from_bits(bits).into();
                } else {
                    let row = &mut to[group + 8 * register];
                    [row[column], row[column + 1]] = self.numbers(bits);
                }
            }
        }
    }

    fn store(&self, r: &mut Registers, result: &[[f64; 8]; 16]) {
        let rounded = |x: f64, format| float::round(x, format, Round::Nearest) as u32;
        for (register, target) in self.d.iter().enumerate() {
            let of = |lane: usize| {
                let (group, column) = (lane / 4, 2 * (lane % 4));
                if self.d_type == Type::F32 {
                    return rounded(result[group + 8 * (register / 2)][column + register % 2], F32);
                }
                let row = &result[group + 8 * register];
                rounded(row[column], F16) | rounded(row[column + 1], F16) << 16
            };
            r.put::<u32>(*target, ALL, std::array::from_fn(of));
        }
    }
}
