//! The checks of chapter 5 on the reference. `mine.rs` runs the same checks on the exercise.

mod checks;
mod harness;
mod laws;

use chapter_05_cuda_fa2::{KEYS, MINE, ROWS};

/// The text that the checks are about.
mod subject {
    pub(crate) const TEXT: &str = include_str!("reference.cu");
}

fn main() -> std::process::ExitCode {
    harness::run_or_ignore(checks::all(), harness::named![the_exercise_is_the_reference_with_six_places_to_fill])
}

fn the_exercise_is_the_reference_with_six_places_to_fill() {
    let mut reference = subject::TEXT.lines();
    let (given, todo): (Vec<&str>, Vec<&str>) = MINE.lines().partition(|line| !line.contains("TODO(\""));
    for line in given {
        assert!(reference.any(|other| other == line), "{line} is not in the reference, or not there");
    }
    let steps = ["1, visible", "2, load", "3, scores", "4, update", "5, finish", "6, fa2"];
    assert_eq!(todo, steps.map(|step| format!("    TODO(\"step {step}\");")));
    for constant in [format!("ROWS = {ROWS};"), format!("KEYS = {KEYS};")] {
        assert!(MINE.contains(&constant), "{constant}");
    }
}
