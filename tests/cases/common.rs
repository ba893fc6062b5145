//! What the cases share: small tensors, the rungs, canaries, and a definition of attention to compare with.

use attention::oracle::Oracle;
use attention::{Attention, Batch, DType, Kv, Mask, NoMeter, Options, Output, Problem, Tensor};
use cuda_fa2::CudaRung;
use device::Device;
use fa1::Fa1;
use fa2::{Fa2, Fa2Simd, Simd};
use half::{bf16, f16};
use ladder::registry::{DeviceRung, rungs_of};
use mla::MlaAbsorbed;
use naive::Naive;
use ndarray::{Array4, ArrayD, Axis, IxDyn, s};
use online_softmax::OnlineSoftmax;
use std::env::VarError;
use std::num::NonZeroUsize;
use std::sync::OnceLock;

/// A NaN that no computation makes, so that an element never written shows.
pub(crate) const CANARY_O: u32 = 0x7FC0_CAFE;
/// An lse that no computation here makes.
pub(crate) const CANARY_LSE: f32 = -777.25;

/// An implementation and how it was set up.
pub(crate) type Named = (String, Box<dyn Attention>);

pub(crate) fn named(name: &str, rung: impl Attention + 'static) -> Named {
    (name.into(), Box::new(rung))
}

/// The oracle and every CPU rung, for these channels: tiled rungs with their default memory and with one that holds two
/// keys, the last also with its keys split.
pub(crate) fn rungs(d: usize, d_v: usize) -> Vec<Named> {
    let (fa1_memory, fa2_memory) = (2 * 16 * d.max(d_v), 32 * (d + d_v));
    let splits = |n| NonZeroUsize::new(n).unwrap();
    let mut rungs: Vec<Named> = vec![
        named("oracle", Oracle),
        named("naive", Naive::default()),
        named("online-softmax", OnlineSoftmax::default()),
        named("fa1", Fa1::default()),
        named("fa1 with tiles of two keys", Fa1::new(fa1_memory, NoMeter)),
        named("fa2", Fa2::default()),
        named("fa2 with tiles of two keys", Fa2::new(fa2_memory, NoMeter)),
        named("fa2 in 3 splits", Fa2::default().with_splits(splits(3))),
        named("fa2 with tiles of two keys in 4 splits", Fa2::new(fa2_memory, NoMeter).with_splits(splits(4))),
    ];
    for simd in Simd::available() {
        rungs.push(named(&format!("fa2-simd:{simd}"), Fa2Simd::new(simd).unwrap()));
    }
    rungs
}

/// The rungs for latents: with their default tiles, with one row of each head and two keys, and in splits.
pub(crate) fn latent_rungs() -> Vec<Named> {
    let n = |n| NonZeroUsize::new(n).unwrap();
    let small = MlaAbsorbed::new(n(1), n(2));
    vec![
        named("mla-absorbed", MlaAbsorbed::default()),
        named("mla-absorbed with tiles of two keys", small),
        named("mla-absorbed with tiles of seven rows", MlaAbsorbed::new(n(7), n(5))),
        named("mla-absorbed in 3 splits", MlaAbsorbed::default().with_splits(n(3))),
        named("mla-absorbed with tiles of two keys in 4 splits", small.with_splits(n(4))),
    ]
}

pub(crate) fn causal<'a>() -> Options<'a> {
    Options { mask: Mask::Causal, ..Options::default() }
}

/// Lengths of a problem. `dims(q_len, k_len)` is one head of one channel.
#[derive(Clone, Copy)]
pub(crate) struct Dims {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) q_len: usize,
    pub(crate) k_len: usize,
    pub(crate) d: usize,
    pub(crate) d_v: usize,
}

pub(crate) fn dims(q_len: usize, k_len: usize) -> Dims {
    Dims { batch: 1, heads: 1, kv_heads: 1, q_len, k_len, d: 1, d_v: 1 }
}

/// Owned q, k and v.
#[derive(Clone)]
pub(crate) struct Tensors {
    pub(crate) q: Array4<f32>,
    pub(crate) k: Array4<f32>,
    pub(crate) v: Array4<f32>,
}

impl Tensors {
    /// q and k all zero, so that every visible key weighs the same; v is 1, 2, 3, .. along the keys.
    pub(crate) fn flat(dims: Dims) -> Self {
        let Dims { batch, heads, kv_heads, q_len, k_len, d, d_v } = dims;
        Tensors {
            q: Array4::zeros((batch, heads, q_len, d)),
            k: Array4::zeros((batch, kv_heads, k_len, d)),
            v: Array4::from_shape_fn((batch, kv_heads, k_len, d_v), |(_, _, j, _)| (j + 1) as f32),
        }
    }

