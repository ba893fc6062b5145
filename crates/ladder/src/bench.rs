//! Benchmarks: what is measured, how, and the form in which results are kept.
//!
//! The definitions live here and nowhere else: `ladder bench` and the criterion benches of the chapters walk the same
//! [`cases`] with the same [`rungs`], and a [`Contest`] exists only for rungs whose results have been checked against
//! [`Answers`]. What they reach is held against the [`Ceiling`] of the machine.
//!
//! ```
//! use ladder::bench::{self, Answers, Contest};
//! let case = bench::cases(32)[0];
//! let owned = case.build();
//! let problem = owned.problem();
//! let rungs = bench::build(&bench::rungs(&[2]));
//! let problems = vec![problem.clone(); rungs.len()];
//! let mut contest = Contest::check(&problems, &Answers::of(&problem), &rungs)?;
//! contest.run(0)?; // naive, the rung below chapter 2's
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What it does not do: promise that two runs agree. Times belong to a machine and an hour; that is why [`Results`] say
//! which.

mod answers;
mod case;
mod ceiling;
#[cfg(feature = "criterion")]
mod chapter;
mod contest;
mod machine;
mod resident;
mod results;

pub use answers::Answers;
pub use case::{Case, FASTEST, build, cases, cases_for, latents, peers, rungs};
pub use ceiling::{Ceiling, ceilings};
#[cfg(feature = "criterion")]
pub use chapter::chapter;
pub use contest::{BenchError, Contest, METHOD, Times, flops};
pub use machine::{Machine, commit, cpu_model};
pub use resident::Resident;
pub use results::{Results, ResultsError, Row, Shape};
