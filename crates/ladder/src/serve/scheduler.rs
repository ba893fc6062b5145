//! Continuous batching: every step is planned anew, a request joins as soon as there is room and leaves with its last token
//! (Orca; Kwon et al., arXiv 2309.06180, sections 4.3 to 4.5).
//!
//! A step computes at most so many tokens, its budget:
//!
//! 1. Requests that run come first, in the order of their admission. One that decodes has one token to compute; of a prompt as
//!    many as the budget leaves (*chunked prefill*).
//! 2. Where there is no room for them, the request admitted last gives up all its memory and goes back to the head of the
//!    queue. The tokens it has generated it keeps: they are recomputed with the prompt (*preemption by recompute*).
//! 3. Requests are admitted from the head of the queue, while there is room and budget. None overtakes another. After a
//!    preemption none is admitted before one has left: it would soon be preempted in its turn.
//!
//! What could never fit is refused when it arrives, so that the oldest request always gets on. Nothing here is random.

use super::cache::{Cache, Usage};
use super::model::{Rows, hash, next_token};
use super::trace::Request;
use anyhow::{Result, ensure};
use attention::Tensor;
use ndarray::ArrayView1;
use std::collections::VecDeque;

/// How far a request has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// The prompt, and what has been generated.
    pub(crate) tokens: Vec<u32>,
    /// How many of them have their keys and values in the cache.
    pub(crate) cached: usize,
    /// The hash of o of each token, where it was computed: what is found in the cache is not.
    pub(crate) rows: Vec<Option<u64>>,
}

/// The state at the end of a step, before those that are done leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// The step by the trace's clock, which leaps over steps with nothing to do.
    pub(crate) step: usize,
    /// Requests that hold memory.
    pub(crate) running: usize,
    /// Tokens computed in the step.
    pub(crate) computed: usize,
    pub(crate) usage: Usage,
}

/// What was done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Of each request of the trace.
    pub(crate) requests: Vec<Progress>,
    pub(crate) samples: Vec<Sample>,
    /// Tokens of prompts computed, each once.
    pub(crate) prefill: usize,
    /// Generated tokens computed, each once.
    pub(crate) decode: usize,
    /// Tokens computed again after a preemption.
    pub(crate) recomputed: usize,
    pub(crate) preemptions: usize,
    /// Requests in the order of their admission, again after each preemption.
    pub(crate) admissions: Vec<usize>,
    /// Tokens that requests came with when they were admitted.
    pub(crate) asked: usize,
    /// Those of them that were found in the cache.
    pub(crate) hits: usize,
    /// Requests that could never fit.
    pub(crate) refused: Vec<usize>,
    /// The first request and token whose o, computed again, was another.
    pub(crate) unlike: Option<(usize, usize)>,
}

pub(crate) struct Scheduler<'a, C> {
    trace: &'a [Request],
    cache: C,
    budget: usize,
    /// Requests of the trace that have arrived.
    arrived: usize,
    waiting: VecDeque<usize>,
    /// In the order of their admission.
    running: Vec<usize>,
    /// Whether a request was preempted since one last left.
    full: bool,
    outcome: Outcome,
}

impl<'a, C: Cache> Scheduler<'a, C> {
    /// Serves a trace, at most `budget` (at least 1) tokens a step.
    ///
    /// # Errors
    /// Those of the cache, which has none if it keeps its promises.
    pub(crate) fn run(trace: &'a [Request], cache: C, budget: usize) -> Result<Outcome> {
        let progress = |request: &Request| Progress { tokens: request.prompt.clone(), ..Progress::default() };
        let outcome = Outcome { requests: trace.iter().map(progress).collect(), ..Outcome::default() };
        let (waiting, running) = (VecDeque::new(), Vec::new());
        let mut scheduler = Scheduler { trace, cache, budget, arrived: 0, waiting, running, full: false, outcome };
        let mut clock = 0;
        loop {
            scheduler.arrive(clock);
            if scheduler.waiting.is_empty() && scheduler.running.is_empty() {
                match trace.get(scheduler.arrived) {
                    Some(next) => clock = next.arrival,
                    None => return Ok(scheduler.outcome),
                }
            } else {
                scheduler.step(clock)?;
                clock += 1;
            }
        }
    }

