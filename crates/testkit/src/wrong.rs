//! Tests of tests: a check is worth something if it rejects a wrong variant.

use crate::{check, config, problems::problems};
use attention::{Attention, AttentionError, Head, OutputMut, Problem};
use ndarray::{Array1, Array2};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::fmt::Debug;

/// Asserts that `check` fails on one of the first `within` inputs of `strategy`, drawn from a fixed seed.
///
/// # Panics
/// If the wrong variant called `name` passes them all: the check cannot see that fault.
///
/// ```
/// use proptest::prelude::*;
/// let check = |x: u32| { prop_assert!(x < 50); Ok(()) };
/// testkit::assert_caught("numbers that stay below 50", 200, 0u32..100, check);
/// ```
pub fn assert_caught<S: Strategy>(
    name: &str,
    within: u32,
    strategy: S,
    check: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let config = Config { cases: within, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    match runner.run(&strategy, check) {
        Err(TestError::Fail(..)) => {}
        Ok(()) => panic!("the wrong variant \"{name}\" passes {within} checks"),
        Err(TestError::Abort(reason)) => panic!("the checks of \"{name}\" gave up: {reason}"),
    }
}

/// What a variant with faults to choose from does to one head: o `[q_len, d_v]` and lse `[q_len]`.
pub type Faulty<F> = fn(&Head, F) -> (Array2<f32>, Array1<f32>);

/// Asserts that [`check`] rejects `head` with this fault on one of the first 200 [`problems`].
///
/// # Panics
/// As [`assert_caught`].
pub fn assert_fault_caught<F: Copy + Debug + Send + Sync>(head: Faulty<F>, fault: F) {
    let variant = Variant::new("variant", move |one: &Head| head(one, fault));
    assert_caught(&format!("{fault:?}"), 200, problems(), |spec| check(&variant, &spec));
}

/// Asserts that [`check`] passes `head` with `none`, the lack of a fault: what rejects the faults rejects nothing else.
///
/// # Panics
/// If the control is wrong on one of the [`problems`].
pub fn assert_control_passes<F: Copy + Send + Sync>(head: Faulty<F>, none: F) {
    let control = Variant::new("control", move |one: &Head| head(one, none));
    if let Err(error) = TestRunner::new(config()).run(&problems(), |spec| check(&control, &spec)) {
        panic!("{error}");
    }
}

/// A variant of attention, given as what it does to one head: o `[q_len, d_v]` and lse `[q_len]`.
#[derive(Clone, Copy, Debug)]
pub struct Variant<F> {
    name: &'static str,
    head: F,
}

impl<F: Fn(&Head) -> (Array2<f32>, Array1<f32>) + Send + Sync> Variant<F> {
    /// A variant called `name`.
    pub fn new(name: &'static str, head: F) -> Self {
        Variant { name, head }
    }
}

impl<F: Fn(&Head) -> (Array2<f32>, Array1<f32>) + Send + Sync> Attention for Variant<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn supports(&self, _: &Problem) -> Result<(), AttentionError> {
        Ok(())
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        for mut out in out.heads(problem)? {
            let (o, lse) = (self.head)(&problem.head(out.sequence, out.head));
            for (i, o) in out.rows.clone().zip(o.rows()) {
                out.store(i, o, lse[i]);
            }
        }
        Ok(())
    }
}
