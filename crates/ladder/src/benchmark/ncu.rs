//! `ladder bench --ncu`: what the kernels of a `--once` run moved, beside saved results of the same cases.

use super::on_device::{asked_cases, rungs_on, that_run_on};
use crate::cli::{self, BenchArgs};
use crate::compare::Comparison;
use crate::format;
use anyhow::{Context, Result, ensure};
use attention::{Options, Traffic};
use comfy_table::Cell;
use cuda_fa2::Target;
use device::Device;
use ladder::bench::ncu::Launch;
use ladder::bench::{Case, Results, ncu};
use ladder::registry::{self, DeviceRung};
use serde_json::{Value, json};
use std::path::Path;

/// What is added to the method of the results.
const METHOD: &str = "ncu_read_bytes and ncu_written_bytes as ncu read them, the sums over the kernels of one call";

/// What a rung moved on a case.
type Call<'a> = (&'a Case, &'static DeviceRung, Traffic);

pub(super) fn main(args: &BenchArgs, file: &Path) -> Result<bool> {
    for name in &args.rung {
        ensure!(registry::device_rung(name).is_some(), "--rung: found {name}, wanted a rung that runs on a device");
    }
    let cases = asked_cases(args)?;
    // Of `cuda-fa2` the grid depends on the multiprocessors, where there are few tiles of rows.
    let target = Device::cuda(0).map_or(Target::H200, |device| device.attributes().into());
    let rungs = |case| that_run_on(target, args, rungs_on(args, case));
    let calls = cases.iter().flat_map(|case| rungs(case).into_iter().map(move |rung| (case, rung)));
    let planned = calls.clone().map(|(case, rung)| launches(case, rung, target)).collect::<Result<Vec<_>>>()?;
    let moved = ncu::read(file, &planned)?;
    let calls: Vec<Call> = calls.zip(moved).map(|((case, rung), moved)| (case, rung, moved)).collect();
    let Some(path) = &args.output else {
        return cli::print(&if args.json { json(&calls).to_string() } else { text(&calls) }).map(|()| true);
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

/// What a rung launches on a case.
fn launches(case: &Case, rung: &DeviceRung, target: Target) -> Result<Vec<Launch>> {
    let options = Options { mask: case.mask, ..Options::default() };
    let plan = rung.plan(&case.shape(), &options, target).with_context(|| case.to_string())?;
    Ok(plan.launches().map(|(kernel, grid, block)| Launch { kernel: kernel.into(), grid, block }).collect())
}

/// The sums under the names that they have in saved rows.
fn json(calls: &[Call]) -> Value {
    let row = |(case, rung, moved): &Call| {
        json!({
            "who": rung.name,
            "dtype": case.dtype.to_string(),
            "head_dim": case.d,
            "mask": case.mask.to_string(),
            "batch": case.batch,
            "heads": case.heads,
            "kv_heads": case.kv_heads,
            "q_len": case.q_len,
            "kv_len": case.kv_len,
            "ncu_read_bytes": moved.read,
            "ncu_written_bytes": moved.written,
        })
    };
    json!({ "rows": calls.iter().map(row).collect::<Vec<_>>() })
}

fn text(calls: &[Call]) -> String {
    let row = |(case, rung, moved): &Call| {
        let bytes = [moved.read, moved.written].map(|bytes| format::bytes(bytes as f64));
        [rung.name.into(), case.to_string()].into_iter().chain(bytes).map(Cell::new).collect()
    };
    format::table(["rung", "case", "read", "written"], calls.iter().map(row)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench_args;

    /// Grids and blocks of the first launches that ncu saw of `--once --dtype f32 --n 4096` on an H200.
    #[test]
    fn launches_are_those_that_ncu_saw() {
        let args = bench_args(&["--dtype", "f32", "--n", "4096"]);
        let case = asked_cases(&args).unwrap()[0];
        let found: Vec<Launch> =
            rungs_on(&args, &case).into_iter().flat_map(|rung| launches(&case, rung, Target::H200).unwrap()).collect();
        let launch = |kernel: &str, blocks, block| Launch { kernel: kernel.into(), grid: [blocks, 1, 1], block };
        let seen = [
            launch("naive_scores", 1_048_576, [32, 8, 1]),
            launch("naive_softmax", 32_768, [32, 8, 1]),
            launch("naive_output", 16_384, [32, 8, 1]),
            launch("fa1", 64, [512, 1, 1]),
            launch("fa2_simt", 2_048, [128, 1, 1]),
        ];
        assert_eq!(found, seen);
    }
}