    /// Whoever has arrived joins the queue, or is refused.
    fn arrive(&mut self, clock: usize) {
        while let Some(request) = self.trace.get(self.arrived).filter(|request| request.arrival <= clock) {
            if request.longest() <= self.cache.most() {
                self.waiting.push_back(self.arrived);
            } else {
                self.outcome.refused.push(self.arrived);
            }
            self.arrived += 1;
        }
    }

    fn step(&mut self, clock: usize) -> Result<()> {
        let mut budget = self.budget;
        self.advance(&mut budget)?;
        if !self.full {
            self.admit(&mut budget)?;
        }
        let (running, computed, usage) = (self.running.len(), self.budget - budget, self.cache.usage());
        self.outcome.samples.push(Sample { step: clock, running, computed, usage });
        self.retire()
    }

    /// Computes what running requests have to compute.
    fn advance(&mut self, budget: &mut usize) -> Result<()> {
        let mut next = 0;
        while let Some(&request) = self.running.get(next).filter(|_| *budget > 0) {
            let Progress { tokens, cached, .. } = &self.outcome.requests[request];
            let chunk = (tokens.len() - cached).min(*budget);
            if self.cache.extend(request, &tokens[*cached..cached + chunk])? {
                self.compute(request, chunk)?;
                *budget -= chunk;
                next += 1;
            } else {
                ensure!(self.running.len() > 1, "found no room for the only request, wanted what it was admitted for");
                self.preempt()?;
            }
        }
        Ok(())
    }

    /// The request admitted last gives up its memory.
    fn preempt(&mut self) -> Result<()> {
        let Some(last) = self.running.pop() else { return Ok(()) };
        self.cache.release(last)?;
        self.outcome.requests[last].cached = 0;
        self.outcome.preemptions += 1;
        self.full = true;
        self.waiting.push_front(last);
        Ok(())
    }

    /// Admits from the head of the queue, and computes what the budget leaves.
    fn admit(&mut self, budget: &mut usize) -> Result<()> {
        while let Some(&request) = self.waiting.front().filter(|_| *budget > 0) {
            let tokens = &self.outcome.requests[request].tokens;
            let (all, longest) = (tokens.len(), self.trace[request].longest());
            let Some(hit) = self.cache.admit(request, tokens, *budget, longest)? else { break };
            self.waiting.pop_front();
            self.running.push(request);
            self.outcome.admissions.push(request);
            self.outcome.asked += all;
            self.outcome.hits += hit;
            self.outcome.requests[request].cached = hit;
            let chunk = (all - hit).min(*budget);
            self.compute(request, chunk)?;
            *budget -= chunk;
        }
        Ok(())
    }

    /// The next `chunk` tokens of a request, which have places: writes their keys and values, and attends. Behind its last
    /// token a request generates the next.
    fn compute(&mut self, request: usize, chunk: usize) -> Result<()> {
        let progress = &mut self.outcome.requests[request];
        let start = progress.cached;
        let rows = Rows::new(&progress.tokens[start..start + chunk], start);
        self.cache.write(request, start, &rows)?;
        let Tensor::F32(o) = self.cache.attend(request, start, &rows)?.o else { unreachable!("q is F32") };
        let prompt = self.trace[request].prompt.len();
        progress.cached += chunk;
        progress.rows.resize(progress.rows.len().max(progress.cached), None);
        for (position, o) in (start..).zip(o.outer_iter()) {
            let found = hash(ArrayView1::from(o.as_slice().expect("an output is made contiguous")));
            match progress.rows[position].replace(found) {
                None if position < prompt => self.outcome.prefill += 1,
                None => self.outcome.decode += 1,
                Some(before) => {
                    self.outcome.recomputed += 1;
                    if before != found {
                        self.outcome.unlike.get_or_insert((request, position));
                    }
                }
            }
        }
        if progress.cached == progress.tokens.len() {
            progress.tokens.extend(progress.rows[progress.cached - 1].map(next_token));
        }
        Ok(())
    }

    /// Requests with all their tokens leave.
    fn retire(&mut self) -> Result<()> {
        let (trace, outcome) = (self.trace, &self.outcome);
        let done = |request: &usize| {
            outcome.requests[*request].tokens.len() == trace[*request].prompt.len() + trace[*request].generate
        };
        let (leaving, staying) = self.running.iter().partition(|request| done(request));
        self.running = staying;
        let leaving: Vec<usize> = leaving;
        self.full &= leaving.is_empty();
        leaving.into_iter().try_for_each(|request| self.cache.release(request))
    }
}
