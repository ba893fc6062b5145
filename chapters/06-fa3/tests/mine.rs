//! The checks of chapter 6 on your kernel: `cargo test -p chapter-06-fa3 --features mine --test mine`, or in friendlier
//! words `cargo run --release -- check 6`.

mod checks;
mod laws;

/// The text that the checks are about.
mod subject {
    pub(crate) use chapter_06_fa3::MINE as TEXT;
}

fn main() -> std::process::ExitCode {
    kernelkit::run_all(checks::all())
}
