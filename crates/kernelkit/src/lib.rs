//! What the chapters share whose exercise is a CUDA kernel: how it is compiled, run on a simulated GPU and judged.
//!
//! An [`Exercise`] is a learner's file, `mine.cu`, and the kernels of the chapter's checks, which include it. It is
//! [compiled](Exercise::compile) by NVRTC, and what goes wrong is [told](Exercise::told) in words that name the learner's lines.
//! [`run_or_ignore`] runs the checks as libtest would, but that those which need NVRTC show as ignored where there is none.
//!
//! It knows no step of any exercise and no law: those are the chapters'.

mod compiled;
mod told;
mod trials;

pub use compiled::Compiled;
pub use trials::{Tests, run_all, run_or_ignore};

/// An exercise whose answer is a kernel.
#[derive(Debug)]
pub struct Exercise {
    /// The learner's file, from the root of the repository. The checks include it as "mine.cu".
    pub file: &'static str,
    /// The text of the kernels of the checks, "steps.cu".
    pub steps: &'static str,
    /// The architecture that they are for, "sm_80".
    pub arch: &'static str,
    /// Instructions of all warps after which a launch is taken to hang.
    pub step_limit: u64,
    /// The words of a report with names behind the addresses that it speaks of.
    pub with_names: fn(&str) -> String,
}
