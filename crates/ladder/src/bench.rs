//! Benchmarks: what is measured, how, and the form in which results are kept.
//!
//! The definitions live here and nowhere else: `ladder bench` and the criterion benches of the chapters walk the same
//! [`cases`] with the same [`rungs`], and a [`Contest`] exists only for rungs whose results have been checked against
//! [`Answers`]. What they reach is held against the [`Ceiling`] of the machine. Rungs that run on a device are measured on data
//! that is [there](Resident) already, in a [`DeviceContest`]; what they moved is read from a file of [`ncu`]'s.
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
mod device_contest;
mod machine;
pub mod ncu;
mod resident;
mod results;

pub use answers::Answers;
pub use case::{Case, FASTEST, build, cases, cases_for, device_cases, latents, peers, rungs};
pub use ceiling::{Ceiling, ceilings, device_ceiling};
#[cfg(feature = "criterion")]
pub use chapter::chapter;
pub use contest::{BenchError, Contest, METHOD, Times, flops};
pub use device_contest::{DEVICE_METHOD, DeviceContest, copies, median};
pub use machine::{Machine, commit, cpu_model, cuda_version};
pub use resident::Resident;
pub use results::{Results, ResultsError, Row, Shape};
