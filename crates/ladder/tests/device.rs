//! The rungs that run on a device, as far as a machine without one can tell: who is refused where, and what becomes of
//! results that were measured elsewhere.

mod common;

use common::{Folder, answer, refused};
use ladder::bench::{Case, Results, Row, device_cases, ncu};
use ladder::registry::DEVICE_RUNGS;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the binary where CUDA shows no device, whatever the machine has.
fn without_devices(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ladder")).args(args).env("CUDA_VISIBLE_DEVICES", "").output().unwrap()
}

fn pack() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/conformance").to_str().unwrap().into()
}

#[test]
fn without_a_device_all_that_need_one_say_so_in_one_line_before_any_work() {
    let (folder, pack) = (Folder::new(), pack());
    let results = folder.path("results.json");
    for args in [
        &["climb", "--device", "cuda"][..],
        &["--device", "cuda"],
        // The file is not there, and nobody has looked.
        &["run", "--device", "cuda", "--rung", "cuda-fa1", "--input", "no.safetensors"],
        &["conform", "no such folder", "--device", "cuda"],
        &["conform", &pack, "--device", "cuda", "--rung", "cuda-naive"],
        &["bench", "--device", "cuda", "--output", &results],
        &["bench", "--device", "cuda", "--once", "--n", "64", "--rung", "cuda-fa2-simt"],
    ] {
        let output = without_devices(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}: {stderr}");
        assert!(
            stderr.starts_with("error: --device cuda: CUDA d") && stderr.lines().count() == 1,
            "{args:?}: {stderr}"
        );
    }
    assert!(!Path::new(&results).exists());
}

#[test]
fn a_rung_is_refused_where_it_does_not_run() {
    let pack = pack();
    for rung in DEVICE_RUNGS.iter().map(|rung| rung.name) {
        let words = format!("error: {rung} runs on a device: add --device cuda");
        let either = format!("{words}, or --device sim without a GPU");
        refused(&["run", "--rung", rung, "--input", "no.safetensors"], &[&either]);
        refused(&["conform", &pack, "--rung", "fa1", "--rung", rung], &[&either]);
        refused(&["bench", "--rung", rung], &[&format!("{words}\n")]);
    }
    for rung in ["fa2", "mla-absorbed"] {
        let words = format!("error: {rung} runs on the CPU: leave out --device cuda");
        refused(&["run", "--device", "cuda", "--rung", rung, "--input", "no.safetensors"], &[&words]);
        refused(&["conform", &pack, "--device", "cuda", "--rung", rung], &[&words]);
        refused(&["bench", "--device", "cuda", "--rung", rung], &[&words]);
    }
    for (args, names) in [
        (&["climb", "--device", "abacus"][..], &["--device", "abacus", "cuda", "sim"][..]),
        (&["bench", "--device", "cuda", "--chapter", "1"], &["--device", "--chapter"]),
        (&["bench", "--device", "cuda", "--threads", "1"], &["--device", "--threads"]),
        (&["bench", "--device", "cuda", "--peers"], &["--device", "--peers"]),
        (&["bench", "--device", "cuda", "--levels"], &["--device", "--levels"]),
        (&["bench", "--once"], &["--device"]),
        (&["bench", "--step", "1"], &["--device", "--rung"]),
        (&["bench", "--device", "cuda", "--step", "1"], &["--rung"]),
        (&["bench", "--batch", "2"], &["--batch", "--device"]),
        (&["bench", "--device", "cuda", "--rung", "cuda-fa2", "--step", "1,0"], &["--step", "at least 1"]),
        (&["bench", "--ncu", "x.csv", "--rung", "cuda-fa2", "--step", "1"], &["--ncu", "--step"]),
        (&["bench", "--device", "cuda", "--once", "--json"], &["--once", "--json"]),
        (&["bench", "--ncu", "x.csv", "--device", "cuda"], &["--ncu", "--device"]),
    ] {
        refused(args, names);
    }
}

