//! `ladder bench` and `ladder compare`, the files between them, and that a wrong rung is never timed.

mod common;

use attention::{Attention, AttentionError, Head, Mask, OutputMut, Problem, TensorViewMut};
use common::{Folder, answer, refused};
use ladder::bench::{self, Answers, BenchError, Case, Ceiling, Contest, Machine, Results, ResultsError, Row};
use ladder::registry::{self, Settings};
use ndarray::{Array1, Array2};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use testkit::Variant;

/// Two rungs on one shape on a CPU, and a peer on a GPU that says less: what a file looks like.
const CPU: &str = r#"{
  "machine": {"cpu": "Some CPU", "threads": 8, "memory_bytes": 34359738368},
  "date": "2026-03-01T12:30:00Z",
  "commit": "0123456789ab-dirty",
  "method": "By hand",
  "rows": [
    {"who": "fa1", "dtype": "F32", "head_dim": 64, "mask": "causal", "batch": 1, "heads": 4, "kv_heads": 4, "q_len": 512, "kv_len": 512, "threads": 1, "ms": 12.0, "ms_burst": 10.0, "tflops": 0.0112, "tflops_burst": 0.01344},
    {"who": "fa2", "dtype": "F32", "head_dim": 64, "mask": "causal", "batch": 1, "heads": 4, "kv_heads": 4, "q_len": 512, "kv_len": 512, "threads": 1, "ms": 8.0, "ms_burst": 7.5, "tflops": 0.0168, "tflops_burst": 0.01792},
    {"who": "fa2", "dtype": "F32", "head_dim": 64, "mask": "full", "batch": 16, "heads": 4, "kv_heads": 4, "q_len": 1, "kv_len": 512, "threads": 1, "ms": 2.0, "ms_burst": 1.5, "tflops": 0.0042, "gbps": 8.4}
  ]
}"#;

const GPU: &str = r#"{
  "machine": {"gpu": "Some GPU", "driver": "570.1"},
  "date": "2026-03-02T00:00:00Z",
  "commit": null,
  "method": "By hand.",
  "rows": [{"who": "a peer", "dtype": "BF16", "head_dim": 128, "mask": "full", "batch": 2, "heads": 16, "kv_heads": 4, "q_len": 4096, "kv_len": 4096, "ms": 0.25}]
}"#;

/// [`CPU`] with ceilings, in which `from` has become `to`.
fn with_ceilings(from: &str, to: &str) -> String {
    let ceilings = r#"[
    {"threads": 1, "fma_gflops": 100.0, "bf16_gflops": 150.0, "read_gbps": 10.0},
    {"threads": 8, "fma_gflops": 300.0, "read_gbps": 20.0}
  ]"#;
    assert!(ceilings.contains(from), "{from}");
    CPU.replace("\"rows\"", &format!("\"ceilings\": {},\n  \"rows\"", ceilings.replacen(from, to, 1)))
}

/// The names of the files in a folder, sorted.
fn names(folder: &Folder) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder.0.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn read(path: &str) -> Result<Results, ResultsError> {
    Results::read(Path::new(path))
}

