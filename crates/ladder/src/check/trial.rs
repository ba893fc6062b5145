//! Running the tests one by one, and reading what each said.

use super::process::{self, Ended};
use super::repository::Chapter;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How a test stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It passed.
    Passed,
    /// It met a `todo!()`.
    Todo,
    /// The result was wrong.
    Wrong,
    /// The code under test panicked.
    Panicked,
    /// It was stopped at the time limit.
    Stopped,
    /// The whole program ended: an abort, a stack overflow, an exit.
    Ended,
    /// The time was up before it began.
    NotRun,
}

impl State {
    /// The name for a program.
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Passed => "passed",
            State::Todo => "todo",
            State::Wrong => "wrong",
            State::Panicked => "panicked",
            State::Stopped => "stopped",
            State::Ended => "ended",
            State::NotRun => "not run",
        }
    }
}

/// One test and what it said.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trial {
    /// "step_2_update_by_hand".
    pub(crate) name: String,
    pub(crate) step: u32,
    pub(crate) state: State,
    /// The failure in words; empty for a test that passed.
    pub(crate) said: String,
    /// The smallest failing input that was found.
    pub(crate) input: Option<String>,
    /// file:line of the check that failed, or of the panic.
    pub(crate) at: Option<String>,
}

impl Trial {
    /// The step whose todo was met: 2 for "step 2, update".
    pub(crate) fn todo_of(&self) -> Option<u32> {
        self.said.strip_prefix("step ")?.split(',').next()?.parse().ok()
    }
}

/// Runs every test of a program, in the order of the steps, those worked by hand first.
pub(crate) fn all(program: &Path, chapter: &Chapter, deadline: Instant, limit: Duration) -> Result<Vec<Trial>> {
    let listed = Command::new(program).args(["--list", "--format", "terse"]).output().context("the compiled checks")?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut tests: Vec<(u32, bool, &str)> = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(|path| (step(short(path)), !path.ends_with("by_hand"), path))
        .collect();
    ensure!(!tests.is_empty(), "{} has no tests to run", chapter.package);
    tests.sort_unstable();
    tests.into_iter().map(|(_, _, path)| one(program, path, chapter, deadline, limit)).collect()
}

fn short(path: &str) -> &str {
    path.rsplit("::").next().unwrap_or(path)
}

/// The step that a test belongs to: 2 for step_2_update_by_hand.
fn step(name: &str) -> u32 {
    let number = name.strip_prefix("step_").and_then(|rest| rest.split('_').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}

fn one(program: &Path, path: &str, chapter: &Chapter, deadline: Instant, limit: Duration) -> Result<Trial> {
    let name = short(path);
    let mut trial =
        Trial { name: name.into(), step: step(name), state: State::NotRun, said: String::new(), input: None, at: None };
    if Instant::now() >= deadline {
        trial.said = "the time was up before this test could begin".into();
        return Ok(trial);
    }
    let mut command = Command::new(program);
    command.args([path, "--exact", "--nocapture"]).current_dir(chapter.root.join(&chapter.folder));
    command.env("RUST_BACKTRACE", "0");
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        // The same code gives the same counterexample, so that one can work on it.
        command.env("PROPTEST_RNG_SEED", "1");
    }
    let ended = process::run(&mut command, deadline).with_context(|| format!("the test {name}"))?;
    judge(&mut trial, &ended, limit);
    Ok(trial)
}

/// Reads the verdict off what a test printed and how it ended.
fn judge(trial: &mut Trial, ended: &Ended, limit: Duration) {
    let Some(status) = ended.status else {
        trial.state = State::Stopped;
        trial.said = format!(
            "it was still running after {} s and was stopped: a loop that never ends? (--timeout SECONDS allows more)",
            limit.as_secs()
        );
        return;
    };
    if status.success() && ended.output.contains("test result: ok. 1 passed") {
        trial.state = State::Passed;
        return;
    }
    let panics = panics(&ended.output);
    let failed = ended.output.contains("test result: FAILED");
    match panics.last() {
        Some(last) if failed => failure(trial, last, &panics),
        _ => {
            trial.state = State::Ended;
            trial.said = if ended.output.contains("has overflowed its stack") {
                "the stack overflowed: a function that calls itself without end?".into()
            } else {
                format!("the program ended in the middle of the test ({status}): a call of exit or abort?")
            };
        }
    }
}

/// Where a panic was, and what it said.
struct Panic<'a> {
    at: &'a str,
    said: &'a str,
}

fn panics(output: &str) -> Vec<Panic<'_>> {
    let one = |entry| {
        let (at, rest): (&str, &str) = str::split_once(entry, '\n')?;
        let ends =
            ["\nnote: run with", "\nthread '", "\ntest result:", "\nfailures:", "\ntest checks::", "\nproptest: "];
        let end = ends.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
        Some(Panic { at: at.trim_end_matches(':'), said: rest[..end].trim() })
    };
    output.split("panicked at ").skip(1).filter_map(one).collect()
}

fn failure(trial: &mut Trial, last: &Panic, all: &[Panic]) {
    // A law that was unwrapped: the test should say what the law says, not how it was asked.
    let unwrapped = unwrapped(last.said);
    let last = &Panic { at: last.at, said: unwrapped.as_deref().unwrap_or(last.said) };
    // proptest: "Test failed: SAID.\nminimal failing input: INPUT\n\tsuccesses: ..."
    let told = last.said.strip_prefix("Test failed: ").unwrap_or(last.said);
    let (said, input) = match told.split_once("minimal failing input: ") {
        Some((said, input)) => (said, input.split("\n\tsuccesses: ").next()),
        None => (told, None),
    };
    let said = said.trim().trim_end_matches('.');
    trial.input = input.map(one_line).filter(|input| !input.is_empty());
    let in_the_code = |panic: &&Panic| !panic.at.contains("/tests/") && !panic.at.starts_with("tests/");
    let own = all.iter().rev().filter(in_the_code).find(|panic| said.contains(panic.said.trim_end_matches('.')));
    if said.contains("not yet implemented") {
        trial.state = State::Todo;
        trial.said = said.split_once("not yet implemented: ").map_or("", |(_, what)| what).into();
        trial.input = None;
    } else if let Some(panic) = own {
        trial.state = State::Panicked;
        trial.said = panic.said.into();
    } else {
        trial.state = State::Wrong;
        trial.said = said.into();
    }
    // A check says its own place at the end of its message.
    if let Some((rest, at)) = trial.said.clone().rsplit_once(" at ").filter(|(_, at)| is_place(at)) {
        (trial.said, trial.at) = (rest.into(), Some(at.into()));
    }
    let place = own.map_or(last.at, |panic| panic.at);
    trial.at = trial.at.take().or(Some(without_column(place).into()));
}

/// The words of a failed law in "called `Result::unwrap()` on an `Err` value: Fail(Reason("WORDS"))".
fn unwrapped(said: &str) -> Option<String> {
    let quoted = said.strip_prefix("called `Result::unwrap()` on an `Err` value: Fail(Reason(")?;
    serde_json::from_str(quoted.strip_suffix("))")?).ok()
}

/// Whether a word is file.rs:12.
fn is_place(word: &str) -> bool {
    word.split_once(".rs:").is_some_and(|(_, line)| line.parse::<u32>().is_ok())
}

/// file.rs:12 of file.rs:12:5.
fn without_column(place: &str) -> &str {
    place.rsplit_once(':').filter(|(rest, _)| is_place(rest)).map_or(place, |(rest, _)| rest)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
