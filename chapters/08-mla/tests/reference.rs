//! The checks of chapter 8 on the reference. `mine.rs` runs the same checks on the exercise.

use mla as subject;

mod checks;
mod laws;