#[test]
fn a_file_means_what_it_says_and_is_written_as_it_was_read() {
    let folder = Folder::new();
    let results = read(&folder.file("cpu.json", CPU)).unwrap();
    let machine =
        Machine { cpu: Some("Some CPU".into()), threads: Some(8), memory_bytes: Some(32 << 30), ..Machine::default() };
    assert_eq!((&results.machine, results.date.as_str()), (&machine, "2026-03-01T12:30:00Z"));
    assert_eq!((results.commit.as_deref(), results.method.as_str()), (Some("0123456789ab-dirty"), "By hand"));
    let decode = Row {
        who: "fa2".into(),
        dtype: "F32".into(),
        head_dim: 64,
        mask: "full".into(),
        batch: 16,
        heads: 4,
        kv_heads: 4,
        q_len: 1,
        kv_len: 512,
        threads: Some(1),
        ms: 2.0,
        ms_burst: Some(1.5),
        tflops: Some(0.0042),
        tflops_burst: None,
        gbps: Some(8.4),
        ncu_read_bytes: None,
        ncu_written_bytes: None,
        counted_read_bytes: None,
        counted_written_bytes: None,
        formula_bytes: None,
    };
    assert_eq!((results.rows.len(), &results.rows[2]), (3, &decode));

    let gpu = read(&folder.file("gpu.json", GPU)).unwrap();
    assert_eq!((gpu.commit.as_ref(), gpu.rows[0].threads), (None, None));
    for (name, results) in [("cpu.json", results), ("gpu.json", gpu)] {
        results.write(folder.path(name).as_ref()).unwrap();
        assert_eq!(read(&folder.path(name)).unwrap(), results, "{name}");
        let text = fs::read_to_string(folder.path(name)).unwrap();
        assert!(!text.contains("null"), "what does not apply is left out: {text}");
        assert_eq!(text.lines().filter(|line| line.contains("\"who\"")).count(), results.rows.len(), "a row a line");
    }
    assert_eq!(names(&folder), ["cpu.json", "gpu.json"]);
}

#[test]
fn every_file_of_the_book_is_in_this_form() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../book/results");
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty());
    for file in files {
        let results = Results::read(&file).unwrap();
        assert!(results.commit.is_some(), "{}: of which sources?", file.display());
    }
}

#[test]
fn a_bench_is_checked_timed_shown_and_saved() {
    let folder = Folder::new();
    let path = folder.path("new.json");
    let table = answer(&["bench", "--chapter", "4", "--n", "64", "--threads", "1", "--output", &path]);
    for words in
        ["fa1", "fa2", "causal", "below", "GB/s", "dtype F32, d 64", "median of 7", "ceiling", "ceilings: 1 thread: "]
    {
        assert!(table.contains(words), "{words:?} in {table}");
    }
    assert!(!table.contains("naive") && !table.contains('\u{1b}'), "{table}");
    let results = read(&path).unwrap();
    let here = Machine::cpu();
    assert_eq!(results.machine, here);
    assert!(here.cpu.is_some() && here.threads > Some(0) && here.gpu.is_none(), "{here:?}");
    assert!(results.method.contains("oracle"));
    let shape = |row: &Row| (row.who.clone(), row.mask.clone(), row.batch, row.q_len, row.kv_len, row.threads);
    let wanted = [("full", 1, 64), ("causal", 1, 64), ("full", 16, 1)].into_iter().flat_map(|(mask, batch, q_len)| {
        ["fa1", "fa2", "fa2-simd"].map(|who| (who.to_string(), mask.to_string(), batch, q_len, 64, Some(1)))
    });
    assert!(results.rows.iter().map(shape).eq(wanted), "{results}");
    for row in &results.rows {
        let pairs = if row.mask == "causal" { 64 * 65 / 2 } else { row.q_len * 64 };
        let flops = (2 * (64 + 64) * 4 * row.batch * pairs) as f64;
        assert!((row.tflops.unwrap() * row.ms * 1e9 / flops - 1.0).abs() < 1e-3, "{row:?}");
        assert!((row.tflops_burst.unwrap() * row.ms_burst.unwrap() * 1e9 / flops - 1.0).abs() < 1e-3, "{row:?}");
        // A decoding step moves k and v of every key, and q, o and lse of every row.
        let bytes = (4 * 4 * 16 * (2 * 64 * 64 + 2 * 64 + 1)) as f64;
        let moved = row.gbps.map(|gbps| gbps * row.ms * 1e6 / bytes);
        assert_eq!(moved.is_some(), row.q_len == 1, "{row:?}");
        assert!(moved.is_none_or(|moved| (moved - 1.0).abs() < 1e-3), "{row:?}");
    }
    assert_eq!(names(&folder), ["new.json"], "no half of a file stays behind");
}

