//! What the programs are run on: special values in all pairs, and random ones from a fixed seed.

use crate::form::Column;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How values of a column are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Draw {
    /// Whatever the type can hold.
    Any,
    /// All but 0.
    Nonzero,
    /// Bit positions and shift amounts, many about the widths of registers.
    Shift,
    /// 0 to 31.
    Lane,
    /// The segments and bounds of a shuffle.
    Segment,
    /// 0 to 3.
    Few,
    /// All the same in a warp, or all but one.
    Warp,
    /// Integers from -8 to 8, in the column's type.
    Integer,
    /// Numbers between -1 and 1, in the column's type.
    Unit,
}

impl Draw {
    /// As signatures have it behind a colon.
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "" => Draw::Any,
            "nonzero" => Draw::Nonzero,
            "shift" => Draw::Shift,
            "lane" => Draw::Lane,
            "segment" => Draw::Segment,
            "few" => Draw::Few,
            "warp" => Draw::Warp,
            "integer" => Draw::Integer,
            "unit" => Draw::Unit,
            _ => panic!("no way to draw values: {name}"),
        }
    }
}

/// A floating-point format: bits of its exponent and of its fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) exponent: u32,
    pub(crate) fraction: u32,
}

pub(crate) const F16: Format = Format { exponent: 5, fraction: 10 };
pub(crate) const BF16: Format = Format { exponent: 8, fraction: 7 };
pub(crate) const F32: Format = Format { exponent: 8, fraction: 23 };
pub(crate) const F64: Format = Format { exponent: 11, fraction: 52 };

impl Format {
    /// The format of a type, and how many numbers of it an element holds.
    pub(crate) fn of(ty: &str) -> Option<(Format, u32)> {
        Some(match ty {
            "f16" => (F16, 1),
            "bf16" => (BF16, 1),
            "f16x2" => (F16, 2),
            "bf16x2" => (BF16, 2),
            "f32" => (F32, 1),
            "f64" => (F64, 1),
            _ => return None,
        })
    }

    pub(crate) fn bits(self) -> u32 {
        1 + self.exponent + self.fraction
    }

    pub(crate) fn bytes(self) -> usize {
        self.bits() as usize / 8
    }

    fn sign(self) -> u64 {
        1 << (self.bits() - 1)
    }

    pub(crate) fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    pub(crate) fn is_nan(self, bits: u64) -> bool {
        bits & !self.sign() > self.infinity()
    }

    pub(crate) fn is_zero(self, bits: u64) -> bool {
        bits & !self.sign() == 0
    }

    pub(crate) fn is_subnormal(self, bits: u64) -> bool {
        bits & self.infinity() == 0 && !self.is_zero(bits)
    }

    /// The least number above 0.
    pub(crate) fn least(self) -> f64 {
        self.value(1)
    }

    /// What the bits stand for.
    pub(crate) fn value(self, bits: u64) -> f64 {
        if self == F64 {
            return f64::from_bits(bits);
        }
        let sign = if bits & self.sign() == 0 { 1.0 } else { -1.0 };
        let fraction = (bits & ((1 << self.fraction) - 1)) as f64 / (1u64 << self.fraction) as f64;
        let exponent = bits >> self.fraction & ((1 << self.exponent) - 1);
        let bias = (1 << (self.exponent - 1)) - 1;
        sign * match exponent {
            0 => fraction * 2f64.powi(1 - bias),
            e if e == (1 << self.exponent) - 1 => {
                if fraction == 0.0 {
                    f64::INFINITY
                } else {
                    f64::NAN
                }
            }
            e => (1.0 + fraction) * 2f64.powi(e as i32 - bias),
        }
    }

    /// A number that the format has, as its bits.
    fn exactly(self, value: f64) -> u64 {
        let bits = value.to_bits();
        let bias = |format: Format| (1i64 << (format.exponent - 1)) - 1;
        if value == 0.0 {
            return bits >> 63 << (self.bits() - 1);
        }
        let exponent = (bits >> 52 & 0x7ff) as i64 - bias(F64) + bias(self);
        let fraction = (bits & ((1 << 52) - 1)) >> (52 - self.fraction);
        bits >> 63 << (self.bits() - 1) | (exponent as u64) << self.fraction | fraction
    }

