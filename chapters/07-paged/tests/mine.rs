//! The checks of chapter 7 on your code: `cargo test -p chapter-07-paged --features mine --test mine`, or in friendlier
//! words `cargo run --release -- check 7`.

use chapter_07_paged as subject;

mod checks;
mod laws;