    /// Numbers spread evenly over -1.7 to 1.7, so of variance near 1.
    pub(crate) fn random(seed: u64, dims: Dims) -> Self {
        let mut state = seed;
        let mut tensors = Tensors::flat(dims);
        for x in tensors.q.iter_mut().chain(&mut tensors.k).chain(&mut tensors.v) {
            // splitmix64
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            *x = ((z ^ (z >> 31)) >> 40) as f32 / (1u32 << 23) as f32 * 1.7 - 1.7;
        }
        tensors
    }

    pub(crate) fn problem<'a>(&'a self, options: Options<'a>) -> Problem<'a> {
        Problem::dense(self.q.view(), self.k.view(), self.v.view(), options).unwrap()
    }

    /// With the first d_v channels of the keys as values, in the keys' memory.
    pub(crate) fn latents<'a>(&'a self, d_v: usize, batch: Batch<'_>, options: Options<'a>) -> Problem<'a> {
        let v = self.k.slice(s![.., .., .., ..d_v]).into();
        Problem::new(self.q.view(), Kv::Contiguous { k: self.k.view().into(), v }, batch, options).unwrap()
    }

    /// With only the first `k_lens[b]` keys of each sequence.
    pub(crate) fn with_lens<'a>(&'a self, k_lens: &[i32], options: Options<'a>) -> Problem<'a> {
        let kv = Kv::Contiguous { k: self.k.view().into(), v: self.v.view().into() };
        Problem::new(self.q.view(), kv, Batch::KeyLens(k_lens), options).unwrap()
    }

    /// The first batch entry as packed tensors.
    pub(crate) fn packed<'a>(&'a self, cu_q: &[i32], cu_k: &[i32], options: Options<'a>) -> Problem<'a> {
        let rank3 = |a: &'a Array4<f32>| a.index_axis(Axis(0), 0);
        let kv = Kv::Contiguous { k: rank3(&self.k).into(), v: rank3(&self.v).into() };
        let batch = Batch::Packed { cu_seqlens_q: cu_q, cu_seqlens_k: cu_k };
        Problem::new(rank3(&self.q), kv, batch, options).unwrap()
    }
}

/// An output whose every element is a canary.
pub(crate) fn canaries(problem: &Problem) -> Output {
    let shape = IxDyn(&problem.o_shape());
    let o: Tensor = match problem.dtype() {
        DType::F32 => ArrayD::from_elem(shape, f32::from_bits(CANARY_O)).into(),
        DType::F64 => ArrayD::from_elem(shape, f64::from(f32::from_bits(CANARY_O))).into(),
        DType::F16 => ArrayD::from_elem(shape, f16::from_bits(0x7EAB)).into(),
        DType::Bf16 => ArrayD::from_elem(shape, bf16::from_bits(0x7FEB)).into(),
        DType::E4m3 => unreachable!("no problem has E4m3 tensors"),
    };
    Output { o, lse: ArrayD::from_elem(IxDyn(&problem.lse_shape()), CANARY_LSE) }
}

/// Runs a rung into canaries.
pub(crate) fn run(rung: &dyn Attention, problem: &Problem) -> Output {
    let mut output = canaries(problem);
    rung.forward_into(problem, &mut output.view_mut()).unwrap();
    output
}