    /// A number that the format has, as it lies in memory.
    pub(crate) fn bytes_of(self, value: f64) -> Vec<u8> {
        self.exactly(value).to_le_bytes()[..self.bytes()].to_vec()
    }

    /// Values at which something changes, those first that matter most.
    fn specials(self) -> Vec<u64> {
        let (one, normal, infinity) = (self.exactly(1.0), 1 << self.fraction, self.infinity());
        let quiet = infinity | 1 << (self.fraction - 1);
        let half_ulp_even = self.exactly(2f64.powi(self.fraction as i32));
        let mut all = vec![0, one, infinity, quiet | 1, normal - 1, infinity - 1, one + 1, infinity | 1];
        all.extend([1, normal, one - 1, quiet, self.exactly(0.5), self.exactly(1.5), self.exactly(2.5), half_ulp_even]);
        let negative: Vec<u64> = all.iter().map(|bits| bits | self.sign()).collect();
        // Interleaved, so that a short beginning has both signs.
        let mut all: Vec<u64> = all.into_iter().zip(negative).flat_map(|(plus, minus)| [plus, minus]).collect();
        all.extend([half_ulp_even + 1, half_ulp_even - 1, normal + 1, quiet - 2, self.sign() | infinity | 5]);
        all.extend([3.0, 10.0, 100.0, -127.5, 127.5, 128.0, 255.5, 256.0, -0.75].map(|value| self.exactly(value)));
        // Where integers of 15, 16, 31, 32, 63 and 64 bits end, and f16.
        if self.exponent > 5 {
            for power in [15, 16, 31, 32, 63, 64, -14, -24, -25, -126, 126, 127] {
                let bits = self.exactly(2f64.powi(power));
                all.extend([bits - 1, bits, bits | self.sign()]);
            }
            all.extend([65504.0, 65519.0, 65520.0].map(|value| self.exactly(value)));
        }
        all
    }

    /// Any bits, or a number within a few powers of 2 of 1, with few of its bits or all.
    fn random(self, random: &mut StdRng) -> u64 {
        let bits = random.random::<u64>() >> (64 - self.bits());
        if random.random() {
            return bits;
        }
        let bias = (1 << (self.exponent - 1)) - 1;
        let exponent = random.random_range(bias - 4..=bias + 4);
        let fraction = bits & ((1 << self.fraction) - 1);
        let kept = if random.random() { fraction } else { fraction >> (self.fraction / 2) << (self.fraction / 2) };
        bits & self.sign() | exponent << self.fraction | kept
    }
}

/// The columns, one behind the other.
pub(crate) fn draw(columns: &[Column], count: usize, seed: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let specials: Vec<Vec<u64>> = columns.iter().map(specials).collect();
    let drawn = columns.iter().filter(|column| matches!(column.draw, Draw::Any | Draw::Nonzero | Draw::Shift)).count();
    // As many special values of each column as fill no more than 3 of 5 tuples with all their combinations.
    let most = (0.6 * count as f64).powf(1.0 / drawn.max(1) as f64) as usize;
    let mut tuples = vec![Vec::with_capacity(count * 16); columns.len()];
    for i in 0..count {
        let mut rest = i;
        let mut special = vec![0; columns.len()];
        for (chosen, values) in special.iter_mut().zip(&specials) {
            let n = values.len().min(most).max(1);
            *chosen = rest % n;
            rest /= n;
        }
        for (k, column) in columns.iter().enumerate() {
            let value = match specials[k].get(special[k]) {
                Some(&value) if rest == 0 => value,
                Some(_) if random.random_ratio(1, 3) => specials[k][random.random_range(0..specials[k].len())],
                _ => any(column, i, &mut random),
            };
            tuples[k].extend(&value.to_le_bytes()[..column.bytes.min(8)]);
            // Bytes of memory beyond a register's.
            tuples[k].extend((8..column.bytes).map(|_| random.random::<u8>()));
        }
    }
    tuples.concat()
}

