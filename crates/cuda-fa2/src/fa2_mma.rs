//! `05_fa2_mma.cu`: Algorithm 1 of FlashAttention-2 on tensor cores.
//!
//! Long queries are cut into tiles of rows, a block of threads each. Where a multiprocessor has no more than one of these, and so
//! has room for two blocks, a block is of two groups that share the keys of its rows, and where even tiles half as long are so few
//! they are half as long. So they are where more than scale and mask makes the scores, for registers. Short queries fill a tile
//! with the rows of all heads that share a kv head, and several blocks share the keys: what they find of a row is joined by a
//! second kernel.

use crate::params::Splits;
use crate::plan::{Extra, Launch, Plan, Shape, Target, Tiles, launch_shape};
use attention::{AttentionError, Options};
use device::Variant;

/// What q, k and v are padded to, and the variants in F16 and in BF16 for each.
const HEAD_DIMS: [usize; 6] = [32, 64, 96, 128, 192, 256];
pub(crate) static OF_TYPE: [&[Variant]; 2] = {
    let (f16, bf16) = VARIANTS.split_at(HEAD_DIMS.len());
    [f16, bf16]
};

macro_rules! variant {
    ($name:literal, $element:literal, $head_dim:literal, $d:literal) => {
        Variant {
            file: "05_fa2_mma.cu",
            name: $name,
            defines: &[("ELEMENT", $element), ("HEAD_DIM", $head_dim)],
            arch: "sm_80",
            kernels: &[
                ("fa2_mma", long($d).threads(), long($d).shared_bytes($d)),
                ("fa2_mma_few", few($d).threads(), few($d).shared_bytes($d)),
                ("fa2_mma_fewer", fewer($d).threads(), fewer($d).shared_bytes($d)),
                ("fa2_mma_options", medium($d).threads(), medium($d).shared_bytes($d)),
                ("fa2_mma_short", medium($d).threads(), medium($d).shared_bytes($d)),
                ("fa2_mma_short_options", medium($d).threads(), medium($d).shared_bytes($d)),
                ("fa2_mma_combine", COMBINERS, 0),
            ],
        }
    };
}

pub(crate) static VARIANTS: [Variant; 12] = [
    variant!("f16.d32", "f16", "32", 32),
    variant!("f16.d64", "f16", "64", 64),
    variant!("f16.d96", "f16", "96", 96),
    variant!("f16.d128", "f16", "128", 128),
    variant!("f16.d192", "f16", "192", 192),
    variant!("f16.d256", "f16", "256", 256),
    variant!("bf16.d32", "bf16", "32", 32),
    variant!("bf16.d64", "bf16", "64", 64),
    variant!("bf16.d96", "bf16", "96", 96),
    variant!("bf16.d128", "bf16", "128", 128),
    variant!("bf16.d192", "bf16", "192", 192),
    variant!("bf16.d256", "bf16", "256", 256),
];

/// Queries up to this length are short: they would leave most of a longer tile empty.
const SHORT: usize = 16;

/// Short blocks that a multiprocessor runs at once: each has 80 KiB of shared memory at 128 channels.
const AT_ONCE: usize = 2;

/// Rounds of blocks that even out who has more to do, as long as a block has [`LEAST_TILES`] of keys.
const ROUNDS: usize = 4;
const LEAST_TILES: usize = 8;

/// Threads of `fa2_mma_combine`.
const COMBINERS: u32 = 8 * 32;

/// `Block` of the kernel.
#[derive(Clone, Copy, Debug)]
struct Block {
    warps: usize,
    /// Times 16 rows a warp.
    tiles: usize,
    keys: usize,
    /// Groups of so many warps that share the keys.
    groups: usize,
}

impl Block {
    const fn rows(self) -> usize {
        16 * self.tiles * self.warps
    }

    const fn threads(self) -> u32 {
        32 * (self.groups * self.warps) as u32
    }

    /// Of q, and of k and v two tiles for each group.
    const fn shared_bytes(self, head_dim: usize) -> u32 {
        ((self.rows() + 4 * self.groups * self.keys) * head_dim * 2) as u32
    }
}

const fn long(head_dim: usize) -> Block {
    let keys = match head_dim {
        ..=64 => 128,
        65..=128 => 64,
        _ => 32,
    };
    Block { warps: 4, tiles: if head_dim <= 128 { 2 } else { 1 }, keys, groups: 1 }
}

/// Of no more tiles of rows than there are multiprocessors.
const fn few(head_dim: usize) -> Block {
    Block { groups: 2, ..long(head_dim) }
}

/// Of so few tiles even where they are half as long.
const fn fewer(head_dim: usize) -> Block {
    Block { tiles: 1, ..few(head_dim) }
}

/// With options; of short queries, too: all warps load, and as many compute as have rows.
const fn medium(head_dim: usize) -> Block {
    Block { warps: 4, tiles: 1, keys: if head_dim <= 128 { 64 } else { 32 }, groups: 1 }
}

