//! `ladder serve-sim` as a user meets it.

mod common;

use common::{Folder, answer, refused};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::Path;

fn run(args: &[&str]) -> Value {
    serde_json::from_str(&answer(&[&["serve-sim", "--json"], args].concat())).expect("one JSON object")
}

fn policy<'a>(answer: &'a Value, name: &str) -> &'a Value {
    answer["policies"].as_array().unwrap().iter().find(|policy| policy["policy"] == name).unwrap()
}

/// The first lines of the embedded trace, as a file.
fn first_ten(folder: &Folder) -> String {
    let embedded = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/serve/trace.jsonl");
    let lines = fs::read_to_string(embedded).unwrap();
    folder.file("trace.jsonl", lines.lines().take(10).collect::<Vec<_>>().join("\n"))
}

const POLICIES: [&str; 3] = ["contiguous", "paged", "paged, shared"];

#[test]
fn the_embedded_trace_shows_what_pages_and_sharing_bring() {
    let answer = run(&[]);
    assert_eq!(answer["equal"], true);
    assert!(answer["compared"].as_u64().unwrap() > 10_000);
    let number = |name: &str| POLICIES.map(|wanted| policy(&answer, wanted)[name].as_f64().unwrap());
    for (name, factor) in [("running_peak", 1.5), ("running_mean", 1.2)] {
        let [contiguous, paged, shared] = number(name);
        assert!(paged > factor * contiguous && shared > factor * paged, "{name}: {answer}");
    }
    let ([contiguous, paged, shared], preemptions) = (number("waste"), number("preemptions"));
    assert!(contiguous > 0.2 && paged < 0.05 && shared < 0.1, "{answer}");
    assert!(preemptions[0] == 0.0 && preemptions[1] >= 1.0 && preemptions[2] >= 1.0, "{answer}");
    assert!(number("hit_rate")[2] > 0.5 && number("sharing")[2] > 1.5 && number("sharing")[1] == 1.0, "{answer}");
    // A token that generates the last one is computed, the last one is not.
    let computed = number("decode");
    assert_eq!(computed, [computed[0]; 3]);
    for name in POLICIES {
        assert!(policy(&answer, name)["held_peak_bytes"].as_u64() <= answer["memory_bytes"].as_u64(), "{answer}");
        assert_eq!(policy(&answer, name)["refused"], json!([]));
        assert_eq!(policy(&answer, name)["answers"], policy(&answer, "contiguous")["answers"]);
    }
}

