//! The registers of a warp: 32 lanes side by side, so that one instruction is one loop.

use half::{bf16, f16};
use std::array;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// Which lanes: bit i is lane i.
pub(crate) type Mask = u32;

/// A value for each lane.
pub(crate) type Lanes<T> = [T; LANES];

/// Every lane.
pub(crate) const ALL: Mask = u32::MAX;

/// The lanes of a mask, in order.
#[inline]
pub(crate) fn lanes(mut mask: Mask) -> impl Iterator<Item = usize> + Clone {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}

/// A register that an instruction writes. Registers of 16 bits lie in narrow ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Of 32 bits or fewer.
    Narrow(u32),
    /// Of 64 bits.
    Wide(u32),
}

/// What an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Register(Target),
    Constant(u64),
}

/// A predicate that an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) register: u32,
    pub(crate) negated: bool,
}

/// The registers of a warp.
#[derive(Debug)]
pub(crate) struct Registers {
    narrow: Vec<Lanes<u32>>,
    wide: Vec<Lanes<u64>>,
    predicates: Vec<Mask>,
}

impl Registers {
    pub(crate) fn new(narrow: u32, wide: u32, predicates: u32) -> Self {
        Registers {
            narrow: vec![[0; LANES]; narrow as usize],
            wide: vec![[0; LANES]; wide as usize],
            predicates: vec![0; predicates as usize],
        }
    }

    /// A source as values of a type, of as many bits as the register has, or fewer.
    #[inline]
    pub(crate) fn get<T: Lane>(&self, source: Source) -> Lanes<T> {
        match source {
            Source::Register(Target::Narrow(slot)) => {
                let lanes = &self.narrow[slot as usize];
                array::from_fn(|lane| T::from_bits(lanes[lane].into()))
            }
            Source::Register(Target::Wide(slot)) => {
                let lanes = &self.wide[slot as usize];
                array::from_fn(|lane| T::from_bits(lanes[lane]))
            }
            Source::Constant(bits) => [T::from_bits(bits); LANES],
        }
    }

    /// One lane's bits.
    #[inline]
    pub(crate) fn lane(&self, source: Source, lane: usize) -> u64 {
        match source {
            Source::Register(Target::Narrow(slot)) => self.narrow[slot as usize][lane].into(),
            Source::Register(Target::Wide(slot)) => self.wide[slot as usize][lane],
            Source::Constant(bits) => bits,
        }
    }

    /// Writes the lanes of a mask.
    #[inline]
    pub(crate) fn put<T: Lane>(&mut self, target: Target, mask: Mask, values: Lanes<T>) {
        match target {
            Target::Narrow(slot) => {
                let to = &mut self.narrow[slot as usize];
                blend(to, mask, array::from_fn(|lane| values[lane].bits() as u32));
            }
            Target::Wide(slot) => {
                let to = &mut self.wide[slot as usize];
                blend(to, mask, array::from_fn(|lane| values[lane].bits()));
            }
        }
    }

    /// Writes one lane's bits.
    #[inline]
    pub(crate) fn put_lane(&mut self, target: Target, lane: usize, bits: u64) {
        match target {
            Target::Narrow(slot) => self.narrow[slot as usize][lane] = bits as u32,
            Target::Wide(slot) => self.wide[slot as usize][lane] = bits,
        }
    }

    /// The lanes for which a condition holds.
    #[inline]
    pub(crate) fn holds(&self, condition: Condition) -> Mask {
        let mask = self.predicates[condition.register as usize];
        if condition.negated { !mask } else { mask }
    }

    /// Writes a predicate for the lanes of a mask.
    #[inline]
    pub(crate) fn put_predicate(&mut self, register: u32, mask: Mask, values: Mask) {
        let to = &mut self.predicates[register as usize];
        *to = *to & !mask | values & mask;
    }
}

#[inline]
fn blend<T: Copy>(to: &mut Lanes<T>, mask: Mask, values: Lanes<T>) {
    if mask == ALL {
        *to = values;
    } else {
        for lane in 0..LANES {
            if mask >> lane & 1 != 0 {
                to[lane] = values[lane];
            }
        }
    }
}

/// A type of a lane's value.
pub(crate) trait Lane: Copy + Send + Sync + 'static {
    /// The value of the low bits.
    fn from_bits(bits: u64) -> Self;
    /// Its bits, those above them 0.
    fn bits(self) -> u64;
    /// Whether it is a signed integer below 0.
    fn is_below_zero(self) -> bool {
        false
    }
}

macro_rules! integer_lanes {
    ($($signed:ty, $unsigned:ty;)*) => {$(
        impl Lane for $unsigned {
            #[inline]
            fn from_bits(bits: u64) -> Self {
                bits as $unsigned
            }
            #[inline]
            fn bits(self) -> u64 {
                self as u64
            }
        }
        impl Lane for $signed {
            #[inline]
            fn from_bits(bits: u64) -> Self {
                bits as $signed
            }
            #[inline]
            fn bits(self) -> u64 {
                self as $unsigned as u64
            }
            #[inline]
            fn is_below_zero(self) -> bool {
                self < 0
            }
        }
    )*};
}

integer_lanes! {
    i8, u8;
    i16, u16;
    i32, u32;
    i64, u64;
}

macro_rules! float_lanes {
    ($($float:ty, $unsigned:ty;)*) => {$(
        impl Lane for $float {
            #[inline]
            fn from_bits(bits: u64) -> Self {
                <$float>::from_bits(bits as $unsigned)
            }
            #[inline]
            fn bits(self) -> u64 {
                self.to_bits().into()
            }
        }
    )*};
}

float_lanes! {
    f16, u16;
    bf16, u16;
    f32, u32;
    f64, u64;
}
