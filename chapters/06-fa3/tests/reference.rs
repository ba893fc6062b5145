//! The checks of chapter 6 on the reference. `mine.rs` runs the same checks on the exercise.

mod checks;
mod laws;

use chapter_06_fa3::{COLUMNS, LANES, MINE, ROWS, STAGES};

/// The text that the checks are about.
mod subject {
    pub(crate) const TEXT: &str = include_str!("reference.cu");
}

fn main() -> std::process::ExitCode {
    kernelkit::run_or_ignore(checks::all(), kernelkit::named![the_exercise_and_the_reference_differ_in_bodies_alone])
}

/// Also when the exercise is solved: what begins in the first column was given.
fn the_exercise_and_the_reference_differ_in_bodies_alone() {
    let mut exercise = MINE.lines();
    for given in subject::TEXT.lines().filter(|line| !line.starts_with([' ', '}'])) {
        assert!(exercise.any(|line| line == given), "{given} is not in the exercise, or not there");
    }
    for constant in [format!("STAGES = {STAGES};"), format!("ROWS = {ROWS};"), format!("COLUMNS = {COLUMNS};")] {
        assert!(subject::TEXT.contains(&constant), "{constant}");
    }
    let lanes = format!("LANES = {LANES};");
    assert!(device::file("ptx/special.cuh").is_some_and(|text| text.contains(&lanes)), "{lanes}");
}
