//! Problems that one can work by hand: one head, one channel of q and k and two of v, small whole numbers.
//!
//! A check that fails on one of these tells its reader more than any shape can. It is never the only check: whatever
//! special-cases small sizes must still face [`problems`](crate::problems::problems).

use crate::check::LSE_CANARY;
use attention::{Attention, Mask, Options, Problem};
use ndarray::{Array4, arr1};
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

/// Whether all of `found` are what f64 arithmetic gives, in [`close`]'s sense, and none is missing.
pub fn all_close<'a>(found: impl IntoIterator<Item = &'a f32>, wanted: &[f64]) -> bool {
    let found: Vec<f32> = found.into_iter().copied().collect();
    found.len() == wanted.len() && found.iter().zip(wanted).all(|(&found, &wanted)| close(found, wanted))
}

/// A number as messages show it: in f32, without the last digits of f64 and without the sign of -0.
pub fn shown(x: impl Into<f64>) -> f32 {
    x.into() as f32 + 0.0
}

/// Numbers as messages show them.
pub fn all_shown<'a, T: Copy + Into<f64> + 'a>(all: impl IntoIterator<Item = &'a T>) -> Vec<f32> {
    all.into_iter().map(|&x| shown(x)).collect()
}

/// Words for what still holds the number that memory was filled with; empty if nothing does.
pub fn unwritten(found: &[f32], canary: f32) -> String {
    if found.contains(&canary) {
        format!("; where it is {canary} it was not written (the test had put that there)")
    } else {
        String::new()
    }
}

/// The two channels of a value that is given by one number. They differ, so that a step which sees to the first alone is
/// found out.
pub fn channels(v: f32) -> [f32; 2] {
    [v, 1.0 - v]
}

/// One head with one channel of q and k and two of v: the score of row i and key j is `scale * q[i] * k_j`.
#[derive(Clone, Debug, PartialEq)]
pub struct ByHand {
    /// The queries.
    pub q: Vec<f32>,
    /// Each key with its value, `(k_j, v_j)`; the value's two channels are [`channels`] of it.
    pub keys: Vec<(f32, f32)>,
    /// Whether the mask is causal; else every row sees every key.
    pub causal: bool,
    /// The factor of every product of q and k.
    pub scale: f32,
    /// What else makes a score.
    pub also: Also,
}

/// What makes a score beside the product and the scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Also {
    /// Nothing.
    Nothing,
    /// As [`Options::softcap`].
    SoftCap(f32),
    /// The slope, as [`Options::alibi_slopes`].
    Alibi(f32),
    /// [`Options::bias`] with this number for the last row and the last key, and 0 elsewhere.
    Bias(f32),
}

impl Default for ByHand {
    /// No row and no key, to fill in: scale 1 and nothing else.
    fn default() -> Self {
        ByHand { q: Vec::new(), keys: Vec::new(), causal: false, scale: 1.0, also: Also::Nothing }
    }
}

/// What a row knows in the end, in f64: the maximum of its scores, the sum of its weights, and the output not yet divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowTruth {
    /// `max_j s_j`, -inf for no key.
    pub m: f64,
    /// `sum_j e^(s_j - m)`.
    pub l: f64,
    /// `sum_j e^(s_j - m) v_j`, for each of the two channels.
    pub o: [f64; 2],
}

impl RowTruth {
    /// By the definition, from each key's score and value, of which [`channels`] are two; a score of -inf is a hidden key.
    pub fn of(keys: &[(f32, f32)]) -> Self {
        let keys = keys.iter().map(|&(s, v)| (f64::from(s), channels(v))).filter(|&(s, _)| s != f64::NEG_INFINITY);
        let m = keys.clone().map(|(s, _)| s).fold(f64::NEG_INFINITY, f64::max);
        // Not `sum()`, which begins at -0 and leaves that for no key.
        let sum = |of: &dyn Fn([f32; 2]) -> f64| keys.clone().fold(0.0, |sum, (s, v)| sum + (s - m).exp() * of(v));
        RowTruth { m, l: sum(&|_| 1.0), o: [0, 1].map(|channel| sum(&|v| f64::from(v[channel]))) }
    }

