//! The criterion bench of a chapter.

use super::{Answers, Contest, build, cases_for, flops, rungs};
use criterion::{Criterion, Throughput};
use std::time::Duration;

/// A length at which a bench takes seconds.
const LENGTH: usize = 256;

/// Measures a chapter's rung, and the one below it if there is one, by criterion: the `main` of the chapter's bench.
/// Takes criterion's command line.
///
/// # Panics
/// If a rung cannot do one of its cases, or does it wrongly.
pub fn chapter(number: u32) {
    let (warm_up, measured) = (Duration::from_millis(500), Duration::from_secs(2));
    let criterion = Criterion::default().sample_size(20).warm_up_time(warm_up).measurement_time(measured);
    let mut criterion = criterion.configure_from_args();
    let asked = rungs(&[number]);
    let (all, rungs) = (cases_for(&asked, LENGTH), build(&asked));
    for case in all {
        let owned = case.build();
        let problem = owned.problem();
        let inputs: Vec<_> = asked.iter().map(|rung| rung.input(&owned)).collect();
        let problems: Vec<_> = inputs.iter().map(|input| input.problem()).collect();
        let mut contest =
            Contest::check(&problems, &Answers::of(&problem), &rungs).expect("only right results are timed");
        let mut group = criterion.benchmark_group(case.to_string());
        group.throughput(Throughput::Elements(flops(&problem) as u64));
        for (place, rung) in rungs.iter().enumerate() {
            let mut once = || contest.run(place).expect("it has run before");
            group.bench_function(rung.name(), |bencher| bencher.iter(&mut once));
        }
    }
    criterion.final_summary();
}