thread_local! {
    /// The rungs that run on a device, in each of their forms, on the one that `FLASH_LADDER_DEVICE` asks for, if it does: the
    /// first GPU, or a simulated one that no other test uses.
    static ON_DEVICE: Vec<(&'static DeviceRung, CudaRung)> = on_device();
}

fn on_device() -> Vec<(&'static DeviceRung, CudaRung)> {
    static GPU: OnceLock<Device> = OnceLock::new();
    let device = match std::env::var("FLASH_LADDER_DEVICE").as_deref() {
        Ok("cuda") => GPU.get_or_init(|| Device::cuda(0).unwrap()).clone(),
        Ok("sim") => Device::simulated(),
        Err(VarError::NotPresent) => return Vec::new(),
        other => panic!("FLASH_LADDER_DEVICE: found {other:?}, wanted cuda or sim"),
    };
    let forms = |rung: &'static DeviceRung| rung.forms(&device).unwrap().into_iter().map(move |form| (rung, form));
    rungs_of(&device).flat_map(forms).collect()
}

/// Runs everything that [`rungs`] lists, [`latent_rungs`] where the problem has latents, and those of [`ON_DEVICE`] that take the
/// problem. The type is that of the weights, by [`Attention::weights`].
pub(crate) fn run_all_with_weights(problem: &Problem) -> Vec<(String, Output, DType)> {
    let latents = problem.kv_heads() == 1 && problem.values_are_keys();
    let rungs = rungs(problem.d(), problem.d_v()).into_iter().chain(latent_rungs().into_iter().filter(|_| latents));
    let one = |name, rung: &dyn Attention| (name, run(rung, problem), rung.weights(problem));
    let mut outputs: Vec<_> = rungs.map(|(name, rung)| one(name, &*rung)).collect();
    ON_DEVICE.with(|forms| {
        let takers = forms.iter().enumerate().filter(|(_, (rung, _))| rung.takes.problem(problem));
        outputs.extend(takers.map(|(place, (rung, form))| one(format!("{}, form {place}", rung.name), form)));
    });
    outputs
}

/// The same without the types.
pub(crate) fn run_all(problem: &Problem) -> Vec<(String, Output)> {
    run_all_with_weights(problem).into_iter().map(|(name, output, _)| (name, output)).collect()
}

/// o as f32, which holds every output type but F64.
pub(crate) fn o(output: &Output) -> ArrayD<f32> {
    output.o.view().to_f64().mapv(|x| x as f32)
}

/// The bits of o and lse. o widens to f64 first, which keeps a NaN's payload.
pub(crate) fn bits(output: &Output) -> (Vec<u64>, Vec<u32>) {
    let o = output.o.view().to_f64().iter().map(|x| x.to_bits()).collect();
    (o, output.lse.iter().map(|x| x.to_bits()).collect())
}

/// Asserts that two problems give the same bits on every rung.
pub(crate) fn assert_same_bits(left: &Problem, right: &Problem) {
    for ((name, left), (_, right)) in run_all(left).into_iter().zip(run_all(right)) {
        assert!(bits(&left) == bits(&right), "{name}: {left:?} and {right:?}");
    }
}

/// Asserts that every rung gives row i of every head the pair `rows[i]`: the value of all its channels, and its lse.
/// o must be within 1e-6 and lse within 1e-5, absolute plus relative; an empty row, lse -inf, must be 0 and -inf exactly.
pub(crate) fn expect_rows(problem: &Problem, rows: &[(f64, f64)]) {
    expect_rows_within(1e-6, problem, rows);
}

/// As [`expect_rows`], with another tolerance for o.
pub(crate) fn expect_rows_within(tol: f64, problem: &Problem, rows: &[(f64, f64)]) {
    for (name, output) in run_all(problem) {
        let q_axis = Axis(output.lse.ndim() - 1);
        assert_eq!(output.lse.len_of(q_axis), rows.len());
        for (i, &(wanted, lse)) in rows.iter().enumerate() {
            for found in o(&output).index_axis(q_axis, i) {
                let tol = if lse == f64::NEG_INFINITY { 0.0 } else { tol * (1.0 + wanted.abs()) };
                assert!((f64::from(*found) - wanted).abs() <= tol, "{name}, row {i}: o {found}, wanted {wanted}");
            }
            for found in output.lse.index_axis(q_axis, i) {
                assert_lse(&name, i, *found, lse);
            }
        }
    }
}

/// The u of the error rule for P, rounded to that type.
fn p_unit(weights: DType) -> f64 {
    match weights {
        DType::F16 => f64::powi(2.0, -11),
        DType::Bf16 => f64::powi(2.0, -9),
        _ => 0.0,
    }
}

fn assert_lse(name: &str, row: usize, found: f32, wanted: f64) {
    let close = (f64::from(found) - wanted).abs() <= 1e-5 * (1.0 + wanted.abs());
    let right = if wanted.is_finite() { close } else { f64::from(found) == wanted };
    assert!(right, "{name}, row {row}: lse {found}, wanted {wanted}");
}

/// One query and one key, for a score written by a test.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    /// Sequence.
    pub(crate) b: usize,
    /// Query head.
    pub(crate) h: usize,
    /// Row in its sequence.
    pub(crate) i: i64,
    /// Key in its sequence.
    pub(crate) j: i64,
    /// k_len - q_len.
    pub(crate) off: i64,
}

