//! `05_naive.cu`: three kernels with S between them.

use crate::params::Scores;
use crate::plan::{Extra, Launch, Plan, Shape, launch_shape};
use attention::{AttentionError, Options};
use device::Variant;

/// `TILE` and `WARPS` of the kernels.
const TILE: usize = 32;
const WARPS: usize = 8;
const THREADS: u32 = (TILE * WARPS) as u32;

pub(crate) static VARIANTS: [Variant; 2] =
    [variant("f32", &[("ELEMENT", "float")]), variant("f16", &[("ELEMENT", "f16")])];

const fn variant(name: &'static str, defines: &'static [(&'static str, &'static str)]) -> Variant {
    let kernels = &[("naive_scores", THREADS, 0), ("naive_softmax", THREADS, 0), ("naive_output", THREADS, 0)];
    Variant { file: "05_naive.cu", name, defines, arch: "sm_80", kernels }
}

pub(crate) fn plan(
    rung: &'static str,
    variant: &'static Variant,
    shape: &Shape,
    options: &Options,
) -> Result<Plan, AttentionError> {
    let mut plan = Plan::new(shape, options, TILE);
    let (heads, q_len, k_len) = (shape.all_heads(), shape.q_len(), shape.k_len());
    let scores = heads as u128 * q_len as u128 * k_len as u128 * size_of::<f32>() as u128;
    plan.workspace_bytes =
        usize::try_from(scores).map_err(|_| AttentionError::Memory { what: "the scores S", bytes: scores })?;
    let extra = Extra::Scores(Scores { data: 0, q_len: q_len as i32, k_len: k_len as i32 });
    let row_tiles = heads.saturating_mul(q_len.div_ceil(TILE));
    for (kernel, blocks) in [
        ("naive_scores", row_tiles.saturating_mul(k_len.div_ceil(TILE))),
        ("naive_softmax", heads.saturating_mul(q_len).div_ceil(WARPS)),
        ("naive_output", row_tiles.saturating_mul(shape.d_v.div_ceil(TILE))),
    ] {
        // Without a key there are no scores to make.
        if blocks > 0 {
            let shape = launch_shape(rung, blocks, [TILE as u32, WARPS as u32, 1], 0)?;
            plan.launches.push(Launch { variant, kernel, shape, extra });
        }
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_have_the_tiles_that_are_launched() {
        let text = device::file("05_naive.cu").unwrap();
        assert!(text.contains(&format!("constexpr int TILE = {TILE};")));
        assert!(text.contains(&format!("constexpr int WARPS = {WARPS};")));
    }
}
