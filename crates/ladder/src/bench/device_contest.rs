//! How it is measured on a device.

use super::resident::Calls;
use super::{Answers, BenchError, Resident, Times};
use attention::Attention;
use std::thread;
use std::time::Duration;

/// Rounds of which the median and the best count.
const ROUNDS: usize = 2;

/// Milliseconds of one rung's part of a sustained round.
const SUSTAINED: f64 = 90.0;

/// Milliseconds of one burst.
const BURST: f64 = 20.0;

/// What comes before each burst: enough for the power that the device draws to fall.
const REST: Duration = Duration::from_millis(120);

/// Milliseconds that the calls that are launched as one take together, if one takes less.
const UNIT: f64 = 3.0;

/// Calls that are launched as one, at most.
const MOST_CALLS: usize = 200;

/// Launches that a median is taken of, at least and at most.
const LEAST: usize = 3;
const MOST: usize = 60;

/// How [`DeviceContest::time`] measures, in one sentence for those who read the numbers.
pub const DEVICE_METHOD: &str = "Seeded normal inputs that stay on the device, each result checked against the f64 oracle \
    (of a large case 16 rows of each head at its start, middle and end), then the rungs in turn on the same buffers, of which \
    there are copies beyond twice the level-2 cache where one would fit it, timed by events: ms is the median of 2 rounds of \
    launches back to back for 90 ms or at least 3 launches, ms_burst the better of 2 bursts of 20 ms or at least 3 launches \
    after a rest of 120 ms; a round or burst counts with the median of its launches; calls shorter than 3 ms are launched \
    several at once, as a graph; 2(d + d_v) FLOPs for each visible query-key pair; a ceiling is the best of 8 launches of 20 ms \
    of independent f32 multiply-adds, and of 8 copies within the device's memory; counted_read_bytes and \
    counted_written_bytes are those of the same algorithm on the CPU with as much fast memory as a block of threads has shared \
    memory";

/// Rungs that have each computed one problem rightly on their device, and may be timed on it.
pub struct DeviceContest<'a, 'p> {
    resident: Resident<'a, 'p>,
}

/// Copies of a case's tensors, together more than twice what the level-2 cache holds, if one is less than it.
pub fn copies(bytes: usize, l2_bytes: usize) -> usize {
    const MOST_COPIES: usize = 64;
    if bytes >= l2_bytes { 1 } else { (2 * l2_bytes).div_ceil(bytes.max(1)).min(MOST_COPIES) }
}

impl<'a, 'p> DeviceContest<'a, 'p> {
    /// Launches every rung once, and judges what it wrote.
    ///
    /// # Errors
    /// [`BenchError`] names the first rung that does it wrongly, or says what the device did.
    ///
    /// # Panics
    /// If the `answers` are those of another shape.
    pub fn check(resident: Resident<'a, 'p>, answers: &Answers) -> Result<Self, BenchError> {
        for (place, rung) in resident.rungs().iter().enumerate() {
            let output = resident.output(place)?;
            let verdict = answers.judge(&output, rung.weights(resident.problem()));
            if !verdict.passes() {
                return Err(BenchError::Wrong { who: rung.name(), verdict: Box::new(verdict) });
            }
        }
        Ok(DeviceContest { resident })
    }

    /// Times every rung, as [`DEVICE_METHOD`] says. Rungs take turns, so that a device that slows down slows all of them.
    ///
    /// # Errors
    /// [`BenchError::Device`].
    pub fn time(&self) -> Result<Vec<Times>, BenchError> {
        let units = (0..self.resident.rungs().len()).map(|place| self.unit(place)).collect::<Result<Vec<_>, _>>()?;
        let mut rounds = vec![Vec::new(); units.len()];
        for _ in 0..ROUNDS {
            for (unit, rounds) in units.iter().zip(&mut rounds) {
                rounds.push(self.median(unit, SUSTAINED, 2)?);
            }
        }
        let mut bursts = vec![f64::INFINITY; units.len()];
        for _ in 0..ROUNDS {
            for (unit, best) in units.iter().zip(&mut bursts) {
                thread::sleep(REST);
                *best = best.min(self.median(unit, BURST, 1)?);
            }
        }
        let times = rounds.into_iter().zip(bursts);
        Ok(times.map(|(rounds, ms_burst)| Times { ms: median(rounds), ms_burst }).collect())
    }

