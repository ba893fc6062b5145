//! Runs tests as libtest would.

use device::nvrtc::Nvrtc;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;

/// Names and tests, which panic where something is wrong.
pub type Tests = Vec<(&'static str, fn())>;

/// The functions with their names, as [`Tests`].
#[macro_export]
macro_rules! named {
    ($($test:ident),* $(,)?) => { vec![$((stringify!($test), $test as fn())),*] };
}

/// Runs the tests.
pub fn run_all(tests: Tests) -> ExitCode {
    run(tests.into_iter().map(trial).collect())
}

/// Runs the tests that need NVRTC, and the others. Where there is no NVRTC the former show as ignored, with the reason, unless
/// `FLASH_LADDER_NVRTC` says where it is.
pub fn run_or_ignore(tests: Tests, others: Tests) -> ExitCode {
    let missing = Nvrtc::find().err();
    let asked_for = std::env::var_os("FLASH_LADDER_NVRTC").is_some_and(|folder| !folder.is_empty());
    let kind = missing.as_ref().map_or("nvrtc".into(), |why| format!("not run: {why}"));
    let ignored = missing.is_some() && !asked_for;
    let tests = tests.into_iter().map(|test| trial(test).with_kind(kind.clone()).with_ignored_flag(ignored));
    run(tests.chain(others.into_iter().map(trial)).collect())
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
