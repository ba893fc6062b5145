//! `05_fa2_simt.cu`: Algorithm 1 of FlashAttention-2, a block of threads a tile of rows.

use crate::plan::{Extra, Plan, Shape, Step, launch_shape};
use attention::{AttentionError, DType, Options};
use device::Variant;

/// `THREADS` of the kernel.
const THREADS: u32 = 128;

/// What q, k and v are padded to.
const HEAD_DIMS: [usize; 3] = [64, 128, 256];

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

/// The variant for a shape.
pub(crate) fn variant_for(rung: &'static str, shape: &Shape) -> Result<&'static Variant, AttentionError> {
    let d = shape.d.max(shape.d_v);
    match HEAD_DIMS.iter().position(|&head_dim| d <= head_dim) {
        Some(place) => Ok(&VARIANTS[place + if shape.dtype == DType::F32 { 0 } else { HEAD_DIMS.len() }]),
        None => Err(AttentionError::Unsupported { rung, what: "more than 256 channels".into() }),
    }
}

pub(crate) fn plan(rung: &'static str, shape: &Shape, options: &Options) -> Result<Plan, AttentionError> {
    let variant = variant_for(rung, shape)?;
    let head_dim =
        HEAD_DIMS.into_iter().find(|&head_dim| shape.d.max(shape.d_v) <= head_dim).expect("it has a variant");
    let mut plan = Plan::new(rung, shape, options, rows(head_dim))?;
    if !plan.is_empty() {
        let blocks = shape.all_heads().saturating_mul(plan.problem.row_tiles as usize);
        let shape = launch_shape(rung, blocks, [THREADS, 1, 1], shared_bytes(head_dim) as usize)?;
        plan.steps.push(Step { variant, kernel: "fa2_simt", shape, extra: Extra::None });
    }
    Ok(plan)
}
