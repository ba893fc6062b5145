//! The answers in words.

use super::Report;
use super::hints::Step;
use super::trial::{State, Trial};

/// Lines of the compiler's error that are shown.
const ERROR_LINES: usize = 14;

/// How to call this program where it is not on the PATH: from the repository, as the README does.
fn command(number: u32, hints: usize) -> String {
    format!("cargo run --release -- check {number}{}", " --hint".repeat(hints))
}

/// How a step stands, in words.
fn stands(state: State) -> &'static str {
    match state {
        State::Passed => "done",
        State::Todo => "still to write",
        State::Wrong => "not right yet",
        State::Panicked => "panics",
        State::Stopped => "does not end",
        State::Ended => "ends the program",
        State::NotRun => "not run",
        State::Refused => "does not compile",
    }
}

/// Where one stands in all chapters.
pub(crate) fn overview(reports: &[Report]) -> String {
    let width = reports.iter().map(|report| report.chapter.rung.len()).max().unwrap_or(0);
    let line = |report: &Report| {
        let (done, all) = (report.done(), report.steps.len());
        let next = match (&report.outcome, report.next()) {
            (Err(error), _) => format!("does not compile: {}", error.message),
            (Ok(_), Some(step)) => match report.not_run() {
                Some(why) => format!("not run: {why}"),
                None => format!("next: step {}, {}", step.number, step.title),
            },
            (Ok(_), None) => "done".into(),
        };
        format!("chapter {}  {:width$}  {done} of {all} steps   {next}", report.chapter.number, report.chapter.rung)
    };
    let mut lines: Vec<String> = reports.iter().map(line).collect();
    lines.push(match reports.iter().find(|report| !report.passed()) {
        Some(report) => format!("\nGo on with: {}", command(report.chapter.number, 0)),
        None => "\nEvery chapter passes.".into(),
    });
    lines.join("\n")
}

