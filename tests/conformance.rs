//! Every rung and the oracle against expected values from outside: the conformance pack, and layers of real models.

use attention::oracle::truth;
use attention::{Batch, Kv, Mask, Options, Problem};
use fa2::{Fa2Simd, Simd};
use ladder::forms;
use ladder::registry::{self, ORACLE, RUNGS, Settings};
use mla::Form;
use ndarray::Axis;
use paged::PagedSimd;
use std::path::{Path, PathBuf};
use testkit::files::read_safetensors;
use testkit::pack::{Case, Outcome, Pack, Runner, Status, run_on_canaries};
use testkit::{Verdict, worst};

/// Cases that no rung takes: no rung has their type yet, or they pose a layer.
const NO_RUNG: [&str; 4] = ["c37_fp8_descale", LAYERS[0], LAYERS[1], LAYERS[2]];

/// The cases that pose a layer.
const LAYERS: [&str; 3] = ["c54_f32_mla_prefill_plain", "c55_bf16_mla_prefill_norm", "c56_f32_mla_decode"];

/// The cases whose keys and values lie in pages.
const PAGED: [&str; 6] = [
    "c48_f16_paged16_decode",
    "c49_bf16_paged64_decode",
    "c50_f16_paged256_decode",
    "c51_bf16_paged16_prefix_chunk",
    "c52_f16_paged16_mixed",
    "c53_bf16_paged64_mla",
];

/// The cases whose values are the first channels of their keys.
const LATENTS: [&str; 2] = ["c16_bf16_d576_dv512_decode", "c53_bf16_paged64_mla"];

/// The case that checks the oracle in its own precision.
const ORACLE_ONLY: &str = "c02_f64_causal_grads";

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

fn pack() -> Pack {
    Pack::open(&data("conformance")).unwrap()
}

/// Runs the whole pack; the names of the cases that came out as unsupported.
fn unsupported(runner: Runner) -> Vec<String> {
    let pack = pack();
    assert_eq!(pack.cases().len(), 58);
    let mut unsupported = Vec::new();
    for case in pack.cases() {
        let report = pack.run(case, runner).unwrap();
        match report.status {
            Status::Pass => assert!(report.worst_o <= 1.0 && report.worst_lse <= 1.0, "{report:?}"),
            Status::Unsupported(_) => unsupported.push(report.case),
            Status::Fail(why) => panic!("{} ({}): {why}", report.case, case.catches.as_deref().unwrap_or("?")),
        }
    }
    unsupported
}

/// The cases of the pack that are not in `lists`, and those that are.
fn split(lists: &[&[&str]]) -> (Vec<String>, Vec<String>) {
    let listed = |name: &String| lists.iter().any(|list| list.contains(&name.as_str()));
    pack().cases().iter().map(|case| case.name.clone()).partition(|name| !listed(name))
}

#[test]
fn every_rung_conforms() {
    for rung in RUNGS.iter().filter(|rung| !rung.latents) {
        let attention = rung.build(Settings::default());
        let pages: &[&str] = if rung.page.is_some() { &[] } else { &PAGED };
        let (_, expected) = split(&[&[ORACLE_ONLY], &NO_RUNG, pages]);
        assert_eq!(unsupported(&|problem| run_on_canaries(attention.as_ref(), problem)), expected, "{}", rung.name);
    }
}

#[test]
fn every_rung_for_latents_conforms() {
    let (expected, _) = split(&[&LATENTS]);
    for rung in RUNGS.iter().filter(|rung| rung.latents) {
        let attention = rung.build(Settings::default());
        assert_eq!(unsupported(&|problem| run_on_canaries(attention.as_ref(), problem)), expected, "{}", rung.name);
    }
}

#[test]
fn every_form_of_the_layer_conforms() {
    let pack = pack();
    for form in Form::ALL {
        let name = form.name();
        let mut layers = Vec::new();
        for case in pack.cases() {
            let report = pack.run_layer(case, &|problem| forms::run(form, problem)).unwrap();
            match &report.status {
                Status::Pass => {
                    assert!(report.worst_o <= 1.0 && report.worst_lse <= 1.0, "{name}: {report:?}");
                    println!("{name} {}: {:.3} and lse {:.3}", case.name, report.worst_o, report.worst_lse);
                    layers.push(case.name.as_str());
                }
                Status::Unsupported(_) => assert_ne!(case.family, "mla", "{name}: {report:?}"),
                Status::Fail(why) => panic!("{name} on {}: {why}", case.name),
            }
        }
        assert_eq!(layers, LAYERS, "{name}");
    }
}

/// An error of twice the tolerance in one element of any result, or a result that is missing, fails in every case.
#[test]
fn small_errors_of_a_layer_are_caught_in_every_case() {
    let pack = pack();
    for case in pack.cases().iter().filter(|case| case.family == "mla") {
        for name in ["c_kv", "k_rope", "q_lat", "lse", "o_lat", "o", "out"] {
            for missing in [false, true] {
                let report = pack.run_layer(case, &|problem| {
                    let mut outcome = forms::run(Form::Absorbed, problem)?;
                    let result = outcome.remove(name);
                    if let (false, Some(mut result)) = (missing, result) {
                        last(&mut result, |x| x + 2.0 * case.tol.of(name));
                        outcome.insert(name, result);
                    }
                    Ok(outcome)
                });
                let report = report.unwrap();
                // Not every form has these two.
                let passes = missing && ["q_lat", "o_lat"].contains(&name);
                assert_eq!(report.status == Status::Pass, passes, "{name}, missing {missing}: {report:?}");
            }
        }
    }
}

