//! The checks of chapter 7 on the reference. `mine.rs` runs the same checks on the exercise.

use paged as subject;

mod checks;
mod laws;
