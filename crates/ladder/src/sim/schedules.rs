//! A call in one order of its warps after the other.

use attention::oracle::{self, Truth};
use attention::{Attention, DType, Output, Problem};
use cuda_fa2::CudaRung;
use device::{Counters, Device, DeviceError};
use indicatif::ProgressBar;
use ladder::bench::{BenchError, Resident};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use testkit::{Verdict, judge};

/// The orders that are drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedules {
    /// The seed of the first; each next one's is greater by one.
    pub(super) first: u64,
    /// How many, at least one.
    pub(super) count: usize,
}

/// What came of all orders.
#[derive(Debug)]
pub(super) struct Simulated {
    /// Against the oracle.
    pub(super) verdict: Verdict,
    /// What each kernel did in the first order.
    pub(super) counters: Vec<(String, Counters)>,
}

/// The first order that is not as it should be.
#[derive(Debug, PartialEq)]
pub(super) struct Failure {
    pub(super) seed: u64,
    /// What is wrong, in some lines.
    pub(super) what: String,
}

/// One order: what it gave and did.
struct Call {
    seed: u64,
    output: Output,
    weights: DType,
    counters: Vec<(String, Counters)>,
}

/// Runs the rung on a sound problem in all orders, in the caller's rayon pool: the first alone, the others side by side.
///
/// # Errors
/// The rung cannot do the problem, or there is no memory for it.
pub(super) fn run(
    problem: &Problem,
    schedules: Schedules,
    build: impl Fn(&Device) -> Result<CudaRung, DeviceError> + Sync,
    bar: &ProgressBar,
) -> Result<Result<Simulated, Failure>, BenchError> {
    let Schedules { first: seed, count } = schedules;
    let truth = oracle::truth(problem);
    let first = match call(problem, seed, &build)? {
        Ok(first) => first,
        Err(failure) => return Ok(Err(failure)),
    };
    bar.inc(1);
    let verdict = first.judge(problem, &truth);
    if !verdict.passes() {
        return Ok(Err(Failure::wrong(seed, &verdict)));
    }
    // Of several that are wrong the first counts, whichever ends first.
    let other = (1..count as u64).into_par_iter().find_map_first(|after| {
        let failure = call(problem, seed + after, &build).map(|call| match call {
            Ok(call) => first.differs(&call, problem, &truth),
            Err(failure) => Some(failure),
        });
        bar.inc(1);
        failure.transpose()
    });
    match other.transpose()? {
        Some(failure) => Ok(Err(failure)),
        None => Ok(Ok(Simulated { verdict, counters: first.counters })),
    }
}

/// One order, on a device of its own.
fn call(
    problem: &Problem,
    seed: u64,
    build: &impl Fn(&Device) -> Result<CudaRung, DeviceError>,
) -> Result<Result<Call, Failure>, BenchError> {
    let device = Device::simulated();
    let Device::Simulated(simulator) = &device else { unreachable!("it has just been made") };
    simulator.set_schedule(seed);
    let rung = build(&device)?;
    let weights = rung.weights(problem);
    match Resident::new(vec![&rung], problem, 1)?.output(0) {
        Ok(output) => Ok(Ok(Call { seed, output, weights, counters: simulator.take_counters() })),
        Err(BenchError::Device(DeviceError::Simulated { report })) => Ok(Err(Failure { seed, what: report })),
        Err(error) => Err(error),
    }
}

impl Call {
    fn judge(&self, problem: &Problem, truth: &Truth) -> Verdict {
        judge(problem, truth, &self.output, self.weights)
    }

    /// How another order's result is wrong, or has other bits.
    fn differs(&self, other: &Call, problem: &Problem, truth: &Truth) -> Option<Failure> {
        let verdict = other.judge(problem, truth);
        if !verdict.passes() {
            return Some(Failure::wrong(other.seed, &verdict));
        }
        let pairs = numbers(&other.output).zip(numbers(&self.output));
        let mut others = pairs.filter(|((.., found), (.., wanted))| found.to_bits() != wanted.to_bits());
        others.next().map(|((name, at, found), (.., wanted))| {
            let what = format!("{name}: number {at}: found {found}, but {wanted} under seed {}", self.seed);
            Failure { seed: other.seed, what }
        })
    }
}

impl Failure {
    fn wrong(seed: u64, verdict: &Verdict) -> Self {
        Failure { seed, what: format!("against the oracle: {verdict}") }
    }
}

/// Every number of an output with its tensor's name and its place there. Widening is exact, so that equal bits stay equal and
/// others differ.
fn numbers(output: &Output) -> impl Iterator<Item = (&'static str, usize, f64)> {
    let o = output.o.view().to_f64().into_iter().enumerate().map(|(at, x)| ("o", at, x));
    let lse = output.lse.mapv(f64::from).into_iter().enumerate().map(|(at, x)| ("lse", at, x));
    o.chain(lse)
}

#[cfg(test)]
mod tests;
