//! `ladder`: climb the rungs, run one, check them against a pack, check an exercise, look at the machine.

mod check;
mod cli;
mod climb;
mod conform;
mod doctor;
mod format;
mod input;
mod measure;
mod memory;
mod report;
mod run;

use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let error = match cli::main() {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => return ExitCode::from(1),
        Err(error) => error,
    };
    // A reader such as `head` that has seen enough is no failure.
    let broken_pipe = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    if error.downcast_ref().is_some_and(broken_pipe) {
        return ExitCode::SUCCESS;
    }
    let line = format!("error: {error:#}").replace(['\n', '\r'], " ");
    // With stderr gone too, the exit code is all that is left to say it with.
    let _ = writeln!(io::stderr(), "{line}");
    ExitCode::from(2)
}
