//! Chapter 3's rung against the one below it. The cases are those of `ladder bench`, at a length that takes seconds.

use attention::oracle::truth;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ladder::bench::{self, Contest};
use std::time::Duration;

const CHAPTER: u32 = 3;
const LENGTH: usize = 256;

fn rungs(criterion: &mut Criterion) {
    let rungs = bench::build(&bench::rungs(&[CHAPTER]));
    for case in bench::cases(LENGTH) {
        let owned = case.build();
        let problem = owned.problem();
        let mut contest = Contest::check(&problem, &truth(&problem), &rungs).expect("only right results are timed");
        let mut group = criterion.benchmark_group(case.to_string());
        group.throughput(Throughput::Elements(bench::flops(&problem) as u64));
        for (place, rung) in rungs.iter().enumerate() {
            let mut once = || contest.run(place).expect("it has run before");
            group.bench_function(rung.name(), |bencher| bencher.iter(&mut once));
        }
    }
}

fn quick() -> Criterion {
    let (warm_up, measured) = (Duration::from_millis(500), Duration::from_secs(2));
    Criterion::default().sample_size(20).warm_up_time(warm_up).measurement_time(measured)
}

criterion_group!(name = benches; config = quick(); targets = rungs);
criterion_main!(benches);
