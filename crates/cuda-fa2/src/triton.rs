//! `triton/fa2.py`: Algorithm 1 of FlashAttention-2, compiled by Triton beforehand.
//!
//! A Triton kernel takes numbers and addresses one by one, and its compiler, not its text, has set threads and shared memory.
//! `triton/compile.py` writes all that into the first lines of the PTX; here it stands a second time, and a test compares.
//!
//! Tensors on the device have the channels of a row one behind the other, else a launch is an error. Where every row begins at
//! a multiple of 16 bytes and has a multiple of 8 channels, tiles come by `cp.async`, 16 bytes at a time; otherwise by single
//! elements, which is slower by far.

use crate::params::{Problem, Tensor};
use crate::plan::{Extra, Launch, Plan, Shape, launch_shape};
use attention::{AttentionError, Options};
use device::{Arg, Variant};

/// One size: the channels that it pads to, rows of a tile, and how it is compiled.
type Size = (usize, usize, &'static Variant);

/// The variants in F16 and in BF16: for aligned tensors and for others.
pub(crate) static OF_TYPE: [[[Size; 2]; 2]; 2] = [
    [[(64, 128, &VARIANTS[0]), (128, 128, &VARIANTS[1])], [(64, 64, &VARIANTS[2]), (128, 128, &VARIANTS[3])]],
    [[(64, 128, &VARIANTS[4]), (128, 128, &VARIANTS[5])], [(64, 64, &VARIANTS[6]), (128, 128, &VARIANTS[7])]],
];

pub(crate) static VARIANTS: [Variant; 8] = [
    variant("f16.d64", &[("fa2", 256, 32_768)]),
    variant("f16.d128", &[("fa2", 256, 65_536)]),
    variant("f16.d64.unaligned", &[("fa2", 128, 12_288)]),
    variant("f16.d128.unaligned", &[("fa2", 256, 36_864)]),
    variant("bf16.d64", &[("fa2", 256, 32_768)]),
    variant("bf16.d128", &[("fa2", 256, 65_536)]),
    variant("bf16.d64.unaligned", &[("fa2", 128, 12_288)]),
    variant("bf16.d128.unaligned", &[("fa2", 256, 36_864)]),
];

const fn variant(name: &'static str, kernels: &'static [(&'static str, u32, u32)]) -> Variant {
    Variant { file: "triton/fa2.py", name, defines: &[], arch: "sm_80", kernels }
}

pub(crate) fn plan(
    rung: &'static str,
    [aligned, unaligned]: &'static [[Size; 2]; 2],
    shape: &Shape,
    options: &Options,
) -> Result<Plan, AttentionError> {
    let refuse = |what: &str| Err(AttentionError::Unsupported { rung, what: what.into() });
    let of = |sizes: &'static [Size; 2]| sizes.iter().find(|(head_dim, ..)| shape.d.max(shape.d_v) <= *head_dim);
    let (Some(aligned), Some(unaligned)) = (of(aligned), of(unaligned)) else {
        return refuse("more than 128 channels");
    };
    let mut plan = Plan::new(shape, options, aligned.1);
    let given = &plan.problem.options;
    for (what, asked) in [
        ("windows", given.left >= 0 || given.right > 0),
        ("soft caps", options.softcap != 0.0),
        ("ALiBi", options.alibi_slopes.is_some()),
        ("biases", options.bias.is_some()),
        ("sinks", options.sinks.is_some()),
    ] {
        if asked {
            return refuse(what);
        }
    }
    plan.adjacent = true;
    if !plan.is_empty() {
        let launch = |&(_, rows, variant): &Size| {
            let (kernel, threads, shared) = variant.kernels[0];
            let blocks = shape.all_heads().saturating_mul(shape.q_len().div_ceil(rows));
            let shape = launch_shape(rung, blocks, [threads, 1, 1], shared as usize)?;
            Ok::<_, AttentionError>(Launch { variant, kernel, shape, extra: Extra::Triton })
        };
        if shape.d.is_multiple_of(8) && shape.d_v.is_multiple_of(8) {
            plan.launches.push(launch(aligned)?);
            plan.unaligned.push(launch(unaligned)?);
        } else {
            plan.launches.push(launch(unaligned)?);
        }
    }
    Ok(plan)
}

/// The arguments in the order of the kernel. Strides are signed, and go by their bits.
pub(crate) fn arguments(problem: &Problem) -> Vec<Arg<'static>> {
    let place = |tensor: Tensor| {
        let strides = [tensor.batch, tensor.head, tensor.row].map(|stride| Arg::U64(stride as u64));
        [&[Arg::U64(tensor.data)], &strides[..]].concat()
    };
    let tensors = [problem.q, problem.k, problem.v, problem.o, problem.lse].map(place).concat();
    let counts = [problem.batch, problem.heads, problem.group, problem.d, problem.d_v].map(Arg::I32);
    let causal = Arg::I32((problem.options.right == 0).into());
    // The last two are memory for what this kernel has no use of.
    let others = [Arg::F32(problem.options.scale), causal, Arg::U64(0), Arg::U64(0)];
    [&tensors[..], &[Arg::U64(problem.sequences)], &counts, &others].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::prebuilt;

    const PLACES: [&str; 4] = ["", "_batch", "_head", "_row"];

    /// The arguments with their types, as the PTX of that element type names them.
    fn signature(element: &str) -> String {
        let element = element.replace("f16", "fp16").replace("bfp16", "bf16");
        let tensors = ["q", "k", "v", "o", "lse"].into_iter().flat_map(|name| PLACES.map(|place| (name, place)));
        let mut names = tensors.map(|(name, place)| format!("{name}{place}")).collect::<Vec<_>>();
        names.extend(["sequences", "batches", "heads", "group", "d", "d_v", "scale", "causal"].map(String::from));
        names.extend(["global_scratch", "profile_scratch"].map(String::from));
        let kind = |name: &str, argument: &Arg| match (name, argument) {
            ("q" | "k" | "v" | "o", Arg::U64(_)) => format!("*{element}"),
            ("lse", Arg::U64(_)) => "*fp32".into(),
            ("sequences", Arg::U64(_)) => "*i32".into(),
            ("global_scratch" | "profile_scratch", Arg::U64(_)) => "*i8".into(),
            (_, Arg::U64(_)) => "i64".into(),
            (_, Arg::I32(_)) => "i32".into(),
            (_, Arg::F32(_)) => "fp32".into(),
            (_, other) => panic!("{other:?}"),
        };
        let arguments = arguments(&Problem::default());
        assert_eq!(arguments.len(), names.len());
        let typed = names.iter().zip(&arguments).map(|(name, argument)| format!("{name}: {}", kind(name, argument)));
        typed.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn the_ptx_asks_for_the_launch_that_is_made() {
        for (sizes, element) in OF_TYPE.iter().zip(["f16", "bf16"]) {
            for (head_dim, rows, variant) in sizes.iter().flatten() {
                let ptx = prebuilt::ptx(variant).unwrap();
                let name = variant.ptx_name();
                assert!(name.starts_with(&format!("triton_fa2.{element}.d{head_dim}.")), "{name}");
                let (kernel, threads, shared) = variant.kernels[0];
                let launch = format!("// launch {threads} threads, {shared} bytes of shared memory, {rows} rows, ");
                let arguments = format!("\n// arguments {}\n", signature(element));
                for words in [&*launch, &*arguments, &format!(".entry {kernel}("), &format!(".reqntid {threads}\n")] {
                    assert!(ptx.contains(words), "{name}: {words}");
                }
                assert_eq!(ptx.lines().filter(|line| line.trim().starts_with(".param ")).count(), 30, "{name}");
            }
        }
    }
}
