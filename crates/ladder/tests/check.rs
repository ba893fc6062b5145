//! `ladder check` as a learner meets it: with nothing written, and with right, wrong, panicking, looping, ending and
//! non-compiling solutions, in a copy of the repository.
//!
//! A right solution is the learner's own file with the reference's function bodies in the place of each `todo!()`. The
//! copy compiles into this workspace's target folder, so that dependencies are compiled once.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const CHAPTERS: [(&str, &str); 8] = [
    ("01-naive", "naive"),
    ("02-online-softmax", "online-softmax"),
    ("03-fa1", "fa1"),
    ("04-fa2", "fa2"),
    (KERNEL, "cuda-fa2"),
    (BARRIERS, "fa3"),
    ("07-paged", "paged"),
    ("08-mla", "mla"),
];

/// The chapters whose exercise is a kernel in CUDA: their checks need NVRTC.
const KERNEL: &str = "05-cuda-fa2";
const BARRIERS: &str = "06-fa3";

fn is_kernel(chapter: &str) -> bool {
    [KERNEL, BARRIERS].contains(&chapter)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A copy of what a chapter is compiled from. Its path is always the same, so that a second run compiles little.
struct Repository(PathBuf);

impl Repository {
    fn new() -> Self {
        let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("check-repository");
        let _ = fs::remove_dir_all(&copy);
        fs::create_dir_all(&copy).unwrap();
        fs::copy(root().join("Cargo.lock"), copy.join("Cargo.lock")).unwrap();
        // cargo names what it builds by package, version and place in the workspace, and takes the newest for fresh. With
        // another version the copy's solved chapters never pass for the learner's own, in the target folder that they share.
        let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
        let version = concat!("version = \"", env!("CARGO_PKG_VERSION"), "\"");
        let another = concat!("version = \"", env!("CARGO_PKG_VERSION"), "-copy\"");
        fs::write(copy.join("Cargo.toml"), with(&manifest, version, another)).unwrap();
        for folder in ["crates", "chapters", "kernels", "tests"] {
            copy_folder(&root().join(folder), &copy.join(folder));
        }
        Repository(copy)
    }

    fn source(&self, chapter: &str) -> PathBuf {
        self.0.join("chapters").join(chapter).join(if is_kernel(chapter) { "src/mine.cu" } else { "src/lib.rs" })
    }

    fn write(&self, chapter: &str, text: &str) {
        // cargo tells a change by its time; two in the same instant of a coarse clock would look like one.
        std::thread::sleep(Duration::from_millis(20));
        fs::write(self.source(chapter), text).unwrap();
    }

    fn ladder(&self, args: &[&str]) -> Output {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        Command::new(env!("CARGO_BIN_EXE_ladder"))
            .arg("check")
            .args(args)
            .current_dir(self.0.join("chapters"))
            .env("CARGO_TARGET_DIR", target)
            .env("PROPTEST_CASES", "32")
            .env("PID_FILE", self.0.join("pid"))
            .output()
            .unwrap()
    }

    /// What it says, after the exit code has been checked.
    fn says(&self, args: &[&str], code: i32) -> String {
        let output = self.ladder(args);
        let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stdout}{stderr}");
        stdout
    }

    /// One chapter as JSON.
    fn chapter(&self, number: &str, timeout: &str, code: i32) -> Value {
        let answer = self.says(&[number, "--json", "--timeout", timeout], code);
        serde_json::from_str::<Value>(&answer).unwrap()["chapters"][0].take()
    }

    /// Every file of the chapters with its text.
    fn chapters(&self) -> BTreeMap<PathBuf, String> {
        let mut files = BTreeMap::new();
        let mut folders = vec![self.0.join("chapters")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false => drop(files.insert(entry.path(), fs::read_to_string(entry.path()).unwrap_or_default())),
                }
            }
        }
        files
    }
}

/// Copies sources; data, built and hidden files stay behind.
fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        let skipped =
            ["target", "data"].iter().any(|skipped| name == *skipped) || name.to_string_lossy().starts_with('.');
        match entry.file_type().unwrap().is_dir() {
            _ if skipped => {}
            true => copy_folder(&entry.path(), &to.join(&name)),
            false => drop(fs::copy(entry.path(), to.join(&name)).unwrap()),
        }
    }
}

/// The range between the braces of the function body that opens first after `from`.
fn body(text: &str, from: usize) -> std::ops::Range<usize> {
    let open = from + text[from..].find("{\n").expect("a body");
    let mut depth = 0;
    for (at, byte) in text[open..].bytes().enumerate() {
        depth += i32::from(byte == b'{') - i32::from(byte == b'}');
        if depth == 0 {
            return open + 1..open + at;
        }
    }
    panic!("a body that never closes");
}

