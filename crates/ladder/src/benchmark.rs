//! `ladder bench`: the definitions of [`ladder::bench`], measured, shown and saved.

mod ncu;
mod on_device;

pub(crate) use on_device::check_fit as check_fit_on_device;

use crate::cli::{self, BenchArgs};
use crate::compare::Comparison;
use crate::devices::Want;
use crate::input::check_memory;
use crate::memory;
use anyhow::{Result, bail, ensure};
use attention::{Attention, DType};
use fa2::{Fa2Simd, Simd};
use ladder::bench::{self, Answers, BenchError, Case, Contest, METHOD, Machine, Results, Row};
use ladder::registry::{RUNGS, Rung};
use rayon::ThreadPool;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::thread;
use std::time::SystemTime;

pub(crate) fn main(args: &BenchArgs) -> Result<bool> {
    if let Some(file) = &args.ncu {
        return ncu::main(args, file);
    }
    args.device.check(&args.rung, Want::Times)?;
    match args.device.open()? {
        Some(device) => on_device::main(args, &device),
        None => on_cpu(args),
    }
}

fn on_cpu(args: &BenchArgs) -> Result<bool> {
    ensure!(args.batch.is_none(), "--batch: found no --device, wanted one");
    let rungs = rungs(args);
    let cases = cases(args, &rungs)?;
    check_fit(&cases, &rungs)?;
    if let Some(path) = &args.output {
        // Better to hear now than after all the work that the results cannot be saved.
        Results::check_target(path)?;
    }
    // What the results say of the sources is true of those that were measured, so git is asked first.
    let (commit, date) = (bench::commit(), SystemTime::now());
    let pools = threads(&args.threads).into_iter().map(cli::pool).collect::<Result<Vec<_>>>()?;
    let ceilings = bench::ceilings(&pools, memory::available());
    let contestants = contestants(args, &rungs)?;
    let rows = measure(&cases, &rungs, &contestants, &pools);
    let date = humantime::format_rfc3339_seconds(date).to_string();
    let head = Results { machine: Machine::cpu(), date, commit, method: METHOD.into(), ceilings, rows: Vec::new() };
    let all = args.rung.is_empty() && args.chapter.is_empty() && !args.peers;
    finish(args, rows, head, args.device.not_run(Want::Times).filter(|_| all))
}

/// Saves and shows what was measured; `false` if a result was wrong.
fn finish(args: &BenchArgs, rows: Result<Vec<Row>>, head: Results, remark: Option<String>) -> Result<bool> {
    let Some(rows) = judged(rows)? else { return Ok(false) };
    let results = Results { rows, ..head };
    if let Some(path) = &args.output {
        results.write(path)?;
    }
    let text =
        || [Some(Comparison::of_one(&results).text()), remark].into_iter().flatten().collect::<Vec<_>>().join("\n");
    cli::print(&if args.json { results.to_string() } else { text() })?;
    Ok(true)
}