#[test]
fn one_chapter_or_several_and_json_in_the_same_form() {
    let args = ["bench", "--chapter", "1", "--chapter", "3", "--n", "16,8,16", "--threads", "2", "--json"];
    let folder = Folder::new();
    let results = read(&folder.file("printed.json", answer(&args))).unwrap();
    let whos: Vec<&str> = results.rows[..3].iter().map(|row| row.who.as_str()).collect();
    assert_eq!(whos, ["naive", "online-softmax", "fa1"]);
    assert_eq!(results.rows.len(), 3 * 3 * 2);
    assert!(results.rows.iter().all(|row| row.threads == Some(2)));
    assert!(results.rows.iter().map(|row| row.kv_len).eq([vec![8; 9], vec![16; 9]].concat()));
}

#[test]
fn exactly_these_rungs_types_channels_and_heads() {
    let args = ["bench", "--rung", "fa2-simd", "--rung", "naive", "--dtype", "bf16,f32,BF16", "--d", "16,8", "--heads"];
    let folder = Folder::new();
    let printed = answer(&[&args[..], &["3", "--n", "8", "--threads", "1", "--json"]].concat());
    let results = read(&folder.file("printed.json", &printed)).unwrap();
    assert!(results.rows.iter().all(|row| (row.heads, row.kv_heads, row.kv_len) == (3, 3, 8)), "{printed}");
    let wanted = ["BF16", "F32"].into_iter().flat_map(|dtype| [8, 16].map(|d| (dtype, d)));
    let wanted =
        wanted.flat_map(|(dtype, d)| ["naive", "fa2-simd"].repeat(3).into_iter().map(move |who| (who, dtype, d)));
    let found = results.rows.iter().map(|row| (row.who.as_str(), row.dtype.as_str(), row.head_dim));
    assert!(found.eq(wanted), "{printed}");
}

#[test]
fn the_sizes_of_the_peers_on_the_fastest_rung() {
    let folder = Folder::new();
    let printed = answer(&["bench", "--peers", "--dtype", "bf16", "--n", "512,16384", "--threads", "2", "--json"]);
    let results = read(&folder.file("printed.json", &printed)).unwrap();
    let found =
        results.rows.iter().map(|row| (row.who.as_str(), row.mask.as_str(), row.head_dim, row.q_len, row.heads));
    let found: Vec<_> = found.collect();
    let whole = [("full", 64), ("causal", 64), ("full", 128), ("causal", 128)];
    assert_eq!(found[..4], whole.map(|(mask, d)| ("fa2-simd", mask, d, 512, 16)));
    assert_eq!(found[4..], [("fa2-simd", "full", 128, 1, 32)]);
    assert!(results.rows.iter().all(|row| row.dtype == "BF16"));
}

#[test]
fn speeds_are_held_against_the_ceilings_of_as_many_threads() {
    let folder = Folder::new();
    let here = answer(&["bench", "--rung", "fa2", "--n", "64", "--threads", "2,1", "--json"]);
    let here = read(&folder.file("here.json", &here)).unwrap();
    assert!(here.ceilings.iter().map(|ceiling| ceiling.threads).eq([Some(1), Some(2)]), "{here}");
    for row in &here.rows {
        let Ceiling { fma_gflops, read_gbps, .. } = here.ceilings[row.threads.unwrap() - 1];
        let wanted = row.gbps.map_or(1e3 * row.tflops.unwrap() / fma_gflops, |gbps| gbps / read_gbps.unwrap());
        assert_eq!(here.share(row), Some(wanted), "{row:?}");
    }

    let text = with_ceilings("8,", "2,").replacen("F32", "BF16", 1).replacen(
        "\"threads\": 1, \"ms\": 8",
        "\"threads\": 8, \"ms\": 8",
        1,
    );
    let path = folder.file("cpu.json", &text);
    let results = read(&path).unwrap();
    // 11.2 GFLOP/s of 150 in BF16 pairs, no ceiling of 8 threads, 8.4 GB/s of 10.
    let shares: Vec<_> = results.rows.iter().map(|row| results.share(row)).collect();
    assert_eq!(shares, [Some(1e3 * 0.0112 / 150.0), None, Some(8.4 / 10.0)]);
    let table = answer(&["compare", &path]);
    let percent = |line: &str| line.split('│').rev().nth(1).map(|cell| cell.trim().to_string());
    let column: Vec<_> = table.lines().filter_map(percent).collect();
    assert_eq!(column, ["% of", "ceiling", "7.47", "-", "84.0"], "{table}");
    let line = "ceilings: 1 thread: 100 GFLOP/s (150 in BF16 pairs), 10.0 GB/s; 2 threads: 300 GFLOP/s, 20.0 GB/s";
    assert!(table.contains(line), "{table}");
    let both = answer(&["compare", &folder.file("old.json", CPU), &path]);
    assert!(both.contains(&format!("B: {line}")) && !both.contains("A: ceilings"), "{both}");
    results.write(path.as_ref()).unwrap();
    assert_eq!(read(&path).unwrap(), results);
}