/// The learner's file of a chapter with the reference's bodies.
fn solved(chapter: &str, rung: &str) -> String {
    if is_kernel(chapter) {
        return fs::read_to_string(root().join("chapters").join(chapter).join("tests/reference.cu")).unwrap();
    }
    let mut text = fs::read_to_string(root().join("chapters").join(chapter).join("src/lib.rs")).unwrap();
    let sources = fs::read_dir(root().join("crates").join(rung).join("src")).unwrap().map(|file| file.unwrap().path());
    let reference: String =
        sources.filter(|path| path.is_file()).map(|path| fs::read_to_string(path).unwrap()).collect();
    let mut filled = 0;
    while let Some(todo) = text.find("todo!(\"step") {
        let function = text[..todo].rfind("pub fn ").expect("a todo stands in a public function");
        let end = function + text[function..].find(['(', '<']).unwrap();
        let name = &text[function..end];
        let there = [format!("{name}("), format!("{name}<")].iter().find_map(|start| reference.find(start));
        let there = there.unwrap_or_else(|| panic!("the reference of {chapter} has no {name}"));
        let filling = reference[body(&reference, there)].to_string();
        let hole = body(&text, function);
        text.replace_range(hole, &filling);
        filled += 1;
    }
    assert!((3..=6).contains(&filled), "{filled} functions of {chapter} are the learner's");
    text
}

/// `text` with the only `old` in it replaced.
fn with(text: &str, old: &str, new: &str) -> String {
    assert_eq!(text.matches(old).count(), 1, "{old}");
    text.replace(old, new)
}

/// `text` with a statement in front of a function's body.
fn begun(text: &str, function: &str, statement: &str) -> String {
    let at = body(text, text.find(function).unwrap_or_else(|| panic!("no {function}"))).start;
    format!("{}\n    {statement}{}", &text[..at], &text[at..])
}

fn states(chapter: &Value) -> Vec<&str> {
    chapter["steps"].as_array().unwrap().iter().map(|step| step["state"].as_str().unwrap()).collect()
}

/// The first test of a step that does not pass.
fn failing(chapter: &Value, step: usize) -> &Value {
    let tests = chapter["steps"][step - 1]["tests"].as_array().unwrap();
    tests.iter().find(|test| test["state"] != "passed").unwrap()
}

#[test]
#[ignore = "compiles every chapter several times, which takes minutes: run with --include-ignored"]
fn a_learners_way_from_nothing_to_solved_and_every_way_to_stumble() {
    let repository = Repository::new();
    nothing_is_written_yet(&repository);
    right_solutions_pass(&repository);
    wrong_solutions_are_told_apart(&repository);
    panics_ends_and_loops_are_told_apart(&repository);
    what_happens_elsewhere_is_told(&repository);
    what_does_not_compile_is_shown(&repository);
    kernels_are_told_apart(&repository);
    cargo_starts_the_ladder_though_a_chapter_does_not_compile(&repository);
}

fn nothing_is_written_yet(repository: &Repository) {
    let before = repository.chapters();
    let overview = repository.says(&[], 1);
    for (chapter, rung) in CHAPTERS {
        let number: u32 = chapter[..2].parse().unwrap();
        let line = overview.lines().find(|line| line.starts_with(&format!("chapter {number}"))).unwrap();
        assert!(line.contains(rung) && line.contains("0 of") && line.contains("next: step 1"), "{line}");
    }
    let three = repository.says(&["3"], 1);
    for part in ["0 of 6 steps done", "step 1  Blocks::fit", "still to write", "chapters/03-fa1/src/lib.rs:", "--hint"]
    {
        assert!(three.contains(part), "{part} in {three}");
    }
    assert!(three.contains("waits for the steps above"), "{three}");
    let hints: Vec<String> =
        (1..=3).map(|level| repository.says(&[&["3"][..], &vec!["--hint"; level]].concat(), 1)).collect();
    assert!(hints[0].contains("a quarter each") && hints[0].contains("--hint --hint"), "{}", hints[0]);
    assert!(hints[2].contains("crates/fa1/src/blocks.rs") && !hints[2].contains("More"), "{}", hints[2]);
    assert_eq!(repository.chapters(), before, "nothing is written into the chapters");
}

fn right_solutions_pass(repository: &Repository) {
    for (chapter, rung) in CHAPTERS {
        repository.write(chapter, &solved(chapter, rung));
    }
    let overview = repository.says(&["--timeout", "600"], 0);
    assert!(overview.contains("Every chapter passes."), "{overview}");
    let three = repository.says(&["3", "--timeout", "600"], 0);
    assert!(three.contains("6 of 6 steps done") && three.contains("All of chapter 3 passes."), "{three}");
}

