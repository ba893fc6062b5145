//! `ladder bench --ncu`: what the kernels of a `--once` run moved, beside saved results of the same cases.

use super::on_device::{cases, rungs};
use crate::cli::{self, BenchArgs};
use crate::compare::Comparison;
use crate::format;
use anyhow::{Context, Result, ensure};
use attention::Traffic;
use comfy_table::Cell;
use ladder::bench::{Case, Results, ncu};
use ladder::registry::{self, DeviceRung};
use std::path::Path;

/// What is added to the method of the results.
const METHOD: &str = "ncu_read_bytes and ncu_written_bytes as ncu read them, the sums over the kernels of one call";

/// What a rung moved on a case.
type Call<'a> = (&'a Case, &'static DeviceRung, Traffic);

pub(super) fn main(args: &BenchArgs, file: &Path) -> Result<bool> {
    for name in &args.rung {
        ensure!(registry::device_rung(name).is_some(), "--rung: found {name}, wanted a rung that runs on a device");
    }
    let (rungs, cases) = (rungs(args), cases(args));
    let calls = cases.iter().flat_map(|case| rungs.iter().map(move |rung| (case, *rung)));
    let kernels: Vec<Vec<&str>> = calls.clone().map(|(_, rung)| rung.kernels().collect()).collect();
    let moved = ncu::read(file, &kernels)?;
    let calls: Vec<Call> = calls.zip(moved).map(|((case, rung), moved)| (case, rung, moved)).collect();
    let Some(path) = &args.output else {
        return cli::print(&text(&calls)).map(|()| true);
    };
    let mut results = Results::read(path)?;
    for (case, rung, moved) in &calls {
        let row = results.rows.iter_mut().find(|row| row.is_of(rung.name, case));
        let row = row.with_context(|| format!("{}: found no row of {} on {case}", path.display(), rung.name))?;
        (row.ncu_read_bytes, row.ncu_written_bytes) = (Some(moved.read), Some(moved.written));
    }
    if !results.method.ends_with(METHOD) {
        results.method = format!("{}; {METHOD}", results.method.trim_end_matches('.'));
    }
    results.write(path)?;
    cli::print(&if args.json { results.to_string() } else { Comparison::of_one(&results).text() })?;
    Ok(true)
}

fn text(calls: &[Call]) -> String {
    let row = |(case, rung, moved): &Call| {
        let bytes = [moved.read, moved.written].map(|bytes| format::bytes(bytes as f64));
        [rung.name.into(), case.to_string()].into_iter().chain(bytes).map(Cell::new).collect()
    };
    format::table(["rung", "case", "read", "written"], calls.iter().map(row)).to_string()
}
