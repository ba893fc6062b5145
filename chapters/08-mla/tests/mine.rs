//! The checks of chapter 8 on your code: `cargo test -p chapter-08-mla --features mine --test mine`, or in friendlier
//! words `cargo run --release -- check 8`.

use chapter_08_mla as subject;

mod checks;
mod laws;
