//! Tests that need NVRTC, beside others.

use crate::harness::{Tests, run, trial};
use device::nvrtc::Nvrtc;
use std::process::ExitCode;

/// Runs the tests that need NVRTC, and the others. Where there is no NVRTC the former show as ignored, with the reason,
/// unless `FLASH_LADDER_NVRTC` says where it is.
pub(crate) fn run_or_ignore(tests: Tests, others: Tests) -> ExitCode {
    let missing = Nvrtc::find().err();
    let asked_for = std::env::var_os("FLASH_LADDER_NVRTC").is_some_and(|folder| !folder.is_empty());
    let kind = missing.as_ref().map_or("nvrtc".into(), |why| format!("not run: {why}"));
    let ignored = missing.is_some() && !asked_for;
    let tests = tests.into_iter().map(|test| trial(test).with_kind(kind.clone()).with_ignored_flag(ignored));
    run(tests.chain(others.into_iter().map(trial)).collect())
}