/// Asserts that every rung agrees with attention by the definition, in f64: weights `e^score / sum` over the keys that
/// have a score. `score` gets the pair and its q . k; `None` hides the key. Rows of no sequence must stay canaries.
///
/// Tolerances: o `2^-20 (1 + max|s|) max|v|`, one rounding to its type, and what [`p_unit`] allows; lse 1e-5, absolute plus
/// relative.
pub(crate) fn expect_definition(problem: &Problem, score: impl Fn(Pair, f64) -> Option<f64>) {
    let (q, k, v) = (problem.q().to_f64(), problem.k().to_f64(), problem.v().to_f64());
    let outputs = run_all_with_weights(problem).into_iter();
    let outputs: Vec<_> = outputs.map(|(name, out, weights)| (name, o(&out), out.lse, p_unit(weights))).collect();
    let unit = match problem.dtype() {
        DType::F16 => f64::powi(2.0, -11),
        DType::Bf16 => f64::powi(2.0, -8),
        _ => 0.0,
    };
    let group = problem.heads() / problem.kv_heads();
    let mut owned = ArrayD::from_elem(IxDyn(&problem.lse_shape()), false);
    for (b, sequence) in problem.sequences().iter().enumerate() {
        let off = sequence.k.len() as i64 - sequence.q.len() as i64;
        for h in 0..problem.heads() {
            let row = |a: &ArrayD<f64>, head: usize, row: usize| {
                let a = if problem.is_packed() { a.view() } else { a.index_axis(Axis(0), b) };
                let row: Vec<f64> = a.index_axis(Axis(0), head).index_axis(Axis(0), row).iter().copied().collect();
                row
            };
            let keys: Vec<_> = sequence.k.clone().map(|j| (row(&k, h / group, j), row(&v, h / group, j))).collect();
            for (i, at) in sequence.q.clone().enumerate() {
                let q = row(&q, h, at);
                let scored: Vec<(f64, &[f64])> = keys
                    .iter()
                    .enumerate()
                    .filter_map(|(j, (k, v))| {
                        let dot = q.iter().zip(k).map(|(q, k)| q * k).sum();
                        Some((score(Pair { b, h, i: i as i64, j: j as i64, off }, dot)?, &v[..]))
                    })
                    .collect();
                let m = scored.iter().fold(f64::NEG_INFINITY, |m, s| m.max(s.0));
                let l: f64 = scored.iter().map(|s| (s.0 - m).exp()).sum();
                let lse = if scored.is_empty() { f64::NEG_INFINITY } else { m + l.ln() };
                let s_max = scored.iter().fold(0f64, |max, s| max.max(s.0.abs()));
                let v_max = scored.iter().flat_map(|s| s.1).fold(0f64, |max, v| max.max(v.abs()));
                let tol = f64::powi(2.0, -20) * (1.0 + s_max) * v_max;
                let terms = |c: usize| scored.iter().map(move |s| (s.0 - lse).exp() * s.1[c]);
                let wanted: Vec<f64> = (0..problem.d_v()).map(|c| terms(c).sum()).collect();
                let spread: Vec<f64> =
                    (0..problem.d_v()).map(|c| terms(c).map(|x| x * x).sum::<f64>().sqrt()).collect();
                let index = if problem.is_packed() { vec![h, at] } else { vec![b, h, at] };
                owned[&index[..]] = true;
                for (name, o, found_lse, p_unit) in &outputs {
                    let found = index.iter().fold(o.view(), |view, &x| view.index_axis_move(Axis(0), x));
                    for ((found, &wanted), spread) in found.iter().zip(&wanted).zip(&spread) {
                        let tol = tol + unit * wanted.abs() + 6.0 * p_unit * spread;
                        assert!(
                            (f64::from(*found) - wanted).abs() <= tol,
                            "{name}, {index:?}: o {found}, wanted {wanted} within {tol:e}"
                        );
                    }
                    assert_lse(name, i, found_lse[&index[..]], lse);
                }
            }
        }
    }
    for (name, o, lse, _) in &outputs {
        for ((at, lse), owned) in lse.indexed_iter().zip(&owned) {
            let at = ndarray::Dimension::slice(&at);
            let row = at.iter().fold(o.view(), |view, &x| view.index_axis_move(Axis(0), x));
            let kept = *lse == CANARY_LSE && row.iter().all(|x| x.is_nan());
            assert!(*owned != kept, "{name}, {at:?}: {lse} {row}, of a sequence: {owned}");
        }
    }
}