/// A rung that spoils one element of row `row` of every head.
struct Spoiled {
    rung: Box<dyn Attention>,
    row: usize,
}

impl Attention for Spoiled {
    fn name(&self) -> &'static str {
        "spoiled"
    }

    fn supports(&self, problem: &Problem) -> Result<(), AttentionError> {
        self.rung.supports(problem)
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        self.rung.forward_into(problem, out)?;
        let TensorViewMut::F32(o) = &mut out.o else { panic!("F32 alone") };
        o[[0, problem.heads() - 1, self.row, 3]] += 1e-3;
        Ok(())
    }
}

#[test]
fn a_rung_that_is_wrong_in_a_few_rows_is_caught() {
    let [whole, whole_causal, _] = bench::cases(100);
    // Of 16 heads of 1024 queries and keys the oracle computes windows alone, under either mask.
    let large = Case { heads: 16, kv_heads: 16, ..bench::cases(1024)[0] };
    for (case, caught, missed) in [
        (whole, &[0, 20, 50, 99][..], None),
        (whole_causal, &[0, 20, 50, 99], None),
        (large, &[0, 504, 519, 1023], Some(100)),
        (Case { mask: Mask::Causal, ..large }, &[15, 512, 1008], Some(600)),
    ] {
        let owned = case.build();
        let problem = owned.problem();
        let answers = Answers::of(&problem);
        let passes = |row: usize| {
            let rung = registry::rung(bench::FASTEST).unwrap().build(Settings::default());
            let spoiled: [Box<dyn Attention>; 1] = [Box::new(Spoiled { rung, row })];
            let Err(error) = Contest::check(std::slice::from_ref(&problem), &answers, &spoiled) else { return true };
            let place = format!("spoiled against the oracle: o[0, {}, {row}, 3]: ", case.heads - 1);
            assert!(error.to_string().starts_with(&place), "row {row} of {case}: {error}");
            false
        };
        assert!(!caught.iter().any(|&row| passes(row)), "{case}");
        // What is right everywhere else passes: the windows are really all that is looked at.
        assert!(missed.is_none_or(passes), "{case}");
    }
}

