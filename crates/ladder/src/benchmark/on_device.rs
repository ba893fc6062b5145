//! `ladder bench --device`: the rungs of a device, on data that stays there.

use super::{finish, judged, or};
use crate::cli::{self, BenchArgs};
use crate::format;
use crate::input::check_memory;
use anyhow::{Context, Result, anyhow, bail, ensure};
use attention::{DType, Options, Problem};
use cuda_fa2::{CudaRung, Target};
use device::Device;
use ladder::bench::{self, Answers, Case, DEVICE_METHOD, DeviceContest, Machine, Resident, Results, Row};
use ladder::registry::{self, DEVICE_RUNGS, DeviceRung, Settings};
use std::collections::BTreeSet;
use std::time::SystemTime;

pub(super) fn main(args: &BenchArgs, device: &Device) -> Result<bool> {
    let cases = asked_cases(args)?;
    for case in &cases {
        check_fit(case, &that_run_on(device.attributes().into(), args, rungs_on(args, case)), device)?;
    }
    if let Some(path) = &args.output {
        Results::check_target(path)?;
    }
    if args.once {
        return once(args, &cases, device);
    }
    let (commit, date) = (bench::commit(), SystemTime::now());
    let ceilings = vec![bench::device_ceiling(device)?];
    let rows = measure(args, &cases, device);
    let date = humantime::format_rfc3339_seconds(date).to_string();
    let method = DEVICE_METHOD.into();
    let head = Results { machine: Machine::gpu(device), date, commit, method, ceilings, rows: Vec::new() };
    finish(args, rows, head, None)
}

/// The rungs that were asked for, or all.
pub(super) fn rungs(args: &BenchArgs) -> Vec<&'static DeviceRung> {
    let asked = |rung: &&DeviceRung| args.rung.is_empty() || args.rung.iter().any(|name| name == rung.name);
    DEVICE_RUNGS.iter().filter(asked).collect()
}

/// Of those, the ones that take tensors of the case's type and channels; a rung that was named with a type or a width is left to
/// refuse it.
pub(super) fn rungs_on(args: &BenchArgs, case: &Case) -> Vec<&'static DeviceRung> {
    let named = |what_too: bool| !args.rung.is_empty() && what_too;
    let suits = |rung: &&DeviceRung| {
        (named(!args.dtype.is_empty()) || rung.takes.dtypes.contains(&case.dtype))
            && (named(!args.d.is_empty()) || case.d <= rung.takes.channels)
    };
    rungs(args).into_iter().filter(suits).collect()
}

/// Of those, the ones that run on such a device; a rung that was named is left to refuse it.
pub(super) fn that_run_on(
    target: Target,
    args: &BenchArgs,
    rungs: Vec<&'static DeviceRung>,
) -> Vec<&'static DeviceRung> {
    rungs.into_iter().filter(|rung| !args.rung.is_empty() || rung.runs_on(target)).collect()
}

/// One that is measured: a rung, or a step of it.
struct Contestant {
    name: &'static str,
    rung: &'static DeviceRung,
    built: CudaRung,
}

/// All that are measured on some case, ready to run.
fn contestants(args: &BenchArgs, device: &Device) -> Result<Vec<Contestant>> {
    let mut contestants = Vec::new();
    for rung in that_run_on(device.attributes().into(), args, rungs(args)) {
        if args.step.is_empty() {
            contestants.push(Contestant { name: rung.name, rung, built: rung.build(device)? });
        }
        for &number in &args.step {
            let (place, step) = rung.step(number).map_err(|error| anyhow!("--{error}"))?;
            contestants.push(Contestant { name: step.name, rung, built: rung.build(device)?.at_step(place) });
        }
    }
    Ok(contestants)
}

/// Those that are measured on a case.
fn contestants_on<'a>(args: &BenchArgs, case: &Case, all: &'a [Contestant]) -> Vec<&'a Contestant> {
    let rungs = rungs_on(args, case);
    all.iter().filter(|contestant| rungs.iter().any(|rung| rung.name == contestant.rung.name)).collect()
}

