//! The error rule: how far a correct rung may be from the truth, by a model of rounding.
//!
//! Per element of o, against the oracle on the inputs as they are stored:
//!
//! `tol = 6 u sqrt(sum_j p_j^2 v_j^2) + u_o |o| + (2^-20 (1 + max|s|) + 2^-23 reach + 2^-24 sqrt(n)) max|v|`
//!
//! - **Weights.** A kernel may round P before `P V`. Each weight then errs by up to u of itself, in no particular
//!   direction, and the errors add up like a random walk; 6 is six standard steps of it. u is 2^-11 for F16, 2^-9 for BF16
//!   (half the worst case, as errors do not all line up) and 0 for F32, which every CPU rung keeps.
//! - **Output.** One rounding, at its worst case: u_o is 2^-11 for F16, 2^-8 for BF16, 0 for F32.
//! - **f32 arithmetic.** A score errs by some half ulps (2^-24) of its own size, and so does every power of it: 16 of them,
//!   2^-20, for `1 + max|s|`. `reach` is the largest sum of magnitudes that cancel in a score of the row: a q and a k of
//!   norm 1000 may be all but orthogonal, and their product still errs by their size. n is the number of keys that the
//!   row sees; a sum of n terms wanders by sqrt(n) half ulps. max|v| is that of the element's channel.
//!
//! Where relative error ends, among a type's subnormals, half their spacing is added. lse must be within 1e-5, absolute
//! plus relative, and 2^-23 reach. NaN and infinities must stand in the same places.

use attention::{DType, Output, Problem, oracle::Truth};
use ndarray::{ArrayD, ArrayViewD, Axis, Dimension, Slice};

/// The element with the largest error in units of its tolerance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Worst {
    /// |found - wanted| / tolerance; infinite where one of the two is not finite and the other differs.
    pub ratio: f64,
    /// Its index.
    pub at: Vec<usize>,
    /// The value under test.
    pub found: f64,
    /// The value it should have.
    pub wanted: f64,
    /// The error it may have.
    pub tolerance: f64,
    /// The index of the first element, row by row, that is beyond its own tolerance.
    pub first: Option<Vec<usize>>,
}

/// What the rule says of one output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The worst element of o.
    pub o: Worst,
    /// The worst element of lse.
    pub lse: Worst,
}

impl Verdict {
    /// Whether every element is within its tolerance.
    pub fn passes(&self) -> bool {
        self.ratio() <= 1.0
    }

    /// The worst ratio of o and lse.
    pub fn ratio(&self) -> f64 {
        self.o.ratio.max(self.lse.ratio)
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, worst) = if self.o.ratio >= self.lse.ratio { ("o", &self.o) } else { ("lse", &self.lse) };
        f.write_str(&worst.told(name))
    }
}

impl Worst {
    /// The element in words, of the tensor called `name`.
    pub fn told(&self, name: &str) -> String {
        let Worst { ratio, at, found, wanted, tolerance, first } = self;
        let first = first.as_ref().filter(|first| *first != at);
        let first = first.map_or_else(String::new, |first| format!("; the first wrong one is {name}{first:?}"));
        let off = times(*ratio);
        format!("{name}{at:?}: found {found}, wanted {wanted} within {tolerance:.3e}, off by {off}{first}")
    }
}

/// An error in words, from its ratio to the tolerance.
fn times(ratio: f64) -> String {
    match ratio {
        f64::INFINITY => "more than any tolerance".into(),
        ratio if ratio < 10.0 => format!("{ratio:.3} times the tolerance"),
        ratio => format!("{ratio:.0} times the tolerance"),
    }
}

/// Judges an output whose weights were kept in `weights` (F32 for every CPU rung) against the oracle's truth.
///
/// ```
/// use attention::{Attention, DType, Options, Problem, oracle};
/// use ndarray::Array4;
/// let q = Array4::<f32>::ones((1, 1, 2, 4));
/// let problem = Problem::dense(q.view(), q.view(), q.view(), Options::default())?;
/// let output = oracle::Oracle.forward(&problem)?;
/// assert!(testkit::judge(&problem, &oracle::truth(&problem), &output, DType::F32).passes());
/// # Ok::<(), attention::AttentionError>(())
/// ```
pub fn judge(problem: &Problem, truth: &Truth, output: &Output, weights: DType) -> Verdict {
    let rule = Rule { truth, weights, output: problem.dtype() };
    let (o, lse) = widen(output);
    Verdict {
        o: worst(problem, &o, &truth.o, |at| rule.o(at)),
        lse: worst(problem, &lse, &truth.lse, |at| rule.lse(at)),
    }
}