/// A trace worked out by hand, in 5 blocks of 4 slots (4 for the paged policies, without the null block), 8 tokens a step:
/// a of 6 + 4 tokens (reserved: 12), b of 5 + 4 of which the first 4 are a's (9), c of 3 + 1 (4), d that no memory of 20 has.
///
/// Tokens computed in each step, in brackets the slots held and filled at its end:
///
/// | step | contiguous | paged | paged, shared |
/// |---|---|---|---|
/// | 0 | a 6 [12, 6] | a 6, b 2 [12, 8] | a 6, b finds 4 and computes 1 [12, 7] |
/// | 1 | a 1 [12, 7] | a 1, b 3, no block for c [16, 12] | a 1, b 1, c 3, leaves [16, 12] |
/// | 2 | a 1 [12, 8] | a 1, b 1 [16, 14] | a 1, b 1 [12, 11] |
/// | 3 | a 1, leaves [12, 9] | a 1 takes b's place, leaves [12, 9] | a 1, b 1, both leave [16, 13] |
/// | 4 | b 5, c 3, leaves [13, 8] | b 7, of which 6 again, c 1 [12, 8] | |
/// | 5 | b 1 [9, 6] | b 1, c 2, both leave [12, 11] | |
/// | 6 | b 1 [9, 7] | | |
/// | 7 | b 1, leaves [9, 8] | | |
#[test]
fn a_trace_worked_by_hand() {
    let folder = Folder::new();
    let trace = r#"{"id":"a","arrival":0,"prompt":[1,2,3,4,5,6],"generate":4,"at_most":6}
{"id":"b","arrival":0,"prompt":[1,2,3,4,9],"generate":4}
{"id":"c","arrival":1,"prompt":[7,7,7],"generate":1}
{"id":"d","arrival":1,"own":20,"generate":1}
"#;
    let trace = folder.file("trace.jsonl", trace);
    let args = [trace.as_str(), "--blocks", "5", "--page", "4", "--budget", "8"];
    let answer = run(&args);
    assert_eq!((&answer["memory_bytes"], &answer["requests"]), (&json!(5 * 4 * 256), &json!(4)));
    // a, b and c have 9, 8 and 3 rows; shared lacks the 4 that b found.
    assert_eq!((&answer["equal"], &answer["compared"]), (&json!(true), &json!(20 + 16)));
    let wanted = [
        json!({"steps": 8, "computed": 20, "prefill": 14, "decode": 6, "recomputed": 0, "preemptions": 0, "running_peak": 2,
               "held_peak_bytes": 13 * 256, "filled_peak_bytes": 9 * 256}),
        json!({"steps": 6, "computed": 26, "prefill": 14, "decode": 6, "recomputed": 6, "preemptions": 1, "running_peak": 2,
               "held_peak_bytes": 16 * 256, "filled_peak_bytes": 14 * 256}),
        json!({"steps": 4, "computed": 16, "prefill": 10, "decode": 6, "recomputed": 0, "preemptions": 0, "running_peak": 3,
               "held_peak_bytes": 16 * 256, "filled_peak_bytes": 13 * 256}),
    ];
    let means = [
        [("running_mean", 9.0 / 8.0), ("waste", 29.0 / 88.0), ("sharing", 1.0), ("hit_rate", 0.0)],
        [("running_mean", 11.0 / 6.0), ("waste", 18.0 / 80.0), ("sharing", 1.0), ("hit_rate", 0.0)],
        [("running_mean", 9.0 / 4.0), ("waste", 13.0 / 56.0), ("sharing", 72.0 / 56.0), ("hit_rate", 4.0 / 14.0)],
    ];
    for ((name, wanted), means) in POLICIES.into_iter().zip(wanted).zip(means) {
        let found = policy(&answer, name);
        for (what, wanted) in wanted.as_object().unwrap() {
            assert_eq!(&found[what], wanted, "{what} of {name}");
        }
        for (what, wanted) in means {
            assert!((found[what].as_f64().unwrap() - wanted).abs() < 1e-12, "{what} of {name}: {found}");
        }
        assert_eq!(found["refused"], json!(["d"]));
    }
    let table = common::answer(&[&["serve-sim"], &args[..]].concat());
    for row in [
        "contiguous│8│14│6│0│2│1.1│3.25KiB│2.25KiB│33.0%│1.00│0.0%│0│1",
        "paged│6│14│6│6│2│1.8│4.00KiB│3.50KiB│22.5%│1.00│0.0%│1│1",
        "paged,shared│4│10│6│0│3│2.2│4.00KiB│3.25KiB│23.2%│1.29│28.6%│0│1",
        "refusedbypaged,withthetokenstheymayreach:\"d\"(21).",
    ] {
        assert!(table.replace(' ', "").lines().any(|line| line == row), "wanted {row} in\n{table}");
    }
}

#[test]
fn answers_do_not_depend_on_chunks_pages_or_memory() {
    let folder = Folder::new();
    let trace = first_ten(&folder);
    let answers = |args: &[&str]| {
        let answer = run(&[&[trace.as_str()], args].concat());
        assert_eq!(answer["equal"], true, "{args:?}");
        POLICIES.map(|name| policy(&answer, name)["answers"].clone())
    };
    let calm = answers(&["--blocks", "10000", "--budget", "18446744073709551615"]);
    assert_eq!(calm[1..], calm[..2]);
    for args in [
        &["--budget", "1"][..],
        &["--budget", "33"],
        &["--page", "1", "--blocks", "500"],
        &["--page", "7", "--blocks", "72", "--budget", "50"],
        &["--page", "400", "--blocks", "3"],
    ] {
        assert_eq!(answers(args), calm, "{args:?}");
    }
}

