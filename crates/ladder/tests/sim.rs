//! The simulated GPU on the command line: what it counts, what it says in each form, and where it is refused.

mod common;

use attention::DType;
use common::{Folder, answer, ladder, refused};
use ladder::registry::{DEVICE_RUNGS, RUNGS};
use serde_json::Value;
use std::path::Path;

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&answer(args)).expect("one JSON object")
}

fn data(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name).to_str().unwrap().into()
}

fn kernel<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let kernels = answer["kernels"].as_array().unwrap();
    kernels.iter().find(|kernel| kernel["kernel"] == name).unwrap_or_else(|| panic!("{name} in {answer}"))
}

/// What follows from the shape alone, of F32 tensors of 64 rows, 64 keys and 64 channels.
#[test]
fn counts_are_those_of_the_shape() {
    let shape = ["--n", "64", "--d", "64", "--json"];
    let sim = |rung: &str| json(&[&["sim", rung][..], &shape].concat());
    let matrix = 64 * 64 * 4;
    let naive = sim("cuda-naive");
    let names: Vec<&Value> = naive["kernels"].as_array().unwrap().iter().map(|kernel| &kernel["kernel"]).collect();
    assert_eq!(names, ["naive_scores", "naive_softmax", "naive_output"]);
    // S, and O: each row of a warp's 32 numbers is four sectors, all of them asked for.
    for name in ["naive_scores", "naive_output"] {
        let kernel = kernel(&naive, name);
        assert_eq!(kernel["global_writes"]["bytes"], matrix, "{name}");
        assert_eq!(kernel["global_writes"]["sectors"], matrix / 32, "{name}");
        // A product of 64 x 64 x 64 multiply-adds, and a bit of other work.
        let flops = kernel["flops"]["f32"].as_f64().unwrap() / (2 * 64 * 64 * 64) as f64;
        assert!((1.0..1.1).contains(&flops), "{name}: {flops}");
    }
    assert_eq!(kernel(&naive, "naive_softmax")["shared"]["bytes"], 0);
    // O and the lse, and no score.
    let fa2 = sim("cuda-fa2-simt");
    assert_eq!(kernel(&fa2, "fa2_simt")["global_writes"]["bytes"], matrix + 64 * 4);
    // The exponentials of 64 x 64 scores at least; FA1 rescales its rows beside them.
    let special = |answer: &Value, name| kernel(answer, name)["flops"]["special"].as_u64().unwrap();
    assert!(special(&naive, "naive_softmax") >= 64 * 64);
    assert!(special(&sim("cuda-fa1"), "fa1") > 64 * 64);
    for answer in [&naive, &fa2] {
        assert_eq!(answer["formula"]["flops"], 4.0 * 64f64.powi(3));
        assert_eq!(answer["formula"]["compulsory_bytes"], 4 * matrix + 64 * 4);
        let kernels = answer["kernels"].as_array().unwrap();
        let sum = |kernel: &Value| {
            kernel["instructions"].as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>()
        };
        assert!(kernels.iter().all(|kernel| kernel["warp_instructions"] == sum(kernel)), "{answer}");
    }
}

