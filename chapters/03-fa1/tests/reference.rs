//! The checks of chapter 3 on the reference. `mine.rs` runs the same checks on the exercise.

use fa1 as subject;

mod checks;
mod laws;
