//! The checks of chapter 2 on the reference. `mine.rs` runs the same checks on the exercise.

use online_softmax as subject;

mod checks;
mod laws;
