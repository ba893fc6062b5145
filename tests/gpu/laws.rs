//! What holds of a rung whatever the numbers are.

use crate::data;
use crate::problems::{Cases, Forms, all_forms, for_devices};
use attention::{Attention, AttentionError, Batch, DType, Kv, Mask, Options, Output, Problem, Tensor, TensorView};
use device::Device;
use half::{bf16, f16};
use ladder::registry::{DeviceRung, rungs_of};
use libtest_mimic::Failed;
use ndarray::Axis;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeSet;
use std::thread;
use testkit::problems::{AlibiKind, BatchKind, Spec};
use testkit::{Values, forward_on_canaries};

/// Every number of an output as it is stored, canaries too.
pub(crate) fn bits(output: &Output) -> (Vec<u64>, Vec<u32>) {
    let o = output.o.view().to_f64().iter().map(|x| x.to_bits()).collect();
    (o, output.lse.iter().map(|x| x.to_bits()).collect())
}

/// A problem of several tiles, most of them full, causal; a small one for a simulated device.
pub(crate) fn some_tiles(device: &Device, dtype: DType, d: usize) -> Spec {
    let (lengths, kv_heads, group) = match device {
        Device::Simulated(_) => (vec![(70, 77), (33, 32), (1, 65)], 1, 2),
        _ => (vec![(300, 333), (65, 64), (1, 200)], 2, 3),
    };
    let plain = Spec::plain(lengths[0].0, lengths[0].1, d);
    Spec { lengths, batch: BatchKind::KeyLens, kv_heads, group, dtype, mask: Mask::Causal, ..plain }
}

/// The same of so few rows that `cuda-fa2` splits the keys and packs the heads of a group.
pub(crate) fn few_rows(device: &Device, dtype: DType, d: usize) -> Spec {
    let tiles = some_tiles(device, dtype, d);
    let lengths = tiles.lengths.iter().zip([5, 2, 1]).map(|(&(_, keys), rows)| (rows, 2 * keys)).collect();
    Spec { lengths, ..tiles }
}

fn draw(
    cases: Cases,
    forms: Forms,
    check: impl Fn(&dyn Attention, &Spec) -> Result<(), TestCaseError>,
    device: &Device,
) -> Result<(), Failed> {
    let cases = cases.on(device);
    for (entry, attention) in forms {
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        let run = TestRunner::new(config).run(&for_devices(device, entry.takes), |spec| check(&attention, &spec));
        run.map_err(|error| format!("{}: {error}", entry.name))?;
    }
    Ok(())
}

pub(crate) fn a_second_run_gives_the_same_bits(device: &Device) -> Result<(), Failed> {
    let twice = |attention: &dyn Attention, spec: &Spec| {
        let owned = spec.build();
        let run = || forward_on_canaries(attention, &owned.problem());
        prop_assert!(bits(&run()?) == bits(&run()?));
        Ok(())
    };
    draw(Cases { on_gpu: 200, simulated: 8 }, all_forms(device)?, twice, device)
}

/// Up to so many rows of the longest sequence `cuda-fa2` splits the keys.
const SHORT: usize = 16;

