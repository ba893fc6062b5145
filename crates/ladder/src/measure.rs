//! Runs every rung on one problem: first counted, then checked, then timed.

mod on_device;

use crate::memory;
use attention::oracle::{self, Truth};
use attention::{Attention, AttentionError, DType, Output, Problem, Traffic, TrafficMeter};
use device::Device;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use ladder::bench::flops;
use ladder::registry::{DEVICE_RUNGS, ORACLE, RUNGS, Rung, Settings};
use std::time::{Duration, Instant};
use testkit::{OwnedProblem, Verdict, judge, judge_against};

/// Most runs that a median is taken over.
pub(crate) const RUNS: usize = 5;

/// No further run starts once they have taken this long together.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a rung did with one problem.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) chapter: u32,
    /// The numbers, or why there are none.
    pub(crate) result: Result<Measured, AttentionError>,
}

/// The numbers of one rung on one problem.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Against the oracle.
    pub(crate) truth: Verdict,
    /// Against the next lower rung that can do the problem, of which the lowest has none; on a device, against the same
    /// algorithm on the CPU.
    pub(crate) below: Option<(&'static str, Verdict)>,
    /// `None` on a simulated device, which has no clock.
    pub(crate) time: Option<Time>,
    /// Bytes allocated at once beyond inputs and outputs; on a device, by the kernels there.
    pub(crate) peak_extra: usize,
    /// By the meter and by the closed formula, if the rung counts.
    pub(crate) traffic: Option<Moved>,
}

/// How long a call takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    /// The median of the timed runs.
    pub(crate) seconds: f64,
    /// Of them, those of the kernels alone, on a device.
    pub(crate) kernel_seconds: Option<f64>,
    pub(crate) runs: usize,
    /// Floating-point operations in 10^9 a second, counting visible pairs only.
    pub(crate) gflops: f64,
}

/// Bytes between slow and fast memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// By the meter.
    pub(crate) counted: Traffic,
    /// By the closed formula.
    pub(crate) formula: f64,
}

impl Row {
    /// Why the rung does not take the problem, if it does not offer what that asks for.
    pub(crate) fn refusal(&self) -> Option<&AttentionError> {
        self.result.as_ref().err().filter(|error| matches!(error, AttentionError::Unsupported { .. }))
    }

    /// Why it is no result that counts, unless the rung does not offer what the problem asks for.
    pub(crate) fn failure(&self) -> Option<String> {
        let name = self.name;
        let measured = match &self.result {
            Ok(measured) => measured,
            Err(_) if self.refusal().is_some() => return None,
            Err(error) => return Some(format!("{name}: {error}")),
        };
        if !measured.truth.passes() {
            return Some(format!("{name} against the oracle: {}", measured.truth));
        }
        let (below, verdict) = measured.below.as_ref().filter(|(_, verdict)| !verdict.passes())?;
        Some(format!("{name} against {below}: {verdict}"))
    }
}

/// Takes every rung through a sound problem, in order, and with a device those that run there. One that cannot do it, or not
/// with these settings, stops no other.
pub(crate) fn measure(owned: &OwnedProblem, settings: Settings, device: Option<&Device>) -> Vec<Row> {
    let on_device = if device.is_some() { DEVICE_RUNGS } else { &[] };
    let bars = Bars::new(RUNGS.iter().map(|rung| rung.name).chain(on_device.iter().map(|rung| rung.name)));
    let truth = oracle::truth(&owned.problem());
    bars.oracle.finish();
    let mut rows = Vec::new();
    let mut below: Option<Found> = None;
    let mut kept = Vec::new();
    for (rung, bar) in RUNGS.iter().zip(&bars.rungs) {
        let input = rung.input(owned);
        let result = match measure_rung(rung, &input.problem(), settings, &truth, below.as_ref(), bar) {
            Ok((measured, found)) => {
                if on_device.iter().any(|other| other.on_cpu == rung.name) {
                    kept.push(found.clone());
                }
                below = Some(found);
                Ok(measured)
            }
            Err(error) => Err(error),
        };
        rows.push(Row { name: rung.name, chapter: rung.chapter, result });
    }
    for (rung, bar) in on_device.iter().zip(&bars.rungs[RUNGS.len()..]) {
        let below = kept.iter().find(|found| found.name == rung.on_cpu);
        let result = device.map(|device| on_device::measure_rung(rung, device, &owned.problem(), &truth, below, bar));
        rows.extend(result.map(|result| Row { name: rung.name, chapter: rung.chapter, result }));
    }
    rows
}

