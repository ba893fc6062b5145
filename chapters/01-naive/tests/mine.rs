//! The checks of chapter 1 on your code: `cargo test -p chapter-01-naive --features mine --test mine`, or in friendlier
//! words `cargo run --release -- check 1`.

use chapter_01_naive as subject;

mod checks;
mod laws;
