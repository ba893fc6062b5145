//! `ladder conform`: rungs on a conformance pack.

use crate::cli::{self, ConformArgs};
use crate::format;
use anyhow::{Result, anyhow, ensure};
use attention::{Attention, oracle};
use comfy_table::{Cell, Color};
use indicatif::{ProgressBar, ProgressStyle};
use ladder::registry::{self, ORACLE, RUNGS};
use serde_json::json;
use testkit::pack::{Case, CaseReport, Outcome, Pack, Status, run_on_canaries};

pub(crate) fn main(args: &ConformArgs) -> Result<bool> {
    let pack = Pack::open(&args.dir)?;
    ensure!(!pack.cases().is_empty(), "{}: found no cases in manifest.json, wanted at least one", args.dir.display());
    let contestants = contestants(args)?;
    let bar = ProgressBar::new(pack.cases().len() as u64);
    bar.set_style(ProgressStyle::with_template("[{bar:30}] {pos}/{len} {msg}")?);
    let mut results = Vec::new();
    for case in pack.cases() {
        bar.set_message(case.name.clone());
        results.push(run_case(&pack, case, &contestants)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    cli::print(&if args.json { json(&contestants, &results) } else { text(&contestants, &results) })?;
    let mut passed = true;
    for (rung, report) in pairs(&contestants, &results) {
        if let Status::Fail(why) = &report.status {
            cli::complain(&format!("failed: {} on {}: {why}", rung.name(), report.case));
            passed = false;
        }
    }
    Ok(passed)
}

/// What was asked for, without repetition; the oracle and every rung if nothing was.
fn contestants(args: &ConformArgs) -> Result<Vec<Box<dyn Attention>>> {
    let all: Vec<&str> = [ORACLE].into_iter().chain(RUNGS.iter().map(|rung| rung.name)).collect();
    let chosen = all.into_iter().filter(|&name| args.rung.is_empty() || args.rung.iter().any(|rung| rung == name));
    let settings = args.machine.settings();
    chosen.map(|name| registry::attention(name, settings).ok_or_else(|| anyhow!("there is no rung {name}"))).collect()
}

/// The reports of one case, in the order of the contestants.
fn run_case(pack: &Pack, case: &Case, contestants: &[Box<dyn Attention>]) -> Result<Vec<CaseReport>> {
    let mut reports = Vec::new();
    for rung in contestants {
        let report = pack.run(case, &|problem| match rung.name() {
            // As a rung the oracle rounds its result; here its f64 values count.
            ORACLE => Ok(Outcome::from(oracle::truth(problem))),
            _ => run_on_canaries(rung.as_ref(), problem),
        })?;
        reports.push(report);
    }
    Ok(reports)
}

fn pairs<'a>(
    contestants: &'a [Box<dyn Attention>],
    results: &'a [Vec<CaseReport>],
) -> impl Iterator<Item = (&'a dyn Attention, &'a CaseReport)> {
    results.iter().flat_map(|reports| contestants.iter().map(Box::as_ref).zip(reports))
}

fn text(contestants: &[Box<dyn Attention>], results: &[Vec<CaseReport>]) -> String {
    let header = ["case"].into_iter().chain(contestants.iter().map(|rung| rung.name()));
    let table = format::table(
        header,
        results.iter().map(|reports| {
            let name = reports.first().map_or("", |report| &report.case);
            [Cell::new(name)].into_iter().chain(reports.iter().map(cell)).collect()
        }),
    );
    let totals = contestants.iter().enumerate().map(|(place, rung)| {
        let count = |wanted: fn(&Status) -> bool| results.iter().filter(|row| wanted(&row[place].status)).count();
        format!(
            "{}: {} passed, {} failed, {} unsupported",
            rung.name(),
            count(|status| *status == Status::Pass),
            count(|status| matches!(status, Status::Fail(_))),
            count(|status| matches!(status, Status::Unsupported(_))),
        )
    });
    let totals: Vec<String> = totals.collect();
    format!("{table}\nNumbers are the worst error of o and lse over the case's tolerance.\n{}", totals.join("\n"))
}

fn cell(report: &CaseReport) -> Cell {
    let worst = report.worst_o.max(report.worst_lse);
    let (text, color) = match &report.status {
        Status::Pass => (format!("pass {worst:.2}"), Color::Green),
        Status::Fail(_) if worst.is_nan() => ("FAIL".into(), Color::Red),
        Status::Fail(_) => (format!("FAIL {worst:.2}"), Color::Red),
        Status::Unsupported(_) => ("unsupported".into(), Color::Reset),
    };
    if format::colors() { Cell::new(text).fg(color) } else { Cell::new(text) }
}

fn json(contestants: &[Box<dyn Attention>], results: &[Vec<CaseReport>]) -> String {
    let cases = pairs(contestants, results).map(|(rung, report)| {
        let (status, why) = match &report.status {
            Status::Pass => ("pass", None),
            Status::Fail(why) => ("fail", Some(why)),
            Status::Unsupported(why) => ("unsupported", Some(why)),
        };
        // A number that JSON cannot hold becomes null.
        json!({
            "name": report.case,
            "rung": rung.name(),
            "status": status,
            "why": why,
            "worst_o": report.worst_o,
            "worst_lse": report.worst_lse,
        })
    });
    json!({ "cases": cases.collect::<Vec<_>>() }).to_string()
}
