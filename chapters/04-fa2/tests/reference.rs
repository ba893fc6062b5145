//! The checks of chapter 4 on the reference. `mine.rs` runs the same checks on the exercise.

use fa2 as subject;

mod checks;
mod laws;
