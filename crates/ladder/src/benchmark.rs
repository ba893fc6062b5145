//! `ladder bench`: the definitions of [`ladder::bench`], measured, shown and saved.

use crate::cli::{self, BenchArgs};
use crate::compare::Comparison;
use crate::input::check_memory;
use anyhow::Result;
use attention::oracle::truth;
use indicatif::{ProgressBar, ProgressStyle};
use ladder::bench::{self, BenchError, Case, Contest, METHOD, Machine, Results, Row};
use std::collections::BTreeSet;
use std::thread;
use std::time::SystemTime;

pub(crate) fn main(args: &BenchArgs) -> Result<bool> {
    let lengths: BTreeSet<usize> = args.n.iter().copied().collect();
    let cases: Vec<Case> = lengths.into_iter().flat_map(bench::cases).collect();
    for case in &cases {
        let [heads, kv_heads] = [case.heads, case.kv_heads].map(|heads| (case.batch * heads) as f64);
        let [q_len, kv_len, d] = [case.q_len, case.kv_len, case.d].map(|x| x as f64);
        check_memory(heads, heads * q_len * kv_len, 2.0 * d * (heads * q_len + kv_heads * kv_len))?;
    }
    if let Some(path) = &args.output {
        // Better to hear now than after all the work that the results cannot be saved.
        Results::check_target(path)?;
    }
    // What the results say of the sources is true of those that were measured, so git is asked first.
    let (commit, date) = (bench::commit(), SystemTime::now());
    let rows = match measure(args, &cases) {
        Ok(rows) => rows,
        Err(error) => match error.downcast_ref() {
            Some(wrong @ BenchError::Wrong { .. }) => {
                cli::complain(&format!("failed: {wrong}"));
                return Ok(false);
            }
            _ => return Err(error),
        },
    };
    let date = humantime::format_rfc3339_seconds(date).to_string();
    let results = Results { machine: Machine::cpu(), date, commit, method: METHOD.into(), rows };
    if let Some(path) = &args.output {
        results.write(path)?;
    }
    cli::print(&if args.json { results.to_string() } else { Comparison::of_one(&results).text() })?;
    Ok(true)
}

fn measure(args: &BenchArgs, cases: &[Case]) -> Result<Vec<Row>> {
    let rungs = bench::build(&bench::rungs(&args.chapter));
    let threads = threads(&args.threads);
    let bar = ProgressBar::new((cases.len() * threads.len()) as u64);
    bar.set_style(ProgressStyle::with_template("[{bar:30}] {pos}/{len} {msg}")?);
    let mut rows = Vec::new();
    for case in cases {
        bar.set_message(case.to_string());
        let owned = case.build();
        let problem = owned.problem();
        let truth = truth(&problem);
        for &threads in &threads {
            let time = || Contest::check(&problem, &truth, &rungs)?.time();
            let times = cli::pool(threads)?.install(time)?;
            let row = |(rung, times)| Row::new(rung, case, &problem, threads, times);
            rows.extend(rungs.iter().map(|rung| rung.name()).zip(times).map(row));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// What was asked for, without repetition; one thread, and one for each core, if nothing was.
fn threads(asked: &[usize]) -> BTreeSet<usize> {
    if asked.is_empty() {
        [1, thread::available_parallelism().map_or(1, usize::from)].into()
    } else {
        asked.iter().copied().collect()
    }
}