/// What was done, or `None` after saying which result was wrong.
fn judged<T>(done: Result<T>) -> Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) => match error.downcast_ref() {
            Some(wrong @ BenchError::Wrong { .. }) => {
                cli::complain(&format!("failed: {wrong}"));
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

/// The shapes that were asked for.
fn cases(args: &BenchArgs, rungs: &[&Rung]) -> Result<Vec<Case>> {
    if args.peers {
        return peers(args);
    }
    if let (Some(rung), Some(d)) = (rungs.iter().find(|rung| rung.latents), args.d.first()) {
        bail!("--d: found {d}, wanted none: {} is measured on latents of 576 channels", rung.name);
    }
    let lengths: BTreeSet<usize> = or(&args.n, &[256, 512, 1024]).iter().copied().collect();
    let channels: BTreeSet<usize> = or(&args.d, &[64]).iter().copied().collect();
    let mut cases: Vec<Case> = Vec::new();
    for &dtype in or(&args.dtype, &[DType::F32]) {
        for &d in &channels {
            for case in lengths.iter().flat_map(|&n| bench::cases_for(rungs, n)) {
                let (heads, latent) = (args.heads.unwrap_or(case.heads), case.latent.is_some());
                let (d, kv_heads) = if latent { (case.d, 1) } else { (d, heads) };
                let case = Case { dtype, d, heads, kv_heads, ..case };
                if !cases.contains(&case) {
                    cases.push(case);
                }
            }
        }
    }
    Ok(cases)
}

/// What was asked for, or the default.
fn or<'a, T>(asked: &'a [T], default: &'a [T]) -> &'a [T] {
    if asked.is_empty() { default } else { asked }
}

/// The peers' sizes: of them those that were asked for, of which each must be there.
fn peers(args: &BenchArgs) -> Result<Vec<Case>> {
    let BenchArgs { n, d, dtype, .. } = args;
    let mut cases = bench::peers();
    cases.retain(|case| {
        or(n, &[case.kv_len]).contains(&case.kv_len)
            && or(d, &[case.d]).contains(&case.d)
            && or(dtype, &[case.dtype]).contains(&case.dtype)
    });
    let has = |wanted: &dyn Fn(&Case) -> bool| cases.iter().any(wanted);
    for &n in n {
        ensure!(has(&|case| case.kv_len == n), "--n: found {n}, wanted keys that --peers has with the other options");
    }
    for &d in d {
        ensure!(has(&|case| case.d == d), "--d: found {d}, wanted channels that --peers has with the other options");
    }
    for &dtype in dtype {
        ensure!(
            has(&|case| case.dtype == dtype),
            "--dtype: found {dtype}, wanted a type that --peers has, F32 or BF16"
        );
    }
    Ok(cases)
}

/// The rungs that were asked for.
fn rungs(args: &BenchArgs) -> Vec<&'static Rung> {
    let named = |names: &[String]| RUNGS.iter().filter(|rung| names.iter().any(|name| name == rung.name)).collect();
    match (args.rung.as_slice(), args.peers && args.chapter.is_empty()) {
        ([], true) => named(&[bench::FASTEST.into()]),
        ([], false) => bench::rungs(&args.chapter),
        (names, _) => named(names),
    }
}

/// Names, and who bears them.
type Contestants = (Vec<String>, Vec<Box<dyn Attention>>);

/// The rungs, and with `--levels` the fastest with each kind of vectors.
fn contestants(args: &BenchArgs, rungs: &[&Rung]) -> Result<Contestants> {
    let mut names: Vec<String> = rungs.iter().map(|rung| rung.name.into()).collect();
    let mut contestants = bench::build(rungs);
    for simd in Simd::available().into_iter().filter(|_| args.levels) {
        names.push(format!("{}:{simd}", bench::FASTEST));
        contestants.push(Box::new(Fa2Simd::new(simd)?));
    }
    Ok((names, contestants))
}

/// Refuses cases for which there is no memory.
fn check_fit(cases: &[Case], rungs: &[&Rung]) -> Result<()> {
    let keeps_scores = rungs.iter().any(|rung| rung.name == "naive");
    for case in cases {
        let [heads, kv_heads] = [case.heads, case.kv_heads].map(|heads| (case.batch * heads) as f64);
        let [q_len, kv_len, d] = [case.q_len, case.kv_len, case.d].map(|x| x as f64);
        let pairs = if keeps_scores { heads * q_len * kv_len } else { 0.0 };
        check_memory(heads, pairs, 2.0 * d * (heads * q_len + kv_heads * kv_len))?;
    }
    Ok(())
}

/// Every rung on every case in every pool: one row each.
fn measure(
    cases: &[Case],
    rungs: &[&Rung],
    (names, contestants): &Contestants,
    pools: &[ThreadPool],
) -> Result<Vec<Row>> {
    let bar = cli::progress(cases.len() * pools.len())?;
    let mut rows = Vec::new();
    for case in cases {
        bar.set_message(case.to_string());
        let owned = case.build();
        let problem = owned.problem();
        let answers = Answers::of(&problem);
        let mut inputs: Vec<_> = rungs.iter().map(|rung| rung.input(&owned)).collect();
        inputs.resize(contestants.len(), Cow::Borrowed(&owned));
        let problems: Vec<_> = inputs.iter().map(|input| input.problem()).collect();
        for pool in pools {
            let times = pool.install(|| Contest::check(&problems, &answers, contestants)?.time())?;
            let row = |(rung, times)| Row::new(rung, case, &problem, Some(pool.current_num_threads()), times);
            rows.extend(names.iter().map(String::as_str).zip(times).map(row));
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