/// One chapter: its steps, and the first thing that is not right.
pub(crate) fn chapter(report: &Report) -> String {
    let (number, rung) = (report.chapter.number, &report.chapter.rung);
    if let Err(error) = &report.outcome {
        let at = error.at.as_deref().unwrap_or("no place given");
        let shown: Vec<&str> = error.rendered.lines().take(ERROR_LINES).collect();
        return format!(
            "Chapter {number}, {rung}: your code does not compile yet. The first error, at {at}:\n\n{}\n\n\
             cargo {} -p {} --features mine --test mine shows them all.",
            shown.join("\n"),
            if report.chapter.is_kernel() { "test" } else { "check" },
            report.chapter.package
        );
    }
    let (done, all) = (report.done(), report.steps.len());
    let width = report.steps.iter().map(|step| step.title.len()).max().unwrap_or(0);
    let mut text = format!("Chapter {number}, {rung}: {done} of {all} steps done.\n\n");
    for step in &report.steps {
        let tests = report.trials(step.number).count();
        let waits = report.waits(step.number);
        let state = if waits { "waits for the steps above" } else { stands(report.state(step.number)) };
        let passed = report.trials(step.number).filter(|trial| trial.state == State::Passed).count();
        let unit = if tests == 1 { "test" } else { "tests" };
        let line = format!("  step {}  {:width$}  {passed} of {tests} {unit:5}  {state}", step.number, step.title);
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push('\n');
    match report.next() {
        None => text.push_str(&solved(report)),
        Some(step) => text.push_str(&next(report, step)),
    }
    text
}

fn solved(report: &Report) -> String {
    format!(
        "All of chapter {} passes. Compare your way with the reference, {}.",
        report.chapter.number,
        report.chapter.reference()
    )
}

/// What stands between the learner and the next step.
fn next(report: &Report, step: &Step) -> String {
    let chapter = &report.chapter;
    let mut lines = Vec::new();
    if let Some(trial) = report.trials(step.number).find(|trial| trial.state != State::Passed) {
        lines.push(format!("Step {}, {}: {}", step.number, step.title, verdict(trial)));
        if !trial.said.is_empty() && trial.state != State::Todo {
            lines.extend(trial.said.lines().map(|line| format!("  {}", line.trim_end())));
        }
        lines.extend(trial.input.as_ref().map(|input| format!("  on {input}")));
        let place = trial.at.as_ref().filter(|_| !matches!(trial.state, State::Todo | State::NotRun));
        lines.extend(place.map(|at| format!("  at {at}")));
    }
    lines.push(String::new());
    let line = chapter.todo_line(step.number).map_or(String::new(), |line| format!(":{line}"));
    lines.push(format!("your file   {}{line}", chapter.source()));
    lines.push(format!("the checks  {0}/tests/checks/mod.rs and {0}/tests/laws/mod.rs", chapter.folder));
    lines.extend(chapter.page().map(|page| format!("read on     {page}")));
    lines.push(format!("a hint      {}", command(chapter.number, 1)));
    lines.push(format!("more of it  {}", command(chapter.number, 2)));
    lines.push(format!("reference   {}", chapter.reference()));
    lines.join("\n")
}

fn verdict(trial: &Trial) -> String {
    let name = &trial.name;
    match trial.state {
        State::Passed => format!("{name} passes."),
        State::Todo if trial.said.is_empty() => "still to write.".into(),
        State::Todo => format!("still to write ({name} met the todo of {}).", trial.said),
        State::Wrong => format!("not right yet. {name} says:"),
        State::Panicked => format!("your code panics in {name}:"),
        State::Stopped => format!("{name} does not come to an end:"),
        State::Ended => format!("{name} ends the whole program:"),
        State::NotRun => format!("{name} was not run:"),
        State::Refused => format!("the kernel of {name} does not compile:"),
    }
}

/// A hint for the first step that is not done; `level` 1 is the most general.
pub(crate) fn hint(reports: &[Report], level: usize) -> String {
    let Some((report, step)) = reports.iter().find_map(|report| Some((report, report.next()?))) else {
        return "Nothing is left to hint at: everything passes.".into();
    };
    let number = report.chapter.number;
    if let Err(error) = &report.outcome {
        let at = error.at.as_deref().map_or(String::new(), |at| format!(", at {at}"));
        return format!(
            "Chapter {number} does not compile yet, so that nobody can tell which of its steps is next. The first error{at}: \
             {}.\n\nMend that, then ask again; {} shows more of it.",
            error.message,
            command(number, 0)
        );
    }
    let level = level.clamp(1, step.hints.len().max(1));
    let hint = step.hints.get(level - 1).map_or("There is no hint for this step.", String::as_str);
    let mut text = format!("Chapter {number}, step {}, {}.\n\n{hint}", step.number, step.title);
    if level < step.hints.len() {
        text.push_str(&format!("\n\nMore: {}", command(number, level + 1)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::build::CompileError;
    use crate::check::repository::Chapter;

    /// Chapter 1 with three steps, of which the last is the whole rung, and the todo that each one's test met.
    fn report(met: [Option<&str>; 3]) -> Report {
        let chapter = Chapter {
            number: 1,
            rung: "naive".into(),
            package: "chapter-01-naive".into(),
            folder: "chapters/01-naive".into(),
            root: "nowhere".into(),
        };
        let step = |(number, title): (u32, &str)| Step {
            number,
            title: title.into(),
            hints: vec!["One.".into(), "Two.".into(), "Three.".into()],
        };
        let trial = |(step, met): (u32, Option<&str>)| Trial {
            name: format!("step_{step}_by_hand"),
            step,
            state: if met.is_some() { State::Todo } else { State::Passed },
            said: met.unwrap_or_default().into(),
            input: None,
            at: None,
        };
        Report {
            chapter,
            steps: [(1, "softmax"), (2, "output"), (3, "the whole rung")].map(step).into(),
            outcome: Ok((1..).zip(met).map(trial).collect()),
        }
    }

    #[test]
    fn the_commands_are_those_that_work_in_the_repository() {
        let report = report([None, Some("step 2, output"), Some("step 2, output")]);
        let shown = chapter(&report);
        for command in ["cargo run --release -- check 1 --hint\n", "cargo run --release -- check 1 --hint --hint\n"] {
            assert!(shown.contains(command), "{command} in {shown}");
        }
        let reports = [report];
        assert!(overview(&reports).ends_with("Go on with: cargo run --release -- check 1"), "{}", overview(&reports));
        assert!(hint(&reports, 1).ends_with("More: cargo run --release -- check 1 --hint --hint"));
        let all = [shown, overview(&reports), hint(&reports, 1), hint(&reports, 2), hint(&reports, 3)].join("\n");
        assert!(!all.contains("ladder check"), "{all}");
    }

    #[test]
    fn one_test_is_not_tests() {
        let mut one = report([None, Some("step 2, output"), None]);
        let shown = chapter(&one);
        assert!(shown.contains("1 of 1 test   done") && !shown.contains("1 tests"), "{shown}");
        let again = one.outcome.as_ref().unwrap()[0].clone();
        one.outcome.as_mut().unwrap().push(again);
        assert!(chapter(&one).contains("2 of 2 tests  done"), "{}", chapter(&one));
    }

    #[test]
    fn a_hint_on_code_that_does_not_compile_says_so() {
        let error = CompileError {
            message: "mismatched types".into(),
            at: Some("chapters/01-naive/src/lib.rs:7".into()),
            rendered: String::new(),
        };
        let broken = Report { outcome: Err(error), ..report([None; 3]) };
        let said = hint(&[broken], 1);
        for part in ["does not compile yet", "chapters/01-naive/src/lib.rs:7: mismatched types", "-- check 1 shows"] {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(!said.contains("One."), "{said}");
    }

    #[test]
    fn checks_that_cannot_run_say_what_is_missing() {
        let mut report = report([Some(""); 3]);
        for trial in report.outcome.as_mut().unwrap() {
            (trial.state, trial.said) = (State::NotRun, "NVRTC: found no library of it".into());
        }
        let shown = chapter(&report);
        assert!(shown.contains("step_1_by_hand was not run:\n  NVRTC: found no library of it"), "{shown}");
        let all = overview(&[report]);
        assert!(all.contains("0 of 3 steps   not run: NVRTC: found no library of it"), "{all}");
    }

    #[test]
    fn a_rung_that_meets_the_todo_of_a_step_waits_for_it() {
        let shown = chapter(&report([None, Some("step 2, output"), Some("step 2, output")]));
        let state = |step: &str| shown.lines().find(|line| line.trim_start().starts_with(step)).unwrap();
        assert!(state("step 1").ends_with("done"), "{shown}");
        assert!(state("step 2").ends_with("still to write"), "{shown}");
        assert!(state("step 3").ends_with("waits for the steps above"), "{shown}");
    }
}
