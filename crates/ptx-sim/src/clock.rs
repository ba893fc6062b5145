//! What the threads of a block know of each other: happens-before, by vector clocks.
//!
//! Each warp counts epochs, which its threads share. A thread's access belongs to its warp's present epoch, and an epoch ends
//! when one of the warp's threads lets others know what it did. A thread's clock says for every thread of the block up to
//! which epoch that one's accesses are ordered before whatever it does next: the order "happens before" of the PTX memory model
//! (PTX ISA, "Memory Consistency Model", "Causality order"): barriers make it, and atomics that release and acquire. Threads
//! that know the same share one clock, so a barrier of a whole block costs one pass over its threads.
//!
//! What one thread of a block has learnt of another block, by atomics, counts as known to all threads of its own: a race
//! between blocks of which some threads waited for the other can be missed.

#[cfg(test)]
mod tests;

use crate::lanes::LANES;
use std::collections::HashMap;
use std::sync::Arc;

/// The clocks of a block's threads. Threads are counted through the block: lane `t % 32` of warp `t / 32`.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    /// By warp. They begin at 1: what is known up to 0 is nothing.
    epochs: Vec<u32>,
    /// By thread; in it, by thread of all lanes of all warps.
    known: Vec<Arc<[u32]>>,
    /// What is known of other blocks.
    abroad: HashMap<u32, Clock>,
}

/// What all those knew who released into it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// Nothing until the first of them.
    known: Option<Arc<[u32]>>,
}

impl Clocks {
    /// Threads that know nothing of each other.
    pub(crate) fn new(threads: usize) -> Self {
        let warps = threads.div_ceil(LANES);
        let nothing: Arc<[u32]> = vec![0; warps * LANES].into();
        Self { epochs: vec![1; warps], known: vec![nothing; threads], abroad: HashMap::new() }
    }

    /// The epoch to which what a warp's threads do now belongs.
    #[inline]
    pub(crate) fn epoch(&self, warp: usize) -> u32 {
        self.epochs[warp]
    }

    /// The lowest of some lanes of a warp which a thread does not know up to an epoch.
    #[inline]
    pub(crate) fn unknown(&self, thread: usize, warp: usize, lanes: u32, epoch: u32) -> Option<usize> {
        let known = &self.known[thread][warp * LANES..(warp + 1) * LANES];
        let mut lanes = lanes;
        while lanes != 0 {
            let lane = lanes.trailing_zeros() as usize;
            if known[lane] < epoch && thread != warp * LANES + lane {
                return Some(lane);
            }
            lanes &= lanes - 1;
        }
        None
    }

    /// As [`unknown`](Self::unknown), of another block.
    pub(crate) fn unknown_abroad(&self, block: u32, warp: usize, lanes: u32, epoch: u32) -> Option<usize> {
        let known = self.abroad.get(&block).and_then(|clock| clock.known.as_ref());
        let known =
            |lane: usize| known.is_some_and(|known| known.get(warp * LANES + lane).is_some_and(|at| *at >= epoch));
        (0..LANES).find(|lane| lanes >> lane & 1 != 0 && !known(*lane))
    }

    /// What is known of other blocks.
    pub(crate) fn abroad(&self) -> impl Iterator<Item = (u32, &Clock)> {
        self.abroad.iter().map(|(block, clock)| (*block, clock))
    }

    /// Another block's clock is known from now on.
    pub(crate) fn acquire_abroad(&mut self, block: u32, from: &Clock) {
        self.abroad.entry(block).or_default().join(from);
    }

    /// These threads meet: afterwards each knows what any of them knew, and all that any of them did.
    pub(crate) fn synchronise(&mut self, threads: impl Iterator<Item = usize> + Clone) {
        let Some(first) = threads.clone().next() else { return };
        let mut joined = &self.known[first];
        let mut all = joined.to_vec();
        for thread in threads.clone() {
            let known = &self.known[thread];
            if !Arc::ptr_eq(known, joined) {
                join(&mut all, known);
                joined = known;
            }
            all[thread] = self.epochs[thread / LANES];
        }
        let all: Arc<[u32]> = all.into();
        let mut ended = None;
        for thread in threads {
            self.known[thread] = Arc::clone(&all);
            let warp = thread / LANES;
            if ended != Some(warp) {
                self.epochs[warp] += 1;
                ended = Some(warp);
            }
        }
    }

    /// What a thread knows and did goes into a clock, for those who will acquire it.
    pub(crate) fn release(&mut self, thread: usize, into: &mut Clock) {
        let known = &self.known[thread];
        let into = Arc::make_mut(into.known.get_or_insert_with(|| Arc::clone(known)));
        join(into, known);
        into[thread] = self.epochs[thread / LANES];
        self.epochs[thread / LANES] += 1;
    }

    /// A thread knows what those knew and did who released into a clock.
    pub(crate) fn acquire(&mut self, thread: usize, from: &Clock) {
        let Some(from) = &from.known else { return };
        let known = &mut self.known[thread];
        // Many acquire the same clock: they share it where it says all.
        if known.iter().zip(from.iter()).all(|(known, from)| known <= from) {
            *known = Arc::clone(from);
        } else {
            join(Arc::make_mut(known), from);
        }
    }
}

impl Clock {
    /// It says what the other says too.
    pub(crate) fn join(&mut self, other: &Clock) {
        match (&mut self.known, &other.known) {
            (Some(known), Some(other)) => join(Arc::make_mut(known), other),
            (known, other) => *known = other.clone().or(known.take()),
        }
    }
}

fn join(into: &mut [u32], other: &[u32]) {
    for (into, &other) in into.iter_mut().zip(other) {
        *into = other.max(*into);
    }
}