#[test]
fn what_takes_all_rungs_says_which_it_left_out() {
    let names = DEVICE_RUNGS.iter().map(|rung| rung.name).collect::<Vec<_>>().join(", ");
    let shape = ["climb", "--n", "8", "--d", "4", "--heads", "1"];
    let text = |args: &[&str]| String::from_utf8(without_devices(args).stdout).unwrap();
    let (doctor, sim) = ("; `ladder doctor` says more.", "; --device sim runs them on a simulated GPU.");
    for (args, named, advice) in [
        (&shape[..], false, sim),
        (&["bench", "--n", "4", "--threads", "1"], false, doctor),
        (&["bench", "--n", "4", "--threads", "1", "--rung", "fa2"], true, doctor),
        (&["conform", &pack(), "--rung", "oracle"], true, sim),
    ] {
        let text = text(args);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(&names)).collect();
        assert_eq!(lines.len(), usize::from(!named), "{args:?}: {text}");
        let complete =
            |line: &&str| line.starts_with(&format!("{names} were not run: CUDA d")) && line.ends_with(advice);
        assert!(lines.iter().all(complete), "{text}");
    }
    let json: Value = serde_json::from_str(&text(&[&shape[..], &["--json"]].concat())).unwrap();
    assert!(json["not_run"].as_str().unwrap().starts_with(&names), "{json}");
    assert!(
        json["rungs"].as_array().unwrap().iter().all(|row| row["kernel_seconds"].is_null() && row["threads"].is_u64())
    );
}

/// Results of two rungs on a full and a causal case, as a GPU's are saved.
const GPU: &str = r#"{
  "machine": {"gpu": "Some GPU", "driver": "580.1", "cuda": "13.0", "nvrtc": "13.0", "clocks": "up to 1980 MHz"},
  "date": "2026-03-02T00:00:00Z",
  "commit": "0123456789ab",
  "method": "By hand",
  "ceilings": [{"fma_gflops": 50000.0, "copy_gbps": 4000.0}],
  "rows": [
    {"who": "cuda-naive", "dtype": "F32", "head_dim": 64, "mask": "full", "batch": 4, "heads": 16, "kv_heads": 16, "q_len": 1024, "kv_len": 1024, "ms": 4.0, "ms_burst": 3.5, "tflops": 4.0, "tflops_burst": 4.5, "counted_read_bytes": 591396864, "counted_written_bytes": 553910272, "formula_bytes": 1140850688.0},
    {"who": "cuda-fa1", "dtype": "F32", "head_dim": 64, "mask": "full", "batch": 4, "heads": 16, "kv_heads": 16, "q_len": 1024, "kv_len": 1024, "ms": 2.0, "tflops": 8.0},
    {"who": "cuda-naive", "dtype": "F32", "head_dim": 64, "mask": "causal", "batch": 4, "heads": 16, "kv_heads": 16, "q_len": 1024, "kv_len": 1024, "ms": 4.0},
    {"who": "cuda-fa1", "dtype": "F32", "head_dim": 64, "mask": "causal", "batch": 4, "heads": 16, "kv_heads": 16, "q_len": 1024, "kv_len": 1024, "ms": 2.0}
  ]
}"#;

/// The options that pick the cases of [`GPU`].
const CASES: [&str; 10] = ["--rung", "cuda-naive", "--rung", "cuda-fa1", "--dtype", "f32", "--d", "64", "--n", "1024"];

/// What ncu says of those, on so many heads of all sequences: in every call each kernel reads a mebibyte more than the one
/// before, and writes a half.
fn profile(heads: usize) -> String {
    let mut text = String::from(
        "\"ID\",\"Kernel Name\",\"Block Size\",\"Grid Size\",\"dram__bytes_read.sum\",\"dram__bytes_write.sum\"\n\
         \"\",\"\",\"\",\"\",\"byte\",\"byte\"\n",
    );
    // A block has 32 x 32 scores, 8 rows, 32 x 32 of the output, or a head.
    let kernels = [
        ("naive_scores", "32, 8, 1", 32 * 32),
        ("naive_softmax", "32, 8, 1", 1024 / 8),
        ("naive_output", "32, 8, 1", 32 * 2),
        ("fa1", "512, 1, 1", 1),
    ];
    for (id, (kernel, block, blocks)) in kernels.repeat(2).into_iter().enumerate() {
        let (read, blocks) = ((id + 1) << 20, heads * blocks);
        text +=
            &format!("\"{id}\",\"{kernel}(Problem)\",\"({block})\",\"({blocks}, 1, 1)\",\"{read}\",\"{}\"\n", read / 2);
    }
    text
}