/// The shapes that were asked for, of the types and widths that some rung takes.
///
/// # Errors
/// There is none, or they are too large to be told; a rung has not the steps that were asked for.
pub(super) fn asked_cases(args: &BenchArgs) -> Result<Vec<Case>> {
    for rung in rungs(args) {
        for &number in &args.step {
            rung.step(number).map_err(|error| anyhow!("--{error}"))?;
        }
    }
    let cases = cases(args);
    ensure!(
        !cases.is_empty(),
        "--dtype, --d and --mask: found none that a rung takes, wanted one, as f16, 64 and full"
    );
    for Case { batch, heads, q_len, d, .. } in &cases {
        let bytes = [heads, q_len, d].map(|&count| count as f64).iter().product::<f64>() * *batch as f64;
        check_memory(*batch as f64 * *heads as f64, 0.0, bytes)?;
    }
    Ok(cases)
}

/// Those, or none.
fn cases(args: &BenchArgs) -> Vec<Case> {
    let set = |asked: &[usize], default: &[usize]| or(asked, default).iter().copied().collect::<BTreeSet<_>>();
    let (lengths, channels) = (set(&args.n, &[1024, 4096]), set(&args.d, &[64, 128]));
    let mut cases: Vec<Case> = Vec::new();
    for &dtype in or(&args.dtype, &[DType::F32, DType::F16]) {
        for &d in &channels {
            for case in lengths.iter().flat_map(|&n| bench::device_cases(n)) {
                let (heads, batch) = (args.heads.unwrap_or(case.heads), args.batch.unwrap_or(case.batch));
                let case = Case { dtype, d, batch, heads, kv_heads: heads, ..case };
                let is_asked = args.mask.is_none_or(|mask| mask == case.mask);
                if is_asked && !cases.contains(&case) && !rungs_on(args, &case).is_empty() {
                    cases.push(case);
                }
            }
        }
    }
    cases
}

/// Bytes of q, k, v, o and lse.
fn tensor_bytes(case: &Case) -> f64 {
    let rows = case.batch as f64 * case.heads as f64 * case.q_len as f64;
    rows * (4.0 * case.d as f64 * case.dtype.size() as f64 + size_of::<f32>() as f64)
}

/// Refuses a case that one of the rungs does not take, or for which there is no memory. Counted in floating point, which
/// cannot overflow.
pub(crate) fn check_fit(case: &Case, rungs: &[&DeviceRung], device: &Device) -> Result<()> {
    let [heads, n, d] = [case.batch as f64 * case.heads as f64, case.q_len as f64, case.d as f64];
    check_memory(heads, 0.0, 4.0 * heads * n * d)?;
    let tensors = tensor_bytes(case);
    let (options, mut workspace) = (Options { mask: case.mask, ..Options::default() }, 0);
    let free = device.memory_free()?;
    if tensors <= free as f64 {
        for rung in rungs {
            let plan =
                rung.plan(&case.shape(), &options, device.attributes().into()).with_context(|| case.to_string())?;
            workspace = plan.workspace_bytes().max(workspace);
        }
    }
    let copies = bench::copies(tensors as usize, device.attributes().l2_bytes) as f64;
    let needed = copies * (tensors + workspace as f64);
    if needed > free as f64 {
        let [needed, free] = [needed, free as f64].map(format::bytes);
        bail!("{case}: needs {needed} of the device's memory, but {free} are free: choose a smaller shape");
    }
    Ok(())
}

