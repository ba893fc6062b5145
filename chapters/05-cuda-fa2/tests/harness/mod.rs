//! Runs tests that need NVRTC.

use device::nvrtc::Nvrtc;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;

/// Names and tests, which panic where something is wrong.
pub(crate) type Tests = Vec<(&'static str, fn())>;

/// The functions with their names.
macro_rules! named {
    ($($test:ident),* $(,)?) => { vec![$((stringify!($test), $test as fn())),*] };
}
pub(crate) use named;

/// Runs all of them, with NVRTC or without.
#[allow(dead_code, reason = "for the exercise, whose learner is told what is missing")]
pub(crate) fn run_all(tests: Tests) -> ExitCode {
    run(tests.into_iter().map(trial).collect())
}

/// Runs them; without NVRTC those that need it show as ignored, with the reason, unless `FLASH_LADDER_NVRTC` says where it is.
#[allow(dead_code, reason = "for the reference and its wrong variants")]
pub(crate) fn run_with_nvrtc(tests: Tests, without: Tests) -> ExitCode {
    let missing = Nvrtc::find().err();
    let asked_for = std::env::var_os("FLASH_LADDER_NVRTC").is_some_and(|folder| !folder.is_empty());
    let kind = missing.as_ref().map_or("nvrtc".into(), |why| format!("not run: {why}"));
    let ignored = missing.is_some() && !asked_for;
    let tests = tests.into_iter().map(|test| trial(test).with_kind(kind.clone()).with_ignored_flag(ignored));
    run(tests.chain(without.into_iter().map(trial)).collect())
}

fn trial((name, test): (&'static str, fn())) -> Trial {
    Trial::test(name, move || {
        test();
        Ok::<(), Failed>(())
    })
}

fn run(trials: Vec<Trial>) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
