//! `ladder serve-sim`: a trace of requests served three times, with the same memory and the same attention, by three ways of
//! keeping keys and values.
//!
//! What it does not do: take the time. Steps, tokens and slots are counted, which are the same on every machine. There is no
//! model behind it: see [`model`].

mod cache;
mod charts;
mod contiguous;
mod model;
mod paged;
mod scheduler;
mod summary;
#[cfg(test)]
mod tests;
mod trace;
mod verdict;

use crate::cli::{self, ServeArgs};
use crate::page;
use anyhow::{Context, Result, ensure};
use contiguous::Contiguous;
use paged::PagedCache;
use scheduler::{Outcome, Scheduler};
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use summary::Summary;
use trace::Request;

/// A few dozen requests that begin with one of three system prompts.
static TRACE: &[u8] = include_bytes!("serve/trace.jsonl");

/// Slots of a pool: 64 MiB.
const MOST_SLOTS: usize = 1 << 18;

/// What one policy did.
pub(crate) struct Served {
    pub(crate) policy: &'static str,
    pub(crate) outcome: Outcome,
}

pub(crate) fn main(args: &ServeArgs) -> Result<bool> {
    let (trace, source) = match &args.trace {
        Some(path) => (read(path)?, path.display().to_string()),
        None => (trace::read(TRACE)?, "the embedded trace".into()),
    };
    if let Some(path) = &args.report {
        let same = |trace: &PathBuf| {
            fs::canonicalize(trace).ok().is_some_and(|trace| fs::canonicalize(path).ok() == Some(trace))
        };
        let trace = args.trace.as_ref().is_some_and(same);
        ensure!(!trace, "--report {}: found the trace, wanted another file", path.display());
        page::check_writable(path)?;
    }
    let served = serve(&trace, args)?;
    let equal = verdict::compare(&trace, &served);
    let summary = Summary { source, trace: &trace, served: &served, equal: &equal, args };
    cli::print(&if args.json { summary.json().to_string() } else { summary.text() })?;
    if let Some(path) = &args.report {
        fs::write(path, charts::html(&summary)?).with_context(|| path.display().to_string())?;
    }
    if let Err(difference) = &equal {
        cli::complain(&format!("failed: {difference}"));
    }
    Ok(equal.is_ok())
}

fn read(path: &Path) -> Result<Vec<Request>> {
    let name = || path.display().to_string();
    // A FIFO would wait for a writer.
    ensure!(!path.exists() || path.is_file(), "{}: found no regular file, wanted one", path.display());
    let file = File::open(path).with_context(name)?;
    trace::read(BufReader::new(file)).with_context(name)
}

/// Serves the trace by each policy in turn, every time in a memory of `blocks * page` slots.
fn serve(trace: &[Request], args: &ServeArgs) -> Result<Vec<Served>> {
    let ServeArgs { blocks, page, budget, .. } = *args;
    let slots = blocks.checked_mul(page).filter(|&slots| slots <= MOST_SLOTS);
    let slots = slots.with_context(|| {
        format!("--blocks, --page: found {blocks} blocks of {page} slots, wanted at most {MOST_SLOTS} slots in all")
    })?;
    // Tasks of so few numbers gain nothing from threads.
    cli::pool(1)?.install(|| {
        let contiguous = Scheduler::run(trace, Contiguous::new(slots), budget)?;
        let paged = Scheduler::run(trace, PagedCache::new(blocks, page, false)?, budget)?;
        let shared = Scheduler::run(trace, PagedCache::new(blocks, page, true)?, budget)?;
        let outcomes = [("contiguous", contiguous), ("paged", paged), ("paged, shared", shared)];
        Ok(outcomes.map(|(policy, outcome)| Served { policy, outcome }).into())
    })
}