fn specials(column: &Column) -> Vec<u64> {
    match (column.draw, Format::of(&column.ty)) {
        (Draw::Shift, _) => vec![0, 1, 31, 32, 33, 63, 64, 15, 16, 17, 8, 65, 255, 256, 1 << 31, u32::MAX.into()],
        (Draw::Any, Some((format, 1))) => format.specials(),
        (Draw::Any, Some((format, _))) => {
            let one = format.specials();
            (0..one.len()).map(|k| one[k] | one[(7 * k + 3) % one.len()] << 16).collect()
        }
        (Draw::Any, None) if column.ty == "pred" => vec![0, 1],
        (Draw::Any | Draw::Nonzero, None) if !column.ty.starts_with('m') => integers(column),
        _ => Vec::new(),
    }
}

/// Integers at which something changes, in the column's width.
fn integers(column: &Column) -> Vec<u64> {
    let width = 8 * column.bytes as u32;
    let (all, top) = (u64::MAX >> (64 - width), 1u64 << (width - 1));
    let mut values = vec![1, all, top, top - 1, 2, all - 1, top + 1, 0x5555_5555_5555_5555 & all, 3, 0x80, 0x7f, 0xff];
    values.extend([31, 32, 33, 63, 64, 7, 10, 16, all - 127, all - 128, 0xaaaa_aaaa_aaaa_aaaa & all]);
    for edge in [1u64 << 15, 1 << 16, 1 << 24, 1 << 31, 1 << 32, 1 << 53] {
        if edge < all {
            values.extend([edge - 1, edge, edge + 1, all - edge, all - edge + 1]);
        }
    }
    if column.draw == Draw::Any {
        values.insert(0, 0);
    }
    values
}

/// A value of the column's, for tuple `i`.
fn any(column: &Column, i: usize, random: &mut StdRng) -> u64 {
    let width = 8 * (column.bytes as u32).min(8);
    let format = Format::of(&column.ty);
    let mut number = |value: fn(&mut StdRng) -> f64| {
        let (format, count) = format.unwrap_or_else(|| panic!("{} has no fractions", column.ty));
        (0..count).fold(0, |all, k| all | rounded(format, value(random)) << (16 * k))
    };
    match column.draw {
        Draw::Integer => return number(|random| f64::from(random.random_range(-8..=8))),
        Draw::Unit => return number(|random| random.random_range(-1.0..1.0)),
        _ => {}
    }
    match column.draw {
        Draw::Shift => random.random_range(0..80),
        Draw::Lane => random.random_range(0..32),
        Draw::Segment => {
            let segments = [0x1f, 0, 0x1c03, 0x1c1f, 0x1c00, 0x1807, 0x181f, 0x1800, 0x100f, 0x101f, 0x1000, 0x1e01];
            segments[random.random_range(0..segments.len())]
        }
        Draw::Few => random.random_range(0..4),
        Draw::Warp => match (i / 32) % 4 {
            0 => random.random_range(0..2),
            1 => 1,
            2 => 0,
            _ => u64::from(i % 32 == 19),
        },
        _ if column.ty == "pred" => random.random_range(0..2),
        _ => match format {
            Some((format, count)) => (0..count).fold(0, |all, k| all | format.random(random) << (16 * k)),
            None => integer(width, random).max(u64::from(column.draw == Draw::Nonzero)),
        },
    }
}

/// Bits of that width, of any magnitude.
fn integer(width: u32, random: &mut StdRng) -> u64 {
    let all = u64::MAX >> (64 - width);
    let bits = random.random::<u64>() & all;
    match random.random_range(0..4) {
        0 => bits >> random.random_range(0..width),
        1 => (bits >> random.random_range(0..width)).wrapping_neg() & all,
        _ => bits,
    }
}

/// The number of a format next to a value below it.
fn rounded(format: Format, value: f64) -> u64 {
    if value.abs() < 2f64.powi(-10) { 0 } else { format.exactly(value) }
}