#[test]
fn a_report_is_one_page_without_network() {
    let folder = Folder::new();
    let (path, trace) = (folder.path("report.html"), first_ten(&folder));
    answer(&["serve-sim", &trace, "--report", &path]);
    let page = fs::read_to_string(path).unwrap();
    assert_eq!(page.matches("<svg ").count(), 2);
    for word in POLICIES.into_iter().chain(["currentColor", "Requests at once", "equal bit for bit", ">step"]) {
        assert!(page.contains(word), "{word}");
    }
    assert_eq!(page.matches("http").count(), page.matches("http://www.w3.org/2000/svg").count());
    assert!(!page.contains("<script") && !page.contains("NaN") && !page.contains("inf"));
    // Nothing could be served: nothing to draw, nothing to divide by.
    let path = folder.path("refused.html");
    let table = answer(&["serve-sim", &trace, "--blocks", "2", "--page", "1", "--report", &path]);
    assert!(table.contains("0 comparisons") && fs::read_to_string(path).unwrap().matches("<svg ").count() == 0);
}

#[test]
fn hostile_traces_and_flags_are_refused_in_one_line() {
    let folder = Folder::new();
    let line = r#"{"id":"a","arrival":0,"own":3,"generate":2}"#;
    let file = |name: &str, text: &str| folder.file(name, text);
    // A line of 1 GiB, which takes no space on the disk.
    let long = folder.path("long.jsonl");
    File::create(&long).unwrap().set_len(1 << 30).unwrap();
    for (trace, names) in [
        (folder.path("missing.jsonl"), &["missing.jsonl"][..]),
        (folder.path(""), &["no regular file"]),
        (file("empty.jsonl", ""), &["empty.jsonl", "found no line"]),
        (file("blank.jsonl", &format!("{line}\n\n")), &["blank.jsonl", "line 2"]),
        (long, &["long.jsonl", "line 1", "131072"]),
        (file("twice.jsonl", &format!("{line}\n{line}\n")), &["line 2", "\"a\"", "line 1"]),
        (file("huge.jsonl", &line.replace('3', "1000000000000000000")), &["line 1", "1000000000000000000", "2047"]),
        (file("float.jsonl", &line.replace('3', "1e18")), &["line 1", "floating point"]),
        (file("negative.jsonl", &line.replace('3', "-3")), &["line 1", "-3"]),
        (file("none.jsonl", &line.replace('3', "0")), &["line 1", "tokens of the prompt", "0"]),
        (file("silent.jsonl", &line.replace('2', "0")), &["line 1", "generate", "0"]),
        (file("unknown.jsonl", &line.replace("own", "owned")), &["line 1", "owned"]),
    ] {
        refused(&["serve-sim", &trace], names);
    }
    let good = file("good.jsonl", line);
    answer(&["serve-sim", &good]);
    for (args, names) in [
        (&["--blocks", "1"][..], &["--blocks", "at least 2"][..]),
        (&["--page", "0"], &["--page", "at least 1"]),
        (&["--budget", "0"], &["--budget", "at least 1"]),
        (&["--budget", "-1"], &["-1"]),
        (&["--blocks", "100000"], &["--blocks", "100000", "262144"]),
        (&["--blocks", "18446744073709551615", "--page", "18446744073709551615"], &["262144"]),
        (&["--report", &good], &["--report", "good.jsonl"]),
        (&["--report", "no/such/folder/page.html"], &["no/such/folder"]),
    ] {
        refused(&[&["serve-sim", good.as_str()], args].concat(), names);
    }
    assert_eq!(fs::read_to_string(good).unwrap(), line, "the trace is as it was");
}
