//! What the host decides: which variant, which blocks, in which order they take their tiles.

use attention::{AttentionError, DType};
use cuda_fa2::{Algorithm, Call, Mapped, Plan, Step, asks_for_options};
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

/// From plain loads to blocks that stay.
static STEPS: [Step; 6] = [
    // All threads copy and multiply; then one warp copies, and then a warpgroup has it and three that idle.
    Step { fewer_threads: 128, ..Step::new("1 wgmma", None) },
    Step { fewer_threads: 96, ..Step::new("2 TMA and a ring", Some("steps/fa3/2-tma.diff")) },
    Step::new("3 registers for those who multiply", Some("steps/fa3/3-setmaxnreg.diff")),
    Step::new("4 softmax beside products", Some("steps/fa3/4-overlap.diff")),
    Step::new("5 turns", Some("steps/fa3/5-turns.diff")),
    Step { blocks_stay: true, ..Step::new("6 blocks that stay", Some("steps/fa3/6-persistent.diff")) },
];

/// A block of threads, and the kernel that has such blocks.
#[derive(Debug)]
struct Row {
    /// What q and k are padded to, and what v is.
    head_dim: usize,
    head_dim_v: usize,
    /// Warpgroups that multiply, with 64 rows each.
    consumers: usize,
    /// Of a tile.
    keys: usize,
    variant: Variant,
}

macro_rules! row {
    ($element:literal, $name:literal, d $d:literal / $d_v:literal, consumers $consumers:literal, keys $keys:literal,
        stages $stages:literal, turns $turns:literal, q_in_registers $in_registers:literal, options $options:literal) => {{
        const THREADS: u32 = 128 * ($consumers + 1);
        const SHARED: u32 = 2 * (64 * $consumers * $d + $stages * $keys * ($d + $d_v));
        Row {
            head_dim: $d,
            head_dim_v: $d_v,
            consumers: $consumers,
            keys: $keys,
            variant: Variant {
                file: "06_fa3.cu",
                name: concat!($element, ".", $name),
                defines: &[
                    ("ELEMENT", $element),
                    ("HEAD_DIM", stringify!($d)),
                    ("HEAD_DIM_V", stringify!($d_v)),
                    ("BLOCK_CONSUMERS", stringify!($consumers)),
                    ("BLOCK_KEYS", stringify!($keys)),
                    ("BLOCK_STAGES", stringify!($stages)),
                    ("BLOCK_TURNS", stringify!($turns)),
                    ("BLOCK_Q_IN_REGISTERS", stringify!($in_registers)),
                    ("SCORE_OPTIONS", stringify!($options)),
                ],
                arch: "sm_90a",
                kernels: &[("fa3", THREADS, SHARED), ("fa3_start", 1, 0)],
            },
        }
    }};
}

/// Rows of a type: without options, and with them. A consumer has O and S in registers, d_v + keys numbers of each row in four
/// lanes, beside P and perhaps Q. Shared memory, of which a block has 227 KiB, holds Q, and in each stage a tile of K and one of V.
macro_rules! rows {
    ($element:literal) => {
        [
            // Products are short beside the exponentials: three consumers have more of these to hide behind, and share K and V.
            row!($element, "d64", d 64 / 64, consumers 3, keys 128, stages 4, turns true, q_in_registers false, options false),
            // Shared memory is what products wait for: with Q in registers they read a third less of it.
            row!($element, "d128", d 128 / 128, consumers 2, keys 128, stages 2, turns true, q_in_registers true, options false),
            // Registers have no room for 192 channels of Q.
            row!($element, "d192", d 192 / 128, consumers 2, keys 128, stages 2, turns true, q_in_registers false, options false),
            // O takes 128 registers, and 64 keys are what is left. Products are so long that turns only cost.
            row!($element, "d256", d 256 / 256, consumers 2, keys 64, stages 2, turns false, q_in_registers false, options false),
            // Options take registers: tiles of 64 keys.
            row!($element, "d64.options", d 64 / 64, consumers 2, keys 64, stages 4, turns true, q_in_registers true, options true),
            row!($element, "d128.options", d 128 / 128, consumers 2, keys 64, stages 4, turns true, q_in_registers true, options true),
            row!($element, "d192.options", d 192 / 128, consumers 2, keys 64, stages 2, turns true, q_in_registers false, options true),
            row!($element, "d256.options", d 256 / 256, consumers 2, keys 64, stages 2, turns false, q_in_registers false, options true),
        ]
    };
}