/// A sequence's rows depend on its own lengths and numbers alone: as one of a batch, and packed by itself. Of `cuda-fa2` this
/// holds in a form whose target says how many tiles and splits there are, as long as the longest sequence is short in
/// both or in neither; else it asks how many rows a batch has.
pub(crate) fn a_sequence_alone_gives_the_same_bits(device: &Device) -> Result<(), Failed> {
    let alone = |attention: &dyn Attention, spec: &Spec| {
        let is_long = spec.lengths.iter().any(|(q, _)| *q > SHORT);
        let lengths = spec.lengths.iter().map(|&(q, k)| (if is_long { q.max(SHORT + 1) } else { q }, k)).collect();
        let owned = Spec { lengths, alibi: None, bias: None, ..spec.clone() }.build();
        let problem = owned.problem();
        let batch = forward_on_canaries(attention, &problem)?;
        for (b, sequence) in problem.sequences().iter().enumerate() {
            let one = |tensor: &TensorView<'_>, rows| of_sequence(tensor.clone(), &problem, b).rows(rows).to_tensor();
            let [k, v] = [problem.k(), problem.v()].map(|tensor| one(tensor, sequence.k.clone()));
            let q = one(problem.q(), sequence.q.clone());
            let options = Options {
                scale: spec.scale,
                mask: spec.mask,
                softcap: spec.softcap,
                sinks: owned.sinks.as_ref().map(|sinks| sinks.view()),
                ..Options::default()
            };
            let ends = |tensor: &Tensor| [0, tensor.shape()[1] as i32];
            let lengths = Batch::Packed { cu_seqlens_q: &ends(&q), cu_seqlens_k: &ends(&k) };
            let kv = Kv::Contiguous { k: k.view(), v: v.view() };
            let alone = forward_on_canaries(attention, &Problem::new(q.view(), kv, lengths, options)?)?;
            let lse = if problem.is_packed() { batch.lse.view() } else { batch.lse.index_axis(Axis(0), b) };
            let cut = Output { o: of_sequence(batch.o.view(), &problem, b).to_tensor(), lse: lse.to_owned() }
                .rows(sequence.q.clone());
            prop_assert!(bits(&alone) == bits(&cut), "sequence {}", b);
        }
        Ok(())
    };
    let last = |entry: &'static DeviceRung| Ok((entry, entry.forms(device)?.pop().ok_or("a rung without a form")?));
    let forms = rungs_of(device).map(last).collect::<Result<Forms, Failed>>()?;
    draw(Cases { on_gpu: 100, simulated: 4 }, forms, alone, device)
}

/// What no row sees, behind the last key of a padded or packed sequence or before all windows, may be anything: it changes no
/// bit.
pub(crate) fn what_no_row_sees_changes_no_bit(device: &Device) -> Result<(), Failed> {
    const BEFORE: usize = 200;
    for (entry, attention) in all_forms(device)? {
        let dtype = entry.takes.dtypes[entry.takes.dtypes.len() - 1];
        for d in [64, 128] {
            let padded = Spec { lengths: vec![(70, 140), (20, 300)], dtype, ..Spec::plain(70, 300, d) };
            let dense = Spec { mask: Mask::window(20, 5), dtype, ..Spec::plain(70, 300, d) };
            let specs = [
                Spec { batch: BatchKind::KeyLens, ..padded.clone() },
                Spec { batch: BatchKind::Packed, ..padded },
                dense,
            ];
            for spec in specs.into_iter().filter(|spec| entry.takes.options || spec.mask == Mask::Full) {
                let run = |poison: f64| {
                    let mut owned = Spec { poison, ..spec.clone() }.build();
                    if spec.batch == BatchKind::Dense {
                        let Values::Own(v) = &mut owned.v else { unreachable!("it was not asked for") };
                        [&mut owned.k, v].into_iter().for_each(|tensor| fill_rows(tensor, BEFORE, poison));
                    }
                    forward_on_canaries(&attention, &owned.problem()).map(|output| bits(&output))
                };
                if run(f64::NAN)? != run(0.0)? {
                    return Err(format!("{}: other bits by NaN that no row sees, {spec:?}", entry.name).into());
                }
            }
        }
    }
    Ok(())
}

/// Overwrites the first rows of each head.
fn fill_rows(tensor: &mut Tensor, rows: usize, x: f64) {
    let rows = ndarray::Slice::from(..rows);
    match tensor {
        Tensor::F16(numbers) => numbers.slice_axis_mut(Axis(2), rows).fill(f16::from_f64(x)),
        Tensor::Bf16(numbers) => numbers.slice_axis_mut(Axis(2), rows).fill(bf16::from_f64(x)),
        Tensor::F32(numbers) => numbers.slice_axis_mut(Axis(2), rows).fill(x as f32),
        _ => unreachable!("no rung on a device takes others"),
    }
}

/// What holds the rows of a sequence: a part of a dense tensor, all of a packed one.
fn of_sequence<'a>(tensor: TensorView<'a>, problem: &Problem, b: usize) -> TensorView<'a> {
    if problem.is_packed() { tensor } else { tensor.index_first(b) }
}