#[test]
fn a_wrong_rung_is_refused_before_it_is_timed() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    // The average of all values, whatever the scores.
    let average = |head: &Head| {
        RUNS.fetch_add(1, Relaxed);
        let v = head.v.load(0..head.k_len);
        let row = v.mean_axis(ndarray::Axis(0)).unwrap();
        let o = Array2::from_shape_fn((head.q_len, head.d_v()), |(_, c)| row[c]);
        (o, Array1::from_elem(head.q_len, (head.k_len as f32).ln()))
    };
    let [case, ..] = bench::cases(8);
    let owned = case.build();
    let problem = owned.problem();
    let answers = Answers::of(&problem);
    let mut rungs = bench::build(&bench::rungs(&[4]));
    let problems = vec![problem.clone(); rungs.len() + 1];
    assert!(Contest::check(&problems[1..], &answers, &rungs).is_ok());
    rungs.push(Box::new(Variant::new("average", average)) as Box<dyn Attention>);
    let Err(error) = Contest::check(&problems, &answers, &rungs) else { panic!("a wrong rung may be timed") };
    assert!(matches!(error, BenchError::Wrong { who: "average", .. }), "{error}");
    assert!(error.to_string().starts_with("average against the oracle: "), "{error}");
    assert_eq!(RUNS.load(Relaxed), case.heads, "one run, to be judged");
}

#[test]
fn a_rung_that_refuses_is_named() {
    let [case, ..] = bench::cases(8);
    let owned = bench::Case { dtype: attention::DType::F64, ..case }.build();
    let problem = owned.problem();
    let rungs = bench::build(&bench::rungs(&[4]));
    let problems = vec![problem.clone(); rungs.len()];
    let error = Contest::check(&problems, &Answers::of(&problem), &rungs).err().expect("fa1 takes no F64");
    assert!(matches!(error, BenchError::Rung { who: "fa1", .. }), "{error}");
}

#[test]
fn one_file_is_shown_with_the_rung_below() {
    let folder = Folder::new();
    let table = answer(&["compare", &folder.file("cpu.json", CPU)]);
    // fa2 took 8 ms where fa1 took 12; on the other shape there is no fa1.
    assert!(table.lines().any(|line| line.starts_with("fa2") && line.ends_with("1.50x")), "{table}");
    assert!(table.lines().any(|line| line.starts_with("fa2") && line.ends_with("8.40│      -│    -")), "{table}");
    for words in
        ["dtype F32, d 64, heads 4", "Some CPU, 8 threads, 32.0 GiB", "2026-03-01", "0123456789ab-dirty", "By hand."]
    {
        assert!(table.contains(words), "{words:?} in {table}");
    }
    let gpu = answer(&["compare", &folder.file("gpu.json", GPU)]);
    for words in ["a peer", "Some GPU, driver 570.1, 2026-03-02T00:00:00Z, commit unknown\nBy hand.", "0.25"] {
        assert!(gpu.contains(words), "{words:?} in {gpu}");
    }
}

#[test]
fn several_files_stand_side_by_side_on_the_same_shapes() {
    let folder = Folder::new();
    let twice_as_fast = CPU.replace("\"ms\": 12.0", "\"ms\": 6.0").replace("\"who\": \"fa2\", ", "\"who\": \"fa3\", ");
    let (first, second) = (folder.file("first.json", CPU), folder.file("second.json", &twice_as_fast));
    let (gpu, report) = (folder.file("gpu.json", GPU), folder.path("report.html"));
    let table = answer(&["compare", &first, &second, &gpu, "--report", &report]);
    let rows: Vec<&str> = table.lines().filter(|line| line.contains('│')).skip(2).collect();
    let starts: Vec<&str> = rows.iter().map(|line| line.split('│').next().unwrap().trim()).collect();
    assert_eq!(starts, ["fa1", "fa2", "fa3", "fa2", "fa3", "a peer"], "rows of one shape stand together: {table}");
    let cells = |row: usize| rows[row].split('│').rev().take(5).map(str::trim).collect::<Vec<_>>();
    // From the last column back: C's factor and ms, B's factor and ms, A's ms.
    assert_eq!(cells(0), ["-", "-", "2.00x", "6.00", "12.0"]);
    assert_eq!(cells(1), ["-", "-", "-", "-", "8.00"]);
    assert_eq!(cells(2), ["-", "-", "-", "8.00", "-"]);
    assert_eq!(cells(5), ["-", "0.25", "-", "-", "-"]);
    assert_eq!(table.matches("By hand").count(), 1, "one method is told once: {table}");
    for words in [format!("A: {first}: Some CPU"), format!("C: {gpu}: Some GPU")] {
        assert!(table.contains(&words), "{words:?} in {table}");
    }

    let page = fs::read_to_string(&report).unwrap();
    // A chart for each of two shapes in each of two files; the third has no speed but a time.
    assert_eq!(page.matches("<svg ").count(), 4, "{page}");
    for words in ["GFLOP/s: ", "GB/s: ", "fa1", "a peer", "currentColor", "2.00x", "second.json"] {
        assert!(page.contains(words), "{words}");
    }
    assert!(!page.contains("<script") && !page.contains("NaN") && !page.contains("inf"));
    let addresses = page.matches("http").count();
    assert_eq!(addresses, page.matches("http://www.w3.org/2000/svg").count(), "only the name of SVG is an address");
}

