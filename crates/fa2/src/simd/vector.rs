//! Vectors of f32 for each kind of CPU. `x86.rs` is the only code here that knows instructions.
//!
//! Everything above is written once over [`Vector`] and [`Product`], and compiled once for each level. Every function that
//! computes with vectors is `#[inline(always)]`, and no closure does, so that all of it lands in the one function of
//! `level.rs` that is compiled for the level's features.

#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

use half::bf16;
use std::array;
use std::f32::consts::LOG2_E;

/// `LANES` numbers that are computed with at once.
pub(super) trait Vector: Copy + 'static {
    const LANES: usize;
    fn from_fn(lane: impl FnMut(usize) -> f32) -> Self;
    fn lane(self, lane: usize) -> f32;
    /// The first `LANES` numbers of `x`.
    fn load(x: &[f32]) -> Self;
    /// The same for BF16 numbers, widened.
    fn load_bf16(x: &[bf16]) -> Self;
    /// Writes to the first `LANES` numbers of `x`.
    fn store(self, x: &mut [f32]);
    fn splat(x: f32) -> Self;
    /// The sum of all lanes.
    fn sum(self) -> f32;
    /// The greatest of all lanes.
    #[inline(always)]
    fn greatest(self) -> f32 {
        (1..Self::LANES).fold(self.lane(0), |greatest, i| if self.lane(i) > greatest { self.lane(i) } else { greatest })
    }
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    /// `self * a + b`
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// `yes` where `self < limit`, else `no`.
    fn select_below(self, limit: Self, yes: Self, no: Self) -> Self;
    /// Adds `n` to the exponents, where the mantissa of `n` ends in a whole number.
    fn add_to_exponent(self, n: Self) -> Self;

    /// `e^x` for x <= 0, with a relative error of 1e-7 (1.3e-7 without FMA); 0 below e^-87.3, where f32's normal numbers end.
    ///
    /// x = n ln 2 + r with n whole and |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds x / ln 2 to n and leaves n in the lowest
    /// bits of the sum, from where a shift brings it to the exponent of e^r. ln 2 is subtracted in two parts, the first of
    /// so few bits that its products with n are exact. e^r is a polynomial of degree 6, 1 at 0,
    /// with a relative error of 3e-8.
    #[inline(always)]
    fn exp(self) -> Self {
        const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
        const POLYNOMIAL: [f32; 6] = [0.008_379_011, 0.041_664_775, 0.166_663_66, 0.500_000_06, 1.0, 1.0];
        let round = Self::splat(12_582_912.0);
        let shifted = self.mul_add(Self::splat(LOG2_E), round);
        let n = round.sub(shifted);
        let r = n.mul_add(Self::splat(LN_2[1]), n.mul_add(Self::splat(LN_2[0]), self));
        let mut power = Self::splat(0.001_406_124);
        for c in POLYNOMIAL {
            power = power.mul_add(r, Self::splat(c));
        }
        self.select_below(Self::splat(-87.33), Self::splat(0.0), power.add_to_exponent(shifted))
    }
}

/// Four lanes of plain Rust. `mul_add` is a product and a sum: fused, it would be a call into a library.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; 4]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Portable(array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Vector for Portable {
    const LANES: usize = 4;
    #[inline(always)]
    fn from_fn(lane: impl FnMut(usize) -> f32) -> Self {
        Portable(array::from_fn(lane))
    }
    #[inline(always)]
    fn lane(self, lane: usize) -> f32 {
        self.0[lane]
    }
    #[inline(always)]
    fn load(x: &[f32]) -> Self {
        Portable([x[0], x[1], x[2], x[3]])
    }
    #[inline(always)]
    fn load_bf16(x: &[bf16]) -> Self {
        Portable([x[0], x[1], x[2], x[3]].map(|x| f32::from_bits(u32::from(x.to_bits()) << 16)))
    }
    #[inline(always)]
    fn store(self, x: &mut [f32]) {
        x[..4].copy_from_slice(&self.0);
    }
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Portable([x; 4])
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b, c, d] = self.0;
        (a + b) + (c + d)
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        self.mul(a).add(b)
    }
    #[inline(always)]
    fn select_below(self, limit: Self, yes: Self, no: Self) -> Self {
        Portable(array::from_fn(|i| if self.0[i] < limit.0[i] { yes.0[i] } else { no.0[i] }))
    }
    #[inline(always)]
    fn add_to_exponent(self, n: Self) -> Self {
        self.zip(n, |x, n| f32::from_bits(x.to_bits().wrapping_add(n.to_bits() << 23)))
    }
}