/// Refusals that only shapes too large to make, or devices of another kind or with less shared memory, meet: the tests of plans
/// hold them.
const ELSEWHERE: [&str; 5] = [
    "more channels than shared memory has room for",
    "sequences that reach beyond row 2^30",
    "more than 2^30 heads, channels or sequences",
    "2^31 tiles of all heads, or more",
    "devices that are not of compute capability 9.0 (Hopper)",
];

/// Whether it is refused for want of shared memory.
fn is_too_wide(result: &Result<Output, AttentionError>) -> bool {
    matches!(result, Err(AttentionError::Unsupported { what, .. }) if what == ELSEWHERE[0])
}

/// The refusals of `refusals.tsv`, and no other.
pub(crate) fn what_is_refused_stands_in_the_table(device: &Device) -> Result<(), Failed> {
    let table = std::fs::read_to_string(data("../refusals.tsv"))?;
    let plain = some_tiles(device, DType::F32, 16);
    let short = || Spec { lengths: vec![(2, 3)], kv_heads: 1, group: 1, ..plain.clone() };
    let specs = [
        plain.clone(),
        Spec { d: 257, d_v: 8, ..short() },
        Spec { d: 1 << 15, d_v: 8, ..short() },
        Spec { mask: Mask::window(-1, 1), ..short() },
        Spec { mask: Mask::window(1, 0), ..short() },
        Spec { softcap: 1.0, ..short() },
        Spec { alibi: Some(AlibiKind::PerHead), ..short() },
        Spec { bias: Some((true, true)), ..short() },
        Spec { sinks: true, ..short() },
    ];
    for entry in rungs_of(device) {
        let attention = entry.build(device)?;
        let wanted: BTreeSet<&str> = table
            .lines()
            .filter_map(|line| line.strip_prefix(entry.name)?.strip_prefix('\t')?.split('\t').next())
            .collect();
        let mut found = BTreeSet::new();
        for dtype in [DType::F32, DType::F16, DType::Bf16, DType::F64] {
            for spec in &specs {
                let owned = Spec { dtype, ..spec.clone() }.build();
                for owned in [owned.paged(3, 0), owned] {
                    let (says, does) = (attention.supports(&owned.problem()), attention.forward(&owned.problem()));
                    if does.is_ok() != entry.takes.problem(&owned.problem()) && !is_too_wide(&does) {
                        return Err(format!("{}: of {owned:?} the registry has another word", entry.name).into());
                    }
                    if says.as_ref().err() != does.as_ref().err() {
                        return Err(format!("{}: says {says:?}, does {:?}", entry.name, does.err()).into());
                    }
                    match does {
                        Ok(_) => {}
                        Err(AttentionError::Unsupported { what, .. }) => drop(found.insert(what)),
                        Err(error) => return Err(format!("{}: {error}", entry.name).into()),
                    }
                }
            }
        }
        let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
        if !found.is_subset(&wanted) || wanted.difference(&found).any(|what| !ELSEWHERE.contains(what)) {
            return Err(format!("{}: refuses {found:?}, the table has {wanted:?}", entry.name).into());
        }
    }
    Ok(())
}

/// One rung, several threads, each with a problem of its own.
pub(crate) fn threads_share_a_rung(device: &Device) -> Result<(), Failed> {
    for (entry, attention) in all_forms(device)? {
        let spec = |seed| if seed % 2 == 0 { some_tiles } else { few_rows }(device, DType::F16, 64);
        let owned: Vec<_> = (0..4).map(|seed| Spec { seed, ..spec(seed) }.build()).collect();
        let alone: Vec<_> =
            owned.iter().map(|owned| Ok(bits(&attention.forward(&owned.problem())?))).collect::<Result<_, Failed>>()?;
        thread::scope(|scope| {
            let run = |owned: &testkit::OwnedProblem| attention.forward(&owned.problem()).map(|output| bits(&output));
            let together: Vec<_> = owned.iter().map(|owned| scope.spawn(move || run(owned))).collect();
            for (together, alone) in together.into_iter().zip(&alone) {
                let together = together.join().map_err(|_| "a thread panicked")??;
                if together != *alone {
                    return Err(Failed::from(format!("{}: other bits among threads", entry.name)));
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}