fn wrong_solutions_are_told_apart(repository: &Repository) {
    let right = solved("03-fa1", "fa1");
    // A slip in one step: o is not multiplied back by l.
    repository.write("03-fa1", &with(&right, "l[r] * old / l_new * o", "old / l_new * o"));
    let three = repository.says(&["3"], 1);
    for part in ["3 of 3 tests  done", "Step 2, update: not right yet", "o, before P V is added, is"] {
        assert!(three.contains(part), "{part} in {three}");
    }
    assert!(repository.says(&["3", "--hint"], 1).contains("multiplies it back by l"));

    // Another rung's answer passes for a result and not for the traffic.
    let below =
        "return Attention::forward_into(&online_softmax::OnlineSoftmax::with_meter(&self.meter), problem, out);";
    repository.write("03-fa1", &begun(&right, "fn forward_into", below));
    let three = repository.chapter("3", "600", 1);
    assert_eq!(states(&three), ["passed", "passed", "passed", "passed", "passed", "wrong"]);
    assert!(three["steps"][5]["tests"].to_string().contains("the listing moves"));

    // Right on anything small alone: the steps cannot tell, the rung's own checks can.
    let small = "if head.q_len > 9 { return Running::new(head.q_len, head.d_v()); }";
    repository.write("03-fa1", &begun(&right, "pub fn head(", small));
    assert_eq!(states(&repository.chapter("3", "600", 1)), ["passed", "passed", "passed", "passed", "passed", "wrong"]);
}

fn panics_ends_and_loops_are_told_apart(repository: &Repository) {
    let mut text = solved("03-fa1", "fa1");
    for (function, statement) in [
        ("pub fn update(", "let none: Vec<f32> = Vec::new(); m[0] = none[s.nrows()];"),
        ("pub fn head(", "std::process::exit(0);"),
        ("pub fn finish(", "fn deeper(n: usize) -> usize { std::hint::black_box(deeper(n + 1)) + 1 } l_is(deeper(0));"),
        (
            "pub fn traffic(",
            "if let Ok(child) = std::process::Command::new(\"sleep\").arg(\"600\").spawn() \
             { std::fs::write(std::env::var(\"PID_FILE\").unwrap(), child.id().to_string()).unwrap(); } \
             loop { std::hint::spin_loop(); }",
        ),
    ] {
        text = begun(&text, function, statement);
    }
    text.push_str("\nfn l_is(_: usize) {}\n");
    repository.write("03-fa1", &text);
    let began = Instant::now();
    let three = repository.chapter("3", "120", 1);
    assert!(began.elapsed() < Duration::from_secs(300), "stopped after {:?}", began.elapsed());
    // The rung's own tests are heard too, though a step before comes to no end.
    assert_eq!(states(&three), ["passed", "panicked", "ended", "ended", "stopped", "ended"], "{three}");
    assert_eq!(three["steps"][4]["tests"][1]["state"], "not run", "{three}");
    let said = |step: usize, part: &str| {
        let test = failing(&three, step);
        assert!(test["said"].as_str().unwrap().contains(part), "{part} in {test}");
    };
    said(2, "index out of bounds");
    said(3, "exit");
    said(4, "stack overflowed");
    said(5, "still running after 15 s");
    assert!(failing(&three, 2)["at"].as_str().unwrap().starts_with("chapters/03-fa1/src/lib.rs:"));
    #[cfg(target_os = "linux")]
    {
        let pid = fs::read_to_string(repository.0.join("pid")).unwrap();
        // One that has ended and waits to be collected has no command line.
        let alive = || fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
        let patience = Instant::now() + Duration::from_secs(10);
        while alive() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(!alive(), "the child of the looping test is still running");
    }
}

/// A panic in a library, a vector that grows without end, and all of S at once.
fn what_happens_elsewhere_is_told(repository: &Repository) {
    let right = solved("03-fa1", "fa1");
    let product =
        "let (one, two) = (Array2::<f32>::zeros((2, 1)), Array2::<f32>::zeros((2, 1))); m[0] += one.dot(&two)[[0, 0]];";
    let mut text = begun(&right, "pub fn update(", product);
    if cfg!(target_os = "linux") {
        let fill = "let mut all: Vec<Vec<u8>> = Vec::new(); loop { all.push(vec![0u8; 1 << 30]); if all.len() == 0 { break; } }";
        text = begun(&text, "pub fn finish(", fill);
    }
    let line = 1 + text.lines().position(|line| line.contains(product)).unwrap();
    repository.write("03-fa1", &text);
    let three = repository.chapter("3", "600", 1);
    let wanted = format!("chapters/03-fa1/src/lib.rs:{line}");
    assert_eq!(failing(&three, 2)["at"].as_str(), Some(wanted.as_str()), "{three}");
    if cfg!(target_os = "linux") {
        assert!(failing(&three, 4)["said"].as_str().unwrap().contains("GiB of memory"), "{}", failing(&three, 4));
    }
    let at_once = "let mut all = Array2::<f32>::zeros((head.q_len, head.k_len)); std::hint::black_box(&mut all);";
    repository.write("03-fa1", &begun(&right, "pub fn head(", at_once));
    let three = repository.chapter("3", "600", 1);
    assert_eq!(states(&three), ["passed", "passed", "passed", "passed", "passed", "wrong"]);
    assert!(failing(&three, 6)["said"].as_str().unwrap().contains("bytes of heap"), "{}", failing(&three, 6));
}

