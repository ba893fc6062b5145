//! The binary `ladder` as a user meets it: good input, every kind of bad input, and the answers read back.

mod common;

use attention::Tensor;
use common::{Folder, answer, ladder, refused};
use half::f16;
use ndarray::{Array, ArrayD, IxDyn};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testkit::files::{FileTensor, read_safetensors, write_safetensors};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&answer(args)).expect("one JSON object")
}

/// Writes a file of tensors.
fn write_tensors(folder: &Folder, name: &str, tensors: &[(&str, FileTensor)]) -> String {
    let tensors: BTreeMap<_, _> = tensors.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect();
    write_safetensors(folder.path(name).as_ref(), &tensors, &HashMap::new()).unwrap();
    folder.path(name)
}

/// Some F32 numbers that are not all the same.
fn numbers(shape: &[usize]) -> ArrayD<f32> {
    let mut next = 0u32;
    Array::from_shape_simple_fn(IxDyn(shape), || {
        next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (next >> 8) as f32 / (1 << 24) as f32 - 0.5
    })
}

fn f32s(shape: &[usize]) -> FileTensor {
    Tensor::from(numbers(shape)).into()
}

fn i32s(values: &[i32]) -> FileTensor {
    FileTensor::I32(ArrayD::from_shape_vec(IxDyn(&[values.len()]), values.to_vec()).unwrap())
}

fn rungs() -> impl Iterator<Item = &'static str> {
    ladder::registry::RUNGS.iter().map(|rung| rung.name)
}

/// The rungs that take any input, and not latents alone.
fn rungs_for_any() -> impl Iterator<Item = &'static str> {
    ladder::registry::RUNGS.iter().filter(|rung| !rung.latents).map(|rung| rung.name)
}

/// The largest difference between two tensors of files, both widened.
fn difference(file: &str, name: &str, wanted: &ArrayD<f32>) -> f32 {
    let found = read_safetensors(file.as_ref()).unwrap().f32s(name).unwrap();
    assert_eq!(found.shape(), wanted.shape(), "{name}");
    found.iter().zip(wanted).map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() }).fold(0.0, f32::max)
}

#[test]
fn a_climb_without_a_verb_checks_every_rung_on_the_real_layer() {
    let climb = json(&["--json"]);
    assert!(climb["input"].as_str().unwrap().contains("[1, 9, 487, 64]"), "{climb}");
    assert_eq!(climb["passed"], true);
    let table = climb["rungs"].as_array().unwrap();
    assert!(table.iter().map(|row| row["rung"].as_str().unwrap()).eq(rungs()));
    for (row, rung) in table.iter().zip(ladder::registry::RUNGS) {
        assert_eq!(row["unsupported"].is_string(), rung.latents, "{row}");
        if rung.latents {
            continue;
        }
        for number in ["seconds", "gflops", "times_naive", "peak_extra_bytes"] {
            assert!(row[number].as_f64().unwrap() > 0.0, "{number} of {row}");
        }
        assert!(row["error_over_tol"].as_f64().unwrap() <= 1.0, "{row}");
        if rung.counts().is_none() {
            assert!(row["hbm_bytes"].is_null() && row["formula_bytes"].is_null(), "{row}");
            continue;
        }
        let counted = row["hbm_bytes"].as_f64().unwrap();
        assert!((row["formula_bytes"].as_f64().unwrap() / counted - 1.0).abs() < 0.2, "formula and meter of {row}");
    }
    // Naive holds S and P in full, two F32 matrices for at least one head; no later rung holds even one.
    let matrix = 4 * 487 * 487;
    assert!(table[0]["peak_extra_bytes"].as_u64().unwrap() >= 2 * matrix);
    for row in table[1..].iter().filter(|row| row["unsupported"].is_null()) {
        assert!(row["below_over_tol"].as_f64().unwrap() <= 1.0, "{row}");
        assert!(row["peak_extra_bytes"].as_u64().unwrap() < 2 * matrix, "{row}");
    }
}