    /// The output: o divided, 0 for no key.
    pub fn output(&self) -> [f64; 2] {
        self.o.map(|o| if self.l == 0.0 { 0.0 } else { o / self.l })
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
    let scale = prop_oneof![2 => Just(1.0f32), 1 => prop::sample::select(vec![0.5f32, 2.0])];
    let also = prop_oneof![
        3 => Just(Also::Nothing),
        1 => prop::sample::select(vec![1.0f32, 3.0]).prop_map(Also::SoftCap),
        1 => prop::sample::select(vec![0.5f32, 1.0]).prop_map(Also::Alibi),
        1 => prop::sample::select(vec![-2.0f32, 3.0]).prop_map(Also::Bias),
    ];
    (q, keys, any::<bool>(), scale, also).prop_map(|(q, keys, causal, scale, also)| ByHand {
        q,
        keys,
        causal,
        scale,
        also,
    })
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
        ByHand { q: vec![0.0; 2], keys: vec![(0.0, 4.0), (0.0, f32::NAN)], causal: true, ..ByHand::default() }
    }

    /// Two rows that see all of three keys, with another largest score each, a scale of one half and a bias.
    pub fn scaled_and_biased() -> Self {
        let keys = vec![(2.0, 1.0), (0.0, 3.0), (-2.0, 5.0)];
        ByHand { q: vec![2.0, -2.0], keys, scale: 0.5, also: Also::Bias(3.0), ..ByHand::default() }
    }

    /// Two rows and three keys under a causal mask, and a soft cap of 2.
    pub fn capped() -> Self {
        let keys = vec![(1.0, 1.0), (3.0, 3.0), (-1.0, 5.0)];
        ByHand { q: vec![1.0, 2.0], keys, causal: true, also: Also::SoftCap(2.0), ..ByHand::default() }
    }

    /// Two rows that see all of three keys, and ALiBi of slope 1.
    pub fn sloped() -> Self {
        let keys = vec![(1.0, 1.0), (3.0, 3.0), (-1.0, 5.0)];
        ByHand { q: vec![1.0, 2.0], keys, also: Also::Alibi(1.0), ..ByHand::default() }
    }

    /// The three heads in which more than a product makes a score.
    pub fn scores_with_more() -> [Self; 3] {
        [Self::scaled_and_biased(), Self::capped(), Self::sloped()]
    }

    /// Runs `f` on the problem.
    pub fn with<R>(&self, f: impl FnOnce(&Problem) -> R) -> R {
        let (n, keys) = (self.q.len(), self.keys.len());
        let q = Array4::from_shape_fn((1, 1, n, 1), |(.., i, _)| self.q[i]);
        let k = Array4::from_shape_fn((1, 1, keys, 1), |(.., j, _)| self.keys[j].0);
        let v = Array4::from_shape_fn((1, 1, keys, 2), |(.., j, channel)| channels(self.keys[j].1)[channel]);
        let mut bias = Array4::zeros((1, 1, n, keys));
        let mut slopes = arr1(&[0.0f32]).into_dyn();
        let mask = if self.causal { Mask::Causal } else { Mask::Full };
        let mut options = Options { scale: Some(self.scale.into()), mask, ..Options::default() };
        match self.also {
            Also::Nothing => {}
            Also::SoftCap(cap) => options.softcap = cap.into(),
            Also::Alibi(slope) => {
                slopes.fill(slope);
                options.alibi_slopes = Some(slopes.view());
            }
            Also::Bias(more) => {
                bias[[0, 0, n - 1, keys - 1]] = more;
                options.bias = Some(bias.view());
            }
        }
        f(&Problem::dense(q.view(), k.view(), v.view(), options).expect("a sound problem"))
    }

    /// Whether row `i` sees key `j`: the last row sits on the last key.
    pub fn sees(&self, i: usize, j: usize) -> bool {
        !self.causal || j + self.q.len() <= i + self.keys.len()
    }

    /// The score of row `i` and key `j`, -inf where it is hidden.
    pub fn score(&self, i: usize, j: usize) -> f32 {
        if !self.sees(i, j) {
            return f32::NEG_INFINITY;
        }
        let (n, keys) = (self.q.len(), self.keys.len());
        let s = f64::from(self.scale) * f64::from(self.q[i]) * f64::from(self.keys[j].0);
        let s = match self.also {
            Also::SoftCap(cap) => f64::from(cap) * (s / f64::from(cap)).tanh(),
            Also::Alibi(slope) => s - f64::from(slope) * (i + keys).abs_diff(j + n) as f64,
            Also::Bias(more) if (i + 1, j + 1) == (n, keys) => s + f64::from(more),
            Also::Bias(_) | Also::Nothing => s,
        };
        s as f32
    }

    /// What row `i` knows of the keys `among`.
    pub fn truth(&self, i: usize, among: std::ops::Range<usize>) -> RowTruth {
        RowTruth::of(&among.map(|j| (self.score(i, j), self.keys[j].1)).collect::<Vec<_>>())
    }

