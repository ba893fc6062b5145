//! `05_fa1.cu`: Algorithm 1 of FlashAttention-1, a block of threads a head.

use crate::params::{Blocks, Running};
use crate::plan::{Extra, Launch, Plan, Shape, launch_shape};
use attention::{AttentionError, Options};
use device::Variant;

/// `THREADS` of the kernel.
const THREADS: u32 = 512;

/// What an A100 gives a block at most: for the report of `ladder kernels`. Other devices have other tiles.
const LEAST_SHARED: u32 = 163 << 10;

const F32: usize = size_of::<f32>();

pub(crate) static VARIANTS: [Variant; 2] =
    [variant("f32", &[("ELEMENT", "float")]), variant("f16", &[("ELEMENT", "f16")])];

const fn variant(name: &'static str, defines: &'static [(&'static str, &'static str)]) -> Variant {
    Variant { file: "05_fa1.cu", name, defines, arch: "sm_80", kernels: &[("fa1", THREADS, LEAST_SHARED)] }
}

/// Bytes of shared memory for tiles of K, V, Q, O and S, and for l and m. Strides are odd, so that columns meet no bank conflict.
fn shared_bytes(rows: usize, keys: usize, d: usize, d_v: usize) -> usize {
    F32 * ((keys + rows) * ((d | 1) + (d_v | 1)) + rows * (keys | 1) + 2 * rows)
}

/// Line 1 of the listing: the largest B_c that shared memory has room for, with B_r = min(B_c, max(d, d_v)). The paper leaves
/// S, l and m out of its sum; here nothing else can hold them.
fn fit(shared: usize, d: usize, d_v: usize) -> Option<(usize, usize)> {
    let rows = |keys: usize| keys.min(d.max(d_v));
    let fits = |keys: usize| shared_bytes(rows(keys), keys, d, d_v) <= shared;
    // By halves: `most` never fits, `least` does, but for 0 keys.
    let (mut least, mut most) = (0, shared / F32 + 1);
    while most - least > 1 {
        let keys = least.midpoint(most);
        (least, most) = if fits(keys) { (keys, most) } else { (least, keys) };
    }
    (least > 0).then(|| (rows(least), least))
}

pub(crate) fn plan(
    rung: &'static str,
    variant: &'static Variant,
    shared: usize,
    shape: &Shape,
    options: &Options,
) -> Result<Plan, AttentionError> {
    let Some((rows, keys)) = fit(shared, shape.d, shape.d_v) else {
        return Err(AttentionError::Unsupported { rung, what: "more channels than shared memory has room for".into() });
    };
    let mut plan = Plan::new(shape, options, rows);
    let (heads, q_len) = (shape.all_heads(), shape.q_len());
    let bytes = |channels: usize| heads as u128 * q_len as u128 * channels as u128 * F32 as u128;
    let all = bytes(shape.d_v + 2);
    plan.workspace_bytes =
        usize::try_from(all).map_err(|_| AttentionError::Memory { what: "O, l and m", bytes: all })?;
    if !plan.is_empty() {
        let (l, m) = (bytes(shape.d_v) as u64, bytes(shape.d_v + 1) as u64);
        let blocks = Blocks { rows: rows as i32, keys: keys as i32 };
        let extra = Extra::Running(blocks, Running { o: 0, l, m, q_len: q_len as i32, padding: 0 });
        let shape = launch_shape(rung, heads, [THREADS, 1, 1], shared_bytes(rows, keys, shape.d, shape.d_v))?;
        plan.launches.push(Launch { variant, kernel: "fa1", shape, extra });
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_has_the_threads_that_are_launched() {
        let text = device::file("05_fa1.cu").unwrap();
        assert!(text.contains("constexpr int WARPS = 16, THREADS = LANES * WARPS;"));
        assert_eq!(THREADS, 32 * 16);
    }

    #[test]
    fn tiles_fill_shared_memory_and_no_more() {
        for (d, d_v) in [(1, 1), (64, 64), (128, 128), (40, 72), (576, 512)] {
            for shared in [163 << 10, 227 << 10] {
                let (rows, keys) = fit(shared, d, d_v).unwrap();
                assert!(shared_bytes(rows, keys, d, d_v) <= shared, "{d} {d_v}");
                assert!(shared_bytes((keys + 1).min(d.max(d_v)), keys + 1, d, d_v) > shared, "{d} {d_v}");
            }
        }
        assert_eq!(fit(227 << 10, 64, 64), Some((64, 255)));
        assert_eq!(fit(227 << 10, 1 << 20, 64), None);
    }
}