/// The command that the pages name goes through cargo, and has to start though chapters do not compile.
fn cargo_starts_the_ladder_though_a_chapter_does_not_compile(repository: &Repository) {
    // The program holds the climb's layer.
    let layer = "tests/data/real/smollm2-layer14.safetensors";
    fs::create_dir_all(repository.0.join(layer).parent().unwrap()).unwrap();
    fs::copy(root().join(layer), repository.0.join(layer)).unwrap();
    repository.write("01-naive", "fn main() -> usize { \"one\" }\n");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    for (chapter, part, code) in [("1", "does not compile yet", 1), ("2", "All of chapter 2 passes", 0)] {
        let output = Command::new(env!("CARGO"))
            .args(["run", "--offline", "--", "check", chapter])
            .current_dir(&repository.0)
            .env("CARGO_TARGET_DIR", target)
            .env("PROPTEST_CASES", "32")
            .output()
            .unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.code() == Some(code) && stdout.contains(part), "{part} in {stdout}{stderr}");
    }
    let hint = repository.says(&["1", "--hint"], 1);
    assert!(hint.contains("Chapter 1 does not compile yet"), "{hint}");
}

fn what_does_not_compile_is_shown(repository: &Repository) {
    let right = solved("03-fa1", "fa1");
    repository.write("03-fa1", &begun(&right, "pub fn update(", "let x: usize = \"three\";"));
    let three = repository.says(&["3"], 1);
    for part in ["does not compile yet", "chapters/03-fa1/src/lib.rs:", "mismatched types"] {
        assert!(three.contains(part), "{part} in {three}");
    }
    let json = repository.chapter("3", "60", 1);
    assert!(json["does_not_compile"]["message"] == "mismatched types" && json["done"] == 0, "{json}");
}

/// A kernel with a race, one whose last step is still to be written, and one that does not compile.
fn kernels_are_told_apart(repository: &Repository) {
    let right = solved(KERNEL, "cuda-fa2");
    repository.write(KERNEL, &with(&right, "__syncthreads();  // the tiles before have been read", ""));
    let five = repository.says(&["5"], 1);
    for part in ["5 of 6 steps done", "Step 6, fa2: not right yet", "race: ", "tile[j][c] = ", "src/mine.cu:"] {
        assert!(five.contains(part), "{part} in {five}");
    }
    assert!(repository.says(&["5", "--hint", "--hint"], 1).contains("names both accesses"));

    repository.write(KERNEL, &with(&right, "    l *= rescale;\n", "    TODO(\"step 4, update\");\n"));
    let five = repository.says(&["5"], 1);
    assert!(five.contains("step 4  update   0 of 4 tests  still to write"), "{five}");
    assert!(five.contains("waits for the steps above"), "{five}");

    repository.write(KERNEL, &with(&right, "float q_i[D];", "float q_i[D]"));
    let five = repository.says(&["5"], 1);
    for part in ["does not compile yet", "chapters/05-cuda-fa2/src/mine.cu:", "expected a \";\""] {
        assert!(five.contains(part), "{part} in {five}");
    }
}

#[test]
fn a_chapter_that_is_not_there_is_bad_use() {
    for (args, part) in
        [(&["9"][..], "there is no chapter 9"), (&["one"], "invalid"), (&["1", "--timeout", "0"], "timeout")]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_ladder")).arg("check").args(args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && stderr.contains(part) && stderr.lines().count() == 1, "{stderr}");
    }
}

/// Compiling takes minutes the first time, in which a silent program would look like one that hangs.
#[test]
fn what_takes_minutes_is_announced_first() {
    // In cargo's place stands a program that refuses at once.
    let ladder = env!("CARGO_BIN_EXE_ladder");
    let output = Command::new(ladder).args(["check", "1"]).env("CARGO", ladder).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.lines().next(), Some("compiling the checks of chapter 1 (minutes the first time)"), "{stderr}");
}