    /// The scores and values of row `i`, in words.
    pub fn row(&self, i: usize) -> String {
        let seen: Vec<usize> = (0..self.keys.len()).filter(|&j| self.sees(i, j)).collect();
        let scores: Vec<f32> = seen.iter().map(|&j| shown(self.score(i, j))).collect();
        let values: Vec<[f32; 2]> = seen.iter().map(|&j| channels(self.keys[j].1)).collect();
        format!("row {i}, which sees scores {scores:?} of values {values:?}{}{}", self.made(), self.hides(i))
    }

    /// What makes the scores beside the products, in words. Empty if nothing does.
    pub fn made(&self) -> String {
        let scale = if self.scale == 1.0 { String::new() } else { format!("; the scale is {}", self.scale) };
        let also = match self.also {
            Also::Nothing => String::new(),
            Also::SoftCap(cap) => format!("; the soft cap is {cap}"),
            Also::Alibi(slope) => format!("; the ALiBi slope is {slope}"),
            Also::Bias(more) => {
                let (row, key) = (self.q.len() - 1, self.keys.len() - 1);
                format!("; the bias of row {row} and key {key} is {more}")
            }
        };
        scale + &also
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
        let (o, lse) = ([0, 1].map(|channel| o[[0, 0, i, channel]] as f32), output.lse[[0, 0, i]]);
        prop_assert!(
            all_close(&o, &truth.output()) && close(lse, truth.lse()),
            "{}: o is {:?} and lse {lse}, wanted {:?} and {}{}",
            case.row(i),
            all_shown(&o),
            all_shown(&truth.output()),
            shown(truth.lse()),
            unwritten(&[lse], LSE_CANARY)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{ByHand, RowTruth, all_close, all_shown, close, shown, unwritten};

    #[test]
    fn no_key_is_plus_zero() {
        let RowTruth { m, l, o } = RowTruth::of(&[]);
        assert_eq!(format!("{m} {l} {o:?}"), "-inf 0 [0.0, 0.0]");
    }

    #[test]
    fn messages_show_no_tails_and_no_negative_zero() {
        assert_eq!(format!("{} {}", shown(11.999999992381383f64), shown(-0.0f32)), "12 0");
        assert_eq!(format!("{:?}", all_shown(&[0.1f64 + 0.2, -0.0])), "[0.3, 0.0]");
        assert_eq!(unwritten(&[1.0], 777.0), "");
        assert!(unwritten(&[1.0, 777.0], 777.0).contains("777 it was not written"));
    }

    #[test]
    fn a_result_with_a_channel_missing_is_not_close() {
        assert!(all_close(&[1.0, 2.0], &[1.0, 2.0]));
        for found in [&[1.0][..], &[1.0, 2.0, 3.0], &[1.0, 0.0]] {
            assert!(!all_close(found, &[1.0, 2.0]), "{found:?}");
        }
    }

    /// Scores worked out here once more, and those of the problem itself.
    #[test]
    fn a_score_is_made_as_the_problem_makes_it() {
        let [biased, capped, sloped] = ByHand::scores_with_more();
        assert_eq!([biased.score(0, 0), biased.score(1, 0), biased.score(1, 2)], [2.0, -2.0, 5.0]);
        assert_eq!([sloped.score(0, 0), sloped.score(0, 2), sloped.score(1, 1)], [0.0, -2.0, 5.0]);
        assert!(capped.score(0, 2) == f32::NEG_INFINITY && close(capped.score(1, 1), 2.0 * 3f64.tanh()));
        for case in ByHand::scores_with_more() {
            case.with(|problem| {
                let head = problem.head(0, 0);
                for (i, j) in (0..2).flat_map(|i| (0..3).map(move |j| (i, j))) {
                    let found = head.score(case.q[i] * case.keys[j].0, i, j);
                    assert!(close(found, case.score(i, j).into()), "{}: {found} for row {i} and key {j}", case.row(i));
                }
            });
        }
        assert!(biased.row(0).ends_with("; the scale is 0.5; the bias of row 1 and key 2 is 3"), "{}", biased.row(0));
        assert!(capped.row(0).contains("; the soft cap is 2") && sloped.row(0).contains("; the ALiBi slope is 1"));
    }

    #[test]
    fn a_row_says_which_nan_is_hidden_from_it() {
        let case = ByHand::hidden_nan();
        assert!(
            case.row(0).ends_with("of values [[4.0, -3.0]]; key 1 is hidden from it and its value is NaN"),
            "{}",
            case.row(0)
        );
        assert!(case.row(1).ends_with("of values [[4.0, -3.0], [NaN, NaN]]"), "{}", case.row(1));
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