#[test]
fn files_that_hold_no_results_are_refused_in_one_line() {
    let folder = Folder::new();
    let good = folder.file("good.json", CPU);
    let changed = |from: &str, to: &str| {
        assert!(CPU.contains(from), "{from}");
        CPU.replacen(from, to, 1)
    };
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/conformance/manifest.json");
    let manifest = fs::read_to_string(manifest).unwrap();
    for (text, names) in [
        (String::new(), &["EOF"][..]),
        (CPU[..CPU.len() / 2].into(), &["EOF"]),
        ("\u{0}\u{1}".into(), &[]),
        ("[]".into(), &[]),
        ("{}".into(), &["machine"]),
        (manifest, &[]),
        (format!("{CPU}{CPU}"), &["trailing"]),
        (changed("\"method\"", "\"methods\""), &["methods"]),
        (changed("\"ms\": 12.0", "\"ms\": \"12\""), &["line 7"]),
        (changed("\"ms\": 12.0", "\"seconds\": 12.0"), &["seconds"]),
        (changed("\"ms\": 12.0", "\"ms\": 0"), &["row 1", "ms", "0", "1e-12"]),
        (changed("\"ms\": 12.0", "\"ms\": 1e300"), &["row 1", "ms", "1e12"]),
        (changed("\"who\": \"fa1\"", "\"who\": \"\\u001b[2J\""), &["row 1", "one line"]),
        (changed("\"ms\": 12.0", "\"ms\": 1e999"), &["line 7"]),
        (changed("\"gbps\": 8.4", "\"gbps\": -8.4"), &["row 3", "gbps", "-8.4"]),
        (changed("\"batch\": 16", "\"batch\": 0"), &["row 3", "at least 1"]),
        (changed("\"batch\": 16", "\"batch\": -1"), &["line 9"]),
        (changed("\"who\": \"fa1\"", "\"who\": \"fa2\""), &["row 2", "fa2", "row 1"]),
        (changed("2026-03-01T12:30:00Z", "yesterday"), &["date", "yesterday", "ISO 8601"]),
        (changed("By hand", " "), &["method"]),
        (changed("\"rows\"", "\"ceilings\": [{\"threads\": 1}], \"rows\""), &["fma_gflops"]),
        (with_ceilings("1", "0"), &["ceilings", "found 0 threads"]),
        (with_ceilings("8", "1"), &["ceilings", "found 1 threads", "once"]),
        (with_ceilings("20.0", "-20"), &["ceilings", "read_gbps", "-20"]),
        (with_ceilings("150.0", "0"), &["ceilings", "bf16_gflops", "0"]),
        (changed("\"cpu\": \"Some CPU\", ", ""), &["machine", "cpu", "gpu"]),
        (changed("\"cpu\": ", "\"CPU\": "), &["CPU"]),
        (format!("{}\"rows\": []}}", CPU.split("\"rows\"").next().unwrap()), &["rows"]),
    ] {
        let bad = folder.file("bad.json", &text);
        refused(&["compare", &bad], &[names, &[bad.as_str()]].concat());
        refused(&["compare", &good, &bad, "--report", &folder.path("report.html")], &[&bad]);
        // Nor does a bench write over it.
        refused(&["bench", "--n", "8", "--output", &bad], &[&bad, "no results file"]);
        assert_eq!(fs::read_to_string(&bad).unwrap(), text);
    }
    refused(&["compare", &folder.path("missing.json")], &["missing.json"]);
    refused(&["compare", &folder.path("")], &[folder.path("").trim_end_matches('/')]);
    assert_eq!(names(&folder), ["bad.json", "good.json"], "no report is written of what cannot be read");
}