    /// The calls of a rung that are launched as one, and how long they take.
    fn unit(&self, place: usize) -> Result<Unit<'_, 'a, 'p>, BenchError> {
        let ms = self.resident.once(place)?.max(1e-3);
        let calls = self.resident.calls(place, together(ms, self.resident.copies()))?;
        Ok(Unit { ms: ms * calls.count as f64, calls })
    }

    /// The median of the launches that take `budget` milliseconds, after some that are not timed: milliseconds a call.
    fn median(&self, unit: &Unit, budget: f64, untimed: usize) -> Result<f64, BenchError> {
        let stream = self.resident.stream();
        (0..untimed).try_for_each(|_| unit.calls.launch())?;
        let mut events = Vec::new();
        for _ in 0..((budget / unit.ms).ceil() as usize).clamp(LEAST, MOST) {
            let start = stream.record()?;
            unit.calls.launch()?;
            events.push((start, stream.record()?));
        }
        let times = events.iter().map(|(start, end)| Ok(f64::from(end.elapsed_ms(start)?) / unit.calls.count as f64));
        Ok(median(times.collect::<Result<_, BenchError>>()?))
    }
}

/// What is launched as one, and the milliseconds that it takes.
struct Unit<'r, 'a, 'p> {
    calls: Calls<'r, 'a, 'p>,
    ms: f64,
}

/// How many calls of so many milliseconds are launched as one: equally many on each copy of the tensors.
fn together(ms: f64, copies: usize) -> usize {
    let calls = ((UNIT / ms).ceil() as usize).clamp(1, MOST_CALLS);
    calls.next_multiple_of(copies)
}

/// The middle of some numbers, at least one, or the mean of the two that are.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let (low, high) = (numbers[(numbers.len() - 1) / 2], numbers[numbers.len() / 2]);
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::answers;
    use cuda_fa2::ceiling;

    #[test]
    fn the_method_tells_the_numbers_that_are_used() {
        for words in [
            format!("case {} rows", answers::ROWS),
            format!(
                "median of {ROUNDS} rounds of launches back to back for {SUSTAINED} ms or at least {LEAST} launches"
            ),
            format!("better of {ROUNDS} bursts of {BURST} ms or at least {LEAST} launches"),
            format!("rest of {} ms", REST.as_millis()),
            format!("shorter than {UNIT} ms"),
            format!("best of {} launches of {} ms", ceiling::RUNS, ceiling::RUN_MS),
            format!("of {} copies", ceiling::RUNS),
        ] {
            assert!(DEVICE_METHOD.contains(&words), "{words}");
        }
    }

    #[test]
    fn copies_go_beyond_the_cache_and_what_does_not_fit_it_needs_none() {
        // An H100 has 50 MiB of it.
        let l2 = 50 << 20;
        for (bytes, wanted) in [(1 << 30, 1), (l2, 1), (l2 - 1, 3), (33 << 20, 4), (1 << 20, 64), (0, 64)] {
            assert_eq!(copies(bytes, l2), wanted, "{bytes}");
        }
    }

    #[test]
    fn short_calls_are_launched_together_and_long_ones_alone() {
        for (ms, copies, wanted) in [(500.0, 1, 1), (3.0, 1, 1), (1.0, 1, 3), (1e-3, 1, 200), (1.0, 4, 4), (0.5, 4, 8)]
        {
            assert_eq!(together(ms, copies), wanted, "{ms} ms, {copies} copies");
        }
    }

    #[test]
    fn a_median_of_two_is_their_mean() {
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
        assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
    }
}
