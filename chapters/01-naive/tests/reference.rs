//! The checks of chapter 1 on the reference. `mine.rs` runs the same checks on the exercise.

use naive as subject;

mod checks;
mod laws;
