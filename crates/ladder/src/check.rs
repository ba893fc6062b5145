//! `ladder check`: a chapter's checks on the learner's code, in friendly words.
//!
//! The checks are the test target `mine` of the chapter's package. It is compiled once; then each of its tests runs in a
//! process of its own, with limits of time and memory, so that one that loops, aborts or ends the program says nothing of
//! the others. Nothing is written beside cargo's target folder.
//!
//! Where the learner writes a kernel in CUDA, the tests compile it, and run it on the simulated GPU.

mod build;
mod hints;
mod process;
pub(crate) mod repository;
mod trial;
mod words;

use crate::cli::{self, CheckArgs};
use anyhow::{Result, bail};
use build::{Built, CompileError};
use hints::Step;
use repository::Chapter;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::{Duration, Instant};
use trial::{State, Trial};

/// What the checks of one chapter said.
pub(crate) struct Report {
    chapter: Chapter,
    steps: Vec<Step>,
    outcome: Result<Vec<Trial>, CompileError>,
}

pub(crate) fn main(args: &CheckArgs) -> Result<bool> {
    let chapters = repository::chapters()?;
    let numbers: Vec<String> = chapters.iter().map(|chapter| chapter.number.to_string()).collect();
    let asked: Vec<Chapter> = match args.chapter {
        Some(number) => chapters.into_iter().filter(|chapter| chapter.number == number).collect(),
        None => chapters,
    };
    if asked.is_empty() {
        bail!("there is no chapter {}; there are chapters {}", args.chapter.unwrap_or_default(), numbers.join(", "));
    }
    let limit = Duration::from_secs(args.timeout);
    let reports = asked.into_iter().map(|chapter| Report::of(chapter, limit)).collect::<Result<Vec<_>>>()?;
    let answer = match (args.json, args.hint, args.chapter, reports.as_slice()) {
        (true, ..) => json!({ "chapters": reports.iter().map(Report::json).collect::<Vec<_>>() }).to_string(),
        (_, 0, None, all) => words::overview(all),
        (_, 0, _, [one, ..]) => words::chapter(one),
        (_, level, _, all) => words::hint(all, level.into()),
    };
    cli::print(&answer)?;
    Ok(reports.iter().all(Report::passed))
}

/// The tests, or the error of the compiler of kernels that one of them met.
fn compiled(trials: Vec<Trial>) -> Result<Vec<Trial>, CompileError> {
    let Some(refused) = trials.iter().find(|trial| trial.state == State::Refused) else { return Ok(trials) };
    let first = refused.said.lines().next().unwrap_or_default();
    let message = first.split_once(": error: ").map_or(first, |(_, message)| message);
    Err(CompileError { message: message.into(), at: refused.at.clone(), rendered: refused.said.clone() })
}

impl Report {
    fn of(chapter: Chapter, limit: Duration) -> Result<Self> {
        // Cargo's own progress is not shown, and a silent program looks like one that hangs.
        let number = chapter.number;
        let _ = writeln!(io::stderr(), "compiling the checks of chapter {number} (minutes the first time)");
        let steps = hints::read(&chapter)?;
        let outcome = match build::build(&chapter)? {
            Built::Refused(error) => Err(error),
            Built::Tests(program) => compiled(trial::all(&program, &chapter, Instant::now() + limit, limit)?),
        };
        Ok(Report { chapter, steps, outcome })
    }

    /// The tests of one step, those worked by hand first.
    fn trials(&self, step: u32) -> impl Iterator<Item = &Trial> {
        self.outcome.iter().flatten().filter(move |trial| trial.step == step)
    }

    /// How a step stands: as its first test that does not pass.
    fn state(&self, step: u32) -> State {
        let mut trials = self.trials(step).peekable();
        if trials.peek().is_none() {
            return State::NotRun;
        }
        trials.map(|trial| trial.state).find(|state| *state != State::Passed).unwrap_or(State::Passed)
    }

    fn done(&self) -> usize {
        self.steps.iter().filter(|step| self.state(step.number) == State::Passed).count()
    }

    fn passed(&self) -> bool {
        self.done() == self.steps.len() && self.outcome.iter().flatten().all(|trial| trial.state == State::Passed)
    }

    /// Whether a step's tests say nothing of it yet, because they met the todo of another step: the whole rung, mostly.
    fn waits(&self, step: u32) -> bool {
        let first = self.trials(step).find(|trial| trial.state != State::Passed);
        first.is_some_and(|trial| trial.state == State::Todo && trial.todo_of().is_some_and(|other| other != step))
    }

    /// Why none of the tests was run, if none was: what they need is not installed.
    fn not_run(&self) -> Option<&str> {
        let trials = self.outcome.as_ref().ok()?;
        trials.iter().all(|trial| trial.state == State::NotRun).then(|| trials.first().map(|trial| &trial.said[..]))?
    }

    /// The first step that is not done.
    fn next(&self) -> Option<&Step> {
        self.steps.iter().find(|step| self.state(step.number) != State::Passed)
    }

    fn json(&self) -> Value {
        let tests = |step: u32| {
            let test = |trial: &Trial| {
                let Trial { name, state, said, input, at, .. } = trial;
                json!({ "test": name, "state": state.name(), "said": said, "input": input, "at": at })
            };
            self.trials(step).map(test).collect::<Vec<_>>()
        };
        let step = |step: &Step| {
            let (number, title) = (step.number, &step.title);
            json!({ "step": number, "title": title, "state": self.state(number).name(), "tests": tests(number) })
        };
        let error = self.outcome.as_ref().err().map(|error| json!({ "message": error.message, "at": error.at }));
        json!({
            "chapter": self.chapter.number,
            "package": self.chapter.package,
            "passed": self.passed(),
            "does_not_compile": error,
            "done": self.done(),
            "steps": self.steps.iter().map(step).collect::<Vec<_>>(),
        })
    }
}
