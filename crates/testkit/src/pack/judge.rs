//! Pass or fail: a result against the expected one, by the case's own tolerance.

use super::Case;
use crate::{Verdict, forward_on_canaries, worst};
use attention::oracle::Truth;
use attention::{Attention, AttentionError, Output, Problem};
use ndarray::ArrayD;

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

/// [`forward_on_canaries`], as a runner.
///
/// # Errors
/// Those of the rung.
pub fn run_on_canaries(rung: &dyn Attention, problem: &Problem) -> Result<Outcome, AttentionError> {
    forward_on_canaries(rung, problem).map(|output| Outcome::from(&output))
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
    for (name, found, wanted) in [("o", &outcome.o, &expected.o), ("lse", &outcome.lse, &expected.lse)] {
        if found.shape() != wanted.shape() {
            let why = format!("{name}: found shape {:?}, wanted {:?}", found.shape(), wanted.shape());
            return CaseReport::without_result(case, Status::Fail(why));
        }
    }
    let verdict = Verdict {
        o: worst(problem, &outcome.o, &expected.o, |_| case.tol.o),
        lse: worst(problem, &outcome.lse, &expected.lse, |_| case.tol.lse),
    };
    let status = if verdict.passes() { Status::Pass } else { Status::Fail(verdict.to_string()) };
    CaseReport { case: case.name.clone(), status, worst_o: verdict.o.ratio, worst_lse: verdict.lse.ratio }
}