/// The tiles of each kernel, in F16 and in BF16.
static TABLE: [[Row; 8]; 2] = [rows!("f16"), rows!("bf16")];

/// Kernels without options come first.
const PLAIN: usize = 4;

/// Bytes of keys and values that a section of heads has: a small part of the level-2 cache, for all blocks read them at once, and
/// behind them come others.
const SECTION: usize = 8 << 20;

/// Every variant of the kernel, as they are prebuilt.
pub fn variants() -> impl Iterator<Item = &'static Variant> {
    TABLE.iter().flatten().map(|row| &row.variant)
}

fn plan(call: &Call) -> Result<Plan, AttentionError> {
    let Call { rung, dtype, shape, options, target } = *call;
    let refuse = |what: String| Err(AttentionError::Unsupported { rung, what });
    if target.compute_capability != (9, 0) {
        return refuse("devices that are not of compute capability 9.0 (Hopper)".into());
    }
    let (plain, with_options) = TABLE[dtype].split_at(PLAIN);
    let mut rows = if asks_for_options(shape, options) { with_options } else { plain }.iter();
    let Some(row) = rows.find(|row| shape.d <= row.head_dim && shape.d_v <= row.head_dim_v) else {
        return refuse("more than 256 channels".into());
    };
    let rows = 64 * row.consumers;
    let mut plan = Plan::new(shape, options, rows);
    if !plan.is_empty() {
        let tiles = shape.all_heads().saturating_mul(shape.q_len().div_ceil(rows));
        let blocks = tiles.min(target.multiprocessors.max(1));
        // Heads of a group share keys and values.
        let group = shape.heads / shape.kv_heads;
        let bytes = 2 * shape.k_len().max(1) * (shape.d + shape.d_v);
        let section = group * (SECTION / bytes).max(1);
        let boxes = [rows as u32, row.keys as u32];
        let variant = &row.variant;
        plan.launch_mapped(rung, shape, Mapped { variant, kernel: 0, start: 1, blocks, tiles, section, boxes })?;
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use attention::{Mask, Options};
    use cuda_fa2::{Shape, Target, texts};

    fn plan(shape: &Shape, options: &Options, target: Target) -> Result<Vec<(&'static str, u32, u32)>, String> {
        let plan = FA3.plan(shape, options, target).map_err(|error| error.to_string())?;
        Ok(plan.launches().map(|(kernel, grid, block)| (kernel, grid[0], block[0])).collect())
    }

    #[test]
    fn a_block_stays_on_each_multiprocessor_as_long_as_there_are_tiles() {
        let plain = Options::default();
        let rows = |d, d_v, rows| {
            let mut shape = Shape { heads: 6, kv_heads: 2, d, d_v, ..Shape::one(DType::Bf16) };
            shape.sequences = vec![attention::Sequence { q: 0..rows, k: 0..700 }; 3];
            plan(&shape, &plain, Target::H200)
        };
        assert_eq!(rows(64, 8, 385), Ok(vec![("fa3", 6 * 3 * 3, 512)]));
        assert_eq!(rows(65, 8, 385), Ok(vec![("fa3", 6 * 3 * 4, 384)]));
        assert_eq!(rows(192, 128, 1), Ok(vec![("fa3", 6 * 3, 384)]));
        assert_eq!(rows(8, 256, 1000), Ok(vec![("fa3", 132, 384)]));
        assert_eq!(rows(64, 64, 0), Ok(vec![]));
        assert!(rows(64, 257, 1).unwrap_err().contains("more than 256 channels"));
        let capped = Options { softcap: 30.0, ..Options::default() };
        assert_eq!(plan(&Shape::one(DType::F16), &capped, Target::H200), Ok(vec![("fa3", 1, 384)]));
    }

    #[test]
    fn blocks_count_tiles_that_differ_in_work() {
        let counted = vec![("fa3_start", 1, 1), ("fa3", 1, 512)];
        let causal = Options { mask: Mask::Causal, ..Options::default() };
        let one = Shape::one(DType::F16);
        assert_eq!(plan(&one, &causal, Target::H200), Ok(counted));
        let mut ragged = Shape { heads: 2, kv_heads: 2, ..one };
        ragged.sequences = vec![attention::Sequence { q: 0..5, k: 0..7 }, attention::Sequence { q: 0..1, k: 0..7 }];
        let plan = FA3.plan(&ragged, &Options::default(), Target::H200).unwrap();
        assert_eq!((plan.launches().count(), plan.workspace_bytes()), (2, 4));
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
