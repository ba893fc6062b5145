//! Loops of multiply-adds that wait for nothing but the units that compute them.
//!
//! The instructions are named, in functions compiled for them: written with `f32::mul_add` on arrays, a loop may or may not
//! become vectors. Each step of a sum waits for the one before it, four or five cycles, in which a core starts two steps of
//! others; so there are twelve sums where there are 16 registers, and 24 where there are 32. Where they start from is hidden
//! from the compiler, which would compute sums that are the same only once.

#[cfg(target_arch = "x86_64")]
use fa2::Simd;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::hint::black_box;

/// Steps of each sum in a block: some ten microseconds, beside which reading the clock is nothing.
const STEPS: usize = 2048;

/// Some work, all of it independent of memory.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// Does it. The CPU has the instructions.
    pub(super) compute: fn(),
    /// Floating-point operations that it takes.
    pub(super) operations: f64,
}

impl Block {
    /// `STEPS` steps of `sums` vectors, with `operations` in each.
    fn new(compute: fn(), sums: usize, operations: usize) -> Self {
        Block { compute, operations: (STEPS * sums * operations) as f64 }
    }
}

/// Multiply-adds of f32 in the widest vectors of this CPU.
pub(super) fn fma() -> Block {
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code)]
    {
        let available = Simd::available();
        if available.contains(&Simd::Avx512) {
            // SAFETY: the CPU has the instructions.
            return Block::new(|| unsafe { fma_avx512() }, 24, 2 * 16);
        }
        if available.contains(&Simd::Avx2) {
            // SAFETY: the CPU has the instructions.
            return Block::new(|| unsafe { fma_avx2() }, 12, 2 * 8);
        }
    }
    Block::new(portable, 12, 2 * 4)
}

/// Products of BF16 pairs, each pair added to an f32, where this CPU has them.
pub(super) fn bf16() -> Option<Block> {
    #[cfg(target_arch = "x86_64")]
    if Simd::available().contains(&Simd::Avx512Bf16) {
        // SAFETY: the CPU has the instructions.
        #[allow(unsafe_code)]
        return Some(Block::new(|| unsafe { bf16_avx512() }, 24, 4 * 16));
    }
    None
}

/// `sums` times `step`, [`STEPS`] times over.
macro_rules! steps {
    ($zero:expr, $sums:literal, $sum:ident => $step:expr) => {{
        let mut sums = black_box([$zero; $sums]);
        for _ in 0..STEPS {
            for sum in &mut sums {
                let $sum = *sum;
                *sum = $step;
            }
        }
        black_box(sums);
    }};
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn fma_avx512() {
    let (a, b) = (_mm512_set1_ps(black_box(0.9)), _mm512_set1_ps(black_box(0.1)));
    steps!(_mm512_setzero_ps(), 24, sum => _mm512_fmadd_ps(sum, a, b));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_avx512() {
    let (a, b) = (_mm512_set1_ps(black_box(0.9)), _mm512_set1_ps(black_box(0.1)));
    let (a, b) = (_mm512_cvtne2ps_pbh(a, a), _mm512_cvtne2ps_pbh(b, b));
    steps!(_mm512_setzero_ps(), 24, sum => _mm512_dpbf16_ps(sum, a, b));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fma_avx2() {
    let (a, b) = (_mm256_set1_ps(black_box(0.9)), _mm256_set1_ps(black_box(0.1)));
    steps!(_mm256_setzero_ps(), 12, sum => _mm256_fmadd_ps(sum, a, b));
}

/// A multiplication, then an addition: what every CPU has, in vectors of four.
fn portable() {
    let (a, b) = (black_box(0.9f32), black_box(0.1f32));
    steps!([0f32; 4], 12, sum => sum.map(|x| x * a + b));
}

#[cfg(test)]
mod tests {
    use super::Block;
    use std::time::Instant;

    /// 10^9 operations a second in the best of many blocks: whatever else the machine does, it leaves one of them alone.
    fn speed(block: Block) -> f64 {
        let run = |_| {
            let start = Instant::now();
            (block.compute)();
            block.operations / start.elapsed().as_secs_f64() / 1e9
        };
        (0..200).map(run).fold(0.0, f64::max)
    }

    #[test]
    fn what_every_cpu_has_is_no_faster_than_the_best_of_it() {
        let (portable, best) = (speed(Block::new(super::portable, 12, 2 * 4)), speed(super::fma()));
        assert!(0.1 < portable && portable < 1.5 * best, "{portable} and {best}");
    }
}
