//! `05_fa2_simt.cu`: Algorithm 1 of FlashAttention-2, a block of threads a tile of rows.

use crate::plan::{Extra, Launch, Plan, Shape, launch_shape};
use attention::{AttentionError, Options};
use device::Variant;

/// `THREADS` of the kernel.
const THREADS: u32 = 128;

/// The variants in F32 and in F16, each with what it pads q, k and v to.
pub(crate) static OF_TYPE: [[(usize, &Variant); 3]; 2] = [
    [(64, &VARIANTS[0]), (128, &VARIANTS[1]), (256, &VARIANTS[2])],
    [(64, &VARIANTS[3]), (128, &VARIANTS[4]), (256, &VARIANTS[5])],
];

pub(crate) static VARIANTS: [Variant; 6] = [
    variant("f32.d64", &[("ELEMENT", "float"), ("HEAD_DIM", "64")], &[("fa2_simt", THREADS, shared_bytes(64))]),
    variant("f32.d128", &[("ELEMENT", "float"), ("HEAD_DIM", "128")], &[("fa2_simt", THREADS, shared_bytes(128))]),
    variant("f32.d256", &[("ELEMENT", "float"), ("HEAD_DIM", "256")], &[("fa2_simt", THREADS, shared_bytes(256))]),
    variant("f16.d64", &[("ELEMENT", "f16"), ("HEAD_DIM", "64")], &[("fa2_simt", THREADS, shared_bytes(64))]),
    variant("f16.d128", &[("ELEMENT", "f16"), ("HEAD_DIM", "128")], &[("fa2_simt", THREADS, shared_bytes(128))]),
    variant("f16.d256", &[("ELEMENT", "f16"), ("HEAD_DIM", "256")], &[("fa2_simt", THREADS, shared_bytes(256))]),
];

const fn variant(
    name: &'static str,
    defines: &'static [(&'static str, &'static str)],
    kernels: &'static [(&'static str, u32, u32)],
) -> Variant {
    Variant { file: "05_fa2_simt.cu", name, defines, arch: "sm_80", kernels }
}

/// `ROWS` of the kernel: 8 for each of the groups of threads that share rows.
const fn rows(head_dim: usize) -> usize {
    THREADS as usize * 8 / (head_dim / 8)
}

/// `KEYS` of the kernel.
const fn keys(head_dim: usize) -> usize {
    if head_dim == 256 { 32 } else { 64 }
}

/// Bytes of the kernel's struct `Shared`.
const fn shared_bytes(head_dim: usize) -> u32 {
    let (rows, keys) = (rows(head_dim), keys(head_dim));
    (size_of::<f32>() * (head_dim * (rows + 2 * keys) + keys * rows)) as u32
}

pub(crate) fn plan(
    rung: &'static str,
    variants: &'static [(usize, &'static Variant)],
    shared: usize,
    shape: &Shape,
    options: &Options,
) -> Result<Plan, AttentionError> {
    let refuse = |what: &str| Err(AttentionError::Unsupported { rung, what: what.into() });
    let Some(&(head_dim, variant)) = variants.iter().find(|(head_dim, _)| shape.d.max(shape.d_v) <= *head_dim) else {
        return refuse("more than 256 channels");
    };
    let needed = shared_bytes(head_dim) as usize;
    if needed > shared {
        return refuse("more channels than shared memory has room for");
    }
    let mut plan = Plan::new(shape, options, rows(head_dim));
    if !plan.is_empty() {
        let blocks = shape.all_heads().saturating_mul(plan.problem.row_tiles as usize);
        let shape = launch_shape(rung, blocks, [THREADS, 1, 1], needed)?;
        plan.launches.push(Launch { variant, kernel: "fa2_simt", shape, extra: Extra::None });
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of tiles, as the kernel works them out from its numbers, and its numbers.
    #[test]
    fn the_kernel_has_the_sizes_that_are_planned_with() {
        let text = device::file("05_fa2_simt.cu").unwrap();
        for line in [
            "constexpr int TX = D / 8;",
            "constexpr int ROWS = 128 * 8 / TX;",
            "constexpr int KEYS = D == 256 ? 32 : 64;",
            "constexpr int TY = ROWS / 8;",
            "constexpr int THREADS = TX * TY;",
            "static_assert(THREADS == 128);",
            "float q[D * ROWS], k[D * KEYS], v[KEYS * D], p[KEYS * ROWS];",
        ] {
            assert!(text.contains(line), "{line}");
        }
        assert_eq!([64, 128, 256].map(rows), [128, 64, 32]);
        assert_eq!([64, 128, 256].map(shared_bytes), [98_304, 114_688, 102_400]);
    }
}
