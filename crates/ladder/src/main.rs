//! `ladder`: climb the rungs, run one, simulate a GPU's, check them against a pack or an exercise of yours, measure them, serve
//! requests, compile kernels, look at the machine.

mod benchmark;
mod check;
mod cli;
mod climb;
mod compare;
mod compile;
mod conform;
mod devices;
mod doctor;
mod format;
mod input;
mod measure;
mod memory;
mod page;
mod report;
mod run;
mod serve;
mod sim;
mod trace;

use std::process::ExitCode;

fn main() -> ExitCode {
    let error = match cli::main() {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => return ExitCode::from(1),
        Err(error) => error,
    };
    cli::complain(&format!("error: {error:#}"));
    ExitCode::from(2)
}