/// Two vectors side by side: twice the products for each number that is read.
#[derive(Clone, Copy)]
pub(super) struct Pair<V>(V, V);

impl<V: Vector> Vector for Pair<V> {
    const LANES: usize = 2 * V::LANES;
    #[inline(always)]
    fn from_fn(mut lane: impl FnMut(usize) -> f32) -> Self {
        Pair(V::from_fn(&mut lane), V::from_fn(|i| lane(V::LANES + i)))
    }
    #[inline(always)]
    fn lane(self, lane: usize) -> f32 {
        if lane < V::LANES { self.0.lane(lane) } else { self.1.lane(lane - V::LANES) }
    }
    #[inline(always)]
    fn load(x: &[f32]) -> Self {
        Pair(V::load(x), V::load(&x[V::LANES..]))
    }
    #[inline(always)]
    fn load_bf16(x: &[bf16]) -> Self {
        Pair(V::load_bf16(x), V::load_bf16(&x[V::LANES..]))
    }
    #[inline(always)]
    fn store(self, x: &mut [f32]) {
        self.0.store(x);
        self.1.store(&mut x[V::LANES..]);
    }
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Pair(V::splat(x), V::splat(x))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        self.0.sum() + self.1.sum()
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        Pair(self.0.add(b.0), self.1.add(b.1))
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        Pair(self.0.sub(b.0), self.1.sub(b.1))
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        Pair(self.0.mul(b.0), self.1.mul(b.1))
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        Pair(self.0.max(b.0), self.1.max(b.1))
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Pair(self.0.mul_add(b.0, c.0), self.1.mul_add(b.1, c.1))
    }
    #[inline(always)]
    fn select_below(self, limit: Self, yes: Self, no: Self) -> Self {
        Pair(self.0.select_below(limit.0, yes.0, no.0), self.1.select_below(limit.1, yes.1, no.1))
    }
    #[inline(always)]
    fn add_to_exponent(self, n: Self) -> Self {
        Pair(self.0.add_to_exponent(n.0), self.1.add_to_exponent(n.1))
    }
}

/// How the two matrix products multiply.
pub(super) trait Product {
    /// The vectors it works on.
    type V: Vector;
    /// Numbers that each lane multiplies in one step. Two BF16 numbers lie in the place of one f32.
    const DEPTH: usize;
    /// `acc + a b`
    fn multiply(acc: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Numbers of two steps, packed for one of depth 2.
    fn pack(low: Self::V, high: Self::V) -> Self::V;
}

/// Numbers as they are.
pub(super) struct Single<V>(std::marker::PhantomData<V>);

impl<V: Vector> Product for Single<V> {
    type V = V;
    const DEPTH: usize = 1;
    #[inline(always)]
    fn multiply(acc: V, a: V, b: V) -> V {
        a.mul_add(b, acc)
    }
    #[inline(always)]
    fn pack(low: V, _: V) -> V {
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Simd;

    /// The largest relative error of `exp` over its whole range, against f64.
    fn error_of_exp<V: Vector>() -> f64 {
        let mut worst = 0f64;
        for step in 0..=87 << 12 {
            let x = -(step as f32) / 4096.0 - 1e-5 * (step % 7) as f32;
            let (found, wanted) = (V::splat(x).exp().lane(V::LANES - 1), f64::from(x).exp());
            worst = worst.max((f64::from(found) / wanted - 1.0).abs());
        }
        for (x, wanted) in [(0.0, 1.0), (-0.0, 1.0), (-87.4, 0.0), (-1e30, 0.0), (f32::NEG_INFINITY, 0.0)] {
            assert_eq!(V::splat(x).exp().lane(0), wanted, "e^{x}");
        }
        assert!(V::splat(f32::NAN).exp().lane(0).is_nan());
        worst
    }

    #[test]
    fn exp_is_accurate_at_every_level() {
        for simd in Simd::available() {
            let (worst, bound) = match simd {
                Simd::Portable => (error_of_exp::<Pair<Portable>>(), 1.3e-7),
                #[cfg(target_arch = "x86_64")]
                Simd::Avx2 => (error_of_exp::<Pair<x86::Avx2>>(), 1e-7),
                #[cfg(target_arch = "x86_64")]
                _ => (error_of_exp::<Pair<x86::Avx512>>(), 1e-7),
                #[cfg(not(target_arch = "x86_64"))]
                _ => unreachable!("no such level here"),
            };
            assert!(worst <= bound, "{simd:?}: {worst:e}");
        }
    }
}
