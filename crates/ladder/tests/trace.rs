//! The timeline of a block on the command line, from a simulated GPU. Tests that compile a kernel with its marks are ignored where
//! there is no NVRTC.

mod common;

use common::{Folder, answer, refused};
use kernelkit::{named, run_or_ignore};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::ExitCode;

fn main() -> ExitCode {
    let with_nvrtc = named![
        every_tile_has_its_products_softmax_and_copies,
        every_step_that_keeps_marks_is_told,
        files_are_of_their_formats_and_tell_of_the_same_products,
        a_step_without_a_producer_keeps_no_marks,
    ];
    run_or_ignore(with_nvrtc, named![what_cannot_be_traced_is_refused])
}

fn json(args: &[&str]) -> Value {
    let args = [&["trace", "fa3", "--device", "sim", "--json"], args].concat();
    serde_json::from_str(&answer(&args)).expect("one JSON object")
}

/// How often a lane did that.
fn count(lane: &Value, what: &str) -> u64 {
    let shares = lane["shares"].as_array().unwrap();
    let share = shares.iter().find(|share| share["what"] == what).unwrap_or_else(|| panic!("{what} in {lane}"));
    share["count"].as_u64().unwrap()
}

/// Counts of each lane for so many tiles of rows, and tiles of keys of all of them.
fn check(told: &Value, warpgroups: usize, rows: u64, keys: u64, turns: bool) {
    let lanes = told["warpgroups"].as_array().unwrap();
    assert_eq!(lanes.len(), warpgroups, "{told}");
    for lane in lanes {
        let counted = |what| count(lane, what);
        for what in ["start S", "wait for S", "softmax", "wait for V", "start O", "wait for O", "round P, rescale O"] {
            assert_eq!(counted(what), keys, "{what}: {lane}");
        }
        assert_eq!(counted("wait for its turn"), if turns { keys } else { 0 }, "{lane}");
        assert_eq!(
            (counted("epilogue"), counted("row tile known to its first S"), &lane["lost"]),
            (rows, rows, &0.into())
        );
    }
    let copies = &told["copies"];
    let counts = ["wait to copy Q", "wait to copy K", "wait to copy V"].map(|what| count(copies, what));
    assert_eq!(counts, [rows, keys, keys], "{copies}");
    let [block, one, two] =
        ["block", "products_of_one_or_more", "products_of_two_or_more"].map(|name| told[name].as_u64().unwrap());
    assert!(0 < one && one < block && two <= one, "{told}");
    assert_eq!((&told["unit"], &told["clocks_per_us"], &told["ms"]), (&"steps".into(), &Value::Null, &Value::Null));
}

fn every_tile_has_its_products_softmax_and_copies() {
    // Tiles of 128 rows and 128 keys.
    check(&json(&["--n", "256"]), 2, 2, 4, true);
    // Under a causal mask the first tile of rows has one of keys.
    check(&json(&["--n", "256", "--mask", "causal", "--seed", "0"]), 2, 2, 3, true);
    // Tiles of 192 rows.
    check(&json(&["--n", "256", "--d", "64", "--dtype", "bf16", "--seed", "5"]), 3, 2, 4, true);
    // Tiles of 64 keys, and nobody takes turns.
    check(&json(&["--n", "128", "--d", "256", "--heads", "2"]), 2, 2, 4, false);
}

fn every_step_that_keeps_marks_is_told() {
    for step in 2..=5 {
        let told = json(&["--n", "256", "--heads", "2", "--step", &step.to_string()]);
        // A block takes one tile of rows.
        check(&told, 2, 1, 2, step == 5);
        assert!(told["title"].as_str().unwrap().contains(&format!("step {step} ")), "{told}");
    }
}

fn files_are_of_their_formats_and_tell_of_the_same_products() {
    let folder = Folder::new();
    let (svg, perfetto) = (folder.file("a.svg", "an older picture"), folder.path("a.json"));
    let told = answer(&["trace", "fa3", "--device", "sim", "--svg", &svg, "--perfetto", &perfetto]);
    for words in ["fa3 on simulated GPU, block 0", "wait for its turn", "an order, and no time"] {
        assert!(told.contains(words), "{words} in {told}");
    }
    let events: Value = serde_json::from_str(&std::fs::read_to_string(perfetto).unwrap()).unwrap();
    let events = events["traceEvents"].as_array().unwrap();
    let mut lanes: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let number = |name: &str| event[name].as_f64().unwrap();
        lanes.entry(number("tid") as u64).or_default().push((number("ts"), number("ts") + number("dur")));
    }
    // Two warpgroups with S and O each, and who copies.
    assert_eq!(lanes.len(), 3 * 2 + 1);
    for lane in lanes.values() {
        assert!(lane.windows(2).all(|two| two[0].0 <= two[0].1 && two[0].1 <= two[1].0), "{lane:?}");
    }
    let named = events.iter().filter(|event| event["ph"] == "M" && event["name"] == "thread_name").count();
    assert_eq!(named, lanes.len());
    let svg = std::fs::read_to_string(svg).unwrap();
    nests(&svg);
    for letter in ["S", "O"] {
        let count = events.iter().filter(|event| event["name"] == letter).count();
        let class = if letter == "S" { "fill-b" } else { "fill-c" };
        // One more is in the key.
        assert_eq!(svg.matches(&format!("class=\"{class}\"")).count(), count + 1, "{letter}");
        assert_eq!(count, 2 * 4);
    }
}

/// Every element that begins ends, within the one in which it began.
fn nests(svg: &str) {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').unwrap_or_else(|| panic!("{tag} has no end"));
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name)),
            (false, false) => open.push(name),
            _ => {}
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        assert!(!text.contains('>'), "{text}");
    }
    assert!(open.is_empty() && svg.starts_with("<svg ") && svg.contains("viewBox="), "{open:?}");
}

fn a_step_without_a_producer_keeps_no_marks() {
    let words = ["kernel of 06_fa3.cu: found one without marks", "from step 2 on"];
    refused(&["trace", "fa3", "--device", "sim", "--step", "1"], &words);
}

fn what_cannot_be_traced_is_refused() {
    let trace = |args: &[&str], names: &[&str]| refused(&[&["trace"], args].concat(), names);
    trace(&["fa3"], &["fa3 runs on a device", "--device cuda", "--device sim"]);
    trace(&["cuda-fa2", "--device", "sim"], &["cuda-fa2", "fa3"]);
    let sim = |args: &[&str], names: &[&str]| trace(&[&["fa3", "--device", "sim"], args].concat(), names);
    sim(&["--block", "1"], &["--block: found 1, wanted less than 1"]);
    sim(&["--step", "7"], &["--step: found 7, but fa3 has 1 to 6"]);
    sim(&["--dtype", "f32"], &["fa3 does not support F32 tensors"]);
    sim(&["--d", "257"], &["more than 256 channels"]);
    sim(&["--n", "100000000"], &["memory", "choose a smaller shape"]);
    sim(&["--tiles", "0"], &["--tiles", "at least 1"]);
    sim(&["--svg", "/not/there/a.svg"], &["/not/there/a.svg"]);
    sim(&["--perfetto", "/not/there/a.json"], &["/not/there/a.json"]);
}