#[test]
fn extra_memory_grows_with_n_squared_in_naive_and_no_faster_than_n_in_the_tiled_rungs() {
    let peaks = |n: &str| {
        let climb = json(&["climb", "--n", n, "--d", "64", "--heads", "1", "--threads", "1", "--json"]);
        let peak = |rung| {
            let row = climb["rungs"].as_array().unwrap().iter().find(|row| row["rung"] == rung).unwrap();
            row["peak_extra_bytes"].as_f64().unwrap()
        };
        ["naive", "fa1", "fa2"].map(peak)
    };
    let ([naive, fa1, fa2], [naive_4, fa1_4, fa2_4]) = (peaks("512"), peaks("2048"));
    assert!((12.0..16.5).contains(&(naive_4 / naive)), "naive: {naive} and {naive_4}");
    assert!(fa1_4 / fa1 < 4.5 && fa2_4 / fa2 < 4.5, "fa1: {fa1} and {fa1_4}, fa2: {fa2} and {fa2_4}");
}

#[test]
fn the_table_of_a_climb_names_rungs_and_columns() {
    let table = answer(&["climb", "--n", "33", "--d", "8", "--heads", "6", "--kv-heads", "2", "--mask", "window:4,-1"]);
    for word in rungs().chain(["[1, 6, 33, 8]", "window:4,-1", "/tol", "GFLOP", "counted"]) {
        assert!(table.contains(word), "{word} in {table}");
    }
    assert!(!table.contains('\u{1b}'), "no escape codes off a terminal");
}

#[test]
fn a_climb_obeys_its_options() {
    let bytes = |args: &[&str]| {
        let climb = json(args);
        climb["rungs"].as_array().unwrap().iter().map(|row| row["hbm_bytes"].as_u64()).collect::<Vec<_>>()
    };
    let shape = ["climb", "--json", "--n", "200", "--d", "16", "--heads", "2"];
    let with = |more: &[&str]| bytes(&[&shape[..], more].concat());
    let plain = with(&[]);
    assert_eq!(with(&["--threads", "1"]), plain, "traffic does not depend on threads");
    assert!(with(&["--mask", "window:3,0"])[1] < plain[1]);
    let tiny = with(&["--fast-memory", "2000"]);
    assert!(tiny[2] > plain[2] && tiny[0] == plain[0], "only tiled rungs care for fast memory");
    assert_eq!(json(&[&shape[..], &["--threads", "3"]].concat())["threads"], 3);
    assert_eq!(json(&[&shape[..], &["--scale", "-2", "--softcap", "5", "--batch", "2"]].concat())["passed"], true);
}

#[test]
fn a_rung_that_cannot_run_fails_alone() {
    // A row of q, k, v and o of 64 channels takes 1024 bytes; fa2 and paged need one number of S beside them, too.
    for (fast_memory, failing) in [("1024", &["fa2", "paged"][..]), ("0", &["fa1", "fa2", "paged"])] {
        let args = ["climb", "--n", "8", "--fast-memory", fast_memory];
        let (table, json) = (ladder(&args), ladder(&[&args[..], &["--json"]].concat()));
        for output in [&table, &json] {
            let stderr = String::from_utf8(output.stderr.clone()).unwrap();
            assert_eq!(output.status.code(), Some(1), "{stderr}");
            let wanted = failing.iter().map(|rung| format!("failed: {rung}: fast_memory: found {fast_memory} bytes"));
            assert!(stderr.lines().zip(wanted).all(|(line, wanted)| line.starts_with(&wanted)), "{stderr}");
            assert_eq!(stderr.lines().count(), failing.len(), "{stderr}");
        }
        let table = String::from_utf8(table.stdout).unwrap();
        assert_eq!(table.matches("FAIL").count(), failing.len(), "{table}");
        let json: Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(json["passed"], false);
        for row in json["rungs"].as_array().unwrap() {
            let fails = failing.contains(&row["rung"].as_str().unwrap());
            assert_eq!(row["error"].as_str().is_some_and(|error| error.contains("fast_memory")), fails, "{row}");
            assert_eq!(row["seconds"].is_number(), !fails && row["unsupported"].is_null(), "{row}");
        }
    }
}

