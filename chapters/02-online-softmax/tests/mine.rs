//! The checks of chapter 2 on your code: `cargo test -p chapter-02-online-softmax --features mine --test mine`, or in
//! friendlier words `cargo run --release -- check 2`.

use chapter_02_online_softmax as subject;

mod checks;
mod laws;
