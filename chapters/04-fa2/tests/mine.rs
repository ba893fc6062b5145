//! The checks of chapter 4 on your code: `cargo test -p chapter-04-fa2 --features mine --test mine`, or in friendlier
//! words `cargo run --release -- check 4`.

use chapter_04_fa2 as subject;

mod checks;
mod laws;
