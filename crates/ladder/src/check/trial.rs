//! Running the tests one by one, and reading what each said.

use super::process::{self, Ended};
use super::repository::Chapter;
use crate::memory;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The least that one test may take; it is more where more time was allowed in all.
const SHORTEST: Duration = Duration::from_secs(15);

/// How many tests may loop without end before the time for all is up.
const SHARES: u32 = 12;

/// The least memory that a test may have. A test needs some ten MiB; what counts is the address space, in which every
/// thread reserves more than it uses.
const LEAST_MEMORY: u64 = 2 << 30;

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
    /// The time was up before it began, an earlier test of its step came to no end, or what it needs is not installed.
    NotRun,
    /// The kernel that it is about does not compile.
    Refused,
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
            State::Refused => "does not compile",
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

/// Runs every test of a program, in the order of the steps, those worked by hand first; none after one whose kernel does not
/// compile.
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
    let run = Run { program, chapter, deadline, limit: SHORTEST.max(limit / SHARES), memory: most_memory() };
    let mut trials: Vec<Trial> = Vec::new();
    for (step, _, path) in tests {
        // What loops in one test of a step mostly loops in the next one too, and the other steps want to be heard.
        let endless = trials.iter().any(|trial| trial.step == step && trial.state == State::Stopped);
        trials.push(run.one(path, endless)?);
        if trials.last().is_some_and(|trial| trial.state == State::Refused) {
            break;
        }
    }
    Ok(trials)
}

/// Half of what the machine has left, so that a loop that fills a vector takes the test down and not the machine.
fn most_memory() -> u64 {
    LEAST_MEMORY.max(memory::available() / 2)
}

fn short(path: &str) -> &str {
    path.rsplit("::").next().unwrap_or(path)
}

/// The step that a test belongs to: 2 for step_2_update_by_hand.
fn step(name: &str) -> u32 {
    let number = name.strip_prefix("step_").and_then(|rest| rest.split('_').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}

/// How every test of a chapter is run.
struct Run<'a> {
    program: &'a Path,
    chapter: &'a Chapter,
    /// When the time for all of them is up.
    deadline: Instant,
    /// How long one may take.
    limit: Duration,
    /// How many bytes of address space one may have.
    memory: u64,
}

impl Run<'_> {
    fn one(&self, path: &str, endless: bool) -> Result<Trial> {
        let (name, began) = (short(path), Instant::now());
        let mut trial = Trial {
            name: name.into(),
            step: step(name),
            state: State::NotRun,
            said: String::new(),
            input: None,
            at: None,
        };
        if endless || began >= self.deadline {
            trial.said = match endless {
                true => "an earlier test of this step came to no end".into(),
                false => "the time was up before this test could begin".into(),
            };
            return Ok(trial);
        }
        judge(&mut trial, &self.ended(path, began, "0")?, self.limit.min(self.deadline - began), self.memory);
        // A panic in a library, or in code that was given, happened because of a line of the learner's: it is asked where.
        let own = |at: &str| at.contains(&self.chapter.source()) || at.starts_with("src/");
        if trial.state == State::Panicked && !trial.at.as_deref().is_some_and(own) {
            let again = self.ended(path, Instant::now(), "1")?;
            trial.at = called_at(&again.output, &self.chapter.source()).or(trial.at);
        }
        Ok(trial)
    }

    fn ended(&self, path: &str, began: Instant, backtrace: &str) -> Result<Ended> {
        let mut command = limited(self.program, self.memory);
        command.args([path, "--exact", "--nocapture"]).current_dir(self.chapter.root.join(&self.chapter.folder));
        command.env("RUST_BACKTRACE", backtrace);
        if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
            // The same code gives the same counterexample, so that one can work on it.
            command.env("PROPTEST_RNG_SEED", "1");
        }
        process::run(&mut command, self.deadline.min(began + self.limit)).with_context(|| format!("the test {path}"))
    }
}

/// A call of `program` that may have `memory` bytes of address space, where a shell can see to that: on Linux. Elsewhere
/// nothing limits it, and only the time does.
fn limited(program: &Path, memory: u64) -> Command {
    const SHELL: &str = "/bin/sh";
    if !(cfg!(target_os = "linux") && Path::new(SHELL).is_file()) {
        return Command::new(program);
    }
    let mut command = Command::new(SHELL);
    command.args(["-c", "ulimit -v \"$1\" 2>/dev/null; shift; exec \"$@\"", "sh", &(memory >> 10).to_string()]);
    // Each thread's allocator reserves address space by the 64 MiB, unless it has to share.
    command.arg(program).env("MALLOC_ARENA_MAX", "2");
    command
}

/// The innermost place in the learner's file on the way to the last panic, from a backtrace. A test runs in its chapter's
/// folder, as from which some of the paths in a backtrace are written.
fn called_at(output: &str, source: &str) -> Option<String> {
    let here = source.rsplit_once("/src/").map(|(_, file)| format!("./src/{file}"))?;
    let place = |line: &str| {
        let place = line.trim_start().strip_prefix("at ")?;
        let (_, line) = [source, &here].iter().find_map(|file| place.split_once(&format!("{file}:")))?;
        Some(format!("{source}:{}", line.split(':').next()?))
    };
    // proptest panics once more in the end, in the test, when it tells what it found: no frame of that is the learner's.
    let backtraces: Vec<&str> = output.split("stack backtrace:").skip(1).collect();
    backtraces.iter().rev().find_map(|frames| frames.lines().find_map(place))
}

/// Reads the verdict off what a test printed and how it ended.
fn judge(trial: &mut Trial, ended: &Ended, limit: Duration, memory: u64) {
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
            } else if ended.output.contains("memory allocation of ") {
                format!(
                    "it asked for more than {} GiB of memory: a loop that fills a vector without end?",
                    memory >> 30
                )
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
        let ends = [
            "\nnote: run with",
            "\nstack backtrace:",
            "\nthread '",
            "\ntest result:",
            "\nfailures:",
            "\ntest checks::",
            "\nproptest: ",
        ];
        let end = ends.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
        Some(Panic { at: at.trim_end_matches(':'), said: rest[..end].trim() })
    };
    output.split("panicked at ").skip(1).filter_map(one).collect()
}

/// How a chapter's words about a kernel begin that could not be run.
const KERNEL_STATES: [(State, &str); 2] = [(State::NotRun, "not run: "), (State::Refused, "does not compile: ")];

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
    } else if let Some((state, (_, why))) =
        KERNEL_STATES.into_iter().find_map(|(state, words)| Some((state, said.split_once(words)?)))
    {
        trial.state = state;
        trial.said = why.into();
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

/// Whether a word is file.rs:12 or file.cu:12.
fn is_place(word: &str) -> bool {
    let line = word.split_once(".rs:").or(word.split_once(".cu:"));
    line.is_some_and(|(_, line)| line.parse::<u32>().is_ok())
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