/// Judges an output against that of another rung, each with the type in which its weights were kept. Each may be off by
/// its own tolerance on its own side, so they may differ by both together.
pub fn judge_against(
    problem: &Problem,
    truth: &Truth,
    (output, weights): (&Output, DType),
    (below, weights_below): (&Output, DType),
) -> Verdict {
    let [rule, rule_below] = [weights, weights_below].map(|weights| Rule { truth, weights, output: problem.dtype() });
    let ((o, lse), (o_below, lse_below)) = (widen(output), widen(below));
    Verdict {
        o: worst(problem, &o, &o_below, |at| rule.o(at) + rule_below.o(at)),
        lse: worst(problem, &lse, &lse_below, |at| rule.lse(at) + rule_below.lse(at)),
    }
}

struct Rule<'a> {
    truth: &'a Truth,
    weights: DType,
    output: DType,
}

impl Rule<'_> {
    fn o(&self, at: &[usize]) -> f64 {
        let Truth { o, spread, v_norm, s_max, reach, v_max, keys, .. } = self.truth;
        let row = &at[..at.len() - 1];
        let (u, u_subnormal) = match self.weights {
            DType::F16 => (f64::powi(2.0, -11), f64::powi(2.0, -25)),
            DType::Bf16 => (f64::powi(2.0, -9), 0.0),
            DType::E4m3 => (f64::powi(2.0, -5), f64::powi(2.0, -10)),
            DType::F32 | DType::F64 => (0.0, 0.0),
        };
        let f32_arithmetic = f64::powi(2.0, -20) * (1.0 + s_max[row])
            + f64::powi(2.0, -23) * reach[row]
            + f64::powi(2.0, -24) * keys[row].sqrt();
        // Each product and each partial sum of an f32 accumulator may land among its subnormals.
        let f32_subnormals = f64::powi(2.0, -149) * (1.0 + keys[row]);
        6.0 * (u * spread[at] + u_subnormal * v_norm[at])
            + half_ulp(self.output, o[at])
            + f32_arithmetic * v_max[at]
            + f32_subnormals
    }

    fn lse(&self, at: &[usize]) -> f64 {
        let lse = self.truth.lse[at];
        // A row that sees no key has lse -inf, to which no tolerance applies.
        if lse.is_finite() { 1e-5 * (1.0 + lse.abs()) + f64::powi(2.0, -23) * self.truth.reach[at] } else { 0.0 }
    }
}

/// How far rounding to `dtype` may move `x`; 0 for F32, whose share is in the rule's last term.
fn half_ulp(dtype: DType, x: f64) -> f64 {
    let (relative, subnormal) = match dtype {
        DType::F16 => (f64::powi(2.0, -11), f64::powi(2.0, -25)),
        DType::Bf16 => (f64::powi(2.0, -8), f64::powi(2.0, -134)),
        DType::E4m3 => (f64::powi(2.0, -4), f64::powi(2.0, -10)),
        DType::F32 | DType::F64 => (0.0, 0.0),
    };
    f64::max(relative * x.abs(), subnormal)
}

/// o and lse as f64, exactly.
fn widen(output: &Output) -> (ArrayD<f64>, ArrayD<f64>) {
    (output.o.view().to_f64(), output.lse.mapv(f64::from))
}

/// The element of `found` that is furthest from `wanted` in units of `tolerance`. Packed rows of no sequence do not
/// count: nothing is said of what they hold.
///
/// # Panics
/// If the two shapes differ.
pub fn worst(
    problem: &Problem,
    found: &ArrayD<f64>,
    wanted: &ArrayD<f64>,
    tolerance: impl Fn(&[usize]) -> f64,
) -> Worst {
    let (mut found, mut wanted) = (found.view(), wanted.view());
    if problem.is_packed() {
        let end = problem.sequences().last().map_or(0, |sequence| sequence.q.end);
        found.slice_axis_inplace(Axis(1), Slice::from(..end));
        wanted.slice_axis_inplace(Axis(1), Slice::from(..end));
    }
    worst_element(found, wanted, tolerance)
}

/// The element of `found` that is furthest from `wanted` in units of `tolerance`.
///
/// # Panics
/// If the two shapes differ.
pub fn worst_element(found: ArrayViewD<f64>, wanted: ArrayViewD<f64>, tolerance: impl Fn(&[usize]) -> f64) -> Worst {
    assert_eq!(found.shape(), wanted.shape(), "outputs of one problem have one shape");
    let mut worst = Worst::default();
    for ((at, &found), &wanted) in found.indexed_iter().zip(wanted) {
        let at = at.slice();
        let tolerance = tolerance(at);
        let ratio = error_ratio(found, wanted, tolerance);
        let first = worst.first.take().or_else(|| (ratio > 1.0).then(|| at.to_vec()));
        if ratio > worst.ratio || worst.at.is_empty() {
            worst = Worst { ratio, at: at.to_vec(), found, wanted, tolerance, first };
        } else {
            worst.first = first;
        }
    }
    worst
}