fn read(path: &str) -> Results {
    Results::read(Path::new(path)).unwrap()
}

#[test]
fn the_table_of_a_device_has_the_columns_that_fit_it() {
    let folder = Folder::new();
    let path = folder.file("gpu.json", GPU);
    let table = answer(&["compare", &path]);
    let cells = |start: &str| {
        let line = table.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start} in {table}"));
        line.split('│').map(|cell| cell.trim().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        cells("who")[1..],
        ["mask", "ms", "ms", "TFLOP", "GB/s", "% of", "x", "read", "written", "moved"],
        "{table}"
    );
    // 4 TFLOP/s of 50; 564 and 528.25 MiB, 1088 in all.
    let naive = ["full", "4.00", "3.50", "4.00", "-", "8.00", "-", "564 MiB", "528 MiB", "1.06 GiB"];
    assert_eq!(cells("cuda-naive")[1..], naive, "{table}");
    assert_eq!(cells("cuda-fa1")[1..], ["full", "2.00", "-", "8.00", "-", "16.0", "2.00x", "-", "-", "-"], "{table}");
    for words in [
        "dtype F32, d 64, batch 4, heads 16",
        "Some GPU, driver 580.1, CUDA 13.0, NVRTC 13.0, up to 1980 MHz, 2026-03-02T00:00:00Z, commit 0123456789ab",
        "ceilings: 50000 GFLOP/s, 4000 GB/s read and written in copies",
    ] {
        assert!(table.contains(words), "{words:?} in {table}");
    }
    assert!(!table.contains("thr.") || table.contains("thr. -"), "{table}");
    let results = read(&path);
    results.write(path.as_ref()).unwrap();
    assert_eq!(read(&path), results);
}

#[test]
fn what_ncu_read_is_added_to_the_rows_of_its_cases() {
    let folder = Folder::new();
    let (path, csv) = (folder.file("gpu.json", GPU), folder.file("ncu.csv", profile(64)));
    let before = read(&path);
    let args = [&["bench", "--ncu", &csv][..], &CASES, &["--output", &path]].concat();
    let table = answer(&args);
    let mib = |sizes: [u64; 2]| sizes.map(|size| Some(size << 19));
    // The kernels of the four calls read 1 + 2 + 3, 4, 5 + 6 + 7 and 8 MiB, and wrote half of it.
    let wanted = [6, 4, 18, 8].map(|read| mib([2 * read, read]));
    let after = read(&path);
    assert!(after.rows.iter().map(|row| [row.ncu_read_bytes, row.ncu_written_bytes]).eq(wanted), "{after}");
    let without = |row: &Row| Row { ncu_read_bytes: None, ncu_written_bytes: None, ..row.clone() };
    assert!(after.rows.iter().map(without).eq(before.rows), "nothing else changes");
    assert_eq!(
        after.method,
        "By hand; ncu_read_bytes and ncu_written_bytes as ncu read them, the sums over the kernels of one call"
    );
    for words in ["by ncu", "6.00 MiB", "3.00 MiB", "564 MiB"] {
        assert!(table.contains(words), "{words:?} in {table}");
    }
    // Again the same, in the form for a program.
    let json = answer(&[&args[..], &["--json"]].concat());
    assert_eq!(read(&folder.file("again.json", json)), after);
    // Without results the sums alone.
    let sums = answer(&[&["bench", "--ncu", &csv][..], &CASES].concat());
    let line = sums.lines().find(|line| line.starts_with("cuda-fa1")).unwrap();
    assert!(line.contains("F32 full batch 4 heads 16") && line.ends_with("4.00 MiB│2.00 MiB"), "{sums}");
    let sums: Value =
        serde_json::from_str(&answer(&[&["bench", "--ncu", &csv, "--json"][..], &CASES].concat())).unwrap();
    let saved = serde_json::to_value(&after.rows).unwrap();
    let (sums, saved) = (sums["rows"].as_array().unwrap(), saved.as_array().unwrap());
    assert_eq!(sums.len(), saved.len());
    for (sums, saved) in sums.iter().zip(saved) {
        let sums = sums.as_object().unwrap();
        assert!(sums.len() == 11 && sums.iter().all(|(name, value)| saved[name] == *value), "{sums:?}");
    }
}

