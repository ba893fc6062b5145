//! Pass or fail: a result against the expected one, by the case's own tolerance.

use super::Case;
use attention::oracle::Truth;
use attention::{Attention, AttentionError, Output, Problem, TensorViewMut};
use half::{bf16, f16};
use ndarray::{ArrayD, Axis, Slice};

/// What runs a case: a rung, or whatever else can solve a problem.
pub type Runner<'a> = &'a dyn Fn(&Problem) -> Result<Outcome, AttentionError>;

/// A result, widened exactly.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// `[batch, heads, q_len, d_v]`, packed `[heads, total_q, d_v]`.
    pub o: ArrayD<f64>,
    /// `[batch, heads, q_len]`, packed `[heads, total_q]`.
    pub lse: ArrayD<f64>,
}

impl From<Truth> for Outcome {
    fn from(truth: Truth) -> Self {
        Outcome { o: truth.o, lse: truth.lse }
    }
}

impl From<&Output> for Outcome {
    fn from(output: &Output) -> Self {
        Outcome { o: output.o.view().to_f64(), lse: output.lse.mapv(f64::from) }
    }
}

/// How a case came out.
#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    /// Every element is within its tolerance.
    Pass,
    /// At least one is not, or there is no result; why.
    Fail(String),
    /// Whoever ran it does not offer this; what.
    Unsupported(String),
}

/// One case, run and judged.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseReport {
    /// The case's name.
    pub case: String,
    /// How it came out.
    pub status: Status,
    /// The largest |error| / tolerance of o: at most 1 passes. NaN or an infinity out of place is infinite; without a
    /// result it is NaN.
    pub worst_o: f64,
    /// The same of lse.
    pub worst_lse: f64,
}

impl CaseReport {
    pub(super) fn without_result(case: &Case, status: Status) -> Self {
        CaseReport { case: case.name.clone(), status, worst_o: f64::NAN, worst_lse: f64::NAN }
    }
}

/// Runs a rung into memory that no right answer looks like: whatever it leaves unwritten fails.
///
/// # Errors
/// Those of the rung.
pub fn run_on_canaries(rung: &dyn Attention, problem: &Problem) -> Result<Outcome, AttentionError> {
    rung.supports(problem)?;
    let mut output = Output::empty(problem)?;
    let mut out = output.view_mut();
    match &mut out.o {
        TensorViewMut::F32(o) => o.fill(f32::NAN),
        TensorViewMut::F64(o) => o.fill(f64::NAN),
        TensorViewMut::F16(o) => o.fill(f16::NAN),
        TensorViewMut::Bf16(o) => o.fill(bf16::NAN),
    }
    out.lse.fill(1234.5);
    rung.forward_into(problem, &mut out)?;
    Ok(Outcome::from(&output))
}

/// Judges what a runner answered.
pub(super) fn judge(
    case: &Case,
    problem: &Problem,
    expected: &Outcome,
    answer: Result<Outcome, AttentionError>,
) -> CaseReport {
    let outcome = match answer {
        Ok(outcome) => outcome,
        Err(error @ AttentionError::Unsupported { .. }) => {
            return CaseReport::without_result(case, Status::Unsupported(error.to_string()));
        }
        Err(error) => return CaseReport::without_result(case, Status::Fail(error.to_string())),
    };
    let o = worst("o", problem, &outcome.o, &expected.o, case.tol.o);
    let lse = worst("lse", problem, &outcome.lse, &expected.lse, case.tol.lse);
    let status = match [&o, &lse].into_iter().find(|worst| worst.ratio > 1.0) {
        Some(worst) => Status::Fail(worst.what.clone()),
        None => Status::Pass,
    };
    CaseReport { case: case.name.clone(), status, worst_o: o.ratio, worst_lse: lse.ratio }
}

struct Worst {
    ratio: f64,
    what: String,
}

/// The element of `found` that is furthest from `expected`. Packed rows of no sequence do not count: nothing is said of
/// what they hold.
fn worst(name: &str, problem: &Problem, found: &ArrayD<f64>, expected: &ArrayD<f64>, tol: f64) -> Worst {
    if found.shape() != expected.shape() {
        let what = format!("{name}: found shape {:?}, wanted {:?}", found.shape(), expected.shape());
        return Worst { ratio: f64::INFINITY, what };
    }
    let (mut found, mut expected) = (found.view(), expected.view());
    if problem.is_packed() {
        let rows = problem.sequences().last().map_or(0, |sequence| sequence.q.end);
        found.slice_axis_inplace(Axis(1), Slice::from(..rows));
        expected.slice_axis_inplace(Axis(1), Slice::from(..rows));
    }
    let mut worst = Worst { ratio: 0.0, what: String::new() };
    for ((index, &wanted), &found) in expected.indexed_iter().zip(found) {
        let ratio = error_ratio(found, wanted, tol);
        if ratio > worst.ratio {
            let what = format!("{name}{index:?}: found {found}, wanted {wanted} within {tol:.3e}");
            worst = Worst { ratio, what };
        }
    }
    worst
}

/// |error| / tolerance, never NaN: what is not finite is right only if it is the same.
fn error_ratio(found: f64, wanted: f64, tol: f64) -> f64 {
    if found == wanted || (found.is_nan() && wanted.is_nan()) {
        0.0
    } else if found.is_finite() && wanted.is_finite() && tol > 0.0 {
        (found - wanted).abs() / tol
    } else {
        f64::INFINITY
    }
}
