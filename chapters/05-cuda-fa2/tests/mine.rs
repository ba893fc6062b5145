//! The checks of chapter 5 on your kernel: `cargo test -p chapter-05-cuda-fa2 --features mine --test mine`, or in friendlier
//! words `cargo run --release -- check 5`.

mod checks;
mod laws;

/// The text that the checks are about.
mod subject {
    pub(crate) use chapter_05_cuda_fa2::MINE as TEXT;
}

fn main() -> std::process::ExitCode {
    kernelkit::run_all(checks::all())
}
