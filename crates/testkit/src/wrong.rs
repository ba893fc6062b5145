//! Tests of tests: a check is worth something if it rejects a wrong variant.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

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
