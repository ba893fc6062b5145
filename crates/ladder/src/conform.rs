//! `ladder conform`: rungs on a conformance pack.

use crate::cli::{self, ConformArgs};
use crate::devices::{self, Want};
use crate::format;
use anyhow::{Result, bail, ensure};
use attention::{Attention, oracle};
use comfy_table::{Cell, Color};
use device::Device;
use ladder::forms;
use ladder::registry::{self, ORACLE, RUNGS};
use mla::Form;
use serde_json::json;
use testkit::pack::{Case, CaseReport, Outcome, Pack, Status, run_on_canaries};

pub(crate) fn main(args: &ConformArgs) -> Result<bool> {
    args.device.check(&args.rung, Want::Results)?;
    let device = args.device.open()?;
    let pack = Pack::open(&args.dir)?;
    ensure!(!pack.cases().is_empty(), "{}: found no cases in manifest.json, wanted at least one", args.dir.display());
    let contestants = contestants(args, device.as_ref())?;
    let bar = cli::progress(pack.cases().len())?;
    let mut results = Vec::new();
    for case in pack.cases() {
        bar.set_message(case.name.clone());
        results.push(run_case(&pack, case, &contestants)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let names: Vec<&str> = contestants.iter().map(|(name, _)| *name).collect();
    let not_run = args.device.not_run(Want::Results).filter(|_| args.rung.is_empty());
    cli::print(&if args.json { json(&names, &results) } else { text(&names, &results, not_run) })?;
    let mut passed = true;
    for (rung, report) in pairs(&names, &results) {
        if let Status::Fail(why) = &report.status {
            cli::complain(&format!("failed: {rung} on {}: {why}", report.case));
            passed = false;
        }
    }
    Ok(passed)
}

/// A name, and the rung of that name, if it is that of a rung.
type Contestant = (&'static str, Option<Box<dyn Attention>>);

/// What was asked for, without repetition; the oracle, every rung and every form of a layer if nothing was, or every rung of
/// the device.
fn contestants(args: &ConformArgs, device: Option<&Device>) -> Result<Vec<Contestant>> {
    let settings = args.machine.settings();
    let all: Vec<&str> = if device.is_some() { devices::names().collect() } else { on_cpu().collect() };
    let asked = all.into_iter().filter(|&name| args.rung.is_empty() || args.rung.iter().any(|rung| rung == name));
    let contestant = |name| {
        let is_rung = !forms().any(|form| form == name);
        Ok((name, is_rung.then(|| devices::attention(name, settings, device)).transpose()?))
    };
    asked.map(contestant).collect()
}

/// The forms of a layer that are no rungs too.
fn forms() -> impl Iterator<Item = &'static str> {
    Form::ALL.map(Form::name).into_iter().filter(|form| registry::rung(form).is_none())
}

/// Everyone who can run a case on the CPU.
fn on_cpu() -> impl Iterator<Item = &'static str> {
    [ORACLE].into_iter().chain(RUNGS.iter().map(|rung| rung.name)).chain(forms())
}

/// Everyone who can run a case.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    on_cpu().chain(devices::names())
}

/// The reports of one case, in the order of the contestants.
fn run_case(pack: &Pack, case: &Case, contestants: &[Contestant]) -> Result<Vec<CaseReport>> {
    let mut reports = Vec::new();
    for (name, rung) in contestants {
        let form = Form::ALL.into_iter().find(|form| form.name() == *name);
        let report = match (form, rung) {
            (Some(form), rung) if case.family == "mla" || rung.is_none() => {
                pack.run_layer(case, &|problem| forms::run(form, problem))
            }
            (_, Some(rung)) => pack.run(case, &|problem| match *name {
                // As a rung the oracle rounds its result; here its f64 values count.
                ORACLE => Ok(Outcome::from(oracle::truth(problem))),
                _ => run_on_canaries(rung.as_ref(), problem),
            }),
            (_, None) => bail!("there is no rung {name}"),
        };
        reports.push(report?);
    }
    Ok(reports)
}

fn pairs<'a>(
    contestants: &'a [&str],
    results: &'a [Vec<CaseReport>],
) -> impl Iterator<Item = (&'a str, &'a CaseReport)> {
    results.iter().flat_map(|reports| contestants.iter().copied().zip(reports))
}

fn text(contestants: &[&str], results: &[Vec<CaseReport>], not_run: Option<String>) -> String {
    let header = ["case"].into_iter().chain(contestants.iter().copied());
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
            "{rung}: {} passed, {} failed, {} unsupported",
            count(|status| *status == Status::Pass),
            count(|status| matches!(status, Status::Fail(_))),
            count(|status| matches!(status, Status::Unsupported(_))),
        )
    });
    let totals: Vec<String> = totals.chain(not_run).collect();
    format!(
        "{table}\nNumbers are the worst error over the case's tolerance: of o and lse, and of a layer of all that it computes.\n{}",
        totals.join("\n")
    )
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

fn json(contestants: &[&str], results: &[Vec<CaseReport>]) -> String {
    let cases = pairs(contestants, results).map(|(rung, report)| {
        let (status, why) = match &report.status {
            Status::Pass => ("pass", None),
            Status::Fail(why) => ("fail", Some(why)),
            Status::Unsupported(why) => ("unsupported", Some(why)),
        };
        // A number that JSON cannot hold becomes null.
        json!({
            "name": report.case,
            "rung": rung,
            "status": status,
            "why": why,
            "worst_o": report.worst_o,
            "worst_lse": report.worst_lse,
        })
    });
    json!({ "cases": cases.collect::<Vec<_>>() }).to_string()
}
