//! Problems that one can work by hand: one head, one channel, scale 1, small whole numbers.
//!
//! A check that fails on one of these tells its reader more than any shape can. It is never the only check: whatever
//! special-cases small sizes must still face [`problems`](crate::problems::problems).

use attention::{Attention, Mask, Options, Problem};
use ndarray::Array4;
use proptest::prelude::*;

/// How the checks of a chapter run: as proptest does by default, but nothing is written beside the sources.
pub fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

/// Panics with a failed law's own words, where it is applied to a single case.
///
/// # Panics
/// If the law failed.
#[track_caller]
pub fn must(law: Result<(), TestCaseError>) {
    if let Err(TestCaseError::Fail(reason) | TestCaseError::Reject(reason)) = law {
        panic!("{reason}");
    }
}

/// Whether an f32 result is what f64 arithmetic gives, up to rounding; NaN and infinities only in their own place.
pub fn close(found: f32, wanted: f64) -> bool {
    let found = f64::from(found);
    if found.is_finite() && wanted.is_finite() {
        (found - wanted).abs() <= 1e-5 * (1.0 + wanted.abs())
    } else {
        found == wanted || (found.is_nan() && wanted.is_nan())
    }
}

/// One head with one channel and scale 1: the score of row i and key j is `q[i] * k_j`.
#[derive(Clone, Debug, PartialEq)]
pub struct ByHand {
    /// The queries.
    pub q: Vec<f32>,
    /// Each key with its value, `(k_j, v_j)`.
    pub keys: Vec<(f32, f32)>,
    /// Whether the mask is causal; else every row sees every key.
    pub causal: bool,
}

/// What a row knows in the end, in f64: the maximum of its scores, the sum of its weights, and the output not yet divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowTruth {
    /// `max_j s_j`, -inf for no key.
    pub m: f64,
    /// `sum_j e^(s_j - m)`.
    pub l: f64,
    /// `sum_j e^(s_j - m) v_j`.
    pub o: f64,
}

impl RowTruth {
    /// By the definition, from each key's score and value; a score of -inf is a hidden key.
    pub fn of(keys: &[(f32, f32)]) -> Self {
        let keys = keys.iter().map(|&(s, v)| (f64::from(s), f64::from(v))).filter(|&(s, _)| s != f64::NEG_INFINITY);
        let m = keys.clone().map(|(s, _)| s).fold(f64::NEG_INFINITY, f64::max);
        let sum = |of: fn(f64) -> f64| keys.clone().map(|(s, v)| (s - m).exp() * of(v)).sum();
        RowTruth { m, l: sum(|_| 1.0), o: sum(|v| v) }
    }

    /// The output: o divided, 0 for no key.
    pub fn output(&self) -> f64 {
        if self.l == 0.0 { 0.0 } else { self.o / self.l }
    }

    /// `ln sum_j e^s_j`, -inf for no key.
    pub fn lse(&self) -> f64 {
        self.m + self.l.ln()
    }
}

/// Small heads of every kind.
pub fn by_hand() -> impl Strategy<Value = ByHand> {
    let small = || (-3i8..=3).prop_map(f32::from);
    let q = prop::collection::vec(small(), 1..=4);
    let keys = prop::collection::vec((small(), small()), 1..=5);
    (q, keys, any::<bool>()).prop_map(|(q, keys, causal)| ByHand { q, keys, causal })
}

impl ByHand {
    /// Runs `f` on the problem.
    pub fn with<R>(&self, f: impl FnOnce(&Problem) -> R) -> R {
        let column = |values: Vec<f32>| Array4::from_shape_vec((1, 1, values.len(), 1), values).expect("one column");
        let q = column(self.q.clone());
        let (k, v) = self.keys.iter().copied().unzip();
        let (k, v) = (column(k), column(v));
        let mask = if self.causal { Mask::Causal } else { Mask::Full };
        let options = Options { scale: Some(1.0), mask, ..Options::default() };
        f(&Problem::dense(q.view(), k.view(), v.view(), options).expect("a sound problem"))
    }

    /// Whether row `i` sees key `j`: the last row sits on the last key.
    pub fn sees(&self, i: usize, j: usize) -> bool {
        !self.causal || j + self.q.len() <= i + self.keys.len()
    }

    /// The score of row `i` and key `j`, -inf where it is hidden.
    pub fn score(&self, i: usize, j: usize) -> f32 {
        if self.sees(i, j) { self.q[i] * self.keys[j].0 } else { f32::NEG_INFINITY }
    }

    /// What row `i` knows of the keys `among`.
    pub fn truth(&self, i: usize, among: std::ops::Range<usize>) -> RowTruth {
        RowTruth::of(&among.map(|j| (self.score(i, j), self.keys[j].1)).collect::<Vec<_>>())
    }

    /// The scores and values of row `i`, in words.
    pub fn row(&self, i: usize) -> String {
        let seen: Vec<usize> = (0..self.keys.len()).filter(|&j| self.sees(i, j)).collect();
        let scores: Vec<f32> = seen.iter().map(|&j| self.score(i, j)).collect();
        let values: Vec<f32> = seen.iter().map(|&j| self.keys[j].1).collect();
        format!("row {i}, which sees scores {scores:?} of values {values:?}")
    }
}

/// Checks a rung on a small head, with the numbers of the row that is wrong.
///
/// # Errors
/// The rung refuses the problem, or a row is wrong.
pub fn check_by_hand(rung: &dyn Attention, case: &ByHand) -> Result<(), TestCaseError> {
    let output = case.with(|problem| crate::forward_on_canaries(rung, problem))?;
    let o = output.o.view().to_f64();
    for i in 0..case.q.len() {
        let truth = case.truth(i, 0..case.keys.len());
        let (o, lse) = (o[[0, 0, i, 0]] as f32, output.lse[[0, 0, i]]);
        prop_assert!(
            close(o, truth.output()) && close(lse, truth.lse()),
            "{}: o is {o} and lse {lse}, wanted {} and {}",
            case.row(i),
            truth.output(),
            truth.lse()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::close;

    #[test]
    fn close_is_a_matter_of_rounding_and_never_of_infinity() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for (found, wanted) in
            [(1.0, 1.000001), (0.0, 0.0), (nan, f64::NAN), (-inf, -f64::INFINITY), (1000.0, 1000.001)]
        {
            assert!(close(found, wanted), "{found} is close to {wanted}");
        }
        for (found, wanted) in
            [(1.0, 1.001), (1.0, -f64::INFINITY), (-inf, 1.0), (nan, 1.0), (1.0, f64::NAN), (inf, -1.0)]
        {
            assert!(!close(found, wanted), "{found} is not close to {wanted}");
        }
    }
}
