//! What the host decides: which variant, how many blocks.

use attention::{AttentionError, DType};
use cuda_fa2::{Algorithm, Call, Mapped, Plan, Step};
use device::Variant;

/// FlashAttention-3.
pub static FA3: Algorithm = Algorithm {
    name: "fa3",
    dtypes: &[DType::F16, DType::Bf16],
    on_tensor_cores: true,
    wants_table: false,
    steps: &STEPS,
    planner: plan,
};

/// From plain loads to warps that do nothing but copy.
static STEPS: [Step; 3] = [
    Step { name: "1 wgmma", diff: None },
    Step { name: "2 TMA and a ring", diff: Some("steps/fa3/2-tma.diff") },
    Step { name: "3 registers for those who multiply", diff: Some("steps/fa3/3-setmaxnreg.diff") },
];

/// A block of threads, by what q, k and v are padded to.
#[derive(Clone, Copy, Debug)]
struct Block {
    head_dim: usize,
    /// Warpgroups that multiply, with 64 rows each.
    consumers: usize,
    /// Of a tile.
    keys: usize,
    /// Of a ring.
    stages: usize,
}

/// The blocks of `06_fa3.cu`. A consumer has O and S in registers, `head_dim + keys` numbers for each row in 4 lanes, beside P:
/// three of them fit at 64 channels alone. Shared memory holds Q and, in each stage, a tile of K and one of V: 152 to 192 KiB.
const BLOCKS: [Block; 3] = [
    Block { head_dim: 64, consumers: 3, keys: 128, stages: 4 },
    Block { head_dim: 128, consumers: 2, keys: 128, stages: 2 },
    Block { head_dim: 256, consumers: 2, keys: 64, stages: 2 },
];

impl Block {
    const fn rows(self) -> usize {
        64 * self.consumers
    }

    /// One more warpgroup copies.
    const fn threads(self) -> u32 {
        128 * (self.consumers as u32 + 1)
    }

    const fn shared_bytes(self) -> u32 {
        ((self.rows() + 2 * self.stages * self.keys) * self.head_dim * 2) as u32
    }
}

macro_rules! variant {
    ($name:literal, $element:literal, $head_dim:literal, $block:literal) => {
        Variant {
            file: "06_fa3.cu",
            name: $name,
            defines: &[("ELEMENT", $element), ("HEAD_DIM", $head_dim)],
            arch: "sm_90a",
            kernels: &[
                ("fa3", BLOCKS[$block].threads(), BLOCKS[$block].shared_bytes()),
                ("fa3_options", BLOCKS[$block].threads(), BLOCKS[$block].shared_bytes()),
            ],
        }
    };
}

/// Of each block in F16, then in BF16.
static VARIANTS: [Variant; 6] = [
    variant!("f16.d64", "f16", "64", 0),
    variant!("f16.d128", "f16", "128", 1),
    variant!("f16.d256", "f16", "256", 2),
    variant!("bf16.d64", "bf16", "64", 0),
    variant!("bf16.d128", "bf16", "128", 1),
    variant!("bf16.d256", "bf16", "256", 2),
];

/// Every variant of the kernel, as they are prebuilt.
pub fn variants() -> impl Iterator<Item = &'static Variant> {
    VARIANTS.iter()
}

fn plan(call: &Call) -> Result<Plan, AttentionError> {
    let Call { rung, dtype, shape, options, target } = *call;
    let refuse = |what: String| Err(AttentionError::Unsupported { rung, what });
    if target.compute_capability != (9, 0) {
        return refuse("devices that are not of compute capability 9.0 (Hopper)".into());
    }
    let mut blocks = BLOCKS.into_iter().zip(&VARIANTS[dtype * BLOCKS.len()..]);
    let Some((block, variant)) = blocks.find(|(block, _)| shape.d.max(shape.d_v) <= block.head_dim) else {
        return refuse("more than 256 channels".into());
    };
    let mut plan = Plan::new(shape, options, block.rows());
    if !plan.is_empty() {
        let kernel = usize::from(cuda_fa2::asks_for_options(shape, options));
        let blocks = shape.all_heads().saturating_mul(shape.q_len().div_ceil(block.rows()));
        let boxes = [block.rows() as u32, block.keys as u32];
        plan.launch_mapped(rung, shape, Mapped { variant, kernel, blocks, boxes })?;
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use attention::Options;
    use cuda_fa2::{Shape, Target, texts};

    fn plan(shape: &Shape, options: &Options, target: Target) -> Result<Vec<(&'static str, u32, u32)>, String> {
        let plan = FA3.plan(shape, options, target).map_err(|error| error.to_string())?;
        Ok(plan.launches().map(|(kernel, grid, block)| (kernel, grid[0], block[0])).collect())
    }

    #[test]
    fn the_kernel_has_the_blocks_that_are_planned_with() {
        let text = device::file("06_fa3.cu").unwrap();
        for line in [
            "constexpr int CONSUMERS = D == 64 ? 3 : 2; ",
            "constexpr int STAGES = D == 64 ? 4 : 2; ",
            "using B = Block<4 * CONSUMERS, 1, D == 256 ? 64 : 128>;",
        ] {
            assert!(text.contains(line), "{line}");
        }
    }

    #[test]
    fn a_block_has_64_rows_for_each_consumer() {
        let plain = Options::default();
        let rows = |d, d_v, rows| {
            let mut shape = Shape { heads: 6, kv_heads: 2, d, d_v, ..Shape::one(DType::Bf16) };
            shape.sequences = vec![attention::Sequence { q: 0..rows, k: 0..700 }; 3];
            plan(&shape, &plain, Target::H200)
        };
        assert_eq!(rows(64, 8, 385), Ok(vec![("fa3", 6 * 3 * 3, 512)]));
        assert_eq!(rows(65, 8, 385), Ok(vec![("fa3", 6 * 3 * 4, 384)]));
        assert_eq!(rows(8, 256, 1), Ok(vec![("fa3", 6 * 3, 384)]));
        assert_eq!(rows(64, 64, 0), Ok(vec![]));
        assert!(rows(64, 257, 1).unwrap_err().contains("more than 256 channels"));
        let capped = Options { softcap: 30.0, ..Options::default() };
        assert_eq!(plan(&Shape::one(DType::F16), &capped, Target::H200), Ok(vec![("fa3_options", 1, 512)]));
    }

    #[test]
    fn devices_without_the_instructions_are_refused() {
        for compute_capability in [(8, 0), (10, 0), (12, 0)] {
            let target = Target { compute_capability, ..Target::H200 };
            let refused = plan(&Shape::one(DType::F16), &Options::default(), target).unwrap_err();
            assert!(refused.contains("devices that are not of compute capability 9.0 (Hopper)"), "{refused}");
        }
    }

    #[test]
    fn every_diff_is_of_the_kernel_as_it_is_and_is_one_of_the_steps() {
        let first = texts(&STEPS, 0).unwrap();
        assert_eq!(first.keys().collect::<Vec<_>>(), ["06_fa3.cu"]);
        assert!(
            !first["06_fa3.cu"].contains("mbarrier") && !texts(&STEPS, 1).unwrap()["06_fa3.cu"].contains("setmaxnreg")
        );
        let diffs: Vec<&str> = STEPS.iter().filter_map(|step| step.diff).collect();
        assert_eq!(device::files().filter(|name| name.starts_with("steps/fa3/")).collect::<Vec<_>>(), diffs);
    }
}
