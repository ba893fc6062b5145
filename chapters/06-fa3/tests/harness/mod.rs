//! Runs tests as libtest would.

use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;

/// Names and tests, which panic where something is wrong.
pub(crate) type Tests = Vec<(&'static str, fn())>;

/// The functions with their names.
macro_rules! named {
    ($($test:ident),* $(,)?) => { vec![$((stringify!($test), $test as fn())),*] };
}
pub(crate) use named;

/// A test of that name.
pub(crate) fn trial((name, test): (&'static str, fn())) -> Trial {
    Trial::test(name, move || {
        test();
        Ok::<(), Failed>(())
    })
}

/// Runs them as libtest would.
pub(crate) fn run(trials: Vec<Trial>) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
