//! One copy of the algorithm for each kind of CPU, and the choice among them.

use super::Row;
use super::stream;
#[cfg(target_arch = "x86_64")]
use super::vector::x86;
use super::vector::{Pair, Portable, Single};
use attention::Head;
use online_softmax::State;
use std::fmt;
use std::ops::Range;

/// The vector instructions that the rung is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    /// What every CPU of its kind has, as SSE2 on x86-64 and NEON on aarch64; a multiplication, then an addition.
    Portable,
    /// AVX2 and FMA: 8 lanes.
    Avx2,
    /// AVX-512F: 16 lanes.
    Avx512,
    /// AVX-512F with BF16: 16 lanes of two BF16 numbers each. F32 and F16 tensors are computed as with [`Simd::Avx512`].
    Avx512Bf16,
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Simd::Portable => "portable",
            Simd::Avx2 => "AVX2",
            Simd::Avx512 => "AVX-512",
            Simd::Avx512Bf16 => "AVX-512-BF16",
        })
    }
}

impl Simd {
    /// The levels that this CPU has.
    pub fn available() -> Vec<Simd> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut))]
        let mut levels = vec![Simd::Portable];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            levels.push(Simd::Avx2);
            if is_x86_feature_detected!("avx512f") {
                levels.push(Simd::Avx512);
                if is_x86_feature_detected!("avx512bf16") {
                    levels.push(Simd::Avx512Bf16);
                }
            }
        }
        levels
    }

    /// The fastest of them.
    ///
    /// A product of BF16 pairs does twice the work of an FMA. AMD's cores start as many of both; Intel's, up to Emerald
    /// Rapids, so few of the former that widening to f32 is faster.
    pub fn best() -> Simd {
        let slow_pairs = |level: &Simd| *level == Simd::Avx512Bf16 && is_intel();
        Simd::available().into_iter().rfind(|level| !slow_pairs(level)).unwrap_or(Simd::Portable)
    }
}

#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    // SAFETY: every x86-64 CPU has CPUID. Newer compilers know.
    #[allow(unsafe_code, unused_unsafe)]
    let vendor = unsafe { std::arch::x86_64::__cpuid(0) };
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
}

#[cfg(not(target_arch = "x86_64"))]
fn is_intel() -> bool {
    false
}

/// Lines 4 to 11 of the listing: streams `keys` past `rows`, which share k and v, and hands the state of each row to `done`,
/// in order.
///
/// `simd` must be one of [`Simd::available`].
pub(super) fn stream_at(
    simd: Simd,
    heads: &[Head],
    rows: &[Row],
    keys: Range<usize>,
    done: &mut dyn FnMut(&mut State),
) {
    match simd {
        Simd::Portable => stream::stream::<Single<Pair<Portable>>, Portable, 4>(heads, rows, keys, done),
        // SAFETY: the caller has one of the levels whose features have been detected.
        #[cfg(target_arch = "x86_64")]
        #[allow(unsafe_code)]
        simd => unsafe {
            match simd {
                Simd::Avx2 => stream_avx2(heads, rows, keys, done),
                Simd::Avx512Bf16 if heads[0].q.dtype() == attention::DType::Bf16 => {
                    stream_bf16(heads, rows, keys, done)
                }
                _ => stream_avx512(heads, rows, keys, done),
            }
        },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("not among Simd::available()"),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn stream_avx2(heads: &[Head], rows: &[Row], keys: Range<usize>, done: &mut dyn FnMut(&mut State)) {
    stream::stream::<Single<Pair<x86::Avx2>>, x86::Avx2, 6>(heads, rows, keys, done)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn stream_avx512(heads: &[Head], rows: &[Row], keys: Range<usize>, done: &mut dyn FnMut(&mut State)) {
    stream::stream::<Single<Pair<x86::Avx512>>, x86::Avx512, 8>(heads, rows, keys, done)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn stream_bf16(heads: &[Head], rows: &[Row], keys: Range<usize>, done: &mut dyn FnMut(&mut State)) {
    stream::stream::<x86::Bf16Pairs, x86::Avx512, 8>(heads, rows, keys, done)
}