#[test]
fn results_replace_earlier_results_and_nothing_else() {
    let folder = Folder::new();
    let path = folder.file("earlier.json", CPU);
    answer(&["bench", "--chapter", "1", "--n", "8", "--threads", "1", "--output", &path]);
    assert_eq!(read(&path).unwrap().rows.len(), 3);
    for nowhere in [folder.path("no/such/folder/out.json"), folder.path("")] {
        refused(&["bench", "--n", "8", "--output", &nowhere], &[nowhere.trim_end_matches('/')]);
        refused(&["compare", &path, "--report", &nowhere], &[nowhere.trim_end_matches('/')]);
    }
    refused(&["compare", &path, "--report", &path], &["--report", &path]);
    assert_eq!(read(&path).unwrap().rows.len(), 3);
    assert_eq!(names(&folder), ["earlier.json"]);
}

#[test]
fn bad_flags_are_refused_in_one_line() {
    for (args, names) in [
        (&["bench", "--chapter", "9"][..], &["--chapter", "9", "1, 2, 3, 4"][..]),
        (&["bench", "--chapter", "fa2"], &["--chapter", "fa2"]),
        (&["bench", "--n", "0"], &["--n", "0", "at least 1"]),
        (&["bench", "--n", "64,x"], &["--n", "x"]),
        (&["bench", "--n", ""], &["--n"]),
        (&["bench", "--n", "10000000"], &["available"]),
        (&["bench", "--n", "18446744073709551615"], &["available"]),
        (&["bench", "--d", "0"], &["--d", "at least 1"]),
        (&["bench", "--d", "10000000000"], &["available"]),
        (&["bench", "--heads", "0"], &["--heads", "at least 1"]),
        (&["bench", "--dtype", "f64"], &["--dtype", "f64", "f32, bf16 or f16"]),
        (&["bench", "--dtype", "f32,"], &["--dtype", "f32, bf16 or f16"]),
        (&["bench", "--rung", "fa9"], &["--rung", "fa9", "fa2-simd"]),
        (&["bench", "--rung", "oracle"], &["--rung", "oracle"]),
        (&["bench", "--rung", "fa2", "--chapter", "4"], &["--rung", "--chapter"]),
        (&["bench", "--rung", "fa2", "--n", "100000000000"], &["error: the tensors need", "available"]),
        (&["bench", "--peers", "--heads", "16"], &["--peers", "--heads"]),
        (&["bench", "--peers", "--n", "512,100"], &["--n", "100", "--peers"]),
        (&["bench", "--peers", "--n", "16384", "--d", "64"], &["--n", "16384", "--peers"]),
        (&["bench", "--peers", "--n", "16384", "--d", "64,128"], &["--d", "64", "--peers"]),
        (&["bench", "--peers", "--dtype", "f16"], &["--dtype", "F16", "--peers"]),
        (&["bench", "--threads", "0"], &["--threads", "1 to 1024"]),
        (&["bench", "--threads", "1,4096"], &["--threads", "4096"]),
        (&["bench", "--output", ""], &["--output"]),
        (&["bench", "here"], &["here"]),
        (&["compare"], &["<FILE>"]),
        (&["compare", "--json"], &["--json"]),
    ] {
        refused(args, names);
    }
    for verb in ["bench", "compare"] {
        assert!(answer(&[verb, "--help"]).contains("FILE"), "{verb}");
    }
}