/// What a rung found, and the type in which it kept its weights.
#[derive(Clone)]
struct Found {
    name: &'static str,
    output: Output,
    weights: DType,
}

fn measure_rung(
    rung: &Rung,
    problem: &Problem,
    settings: Settings,
    truth: &Truth,
    below: Option<&Found>,
    bar: &ProgressBar,
) -> Result<(Measured, Found), AttentionError> {
    let traffic = moved(rung, problem, settings)?;
    bar.inc(1);

    let attention = rung.build(settings);
    let mut output = Output::empty(problem)?;
    let (done, peak_extra) = memory::peak_extra(|| attention.forward_into(problem, &mut output.view_mut()));
    done?;
    let verdicts = judged(attention.as_ref(), problem, &output, truth, below);
    bar.inc(1);
    let time = Some(timed(attention.as_ref(), problem, output.clone(), bar)?);
    let (truth, below) = verdicts;
    let found = Found { name: rung.name, output, weights: attention.weights(problem) };
    Ok((Measured { truth, below, time, peak_extra, traffic }, found))
}

/// The verdicts on an output: against the oracle, and against another rung's.
type Verdicts = (Verdict, Option<(&'static str, Verdict)>);

fn judged(
    attention: &dyn Attention,
    problem: &Problem,
    output: &Output,
    truth: &Truth,
    below: Option<&Found>,
) -> Verdicts {
    let weights = attention.weights(problem);
    let against =
        |below: &Found| (below.name, judge_against(problem, truth, (output, weights), (&below.output, below.weights)));
    (judge(problem, truth, output, weights), below.map(against))
}

/// The median time of some runs.
fn timed(
    attention: &dyn Attention,
    problem: &Problem,
    mut scratch: Output,
    bar: &ProgressBar,
) -> Result<Time, AttentionError> {
    let mut times = Vec::new();
    while times.len() < RUNS && times.iter().sum::<Duration>() < PATIENCE {
        let start = Instant::now();
        attention.forward_into(problem, &mut scratch.view_mut())?;
        times.push(start.elapsed());
        bar.inc(1);
    }
    bar.finish();
    times.sort();
    let seconds = times[times.len() / 2].as_secs_f64();
    Ok(Time { seconds, kernel_seconds: None, runs: times.len(), gflops: flops(problem) / seconds / 1e9 })
}

fn moved(rung: &Rung, problem: &Problem, settings: Settings) -> Result<Option<Moved>, AttentionError> {
    let Some(counts) = rung.counts() else { return Ok(None) };
    let meter = TrafficMeter::default();
    counts.build(settings, &meter).forward(problem)?;
    Ok(Some(Moved { counted: meter.traffic(), formula: counts.formula(problem, settings)? }))
}

/// A progress bar for the oracle and for each rung; hidden where stderr is no terminal.
struct Bars {
    all: MultiProgress,
    oracle: ProgressBar,
    rungs: Vec<ProgressBar>,
}

impl Bars {
    fn new(rungs: impl Iterator<Item = &'static str>) -> Self {
        let all = MultiProgress::new();
        let style = ProgressStyle::with_template("{prefix:>14} [{bar:30}] {pos}/{len}").expect("a fixed template");
        let bar = |name, steps| {
            let bar = all.add(ProgressBar::new(steps).with_style(style.clone()).with_prefix(name));
            bar.tick();
            bar
        };
        // A rung's steps: counted, checked, timed.
        let (oracle, rungs) = (bar(ORACLE, 1), rungs.map(|rung| bar(rung, 2 + RUNS as u64)).collect());
        Bars { all, oracle, rungs }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        // Bars that cannot be cleared from a terminal are no reason to fail.
        let _ = self.all.clear();
    }
}