#[test]
fn every_rung_gives_the_same_bits_in_every_order() {
    for rung in DEVICE_RUNGS {
        let args = ["sim", rung.name, "--schedules", "4", "--seed", "3", "--n", "40", "--d", "16", "--heads", "2"];
        let args = [&args[..], &["--kv-heads", "1", "--mask", "causal"]].concat();
        let (text, json) = (answer(&args), json(&[&args[..], &["--json"]].concat()));
        assert!(text.starts_with(&format!("{} on a simulated GPU. random N(0, 1)", rung.name)), "{text}");
        let verdict = text.lines().last().unwrap();
        assert!(verdict.starts_with("seeds 3 to 6: no fault, and the same bits; error/tol"), "{text}");
        for words in
            ["[1, 2, 40, 16]", "mask causal", "bytes a sector", "bank conflicts", "formula", "warp instructions"]
        {
            assert!(text.contains(words), "{words} in {text}");
        }
        // They take no F32.
        let on_tensor_cores = !rung.takes.dtypes.contains(&DType::F32);
        assert!(!text.contains('\u{1b}') && text.contains("tensor cores") == on_tensor_cores, "{text}");
        assert_eq!((&json["passed"], &json["seed"], &json["schedules"]), (&true.into(), &3.into(), &4.into()));
        assert!(json["error_over_tol"].as_f64().unwrap() <= 1.0 && json["failure"].is_null(), "{json}");
    }
    // Without a shape the embedded layer's beginning.
    let text = answer(&["sim", "cuda-fa2-simt"]);
    assert!(text.contains("its first 100 tokens: F16, q [1, 9, 100, 64], k [1, 3, 100, 64]"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("seed 0: no fault; error/tol"), "{text}");
}

#[test]
fn a_climb_goes_on_to_the_rungs_of_the_simulated_device_and_times_none() {
    let folder = Folder::new();
    let report = folder.path("climb.html");
    let args = ["climb", "--device", "sim", "--n", "40", "--d", "8"];
    let climb = json(&[&args[..], &["--json"]].concat());
    let rows = climb["rungs"].as_array().unwrap();
    let names = RUNGS.iter().map(|rung| rung.name).chain(DEVICE_RUNGS.iter().map(|rung| rung.name));
    assert!(rows.iter().map(|row| row["rung"].as_str().unwrap()).eq(names), "{climb}");
    assert!(climb["passed"] == true && climb["not_run"].is_null(), "{climb}");
    for row in &rows[RUNGS.len()..] {
        assert!(
            row["error_over_tol"].as_f64().unwrap() <= 1.0 && row["below_over_tol"].as_f64().unwrap() <= 1.0,
            "{row}"
        );
        let timed = ["seconds", "kernel_seconds", "runs", "gflops", "times_naive", "threads", "hbm_bytes"];
        assert!(timed.iter().all(|name| row[name].is_null()), "{row}");
    }
    let text = answer(&[&args[..], &["--report", &report]].concat());
    let line = text.lines().find(|line| line.starts_with("cuda-naive")).unwrap();
    let cells: Vec<&str> = line.split('│').map(str::trim).collect();
    // S in f32.
    assert_eq!(cells[3..], ["-", "-", "-", "-", "6.25 KiB", "-", "-"], "{text}");
    assert!(text.contains("nothing is timed") && !text.contains("were not run"), "{text}");
    let page = std::fs::read_to_string(report).unwrap();
    assert_eq!(page.matches("<svg ").count(), 3);
    // In the table, and not in the key of the charts.
    assert_eq!(page.matches("<td>cuda-fa1</td>").count(), 1);
    assert!(page.contains("</i>fa1</span>") && !page.contains("</i>cuda-fa1</span>"));
}

#[test]
fn a_run_on_the_simulated_device_is_that_of_the_oracle() {
    let folder = Folder::new();
    let input = data("real/minilm-layer03.safetensors");
    let output = |name: &str, more: &[&str]| {
        let output = folder.path(name);
        let args = ["run", "--rung", name, "--input", &input, "--output", &output];
        let text = answer(&[&args[..], more].concat());
        (text, testkit::files::read_safetensors(output.as_ref()).unwrap().f32s("o").unwrap())
    };
    let (_, wanted) = output("oracle", &[]);
    let (text, found) = output("cuda-fa2-simt", &["--device", "sim"]);
    assert!(text.contains(" on simulated GPU"), "{text}");
    // An ulp of F16 at the largest |o|, below 4.
    assert!(found.iter().zip(&wanted).all(|(found, wanted)| (found - wanted).abs() < 2e-3));
    let run = json(&["run", "--rung", "cuda-fa2-simt", "--input", &input, "--device", "sim", "--json"]);
    assert_eq!((&run["device"], &run["threads"]), (&"simulated GPU".into(), &Value::Null));
}

#[test]
fn a_pack_conforms_on_the_simulated_device() {
    let (folder, names) = (Folder::new(), ["c01_f32_n1", "c20_f32_nk0", "c34_f16_denormal"]);
    let manifest = std::fs::read_to_string(data("conformance/manifest.json")).unwrap();
    let mut manifest: Value = serde_json::from_str(&manifest).unwrap();
    let named = |case: &Value| names.iter().any(|name| case["name"] == *name);
    manifest["cases"].as_array_mut().unwrap().retain(named);
    folder.file("manifest.json", manifest.to_string());
    for name in names.map(|name| format!("{name}.safetensors")) {
        folder.file(&name, std::fs::read(data(&format!("conformance/{name}"))).unwrap());
    }
    let pack = folder.0.path().to_str().unwrap();
    let cases = json(&["conform", pack, "--device", "sim", "--json"]);
    let cases = cases["cases"].as_array().unwrap();
    assert_eq!(cases.len(), names.len() * DEVICE_RUNGS.len());
    let right = |case: &&Value| {
        let rung = DEVICE_RUNGS.iter().find(|rung| case["rung"] == rung.name).unwrap();
        let dtype = if case["name"].as_str().unwrap().contains("f32") { DType::F32 } else { DType::F16 };
        case["status"] == if rung.takes.dtypes.contains(&dtype) { "pass" } else { "unsupported" }
    };
    assert!(cases.iter().all(|case| right(&case)), "{cases:?}");
    let text = answer(&["conform", pack, "--device", "sim", "--rung", "cuda-fa1"]);
    assert_eq!(text.lines().last(), Some("cuda-fa1: 3 passed, 0 failed, 0 unsupported"));
}

#[test]
fn what_the_simulator_cannot_do_is_refused_before_any_work() {
    let clock = "error: --device sim: found a simulated device, which has no clock, wanted --device cuda";
    for args in [&["bench", "--device", "sim"][..], &["bench", "--device", "sim", "--once", "--rung", "cuda-fa1"]] {
        refused(args, &[clock]);
    }
    let on_cpu = "fa2 runs on the CPU: leave out --device sim";
    refused(&["run", "--device", "sim", "--rung", "fa2", "--input", "no.safetensors"], &[on_cpu]);
    refused(&["conform", "no such folder", "--device", "sim", "--rung", "fa2"], &[on_cpu]);
    for (args, names) in [
        (&["sim"][..], &["<RUNG>"][..]),
        (&["sim", "fa2"], &["fa2", "cuda-fa2-simt"]),
        (&["sim", "cuda-fa1", "--step", "2"], &["--step: found 2, but cuda-fa1 has none"]),
        (&["sim", "cuda-fa2", "--step", "0"], &["--step", "at least 1"]),
        (&["sim", "cuda-fa2", "--step", "9"], &["--step: found 9, but cuda-fa2 has 1 to 7"]),
        (&["sim", "cuda-fa1", "--schedules", "0"], &["--schedules", "at least 1"]),
        (&["sim", "cuda-fa1", "--seed", "-1"], &["-1"]),
        (
            &["sim", "cuda-fa1", "--seed", "18446744073709551615", "--schedules", "2"],
            &["--seed", "18446744073709551614"],
        ),
        (&["sim", "cuda-fa1", "--input", "no.safetensors"], &["no.safetensors"]),
        (&["sim", "cuda-fa1", "--input", "x", "--n", "4"], &["--input", "--n"]),
        (&["sim", "cuda-fa1", "--heads", "3", "--kv-heads", "2"], &["--kv-heads", "divisor"]),
        (&["sim", "cuda-fa2-simt", "--d", "300"], &["cuda-fa2-simt", "256 channels"]),
        (&["sim", "cuda-naive", "--n", "1000000"], &["choose a smaller shape"]),
    ] {
        refused(args, names);
    }
    // The last seed there is.
    assert!(ladder(&["sim", "cuda-fa1", "--n", "4", "--seed", "18446744073709551615"]).status.success());
}
