//! Drawn problems: each rung against the oracle, against the same algorithm on the CPU, and against the rung below it on the
//! device.

use attention::{Attention, AttentionError, DType, Mask, Options, Problem, Tensor, oracle};
use cuda_fa2::CudaRung;
use device::{Device, DeviceError};
use half::{bf16, f16};
use ladder::registry::{DeviceRung, Settings, Takes, device_rung, rung, rungs_of};
use libtest_mimic::Failed;
use ndarray::Array4;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use testkit::problems::{Spec, problems};
use testkit::{Verdict, forward_on_canaries, judge, judge_against};

/// How many problems are drawn for each rung, on a GPU and on a simulated one.
#[derive(Clone, Copy)]
pub(crate) struct Cases {
    pub(crate) on_gpu: u32,
    pub(crate) simulated: u32,
}

/// Where `PROPTEST_CASES` does not say.
const CASES: Cases = Cases { on_gpu: 500, simulated: 40 };

impl Cases {
    pub(crate) fn on(self, device: &Device) -> u32 {
        match device {
            Device::Simulated(_) => self.simulated,
            _ => self.on_gpu,
        }
    }
}

/// Drawn problems, narrowed to what the rung takes; every third has five times the keys, for the tiles of a kernel are larger
/// than those of a CPU rung. A simulated device has at most two groups of two heads.
pub(crate) fn for_devices(device: &Device, takes: Takes) -> impl Strategy<Value = Spec> + use<> {
    let most = if let Device::Simulated(_) = device { 2 } else { usize::MAX };
    (problems(), select(vec![1, 1, 5])).prop_map(move |(spec, times)| {
        let lengths = spec.lengths.into_iter().map(|(q, k)| (q, times * k)).collect();
        takes.narrowed(Spec { lengths, kv_heads: spec.kv_heads.min(most), group: spec.group.min(most), ..spec })
    })
}