#[test]
fn every_kind_of_vectors_conforms() {
    let (_, expected) = split(&[&[ORACLE_ONLY], &NO_RUNG]);
    for simd in Simd::available() {
        let rung = PagedSimd::new(Fa2Simd::new(simd).unwrap());
        assert_eq!(unsupported(&|problem| run_on_canaries(&rung, problem)), expected, "{simd:?}");
    }
}

#[test]
fn the_oracle_conforms() {
    let (_, expected) = split(&[&NO_RUNG]);
    assert_eq!(unsupported(&|problem| Ok(truth(problem).into())), expected);
}

/// A result that is off by twice the tolerance in one element, or by the sign of lse, fails in every case.
#[test]
fn small_errors_are_caught_in_every_case() {
    let pack = pack();
    let breaks: [fn(&Case, &mut Outcome); 4] = [
        |case, outcome| last(&mut outcome.o, |o| o + 2.0 * case.tol.o.max(1e-300)),
        |case, outcome| last(&mut outcome.lse, |lse| if lse.is_finite() { lse + 2.0 * case.tol.lse } else { 0.0 }),
        |_, outcome| outcome.lse.mapv_inplace(|lse| -lse),
        |_, outcome| last(&mut outcome.o, |_| f64::NAN),
    ];
    let mut caught = 0;
    for case in pack.cases().iter().filter(|case| case.unsupported().is_none()) {
        let loaded = pack.load(case).unwrap();
        let right: Outcome = truth(&loaded.problem().unwrap()).into();
        for breaks in breaks {
            let mut wrong = right.clone();
            breaks(case, &mut wrong);
            let report = loaded.run(&|_| Ok(wrong.clone())).unwrap();
            assert!(matches!(report.status, Status::Fail(_)), "{report:?}");
            caught += 1;
        }
    }
    assert_eq!(caught, 4 * 54);
}

/// Replaces the last element.
fn last(array: &mut ndarray::ArrayD<f64>, by: impl Fn(f64) -> f64) {
    let last = array.iter_mut().last().unwrap();
    *last = by(*last);
}

/// A layer's q, k and v through every rung, against the o and lse stored beside them.
///
/// The inputs are F16 and P stays in f32, so o may be off by its one rounding, subnormals included, and by f32's errors:
/// `2^-11 |o| + 2^-25 + 2^-20 (1 + max|s|) max|v|`. `s_max` is the largest |score| that the data's README gives.
fn real_layer(name: &str, mask: Mask, cu_seqlens: Option<&str>, s_max: f64) {
    let file = read_safetensors(&data("real").join(name)).unwrap();
    let tensor = |name| file.tensor(name).unwrap().view();
    let (q, k, v) = (tensor("q"), tensor("k"), tensor("v"));
    let cu_seqlens = cu_seqlens.map_or_else(|| vec![0, q.shape()[1] as i32], |name| file.lengths(name).unwrap());
    let batch = Batch::Packed { cu_seqlens_q: &cu_seqlens, cu_seqlens_k: &cu_seqlens };
    let v_max = v.to_f64().fold(0f64, |max, v| max.max(v.abs()));
    let problem = Problem::new(q, Kv::Contiguous { k, v }, batch, Options { mask, ..Options::default() }).unwrap();
    let (o, lse) = (tensor("o").to_f64(), tensor("lse").to_f64());
    let o_tol = |o: f64| 2f64.powi(-11) * o.abs() + 2f64.powi(-25) + 2f64.powi(-20) * (1.0 + s_max) * v_max;
    let lse_tol = |lse: f64| 1e-5 * (1.0 + lse.abs());
    for name in RUNGS.iter().filter(|rung| !rung.latents).map(|rung| rung.name).chain([ORACLE]) {
        let rung = registry::attention(name, Settings::default()).unwrap();
        let found = run_on_canaries(rung.as_ref(), &problem).unwrap();
        let verdict = Verdict {
            o: worst(&problem, &found.o, &o, |at| o_tol(o[at])),
            lse: worst(&problem, &found.lse, &lse, |at| lse_tol(lse[at])),
        };
        assert!(verdict.passes(), "{name}: {verdict}");
    }
    assert!(o.len_of(Axis(1)) > 100, "an empty layer proves nothing");
}

#[test]
fn a_causal_layer_of_smollm2() {
    real_layer("smollm2-layer14.safetensors", Mask::Causal, None, 21.6);
}

#[test]
fn a_layer_of_minilm_with_packed_sequences() {
    real_layer("minilm-layer03.safetensors", Mask::Full, Some("cu_seqlens"), 7.2);
}