pub(crate) fn plan(
    rung: &'static str,
    variants: &'static [Variant],
    target: Target,
    shape: &Shape,
    options: &Options,
) -> Result<Plan, AttentionError> {
    let mut padded = HEAD_DIMS.into_iter().zip(variants);
    let Some((head_dim, variant)) = padded.find(|(head_dim, _)| shape.d.max(shape.d_v) <= *head_dim) else {
        return Err(AttentionError::Unsupported { rung, what: "more than 256 channels".into() });
    };
    let with_options = asks_for_options(shape, options);
    if shape.q_len() <= SHORT {
        return plan_short(rung, (head_dim, variant), target, shape, options, with_options);
    }
    let blocks_of = |block: Block| shape.all_heads().saturating_mul(shape.q_len().div_ceil(block.rows()));
    let counted = || {
        let are_few = |block: Block| {
            let fits = block.shared_bytes(head_dim) as usize <= target.shared_per_block;
            fits && blocks_of(block) <= target.multiprocessors
        };
        match (are_few(fewer(head_dim)), are_few(few(head_dim))) {
            (true, _) => Tiles::Fewer,
            (_, true) => Tiles::Few,
            _ => Tiles::Many,
        }
    };
    let (kernel, block) = match target.tiles.unwrap_or_else(counted) {
        _ if with_options => ("fa2_mma_options", medium(head_dim)),
        Tiles::Many => ("fa2_mma", long(head_dim)),
        Tiles::Few => ("fa2_mma_few", few(head_dim)),
        Tiles::Fewer => ("fa2_mma_fewer", fewer(head_dim)),
    };
    let mut plan = Plan::new(shape, options, block.rows());
    if !plan.is_empty() {
        let bytes = block.shared_bytes(head_dim) as usize;
        let shape = launch_shape(rung, blocks_of(block), [block.threads(), 1, 1], bytes)?;
        plan.launches.push(Launch { variant, kernel, shape, extra: Extra::Splits(Splits::default()) });
    }
    Ok(plan)
}

/// Whether scores are more than the scale, folded into a power of two, and a mask. A scale that is not positive would turn a
/// maximum into a minimum, and a very large or small one would leave f32.
pub fn asks_for_options(shape: &Shape, options: &Options) -> bool {
    let scale = options.scale.unwrap_or_else(|| 1.0 / (shape.d as f64).sqrt());
    options.softcap != 0.0
        || options.alibi_slopes.is_some()
        || options.bias.is_some()
        || !(1e-30..1e30).contains(&scale)
}