#[test]
fn a_profile_of_other_calls_changes_nothing() {
    let folder = Folder::new();
    let (path, csv) = (folder.file("gpu.json", GPU), folder.file("ncu.csv", profile(64)));
    let args = |csv: &str, more: &[&str]| {
        let words = [&["bench", "--ncu", csv][..], &CASES, &["--output", &path], more].concat();
        words.into_iter().map(String::from).collect::<Vec<_>>()
    };
    let short = folder.file("short.csv", profile(64).replace("\"7\",\"fa1(Problem)\"", "\"7\",\"other(Problem)\""));
    let eight = folder.file("eight.csv", profile(32));
    let not_there = folder.path("missing.csv");
    for (args, names) in [
        (args(&short, &[]), &["short.csv", "found no more launches, wanted fa1"][..]),
        (args(&not_there, &[]), &["missing.csv"]),
        (args(&path, &[]), &["gpu.json", "Kernel Name"]),
        // The kernels are the same, but on other shapes.
        (
            args(&csv, &["--heads", "8"]),
            &["ncu.csv", "launch 1: found naive_scores of (65536, 1, 1)", "wanted naive_scores of (32768, 1, 1)"],
        ),
        // The launches fit, but no row does.
        (args(&eight, &["--heads", "8"]), &["gpu.json", "no row of cuda-naive on F32 full batch 4 heads 8"]),
        // Two calls of each case are missing.
        (
            args(&csv, &["--rung", "cuda-fa2-simt"]),
            &["ncu.csv", "launch 5: found naive_scores of", "wanted fa2_simt of"],
        ),
        (args(&csv, &["--dtype", "bf16", "--rung", "cuda-naive"]), &["BF16 full", "cuda-naive"]),
        (args(&csv, &["--rung", "fa2"]), &["--rung", "fa2", "runs on a device"]),
    ] {
        refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), names);
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), GPU);
}

#[test]
fn a_row_knows_its_case() {
    let row: Row = read(&Folder::new().file("gpu.json", GPU)).rows.remove(0);
    let case = device_cases(1024)[0];
    assert!(row.is_of("cuda-naive", &case) && !row.is_of("cuda-fa1", &case));
    for other in [
        Case { d: 65, ..case },
        Case { dtype: attention::DType::F16, ..case },
        Case { mask: attention::Mask::Causal, ..case },
        Case { batch: 1, ..case },
        Case { heads: 8, ..case },
        Case { kv_heads: 8, ..case },
        Case { q_len: 1, ..case },
        Case { kv_len: 1, ..case },
    ] {
        assert!(!row.is_of("cuda-naive", &other), "{other}");
    }
}

#[test]
fn faults_of_a_devices_results_are_found() {
    let folder = Folder::new();
    let changed = |from: &str, to: &str| {
        assert!(GPU.contains(from), "{from}");
        GPU.replacen(from, to, 1)
    };
    for (text, names) in [
        (changed(", \"copy_gbps\": 4000.0", ""), &["ceilings", "neither read_gbps nor copy_gbps"][..]),
        (changed("4000.0", "0"), &["ceilings", "copy_gbps", "0"]),
        (
            changed("{\"fma_gflops\"", "{\"fma_gflops\": 1, \"copy_gbps\": 1}, {\"fma_gflops\""),
            &["ceilings", "a device", "once"],
        ),
        (changed("\"counted_read_bytes\": 591396864", "\"counted_read_bytes\": -1"), &["line"]),
        (changed("1140850688.0", "-1"), &["row 1", "formula_bytes", "-1"]),
        (changed("\"13.0\"", "\" \""), &["machine", "one line"]),
    ] {
        refused(&["compare", &folder.file("bad.json", text)], names);
    }
}

#[test]
fn the_metrics_that_help_names_are_those_that_are_read() {
    let help = answer(&["bench", "--help"]);
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("--metrics {}", ncu::METRICS.join(","))), "{help}");
}