/// |error| / tolerance, never NaN: what is not finite is right only if it is the same.
fn error_ratio(found: f64, wanted: f64, tolerance: f64) -> f64 {
    if found == wanted || (found.is_nan() && wanted.is_nan()) {
        0.0
    } else if found.is_finite() && wanted.is_finite() && tolerance > 0.0 && tolerance.is_finite() {
        (found - wanted).abs() / tolerance
    } else {
        f64::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::{Rule, Verdict, Worst, error_ratio, worst_element};
    use attention::{DType, Options, Problem, oracle};
    use ndarray::{Array4, array};

    #[test]
    fn a_verdict_says_how_many_tolerances_it_is_off() {
        for (ratio, words) in [
            (15093.365, "off by 15093 times the tolerance"),
            (0.5, "off by 0.500 times the tolerance"),
            (f64::INFINITY, "off by more than any tolerance"),
        ] {
            let o = Worst { ratio, at: vec![0, 1], found: 2.0, wanted: 1.0, tolerance: 1e-6, first: None };
            let said = Verdict { o, ..Verdict::default() }.to_string();
            assert!(said.ends_with(words), "{said}");
        }
    }

    #[test]
    fn a_verdict_says_which_wrong_element_is_the_first() {
        let (found, wanted) = (array![[0.0, 2.0, 9.0]].into_dyn(), array![[0.0, 0.5, 1.0]].into_dyn());
        let worst = worst_element(found.view(), wanted.view(), |_| 1.0);
        assert_eq!((worst.at.as_slice(), worst.first.as_deref()), (&[0, 2][..], Some(&[0, 1][..])));
        assert!(worst.told("o").ends_with("off by 8.000 times the tolerance; the first wrong one is o[0, 1]"));
    }

    /// Two keys of equal score 0 with values (3, inf) and (4, 1).
    #[test]
    fn the_tolerance_of_a_row_worked_by_hand() {
        let q = Array4::<f32>::zeros((1, 1, 1, 1));
        let k = Array4::<f32>::zeros((1, 1, 2, 1));
        let v = array![[[[3.0f32, f32::INFINITY], [4.0, 1.0]]]];
        let problem = Problem::dense(q.view(), k.view(), v.view(), Options::default()).unwrap();
        let truth = oracle::truth(&problem);
        let tolerance = |weights, output, channel| Rule { truth: &truth, weights, output }.o(&[0, 0, 0, channel]);
        let ulp = |exponent| f64::powi(2.0, exponent);
        // max|v| = 4, no score, no reach, n = 2; sqrt(0.25 * 9 + 0.25 * 16) = 2.5; o = 3.5.
        let arithmetic = (ulp(-20) + ulp(-24) * 2f64.sqrt()) * 4.0 + ulp(-149) * 3.0;
        assert_eq!(tolerance(DType::F32, DType::F32, 0), arithmetic);
        let half = tolerance(DType::F16, DType::F16, 0);
        let wanted = 6.0 * (ulp(-11) * 2.5 + ulp(-25) * 5.0) + ulp(-11) * 3.5 + arithmetic;
        assert!((half - wanted).abs() < 1e-15, "{half} {wanted}");
        // An infinite value leaves its own channel without a tolerance, and the other one's as it was.
        assert!(!tolerance(DType::F32, DType::F32, 1).is_finite());
        assert_eq!(error_ratio(12345.0, 1.0, f64::INFINITY), f64::INFINITY);
    }

    #[test]
    fn non_finite_values_pass_only_in_their_own_place() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        assert_eq!(error_ratio(1.25, 1.0, 0.5), 0.5);
        for same in [nan, inf, -inf, 0.0] {
            assert_eq!(error_ratio(same, same, 0.5), 0.0);
        }
        for (found, wanted) in [(nan, 1.0), (1.0, nan), (inf, 1.0), (1.0, -inf), (inf, -inf), (nan, inf), (inf, nan)] {
            assert_eq!(error_ratio(found, wanted, 0.5), inf, "{found} for {wanted}");
        }
    }

    #[test]
    fn a_tolerance_of_nothing_passes_only_equality() {
        assert_eq!(error_ratio(0.0, 0.0, 0.0), 0.0);
        assert_eq!(error_ratio(1e-30, 0.0, 0.0), f64::INFINITY);
        assert_eq!(error_ratio(1e-30, 0.0, f64::NAN), f64::INFINITY);
    }
}
