//! A call in one order of its warps after the other.

use attention::oracle::{self, Truth};
use attention::{Attention, DType, Output, Problem};
use cuda_fa2::CudaRung;
use device::{Counters, Device, DeviceError};
use indicatif::ProgressBar;
use ladder::bench::{BenchError, Resident};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use std::slice;
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
    let verdict = judge(problem, &truth, &first.output, first.weights);
    if !verdict.passes() {
        return Ok(Err(Failure { seed, what: wrong(&verdict) }));
    }
    // Of several that are wrong the first counts, whichever ends first.
    let seeds = seed + 1..=seed + (count as u64 - 1);
    let other = seeds.into_par_iter().find_map_first(|other| {
        let compared = call(problem, other, &build)
            .map(|call| call.and_then(|call| first.compare(problem, &truth, seed, other, &call)));
        bar.inc(1);
        match compared {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => Some(Ok(failure)),
            Err(error) => Some(Err(error)),
        }
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
    match Resident::new(slice::from_ref(&rung), problem, 1)?.output(0) {
        Ok(output) => Ok(Ok(Call { output, weights, counters: simulator.take_counters() })),
        Err(BenchError::Device(DeviceError::Simulated { report })) => Ok(Err(Failure { seed, what: report })),
        Err(error) => Err(error),
    }
}

impl Call {
    /// Whether another order gave the same bits.
    fn compare(&self, problem: &Problem, truth: &Truth, seed: u64, other: u64, call: &Call) -> Result<(), Failure> {
        let verdict = judge(problem, truth, &call.output, call.weights);
        if !verdict.passes() {
            return Err(Failure { seed: other, what: wrong(&verdict) });
        }
        let [ours, theirs] = [self, call].map(|call| numbers(&call.output));
        match ours.zip(theirs).find(|((_, _, ours), (_, _, theirs))| ours.to_bits() != theirs.to_bits()) {
            None => Ok(()),
            Some(((name, at, ours), (_, _, theirs))) => {
                let what = format!("{name}[{at}] in row-major order: found {theirs}, but {ours} under seed {seed}");
                Err(Failure { seed: other, what })
            }
        }
    }
}

fn wrong(verdict: &Verdict) -> String {
    format!("against the oracle: {verdict}")
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
