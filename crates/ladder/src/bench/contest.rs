//! How it is measured.

use super::Answers;
use attention::{Attention, AttentionError, Output, Problem};
use device::DeviceError;
use std::time::{Duration, Instant};
use std::{iter, thread};
use testkit::{Verdict, forward_on_canaries};
use thiserror::Error;

/// Turns of each rung. Odd, so that a median is one of them.
const TURNS: usize = 7;
const _: () = assert!(TURNS >= 5 && TURNS % 2 == 1);

/// Runs of one sustained turn go on back to back until this much time has passed.
const SUSTAINED: Duration = Duration::from_millis(10);

/// What comes before each burst run: enough for a machine to fall idle.
const PAUSE: Duration = Duration::from_millis(20);

/// How [`Contest::time`] measures, in one sentence for those who read the numbers.
pub const METHOD: &str = "Seeded normal inputs, each result checked against the f64 oracle (of a large case 16 rows of \
    each head at its start, middle and end), then the rungs in turn on the same buffers: ms is the median of 7 turns of runs back to back for at least 10 ms, ms_burst the best of 7 single \
    runs after a pause of 20 ms each; 2(d + d_v) FLOPs for each visible query-key pair; GB/s of a decoding step counts \
    q, k, v, o and lse once; a ceiling is the best of 8 runs of 20 ms of independent multiply-adds, and of 3 passes over \
    memory beyond the caches";

/// Rungs that have each computed one problem rightly, and may be timed on it.
pub struct Contest<'a, 'p> {
    problems: &'a [Problem<'p>],
    rungs: &'a [Box<dyn Attention>],
    output: Output,
}

/// Why there are no times.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A rung refused the problem or found no memory for it.
    #[error("{who}: {error}")]
    Rung {
        /// The rung.
        who: &'static str,
        /// What it said.
        error: AttentionError,
    },
    /// A rung's result breaks the error rule.
    #[error("{who} against the oracle: {verdict}")]
    Wrong {
        /// The rung.
        who: &'static str,
        /// Its worst elements.
        verdict: Box<Verdict>,
    },
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The times of one rung on one problem, in milliseconds a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// The median of turns in which it runs back to back.
    pub ms: f64,
    /// The best of single runs, each after a pause.
    pub ms_burst: f64,
}

impl<'a, 'p> Contest<'a, 'p> {
    /// Runs every rung once, in the caller's rayon pool, and judges what it wrote. Each has a problem of its own: the same,
    /// but for how keys and values lie.
    ///
    /// # Errors
    /// [`BenchError`] names the first rung that cannot do the problem or does it wrongly.
    ///
    /// # Panics
    /// If there is no rung, or not a problem for each, or the `answers` are those of another shape.
    pub fn check(
        problems: &'a [Problem<'p>],
        answers: &Answers,
        rungs: &'a [Box<dyn Attention>],
    ) -> Result<Self, BenchError> {
        assert_eq!(problems.len(), rungs.len(), "a problem for each rung");
        for (rung, problem) in rungs.iter().zip(problems) {
            let failed = |error| BenchError::Rung { who: rung.name(), error };
            let output = forward_on_canaries(rung.as_ref(), problem).map_err(failed)?;
            let verdict = answers.judge(&output, rung.weights(problem));
            if !verdict.passes() {
                return Err(BenchError::Wrong { who: rung.name(), verdict: Box::new(verdict) });
            }
        }
        let output = Output::empty(&problems[0]).map_err(|error| BenchError::Rung { who: "output", error })?;
        Ok(Contest { problems, rungs, output })
    }

    /// Runs the rung at `place` once, into memory that all rungs share.
    ///
    /// # Errors
    /// [`BenchError::Rung`].
    ///
    /// # Panics
    /// If there is no such place.
    pub fn run(&mut self, place: usize) -> Result<(), BenchError> {
        let rung = &self.rungs[place];
        let done = rung.forward_into(&self.problems[place], &mut self.output.view_mut());
        done.map_err(|error| BenchError::Rung { who: rung.name(), error })
    }

    /// Times every rung in the caller's rayon pool, as [`METHOD`] says. Rungs take turns, so that a machine that slows
    /// down slows all of them.
    ///
    /// # Errors
    /// [`BenchError::Rung`].
    pub fn time(&mut self) -> Result<Vec<Times>, BenchError> {
        let mut turns = vec![Vec::new(); self.rungs.len()];
        for _ in 0..TURNS {
            for (place, turns) in turns.iter_mut().enumerate() {
                turns.push(self.sustained(place)?);
            }
        }
        let mut bursts = vec![f64::INFINITY; self.rungs.len()];
        for _ in 0..TURNS {
            for (place, best) in bursts.iter_mut().enumerate() {
                thread::sleep(PAUSE);
                let start = Instant::now();
                self.run(place)?;
                *best = best.min(start.elapsed().as_secs_f64());
            }
        }
        let times = iter::zip(&mut turns, bursts).map(|(turns, burst)| {
            turns.sort_by(f64::total_cmp);
            Times { ms: 1e3 * turns[TURNS / 2], ms_burst: 1e3 * burst }
        });
        Ok(times.collect())
    }

    /// Seconds a run, of runs back to back.
    fn sustained(&mut self, place: usize) -> Result<f64, BenchError> {
        let (start, mut runs) = (Instant::now(), 0);
        loop {
            self.run(place)?;
            runs += 1;
            let passed = start.elapsed();
            if passed >= SUSTAINED {
                return Ok(passed.as_secs_f64() / f64::from(runs));
            }
        }
    }
}

/// Floating-point operations of attention: a multiplication and an addition for each of the d + d_v channels of every
/// visible pair of query and key.
pub fn flops(problem: &Problem) -> f64 {
    let mask = problem.options().mask;
    let pairs: f64 = problem.sequences().iter().map(|sequence| mask.pairs(sequence.q.len(), sequence.k.len())).sum();
    2.0 * (problem.d() + problem.d_v()) as f64 * problem.heads() as f64 * pairs
}

#[cfg(test)]
mod tests {
    use super::{METHOD, PAUSE, SUSTAINED, TURNS};
    use crate::bench::{answers, ceiling};

    #[test]
    fn the_method_tells_the_numbers_that_are_used() {
        let (sustained, pause) = (SUSTAINED.as_millis(), PAUSE.as_millis());
        for words in [
            format!("median of {TURNS} turns"),
            format!("best of {TURNS} single"),
            format!("at least {sustained} ms"),
            format!("pause of {pause} ms"),
            format!("case {} rows", answers::ROWS),
            format!("best of {} runs of {} ms", ceiling::RUNS, ceiling::RUN.as_millis()),
            format!("of {} passes", ceiling::PASSES),
        ] {
            assert!(METHOD.contains(&words), "{words}");
        }
    }
}