fn plan_short(
    rung: &'static str,
    (head_dim, variant): (usize, &'static Variant),
    target: Target,
    shape: &Shape,
    options: &Options,
    with_options: bool,
) -> Result<Plan, AttentionError> {
    let block = medium(head_dim);
    let packed_rows = shape.q_len() * (shape.heads / shape.kv_heads);
    let mut plan = Plan::new(shape, options, block.rows());
    if plan.is_empty() {
        return Ok(plan);
    }
    plan.problem.row_tiles = packed_rows.div_ceil(block.rows()) as i32;
    let unsplit = (shape.sequences.len() * shape.kv_heads).saturating_mul(packed_rows.div_ceil(block.rows()));
    let tiles = shape.k_len().div_ceil(block.keys);
    let splits = target.splits.map_or_else(|| splits(tiles, unsplit, target), |asked| asked.clamp(1, tiles.max(1)));

    let rows = shape.all_heads() as u128 * shape.q_len() as u128 * splits as u128;
    let [o, m, l] =
        [0, head_dim as u128, head_dim as u128 + 1].map(|numbers| rows * numbers * size_of::<f32>() as u128);
    let bytes = l + rows * size_of::<f32>() as u128;
    plan.workspace_bytes =
        usize::try_from(bytes).map_err(|_| AttentionError::Memory { what: "what splits find of rows", bytes })?;
    let [o, m, l] = [o, m, l].map(|place| place as u64);
    let extra = Extra::Splits(Splits { o, m, l, count: splits as i32, padding: 0 });
    let kernel = if with_options { "fa2_mma_short_options" } else { "fa2_mma_short" };
    let shared = block.shared_bytes(head_dim) as usize;
    let split = launch_shape(rung, unsplit.saturating_mul(splits), [block.threads(), 1, 1], shared)?;
    let joined = launch_shape(rung, shape.all_heads().saturating_mul(shape.q_len()), [COMBINERS, 1, 1], 0)?;
    plan.launches.push(Launch { variant, kernel, shape: split, extra });
    plan.launches.push(Launch { variant, kernel: "fa2_mma_combine", shape: joined, extra });
    Ok(plan)
}

/// Into how many parts to split `tiles` of keys where there are so many blocks without it: as many as keep all multiprocessors
/// busy, and then more, as long as they are worth a block. None is empty, unless no sequence has a key.
fn splits(tiles: usize, unsplit: usize, target: Target) -> usize {
    let at_once = target.multiprocessors.saturating_mul(AT_ONCE);
    let busy = tiles.min(at_once / unsplit);
    let wanted = busy.max((tiles / LEAST_TILES).min(at_once.saturating_mul(ROUNDS) / unsplit)).max(1);
    tiles.div_ceil(tiles.div_ceil(wanted).max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use attention::{DType, Sequence};

    #[test]
    fn the_kernel_has_the_sizes_that_are_planned_with() {
        let text = device::file("05_fa2_mma.cu").unwrap();
        for line in [
            "using Long = Block<4, D <= 128 ? 2 : 1, D <= 64 ? 128 : D <= 128 ? 64 : 32>;",
            "using Few = Block<4, Long::TILES, Long::KEYS, false, 2>;",
            "using Fewer = Block<4, 1, Long::KEYS, false, 2>;",
            "using Medium = Block<4, 1, D <= 128 ? 64 : 32>;",
            "using Short = Block<4, 1, D <= 128 ? 64 : 32, true>;",
        ] {
            assert!(text.contains(line), "{line}");
        }
        assert!(device::file("tile/splits.cuh").unwrap().contains("constexpr int COMBINERS = 8;"));
    }

    fn kernels(shape: &Shape, options: &Options) -> Vec<(&'static str, u32)> {
        let plan = plan("cuda-fa2", OF_TYPE[0], Target::H200, shape, options).unwrap();
        plan.launches.iter().map(|launch| (launch.kernel, launch.shape.grid[0])).collect()
    }

    fn shape(batch: usize, (heads, kv_heads): (usize, usize), (q, k): (usize, usize)) -> Shape {
        let sequences = vec![Sequence { q: 0..q, k: 0..k }; batch];
        Shape { dtype: DType::F16, heads, kv_heads, d: 128, d_v: 128, packed: false, sequences }
    }

    #[test]
    fn groups_share_keys_where_tiles_are_few() {
        let plain = Options::default();
        assert_eq!(kernels(&shape(1, (16, 16), (1024, 1024)), &plain), [("fa2_mma_few", 16 * 8)]);
        assert_eq!(kernels(&shape(1, (16, 16), (513, 1)), &plain), [("fa2_mma_few", 16 * 5)]);
        assert_eq!(kernels(&shape(1, (16, 16), (512, 1)), &plain), [("fa2_mma_fewer", 16 * 8)]);
        assert_eq!(kernels(&shape(1, (16, 16), (2048, 2048)), &plain), [("fa2_mma", 16 * 16)]);
        assert_eq!(kernels(&shape(3, (4, 2), (17, 5)), &plain), [("fa2_mma_fewer", 12)]);
        let target = Target { shared_per_block: 99 << 10, ..Target::H200 };
        let plan = plan("cuda-fa2", OF_TYPE[0], target, &shape(1, (16, 16), (1024, 1024)), &plain).unwrap();
        assert_eq!(plan.launches[0].kernel, "fa2_mma");
        for options in [
            Options { softcap: 30.0, ..Options::default() },
            Options { scale: Some(-1.0), ..Options::default() },
            Options { scale: Some(0.0), ..Options::default() },
            Options { scale: Some(1e-37), ..Options::default() },
        ] {
            assert_eq!(kernels(&shape(1, (16, 16), (2048, 2048)), &options), [("fa2_mma_options", 16 * 32)]);
            assert_eq!(kernels(&shape(1, (2, 2), (1, 1)), &options)[0].0, "fa2_mma_short_options");
        }
    }

    #[test]
    fn keys_of_short_queries_are_split_until_all_multiprocessors_are_busy() {
        let splits = |batch, keys| {
            let kernels = kernels(&shape(batch, (32, 8), (1, keys)), &Options::default());
            assert_eq!(kernels[1], ("fa2_mma_combine", 32 * batch as u32));
            (kernels[0].1 as usize) / (8 * batch)
        };
        assert_eq!([splits(1, 0), splits(1, 1), splits(1, 64), splits(1, 65), splits(1, 4096)], [1, 1, 1, 2, 32]);
        assert_eq!([splits(64, 4096), splits(64, 16384), splits(1024, 4096)], [2, 2, 1]);
        let given = |splits| {
            let target = Target { splits: Some(splits), ..Target::H200 };
            let plan = plan("cuda-fa2", OF_TYPE[0], target, &shape(1, (32, 8), (1, 4096)), &Options::default());
            plan.unwrap().launches[0].shape.grid[0] / 8
        };
        assert_eq!([given(0), given(3), given(64), given(usize::MAX)], [1, 3, 64, 64]);
        let four_rows_of_five_heads = kernels(&shape(1, (10, 2), (4, 64)), &Options::default());
        assert_eq!(four_rows_of_five_heads, [("fa2_mma_short", 2), ("fa2_mma_combine", 10 * 4)]);
    }
}
