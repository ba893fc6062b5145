//! The vectors of x86-64.
//!
//! # Safety
//!
//! An instruction may only be reached where the CPU has it. The vectors can be named in `simd` alone, where `level.rs` uses
//! each in functions that are compiled for its features, and calls those where the features have been detected.
#![allow(unsafe_code)]

use super::{Pair, Product, Vector};
use half::bf16;
use std::arch::x86_64::*;
use std::array;
use std::mem::transmute;

/// One method, one or two instructions.
macro_rules! instructions {
    ($($name:ident($x:ident $(, $arg:ident)*) = $instruction:expr;)+) => {$(
        #[inline(always)]
        fn $name(self, $($arg: Self),*) -> Self {
            let ($x, $($arg),*) = (self.0, $($arg.0),*);
            // SAFETY: the CPU has the instruction.
            Self(unsafe { $instruction })
        }
    )+};
}

/// AVX2's counterpart of `_mm512_reduce_add_ps`.
#[target_feature(enable = "avx")]
#[inline]
fn sum_256(x: __m256) -> f32 {
    let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
}

/// Eight BF16 numbers as f32: the same bits, with zeros below.
///
/// # Safety
/// They are there.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn load_bf16_256(x: *const bf16) -> __m256 {
    // SAFETY: the caller's.
    let bits = unsafe { _mm_loadu_si128(x.cast()) };
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
}

/// Sixteen BF16 numbers as f32.
///
/// # Safety
/// They are there.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load_bf16_512(x: *const bf16) -> __m512 {
    // SAFETY: the caller's.
    let bits = unsafe { _mm256_loadu_si256(x.cast()) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
}

/// A vector: its register, its lanes, and the instruction of each method.
macro_rules! x86_vector {
    (
        $(#[$doc:meta])* $vector:ident($register:ty), $lanes:literal lanes,
        load = $load:ident, load_bf16 = $load_bf16:ident, store = $store:ident, splat = $splat:ident, sum = $sum:ident;
        $($instructions:tt)+
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(in crate::simd) struct $vector($register);

        impl Vector for $vector {
            const LANES: usize = $lanes;
            #[inline(always)]
            fn from_fn(lane: impl FnMut(usize) -> f32) -> Self {
                // SAFETY: an array and a register of as many numbers.
                Self(unsafe { transmute::<[f32; $lanes], $register>(array::from_fn(lane)) })
            }
            #[inline(always)]
            fn lane(self, lane: usize) -> f32 {
                // SAFETY: an array and a register of as many numbers.
                let lanes = unsafe { transmute::<$register, [f32; $lanes]>(self.0) };
                lanes[lane]
            }
            #[inline(always)]
            fn load(x: &[f32]) -> Self {
                let x = &x[..$lanes];
                // SAFETY: as many numbers are there, and the CPU has the instruction.
                Self(unsafe { $load(x.as_ptr()) })
            }
            #[inline(always)]
            fn load_bf16(x: &[bf16]) -> Self {
                let x = &x[..$lanes];
                // SAFETY: as many numbers are there, and the CPU has the instructions.
                Self(unsafe { $load_bf16(x.as_ptr()) })
            }
            #[inline(always)]
            fn store(self, x: &mut [f32]) {
                let x = &mut x[..$lanes];
                // SAFETY: as many numbers have room there, and the CPU has the instruction.
                unsafe { $store(x.as_mut_ptr(), self.0) }
            }
            #[inline(always)]
            fn splat(x: f32) -> Self {
                // SAFETY: the CPU has the instruction.
                Self(unsafe { $splat(x) })
            }
            #[inline(always)]
            fn sum(self) -> f32 {
                // SAFETY: the CPU has the instructions.
                unsafe { $sum(self.0) }
            }
            instructions! { $($instructions)+ }
        }
    };
}

x86_vector! {
    /// A register of AVX2.
    Avx2(__m256), 8 lanes,
    load = _mm256_loadu_ps, load_bf16 = load_bf16_256, store = _mm256_storeu_ps, splat = _mm256_set1_ps, sum = sum_256;
    add(a, b) = _mm256_add_ps(a, b);
    sub(a, b) = _mm256_sub_ps(a, b);
    mul(a, b) = _mm256_mul_ps(a, b);
    max(a, b) = _mm256_max_ps(a, b);
    mul_add(a, b, c) = _mm256_fmadd_ps(a, b, c);
    select_below(x, limit, yes, no) = _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(x, limit));
    add_to_exponent(x, n) = {
        let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(n));
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), n))
    };
}

x86_vector! {
    /// A register of AVX-512.
    Avx512(__m512), 16 lanes,
    load = _mm512_loadu_ps, load_bf16 = load_bf16_512, store = _mm512_storeu_ps, splat = _mm512_set1_ps,
    sum = _mm512_reduce_add_ps;
    add(a, b) = _mm512_add_ps(a, b);
    sub(a, b) = _mm512_sub_ps(a, b);
    mul(a, b) = _mm512_mul_ps(a, b);
    max(a, b) = _mm512_max_ps(a, b);
    mul_add(a, b, c) = _mm512_fmadd_ps(a, b, c);
    select_below(x, limit, yes, no) = _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, limit), no, yes);
    add_to_exponent(x, n) = {
        let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(n));
        _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), n))
    };
}

/// Pairs of BF16 numbers, the first in the lower half: VDPBF16PS adds both products to an f32. It takes subnormals for 0.
pub(in crate::simd) struct Bf16Pairs;

impl Product for Bf16Pairs {
    type V = Pair<Avx512>;
    const DEPTH: usize = 2;
    #[inline(always)]
    fn multiply(acc: Pair<Avx512>, a: Pair<Avx512>, b: Pair<Avx512>) -> Pair<Avx512> {
        Pair(multiply_bf16(acc.0, a.0, b.0), multiply_bf16(acc.1, a.1, b.1))
    }
    #[inline(always)]
    fn pack(low: Pair<Avx512>, high: Pair<Avx512>) -> Pair<Avx512> {
        Pair(pack_bf16(low.0, high.0), pack_bf16(low.1, high.1))
    }
}

#[inline(always)]
fn multiply_bf16(acc: Avx512, a: Avx512, b: Avx512) -> Avx512 {
    // SAFETY: registers of the same 64 bytes, and the CPU has the instruction.
    unsafe {
        let (a, b) = (transmute::<__m512, __m512bh>(a.0), transmute::<__m512, __m512bh>(b.0));
        Avx512(_mm512_dpbf16_ps(acc.0, a, b))
    }
}

/// Rounds both to BF16, to nearest: where they are halfway, up in magnitude.
#[inline(always)]
fn pack_bf16(low: Avx512, high: Avx512) -> Avx512 {
    // SAFETY: the CPU has the instructions.
    unsafe {
        let half = _mm512_set1_epi32(0x8000);
        let low = _mm512_srli_epi32::<16>(_mm512_add_epi32(_mm512_castps_si512(low.0), half));
        let high = _mm512_add_epi32(_mm512_castps_si512(high.0), half);
        let high = _mm512_and_si512(high, _mm512_set1_epi32(0xFFFF_0000_u32 as i32));
        Avx512(_mm512_castsi512_ps(_mm512_or_si512(low, high)))
    }
}