/// Every rung on every case that it takes: one row each.
fn measure(args: &BenchArgs, cases: &[Case], device: &Device) -> Result<Vec<Row>> {
    let bar = cli::progress(cases.len())?;
    let all = contestants(args, device)?;
    let mut rows = Vec::new();
    for case in cases {
        bar.set_message(case.to_string());
        let owned = case.build();
        let problem = owned.problem();
        let copies = bench::copies(tensor_bytes(case) as usize, device.attributes().l2_bytes);
        let contestants = contestants_on(args, case, &all);
        let built = contestants.iter().map(|contestant| &contestant.built).collect();
        let resident = Resident::new(built, &problem, copies)?;
        let times = DeviceContest::check(resident, &Answers::of(&problem))?.time()?;
        for (Contestant { name, rung, .. }, times) in contestants.into_iter().zip(times) {
            rows.push(counted(rung, device, &problem, Row::new(name, case, &problem, None, times)));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// The row with what the same algorithm moves on the CPU, if it is counted there.
fn counted(rung: &DeviceRung, device: &Device, problem: &Problem, row: Row) -> Row {
    let settings = Settings { fast_memory: device.attributes().shared_per_block as usize };
    let Some(counts) = registry::rung(rung.on_cpu).and_then(|rung| rung.counts()) else { return row };
    let traffic = counts.traffic(problem, settings).ok();
    Row {
        counted_read_bytes: traffic.map(|traffic| traffic.read),
        counted_written_bytes: traffic.map(|traffic| traffic.written),
        formula_bytes: counts.formula(problem, settings).ok(),
        ..row
    }
}

/// Launches every rung on every case that it takes once, for a profiler, and checks what it wrote.
fn once(args: &BenchArgs, cases: &[Case], device: &Device) -> Result<bool> {
    let all = contestants(args, device)?;
    for case in cases {
        let built = contestants_on(args, case, &all).into_iter().map(|contestant| &contestant.built).collect();
        let owned = case.build();
        let problem = owned.problem();
        let contest = DeviceContest::check(Resident::new(built, &problem, 1)?, &Answers::of(&problem));
        if judged(contest.map_err(Into::into))?.is_none() {
            return Ok(false);
        }
    }
    let names: Vec<&str> = all.iter().map(|contestant| contestant.name).collect();
    cli::print(&format!("launched once on {} in each of {} cases: {}", device.name(), cases.len(), names.join(", ")))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench_args;

    #[test]
    fn a_device_is_measured_on_two_types_widths_lengths_and_masks_unless_told_otherwise() {
        let cases_of = |words: &[&str]| cases(&bench_args(words));
        let all = cases_of(&[]);
        assert_eq!(all.len(), 2 * 2 * 2 * 2);
        assert!(all.iter().all(|case| (case.batch, case.heads, case.kv_heads) == (4, 16, 16) && !case.is_decode()));
        assert_eq!(all[0].to_string(), "F32 full batch 4 heads 16 on 16 q 1024 kv 1024 d 64");
        assert_eq!(all[15].to_string(), "F16 causal batch 4 heads 16 on 16 q 4096 kv 4096 d 128");
        let some = cases_of(&["--n", "64,64,32", "--dtype", "f16,F16", "--d", "40", "--heads", "3", "--batch", "2"]);
        let some: Vec<String> = some.iter().map(Case::to_string).collect();
        let wanted = ["full", "causal"]
            .map(|mask| [32, 64].map(|n| format!("F16 {mask} batch 2 heads 3 on 3 q {n} kv {n} d 40")));
        assert_eq!(some, [&wanted[0][0], &wanted[1][0], &wanted[0][1], &wanted[1][1]].map(String::clone));
    }

    #[test]
    fn a_rung_is_measured_on_the_types_that_it_takes_unless_both_are_named() {
        let names = |words: &[&str], dtype| {
            let (args, of_type) = (bench_args(words), |case: &Case| case.dtype == dtype);
            let case = cases(&args).into_iter().find(of_type)?;
            Some(rungs_on(&args, &case).iter().map(|rung| rung.name).collect::<Vec<_>>())
        };
        let with_triton = |words| names(words, DType::F16).unwrap().contains(&"triton-fa2");
        assert!(with_triton(&[]) && with_triton(&["--rung", "triton-fa2"]));
        assert!(!names(&[], DType::F32).unwrap().contains(&"triton-fa2"));
        assert_eq!(names(&["--rung", "triton-fa2"], DType::F32), None);
        let both = names(&["--rung", "triton-fa2", "--dtype", "f32"], DType::F32);
        assert_eq!(both, Some(vec!["triton-fa2"]));
        let wide = names(&["--d", "256"], DType::F16).unwrap();
        assert!(wide.contains(&"cuda-fa2") && !wide.contains(&"triton-fa2"));
        assert_eq!(names(&["--d", "256", "--rung", "triton-fa2"], DType::F16), Some(vec!["triton-fa2"]));
    }

    #[test]
    fn rungs_come_in_the_order_of_the_ladder() {
        let names = |words: &[&str]| rungs(&bench_args(words)).iter().map(|rung| rung.name).collect::<Vec<_>>();
        assert_eq!(names(&[]), ["cuda-naive", "cuda-fa1", "cuda-fa2-simt", "cuda-fa2", "triton-fa2", "fa3"]);
        assert_eq!(names(&["--rung", "cuda-fa1", "--rung", "cuda-naive"]), ["cuda-naive", "cuda-fa1"]);
    }
}
