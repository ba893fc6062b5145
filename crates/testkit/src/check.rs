//! The check that every rung must pass, as proptest wants it.

use crate::problems::Spec;
use crate::{Verdict, judge, judge_against, unwritten};
use attention::{Attention, AttentionError, Output, Problem, TensorViewMut, oracle};
use half::{bf16, f16};
use proptest::prelude::*;

/// What lse memory holds before a rung writes it: no row of a test comes near.
pub(crate) const LSE_CANARY: f32 = 1234.5;

/// Runs a rung into memory that no right answer looks like (o all NaN), so that what it leaves unwritten shows.
///
/// # Errors
/// Those of the rung.
pub fn forward_on_canaries(rung: &dyn Attention, problem: &Problem) -> Result<Output, AttentionError> {
    rung.supports(problem)?;
    let mut output = Output::empty(problem)?;
    let mut out = output.view_mut();
    match &mut out.o {
        TensorViewMut::F32(o) => o.fill(f32::NAN),
        TensorViewMut::F64(o) => o.fill(f64::NAN),
        TensorViewMut::F16(o) => o.fill(f16::NAN),
        TensorViewMut::Bf16(o) => o.fill(bf16::NAN),
    }
    out.lse.fill(LSE_CANARY);
    rung.forward_into(problem, &mut out)?;
    Ok(output)
}

/// Checks `rung` on one drawn problem against the oracle, by the error rule for weights kept in f32.
///
/// # Errors
/// The rung refuses the problem, or an element is out of tolerance.
pub fn check(rung: &dyn Attention, spec: &Spec) -> Result<(), TestCaseError> {
    let owned = spec.build();
    let problem = owned.problem();
    let output = run(rung, &problem)?;
    pass(rung.name(), "the oracle", &judge(&problem, &oracle::truth(&problem), &output, rung.weights(&problem)))
}

/// Checks `rung` on one drawn problem against the rung `below` it.
///
/// # Errors
/// As [`check`].
pub fn check_against(rung: &dyn Attention, below: &dyn Attention, spec: &Spec) -> Result<(), TestCaseError> {
    let owned = spec.build();
    let problem = owned.problem();
    let (output, reference) = (run(rung, &problem)?, run(below, &problem)?);
    let [weights, weights_below] = [rung, below].map(|rung| rung.weights(&problem));
    let truth = oracle::truth(&problem);
    let verdict = judge_against(&problem, &truth, (&output, weights), (&reference, weights_below));
    pass(rung.name(), below.name(), &verdict)
}

fn run(rung: &dyn Attention, problem: &Problem) -> Result<Output, TestCaseError> {
    forward_on_canaries(rung, problem).map_err(|error| TestCaseError::fail(format!("{}: {error}", rung.name())))
}

fn pass(rung: &str, against: &str, verdict: &Verdict) -> Result<(), TestCaseError> {
    let left = unwritten(&[verdict.lse.found as f32], LSE_CANARY);
    prop_assert!(verdict.passes(), "{rung} against {against}: {verdict}{left}");
    Ok(())
}