/// Rungs, ready to run, with their entries.
pub(crate) type Forms = Vec<(&'static DeviceRung, CudaRung)>;

/// Every rung that runs there, in all its forms.
pub(crate) fn all_forms(device: &Device) -> Result<Forms, DeviceError> {
    let forms = |entry: &'static DeviceRung| Ok(entry.forms(device)?.into_iter().map(move |form| (entry, form)));
    Ok(rungs_of(device).map(forms).collect::<Result<Vec<_>, DeviceError>>()?.into_iter().flatten().collect())
}

/// A rung in all its forms.
pub(crate) fn drawn_problems_agree(entry: &'static DeviceRung, device: &Device) -> Result<(), Failed> {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases = asked.unwrap_or(CASES.on(device));
    for attention in entry.forms(device)? {
        let below = entry.below.and_then(device_rung).map(|below| Ok((below, below.build(device)?)));
        let below = below.transpose().map_err(|error: DeviceError| error.to_string())?;
        let on_cpu = rung(entry.on_cpu).expect("a rung of the registry").build(Settings::default());
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        TestRunner::new(config)
            .run(&for_devices(device, entry.takes), |spec| {
                let owned = spec.build();
                let (problem, truth) = (owned.problem(), oracle::truth(&owned.problem()));
                let (found, weights) = (forward_on_canaries(&attention, &problem)?, attention.weights(&problem));
                let verdict = judge(&problem, &truth, &found, weights);
                prop_assert!(verdict.passes(), "against the oracle: {verdict}");
                let below = below.as_ref().filter(|(below, _)| below.takes.problem(&problem));
                let others = [Some(on_cpu.as_ref()), below.map(|(_, built)| built as &dyn Attention)];
                for other in others.into_iter().flatten() {
                    let (result, weights_below) = (forward_on_canaries(other, &problem)?, other.weights(&problem));
                    let verdict = judge_against(&problem, &truth, (&found, weights), (&result, weights_below));
                    prop_assert!(verdict.passes(), "against {}: {verdict}", other.name());
                }
                Ok(())
            })
            .map_err(|error| format!("{}: {error}", entry.name))?;
        println!("{}: {cases} problems", entry.name);
    }
    Ok(())
}

/// On the rungs that promise it.
pub(crate) fn numbers_beyond_f32_products(device: &Device) -> Result<(), Failed> {
    for (rung, attention) in all_forms(device)?.iter().filter(|(rung, _)| rung.takes.beyond_f32) {
        if let Some(verdict) = beyond_f32_products(attention, rung.takes)? {
            return Err(format!("{}: {verdict}", rung.name).into());
        }
        if let Some(verdict) = means_of_the_largest_halves(attention)? {
            return Err(format!("{}: {verdict}", rung.name).into());
        }
    }
    Ok(())
}

/// How a result breaks the error rule, if it does.
fn failure(attention: &dyn Attention, problem: &Problem) -> Result<Option<Verdict>, AttentionError> {
    let output = forward_on_canaries(attention, problem)?;
    let verdict = judge(problem, &oracle::truth(problem), &output, attention.weights(problem));
    Ok(Some(verdict).filter(|verdict| !verdict.passes()))
}

/// Every value is the largest of F16, and weights are such that rounding makes nearly all of them larger: a mean of values is
/// still no larger than they are.
fn means_of_the_largest_halves(attention: &dyn Attention) -> Result<Option<String>, AttentionError> {
    let (keys, d) = (101, 16);
    // Beyond the middle of 0.5 and the next half, and two halves whose sum it is nearly.
    let score = (0.5 + 1.02 / 4096.0f64).ln();
    let upper = f16::from_f64(score);
    let lower = f16::from_f64(score - upper.to_f64());
    let k = Array4::from_shape_fn((1, 1, keys, d), |(_, _, j, c)| match (j, c) {
        (1.., 0) => upper,
        (1.., 1) => lower,
        _ => f16::ZERO,
    });
    let v = Array4::from_elem((1, 1, keys, d), f16::MAX);
    for rows in [4, 20] {
        let q = Array4::from_elem((1, 1, rows, d), f16::ONE);
        let [q, k, v] = [&q, &k, &v].map(|numbers| Tensor::F16(numbers.clone().into_dyn()));
        let options = Options { scale: Some(1.0), ..Options::default() };
        let problem = Problem::dense(q.view(), k.view(), v.view(), options)?;
        if let Some(verdict) = failure(attention, &problem)? {
            return Ok(Some(format!("{rows} rows of means of the largest halves: {verdict}")));
        }
    }
    Ok(None)
}

/// Products that overflow f32 though their scores do not, scores at its end, and keys and values that are not finite: the first
/// result that breaks the error rule. In F32, or else in BF16, which reach as far.
pub(crate) fn beyond_f32_products(attention: &dyn Attention, takes: Takes) -> Result<Option<String>, AttentionError> {
    let stored = |numbers: Array4<f32>| match takes.dtypes.contains(&DType::F32) {
        true => Tensor::F32(numbers.into_dyn()),
        false => Tensor::Bf16(numbers.mapv(bf16::from_f32).into_dyn()),
    };
    let (length, d) = (70, 40);
    let numbers = |x: f32| {
        let number = move |(_, h, i, c): (usize, usize, usize, usize)| x * ((h + i * 7 + c * 3) % 11) as f32 - x * 5.0;
        Array4::from_shape_fn((1, 2, length, d), number)
    };
    let spread = |x: f32| stored(numbers(x));
    let mut wild = numbers(1.0);
    wild[[0, 0, 3, 7]] = f32::INFINITY;
    wild[[0, 1, 69, 0]] = f32::NAN;
    let wild = || stored(wild.clone());
    // Hides the last key, of which a number is not finite.
    let bias = Array4::from_shape_fn((1, 1, length, length), |(_, _, i, j)| match j == length - 1 {
        true => f32::NEG_INFINITY,
        false => ((i + 3 * j) % 7) as f32 - 3.0,
    });
    // Rows that see no score above the least number, and rows that see some.
    let least = Array4::from_shape_fn((1, 1, length, length), |(_, _, i, j)| match i % 3 == 0 || j % 7 == 0 {
        true => f32::MIN,
        false => 0.0,
    });
    let below = |x: f32| stored(numbers(x).mapv(|number| -x * 6.0 - number.abs()));
    let plain = [Mask::Full, Mask::Causal].map(|mask| Options { mask, ..Options::default() });
    let at_the_end = plain.clone().map(|plain| Options { bias: Some(least.view()), ..plain });
    let more = plain.clone().map(|plain| Options { softcap: 2.0, bias: Some(bias.view()), ..plain });
    let all = [plain.clone(), more].concat();
    for (what, q, k, v, scale, options) in [
        ("products beyond f32", spread(3e18), spread(3e18), spread(1.0), 1e-37, &all[..]),
        ("products far below zero", below(-2e18), below(2e18), spread(1.0), 1e-37, &all),
        ("scores far below zero", below(-2e18), below(2e18), spread(1.0), 2e-30, &plain),
        ("a bias of the least number", spread(1.0), spread(1.0), spread(1.0), 0.01, &at_the_end),
        ("values that are not finite", spread(1.0), spread(1.0), wild(), 0.01, &all),
        // Plain alone: a soft cap turns infinite scores into finite ones, for which the error rule has no finite tolerance.
        ("keys that are not finite", spread(1.0), wild(), spread(1.0), 0.01, &plain),
    ] {
        for options in options {
            let options = Options { scale: Some(scale), ..options.clone() };
            let mask = options.mask;
            let problem = Problem::dense(q.view(), k.view(), v.view(), options)?;
            if let Some(verdict) = failure(attention, &problem)? {
                return Ok(Some(format!("{what} under {mask}: {verdict}")));
            }
        }
    }
    Ok(None)
}