#[test]
fn a_report_is_one_page_without_network() {
    let folder = Folder::new();
    let path = folder.path("report.html");
    answer(&["climb", "--n", "64", "--d", "8", "--heads", "1", "--report", &path]);
    let page = fs::read_to_string(path).unwrap();
    assert_eq!(page.matches("<svg ").count(), 3);
    for word in rungs().chain(["currentColor", "color-scheme: light dark", "[1, 1, 64, 8]"]) {
        assert!(page.contains(word), "{word}");
    }
    let addresses = page.matches("http").count();
    assert_eq!(addresses, page.matches("http://www.w3.org/2000/svg").count(), "only the name of SVG is an address");
    assert!(!page.contains("<script") && !page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn every_rung_runs_the_real_files_to_their_stored_result() {
    let folder = Folder::new();
    for (file, mask) in [("real/smollm2-layer14.safetensors", "causal"), ("real/minilm-layer03.safetensors", "full")] {
        let stored = read_safetensors(&data(file)).unwrap();
        let path = data(file);
        for rung in rungs_for_any().chain(["oracle"]) {
            let output = folder.path("out.safetensors");
            let path = path.to_str().unwrap();
            answer(&["run", "--rung", rung, "--input", path, "--output", &output, "--mask", mask]);
            let o = read_safetensors(output.as_ref()).unwrap();
            assert_eq!(o.tensors["o"].dtype(), "F16");
            assert_eq!(o.tensors["lse"].dtype(), "F32");
            // Half an ulp of F16 at the largest |o|, below 4, and what F32 loses.
            assert!(difference(&output, "o", &stored.f32s("o").unwrap()) < 1.1e-3, "o of {rung} on {file}");
            assert!(difference(&output, "lse", &stored.f32s("lse").unwrap()) < 2e-4, "lse of {rung} on {file}");
        }
    }
}

/// Values that are the first channels of the one kv head's keys, number by number, lie in the keys' memory.
#[test]
fn latents_of_a_file_are_known_by_their_numbers() {
    let folder = Folder::new();
    let (file, output) = (data("conformance/c16_bf16_d576_dv512_decode.safetensors"), folder.path("out.safetensors"));
    let (stored, file) = (read_safetensors(&file).unwrap(), file.to_str().unwrap());
    answer(&["run", "--rung", "mla-absorbed", "--input", file, "--output", &output, "--scale", "0.07216878364870322"]);
    assert!(difference(&output, "o", &stored.f32s("o").unwrap()) < 0.011);
    let climb = json(&["climb", "--input", file, "--json"]);
    let row = climb["rungs"].as_array().unwrap().iter().find(|row| row["rung"] == "mla-absorbed").unwrap();
    assert!(row["error_over_tol"].as_f64().unwrap() <= 1.0 && row["below_over_tol"].is_number(), "{row}");
    // On anything else the rung is told of below the table.
    let table = answer(&["climb", "--n", "9", "--d", "8", "--heads", "1"]);
    let line = table.lines().find(|line| line.contains("mla-absorbed")).unwrap();
    let wanted = "not in the table: mla-absorbed does not support values that are not the first channels of the keys.";
    assert_eq!(line, wanted);
}

#[test]
fn one_sequence_may_come_with_or_without_a_batch_axis() {
    let folder = Folder::new();
    let (shape_q, shape_k) = ([4, 5, 8], [2, 7, 8]);
    let bias = numbers(&[4, 5, 7]);
    let options = [("sinks", f32s(&[4])), ("alibi_slopes", f32s(&[4])), ("k_lens", i32s(&[7]))];
    let batched = |shape: [usize; 3]| f32s(&[&[1], &shape[..]].concat());
    let of_rank_4 = [("q", batched(shape_q)), ("k", batched(shape_k)), ("v", batched(shape_k))];
    let of_rank_3 = [("q", f32s(&shape_q)), ("k", f32s(&shape_k)), ("v", f32s(&shape_k))];
    let bias_4 = bias.clone().insert_axis(ndarray::Axis(0));
    let file_4 = [&of_rank_4[..], &options, &[("bias", Tensor::from(bias_4).into())]].concat();
    let file_3 = [&of_rank_3[..], &options, &[("bias", Tensor::from(bias).into())]].concat();
    let run = |name: &str, tensors: &[(&str, FileTensor)]| {
        let (input, output) = (write_tensors(&folder, name, tensors), folder.path(&format!("{name}.out")));
        answer(&["run", "--rung", "fa2", "--input", &input, "--output", &output]);
        read_safetensors(output.as_ref()).unwrap()
    };
    let (three, four) = (run("three", &file_3), run("four", &file_4));
    assert_eq!(four.f32s("o").unwrap().shape(), [1, 4, 5, 8]);
    assert_eq!(three.f32s("o").unwrap().shape(), [4, 5, 8]);
    assert_eq!(three.f32s("lse").unwrap().shape(), [4, 5]);
    assert!(three.f32s("o").unwrap().iter().eq(four.f32s("o").unwrap().iter()));
    let plain = run("plain", &of_rank_3);
    assert!(plain.f32s("lse").unwrap() != three.f32s("lse").unwrap(), "the options have an effect");
}

#[test]
fn a_run_reports_what_it_did() {
    let path = data("real/minilm-layer03.safetensors");
    let run = json(&["run", "--rung", "naive", "--input", path.to_str().unwrap(), "--json", "--threads", "2"]);
    assert_eq!(run["o_shape"], serde_json::json!([12, 124, 32]));
    assert_eq!((&run["rung"], &run["threads"], &run["not_finite"]), (&"naive".into(), &2.into(), &0.into()));
    assert_eq!(run["output"], Value::Null);
}

#[test]
fn the_pack_conforms_and_its_json_says_so_of_every_case_and_rung() {
    let pack = data("conformance");
    let cases = json(&["conform", pack.to_str().unwrap(), "--json"]);
    let cases = cases["cases"].as_array().unwrap();
    // The oracle, and two forms of a layer that are no rungs.
    assert_eq!(cases.len(), 58 * (rungs().count() + 3));
    for case in cases {
        let numbers = [case["worst_o"].as_f64(), case["worst_lse"].as_f64()];
        match case["status"].as_str().unwrap() {
            "pass" => assert!(numbers.iter().all(|number| number.is_some_and(|x| x <= 1.0)), "{case}"),
            "unsupported" => assert_eq!(numbers, [None, None], "{case}"),
            _ => panic!("{case}"),
        }
        let (layer, form) = (case["name"].as_str().unwrap().contains("_mla_"), case["rung"].as_str().unwrap());
        assert!(!layer || (case["status"] == "pass") == form.starts_with("mla-"), "{case}");
        let for_the_oracle_alone = case["name"] == "c02_f64_causal_grads";
        assert!(!for_the_oracle_alone || (case["status"] == "pass") == (case["rung"] == "oracle"), "{case}");
    }
    let two = answer(&["conform", pack.to_str().unwrap(), "--rung", "fa1", "--rung", "naive"]);
    assert!(two.contains("naive") && two.contains("fa1") && !two.contains("fa2") && two.contains("0 failed"));
}

/// Copies one case of the pack into `folder` and lets `change` its manifest entry.
fn pack_of_one(folder: &Folder, change: impl Fn(&mut Value)) {
    let manifest = fs::read_to_string(data("conformance/manifest.json")).unwrap();
    let mut manifest: Value = serde_json::from_str(&manifest).unwrap();
    let mut case = manifest["cases"][2].clone();
    change(&mut case);
    let file = "c03_f16_n64_full.safetensors";
    fs::copy(data("conformance").join(file), folder.path(file)).unwrap();
    manifest["cases"] = Value::from(vec![case]);
    fs::write(folder.path("manifest.json"), manifest.to_string()).unwrap();
}

#[test]
fn a_case_that_fails_is_named_and_ends_in_1() {
    let folder = Folder::new();
    // A wrong scale in the manifest makes the stored result wrong.
    pack_of_one(&folder, |case| case["scale"] = 0.5.into());
    for more in [&[][..], &["--json"]] {
        let output = ladder(&[&["conform", folder.path("").as_str(), "--rung", "fa2"], more].concat());
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("failed: fa2 on c03_f16_n64_full: "), "{stderr}");
        assert!(stderr.contains("[1, ") && stderr.contains("wanted"), "names the place: {stderr}");
    }
}

#[test]
fn numbers_that_json_has_not_become_null() {
    let folder = Folder::new();
    pack_of_one(&folder, |case| case["tol"]["o"] = 0.0.into());
    let output = ladder(&["conform", folder.path("").as_str(), "--rung", "naive", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["cases"][0]["worst_o"], Value::Null);
    assert_eq!(answer["cases"][0]["status"], "fail");
}

#[test]
fn help_and_version_are_answers() {
    for args in [
        &["--help"][..],
        &["climb", "-h"],
        &["run", "--help"],
        &["conform", "--help"],
        &["serve-sim", "-h"],
        &["--version"],
    ] {
        assert!(answer(args).contains("ladder"), "{args:?}");
    }
}

#[test]
fn bad_flags_are_refused_in_one_line() {
    let huge = "99999999999999999999999";
    for (args, names) in [
        (&["clamb"][..], &["clamb"][..]),
        (&["--no-such-flag"], &["--no-such-flag"]),
        (&["climb", "--n", "0"], &["--n", "0", "at least 1"]),
        (&["climb", "--n", "-4"], &["-4"]),
        (&["climb", "--n", "ten"], &["--n", "ten"]),
        (&["climb", "--n", huge], &["--n", huge]),
        (&["climb", "--n", "1000000"], &["naive", "available"]),
        (&["climb", "--n", "18446744073709551615"], &["naive", "available"]),
        (&["climb", "--d", "18446744073709551615", "--heads", "18446744073709551615"], &["available"]),
        (&["climb", "--n", "1", "--d", "1", "--batch", "100000000000"], &["available"]),
        (&["climb", "--d", "0"], &["--d"]),
        (&["climb", "--heads", "0"], &["--heads"]),
        (&["climb", "--heads", "6", "--kv-heads", "4"], &["--kv-heads", "4", "6"]),
        (&["climb", "--heads", "2", "--kv-heads", "4"], &["--kv-heads", "4", "2"]),
        (&["climb", "--threads", "0"], &["--threads", "1 to 1024"]),
        (&["climb", "--threads", "1000000000"], &["--threads", "1 to 1024"]),
        (&["climb", "--fast-memory", huge], &["--fast-memory", huge]),
        (&["climb", "--fast-memory", "-1"], &["-1"]),
        (&["climb", "--scale", "nan"], &["scale", "NaN", "finite"]),
        (&["climb", "--scale", "1e300"], &["scale", "finite"]),
        (&["climb", "--scale", "wide"], &["--scale", "wide"]),
        (&["climb", "--softcap", "-1"], &["softcap", "-1"]),
        (&["climb", "--softcap", "inf"], &["softcap", "inf"]),
        (&["climb", "--mask", "window:1"], &["--mask", "window:1", "window:L,R"]),
        (&["climb", "--mask", "window:1,2,3"], &["--mask", "window:1,2,3"]),
        (&["climb", "--mask", "window:1,99999999999999999999"], &["--mask"]),
        (&["climb", "--mask", ""], &["--mask"]),
        (&["climb", "--mask", "diagonal"], &["--mask", "diagonal"]),
        (&["climb", "--input", "x.safetensors", "--n", "4"], &["--input", "--n"]),
        (&["run"], &["--rung"]),
        (&["run", "--rung", "fa9", "--input", "x"], &["--rung", "fa9", "naive"]),
        (&["run", "--rung", "fa2"], &["--input"]),
        (&["conform"], &["<DIR>"]),
        (&["conform", ".", "--rung", "fa9"], &["--rung", "fa9"]),
        (&["doctor", "--rung", "fa2"], &["--rung"]),
    ] {
        refused(args, names);
    }
}

#[test]
fn files_that_cannot_be_read_are_refused_in_one_line() {
    let folder = Folder::new();
    let missing = folder.path("missing.safetensors");
    let empty = folder.file("empty.safetensors", b"");
    let text = folder.file("text.safetensors", b"this is no tensor file, though it is long enough for a header");
    let long = folder.file("long.safetensors", [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat());
    let header = br#"{"q":{"dtype":"F32","shape":[9999999999,9999999999],"data_offsets":[0,4]}}"#;
    let wide = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat();
    let wide = folder.file("wide.safetensors", &wide);
    let layer = fs::read(data("real/smollm2-layer14.safetensors")).unwrap();
    let cut = folder.file("cut.safetensors", &layer[..layer.len() - 1]);
    for file in [&missing, &empty, &text, &long, &wide, &cut, &folder.path("")] {
        refused(&["run", "--rung", "naive", "--input", file], &[file.trim_end_matches('/')]);
        refused(&["climb", "--input", file], &[file.trim_end_matches('/')]);
    }
    refused(&["conform", &folder.path("")], &["manifest.json"]);
    refused(&["conform", &missing], &["missing.safetensors"]);
    for manifest in ["", "[]", "{}", "{\"cases\": 3}", "{\"cases\": []}", "\u{0}"] {
        folder.file("manifest.json", manifest.as_bytes());
        refused(&["conform", &folder.path("")], &["manifest.json"]);
    }
}

#[test]
fn packs_that_lie_are_refused_in_one_line() {
    let folder = Folder::new();
    pack_of_one(&folder, |case| case["tensors"]["k"][1] = serde_json::json!([1, 1, 1, 1]));
    refused(&["conform", &folder.path("")], &["c03_f16_n64_full.safetensors", "\"k\""]);
    pack_of_one(&folder, |case| case["file"] = "../elsewhere.safetensors".into());
    refused(&["conform", &folder.path("")], &["elsewhere.safetensors"]);
    pack_of_one(&folder, |_| ());
    folder.file("c03_f16_n64_full.safetensors", b"");
    refused(&["conform", &folder.path("")], &["c03_f16_n64_full.safetensors"]);
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    type Tensors = Vec<(&'static str, FileTensor)>;
    let folder = Folder::new();
    let q = || ("q", f32s(&[1, 4, 5, 8]));
    let (k, v) = (|| ("k", f32s(&[1, 2, 7, 8])), || ("v", f32s(&[1, 2, 7, 3])));
    let half = FileTensor::from(Tensor::from(numbers(&[1, 2, 7, 8]).mapv(f16::from_f32)));
    let rank_3 = || [("q", f32s(&[4, 5, 8])), ("k", f32s(&[2, 7, 8])), ("v", f32s(&[2, 7, 8]))];
    let with = |more: &[(&'static str, FileTensor)]| [&[q(), k(), v()][..], more].concat();
    let packed = |more: &[(&'static str, FileTensor)]| [&rank_3()[..], more].concat();
    let cases: [(Tensors, &[&str]); 26] = [
        (vec![k(), v()], &["\"q\""]),
        (vec![q(), k()], &["\"v\""]),
        (vec![("q", i32s(&[1, 2])), k(), v()], &["\"q\"", "I32"]),
        (vec![("q", f32s(&[8])), ("k", f32s(&[8])), ("v", f32s(&[8]))], &["q", "[8]"]),
        (vec![q(), ("k", f32s(&[2, 7, 8])), v()], &["k", "[2, 7, 8]", "rank 4"]),
        (vec![q(), ("k", f32s(&[1, 3, 7, 8])), ("v", f32s(&[1, 3, 7, 8]))], &["k", "[1, 3, 7, 8]", "divides"]),
        (vec![q(), ("k", f32s(&[1, 2, 7, 9])), v()], &["k", "[1, 2, 7, 9]", "[1, 2, 7, 8]"]),
        (vec![q(), k(), ("v", f32s(&[1, 2, 6, 3]))], &["v", "[1, 2, 6, 3]"]),
        (vec![q(), ("k", half), v()], &["k", "F16", "F32"]),
        (vec![("q", f32s(&[1, 4, 5, 0])), ("k", f32s(&[1, 2, 7, 0])), v()], &["q", "[1, 4, 5, 0]"]),
        (with(&[("k_lens", i32s(&[8]))]), &["k_lens", "8", "0 to 7"]),
        (with(&[("k_lens", i32s(&[-1]))]), &["k_lens", "-1"]),
        (with(&[("k_lens", i32s(&[1, 1]))]), &["k_lens", "[2]", "[1]"]),
        (with(&[("k_lens", f32s(&[1]))]), &["k_lens", "F32"]),
        (with(&[("bias", f32s(&[1, 4, 5, 8]))]), &["bias", "[1, 4, 5, 8]"]),
        (with(&[("bias", f32s(&[4, 5, 7]))]), &["bias", "[4, 5, 7]", "rank 4"]),
        (with(&[("sinks", f32s(&[2]))]), &["sinks", "[2]", "[4]"]),
        (with(&[("sinks", f32s(&[4, 1]))]), &["sinks", "[4, 1]", "rank 1"]),
        (with(&[("alibi_slopes", f32s(&[3]))]), &["alibi_slopes", "[3]"]),
        (with(&[("alibi_slopes", i32s(&[1, 2, 3, 4]))]), &["alibi_slopes", "I32"]),
        (with(&[("cu_seqlens", i32s(&[0, 5]))]), &["q", "[1, 4, 5, 8]", "packed"]),
        (packed(&[("cu_seqlens_q", i32s(&[0, 5]))]), &["\"cu_seqlens_k\""]),
        (packed(&[("cu_seqlens", i32s(&[0, 5])), ("k_lens", i32s(&[1]))]), &["k_lens", "cu_seqlens"]),
        (packed(&[("cu_seqlens", i32s(&[1, 5]))]), &["cu_seqlens_q", "0 first"]),
        (packed(&[("cu_seqlens", i32s(&[0, 5, 4]))]), &["cu_seqlens_q", "5 then 4"]),
        (packed(&[("cu_seqlens_q", i32s(&[0, 5])), ("cu_seqlens_k", i32s(&[0, 8]))]), &["cu_seqlens_k", "8"]),
    ];
    for (tensors, names) in cases {
        let file = write_tensors(&folder, "bad.safetensors", &tensors);
        refused(&["run", "--rung", "fa2", "--input", &file], &[names, &["bad.safetensors"]].concat());
    }
    let f64s = |shape: &[usize]| FileTensor::from(Tensor::from(numbers(shape).mapv(f64::from)));
    let double = write_tensors(
        &folder,
        "f64.safetensors",
        &[("q", f64s(&[1, 2, 3])), ("k", f64s(&[1, 2, 3])), ("v", f64s(&[1, 2, 3]))],
    );
    refused(&["run", "--rung", "fa2", "--input", &double], &["fa2", "F64"]);
    refused(&["climb", "--input", &double], &["f64.safetensors", "F64"]);
    answer(&["run", "--rung", "oracle", "--input", &double]);
    let good = write_tensors(&folder, "good.safetensors", &with(&[]));
    refused(&["run", "--rung", "fa1", "--input", &good, "--fast-memory", "3"], &["fast_memory", "3 bytes"]);
}

#[test]
fn results_that_cannot_be_written_are_refused_in_one_line() {
    let folder = Folder::new();
    let input = data("real/minilm-layer03.safetensors");
    for nowhere in [folder.path("no/such/folder/out"), folder.path("")] {
        let name = nowhere.trim_end_matches('/');
        refused(&["run", "--rung", "fa2", "--input", input.to_str().unwrap(), "--output", &nowhere], &[name]);
        refused(&["climb", "--n", "8", "--report", &nowhere], &[name]);
    }
}

#[test]
fn lengths_may_be_zero() {
    let folder = Folder::new();
    let no_keys = [("q", f32s(&[1, 2, 3, 4])), ("k", f32s(&[1, 2, 0, 4])), ("v", f32s(&[1, 2, 0, 4]))];
    let file = write_tensors(&folder, "no_keys.safetensors", &no_keys);
    let output = folder.path("out.safetensors");
    answer(&["run", "--rung", "fa2", "--input", &file, "--output", &output]);
    assert_eq!(difference(&output, "o", &ArrayD::zeros(IxDyn(&[1, 2, 3, 4]))), 0.0);
    assert_eq!(difference(&output, "lse", &ArrayD::from_elem(IxDyn(&[1, 2, 3]), f32::NEG_INFINITY)), 0.0);
    let no_rows = [("q", f32s(&[1, 2, 0, 4])), ("k", f32s(&[1, 2, 3, 4])), ("v", f32s(&[1, 2, 3, 4]))];
    for tensors in [no_keys, no_rows] {
        let file = write_tensors(&folder, "zero.safetensors", &tensors);
        assert_eq!(json(&["climb", "--input", &file, "--json"])["passed"], true);
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    for args in [&["climb", "--n", "8"][..], &["doctor", "--json"], &["--help"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ladder"))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{args:?}");
        assert!(output.status.success(), "{args:?}: {:?}", output.status);
    }
}
