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
        // Not `sum()`, which begins at -0 and leaves that for no key.
        let sum = |of: fn(f64) -> f64| keys.clone().fold(0.0, |sum, (s, v)| sum + (s - m).exp() * of(v));
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

/// Small heads with a NaN in one query, in one key or in one value. Rows that see it are NaN, and no others are.
pub fn by_hand_with_nan() -> impl Strategy<Value = ByHand> {
    (by_hand(), 0usize..3, any::<prop::sample::Index>()).prop_map(|(mut case, what, place)| {
        match what {
            0 => *place.get_mut(&mut case.q) = f32::NAN,
            1 => place.get_mut(&mut case.keys).0 = f32::NAN,
            _ => place.get_mut(&mut case.keys).1 = f32::NAN,
        }
        case
    })
}

/// One to four scores of a row, one of them NaN, the others mostly -inf: [`f32::max`] drops NaN, so the largest of them is
/// often -inf, as if the row saw no key.
pub fn scores_with_nan() -> impl Strategy<Value = Vec<f32>> {
    let score = prop_oneof![
        3 => Just(f32::NEG_INFINITY),
        2 => Just(f32::NAN),
        1 => (-3i16..=3).prop_map(f32::from),
    ];
    (prop::collection::vec(score, 1..=4), any::<prop::sample::Index>()).prop_map(|(mut scores, place)| {
        *place.get_mut(&mut scores) = f32::NAN;
        scores
    })
}

impl ByHand {
    /// Two rows and two keys under a causal mask: row 0 does not see key 1, whose value is NaN; row 1 does.
    pub fn hidden_nan() -> Self {
        ByHand { q: vec![0.0; 2], keys: vec![(0.0, 4.0), (0.0, f32::NAN)], causal: true }
    }

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
        format!("row {i}, which sees scores {scores:?} of values {values:?}{}", self.hides(i))
    }

    /// What row `i` must not notice, in words: keys that are hidden from it and hold NaN. Empty if there is none.
    pub fn hides(&self, i: usize) -> String {
        let wild = |j: &usize| !self.sees(i, *j) && (self.keys[*j].0.is_nan() || self.keys[*j].1.is_nan());
        let what = |j: usize| if self.keys[j].1.is_nan() { "value" } else { "key" };
        let one = |j: usize| format!("; key {j} is hidden from it and its {} is NaN", what(j));
        (0..self.keys.len()).filter(wild).map(one).collect()
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
    use super::{ByHand, RowTruth, close};

    #[test]
    fn no_key_is_plus_zero() {
        let RowTruth { m, l, o } = RowTruth::of(&[]);
        assert_eq!(format!("{m} {l} {o}"), "-inf 0 0");
    }

    #[test]
    fn a_row_says_which_nan_is_hidden_from_it() {
        let case = ByHand::hidden_nan();
        assert!(
            case.row(0).ends_with("of values [4.0]; key 1 is hidden from it and its value is NaN"),
            "{}",
            case.row(0)
        );
        assert!(case.row(1).ends_with("of values [4.0, NaN]"), "{}", case.row(1));
        let key = ByHand { keys: vec![(0.0, 4.0), (f32::NAN, 1.0)], ..case };
        assert!(key.row(0).ends_with("; key 1 is hidden from it and its key is NaN"), "{}", key.row(0));
    }

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
