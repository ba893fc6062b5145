//! The checks of chapter 3 on your code: `cargo test -p chapter-03-fa1 --features mine --test mine`, or in friendlier
//! words `cargo run --release -- check 3`.

use chapter_03_fa1 as subject;

mod checks;
mod laws;
