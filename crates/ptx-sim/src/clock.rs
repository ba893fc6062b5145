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
//!
//! # Two proxies
//!
//! Bulk copies and `wgmma` reach memory by the *async proxy*, all other instructions by the *generic* one (PTX ISA, "Memory
//! Consistency Model", "Proxies"). That an access by the generic proxy happens before one by the async proxy is not enough:
//! a `fence.proxy.async` must stand between them. So each thread has a second clock, of what is *fenced*: which accesses
//! a proxy fence separates from what it issues to the async proxy. The fence of a thread fences all that the thread knows
//! at that moment, and what is fenced travels with what is known. As fences can name a state space, there is such a clock for
//! shared and one for global memory. A block that has no such fence pays nothing for them.
//!
//! # Tickets
//!
//! A bulk copy that completes on an `mbarrier` is ordered before those who observe the phase, and before nobody else,
//! neither the thread that issued it. So each `mbarrier` is a thread of its own here, a *ticket*, behind the block's: what
//! copies do in one of its phases belongs to one epoch of it, and a thread that waits for the phase learns that epoch. So does
//! each warpgroup have one, for what its `wgmma` read: a group that it commits is an epoch, and its threads learn it at the wait.

#[cfg(test)]
mod tests;

use crate::lanes::LANES;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A memory that both proxies reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proxied {
    Shared,
    Global,
}

impl Proxied {
    const BOTH: [Self; 2] = [Self::Shared, Self::Global];
}

/// Stands for threads that act as one ([`Clocks::meet`]).
pub(crate) const TOGETHER: usize = usize::MAX;

/// The clocks of a block's threads. Threads are counted through the block: lane `t % 32` of warp `t / 32`.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    /// By warp. They begin at 1: what is known up to 0 is nothing.
    epochs: Vec<u32>,
    /// By thread; in it, by thread of all lanes of all warps, and then by ticket.
    known: Vec<Arc<[u32]>>,
    /// By thread, for each memory: what is fenced for the async proxy. Empty until there is a fence.
    fenced: [Vec<Option<Arc<[u32]>>>; 2],
    /// What all threads know and have fenced that act as one.
    together: Clock,
    /// What is known of other blocks.
    abroad: HashMap<u32, Clock>,
}

/// What all those knew who released into it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// Nothing until the first of them.
    known: Option<Arc<[u32]>>,
    /// What they had fenced, for each memory.
    fenced: [Option<Arc<[u32]>>; 2],
}

impl Clocks {
    /// Threads that know nothing of each other, and tickets: a multiple of 32.
    pub(crate) fn new(threads: usize, tickets: usize) -> Self {
        let warps = threads.div_ceil(LANES);
        let nothing: Arc<[u32]> = vec![0; warps * LANES + tickets].into();
        let fenced = [Vec::new(), Vec::new()];
        Self {
            epochs: vec![1; warps],
            known: vec![nothing; threads],
            fenced,
            together: Clock::default(),
            abroad: HashMap::new(),
        }
    }

    /// The warp and the lane under which a ticket's accesses are remembered.
    pub(crate) fn ticket(&self, number: usize) -> (u16, u8) {
        ((self.epochs.len() + number / LANES) as u16, (number % LANES) as u8)
    }

    /// Whether that is no warp of the block's, but tickets.
    pub(crate) fn is_ticket(&self, warp: u16) -> bool {
        usize::from(warp) >= self.epochs.len()
    }

    /// The epoch to which what a warp's threads do now belongs.
    #[inline]
    pub(crate) fn epoch(&self, warp: usize) -> u32 {
        self.epochs[warp]
    }

    /// The lowest of some lanes of a warp which a thread does not know up to an epoch.
    #[inline]
    pub(crate) fn unknown(&self, thread: usize, warp: usize, lanes: u32, epoch: u32) -> Option<usize> {
        // Threads that have met nobody know nothing.
        let Some(known) = self.known.get(thread).or(self.together.known.as_ref()) else {
            return Some(lanes.trailing_zeros() as usize);
        };
        let known = &known[warp * LANES..(warp + 1) * LANES];
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

    /// The lowest of some lanes of a warp whose accesses up to an epoch are not fenced, from what a thread issues to the async
    /// proxy. The thread's own accesses must be fenced too.
    pub(crate) fn unfenced(
        &self,
        memory: Proxied,
        thread: usize,
        warp: usize,
        lanes: u32,
        epoch: u32,
    ) -> Option<usize> {
        let fenced = self.fenced[memory as usize].get(thread).unwrap_or_else(|| match thread {
            TOGETHER => &self.together.fenced[memory as usize],
            _ => &None,
        });
        let fenced = fenced.as_ref();
        let fenced = |lane: usize| fenced.is_some_and(|fenced| fenced[warp * LANES + lane] >= epoch);
        (0..LANES).find(|lane| lanes >> lane & 1 != 0 && !fenced(*lane))
    }

    /// `fence.proxy.async` of a thread: what it knows and did is fenced, in these memories.
    pub(crate) fn fence_proxy(&mut self, thread: usize, memories: &[Proxied]) {
        let mut own = Clock::default();
        self.release(thread, &mut own);
        for memory in memories {
            let fenced = &mut self.fenced[*memory as usize];
            fenced.resize(self.known.len(), None);
            // Whatever was fenced was known.
            fenced[thread].clone_from(&own.known);
        }
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
        self.synchronise_fenced(threads.clone());
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

    fn synchronise_fenced(&mut self, threads: impl Iterator<Item = usize> + Clone) {
        for fenced in self.fenced.iter_mut().filter(|fenced| !fenced.is_empty()) {
            let mut all = None;
            threads.clone().for_each(|thread| join_shared(&mut all, &fenced[thread]));
            threads.clone().for_each(|thread| fenced[thread].clone_from(&all));
        }
    }

    /// These threads act as one, [`TOGETHER`]: it knows and has fenced what each of them does.
    pub(crate) fn meet(&mut self, threads: Range<usize>) {
        let known = all_of(self.known[threads.clone()].iter().map(Some));
        let fenced = [0, 1].map(|memory| {
            let fenced: &[_] = &self.fenced[memory];
            all_of(threads.clone().map(|thread| fenced.get(thread).and_then(Option::as_ref)))
        });
        self.together = Clock { known, fenced };
    }

    /// These threads know what a ticket did up to an epoch. Those who knew the same still share it.
    pub(crate) fn learn_ticket(&mut self, threads: Range<usize>, number: usize, epoch: u32) {
        let place = self.epochs.len() * LANES + number;
        let mut last: Option<[Arc<[u32]>; 2]> = None;
        for known in &mut self.known[threads] {
            if known[place] >= epoch {
                continue;
            }
            let before = Arc::clone(known);
            match &last {
                Some([from, to]) if Arc::ptr_eq(from, known) => *known = Arc::clone(to),
                _ => Arc::make_mut(known)[place] = epoch,
            }
            last = Some([before, Arc::clone(known)]);
        }
    }

    /// What a thread knows and did goes into a clock, for those who will acquire it.
    pub(crate) fn release(&mut self, thread: usize, into: &mut Clock) {
        let known = &self.known[thread];
        for (fenced, into) in self.fenced.iter().zip(&mut into.fenced) {
            join_shared(into, fenced.get(thread).unwrap_or(&None));
        }
        let into = Arc::make_mut(into.known.get_or_insert_with(|| Arc::clone(known)));
        join(into, known);
        into[thread] = self.epochs[thread / LANES];
        self.epochs[thread / LANES] += 1;
    }

    /// What a ticket did up to an epoch goes into a clock.
    pub(crate) fn release_ticket(&self, number: usize, epoch: u32, into: &mut Clock) {
        let Some(any) = self.known.first() else { return };
        let known = into.known.get_or_insert_with(|| vec![0; any.len()].into());
        let known = &mut Arc::make_mut(known)[self.epochs.len() * LANES + number];
        *known = epoch.max(*known);
    }

    /// A thread knows what those knew and did who released into a clock.
    pub(crate) fn acquire(&mut self, thread: usize, from: &Clock) {
        for (fenced, from) in self.fenced.iter_mut().zip(&from.fenced).filter(|(fenced, _)| !fenced.is_empty()) {
            join_shared(&mut fenced[thread], from);
        }
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
        join_shared(&mut self.known, &other.known);
        for memory in Proxied::BOTH {
            join_shared(&mut self.fenced[memory as usize], &other.fenced[memory as usize]);
        }
    }
}

/// What is in all of them; nothing where one has nothing.
fn all_of<'a>(mut clocks: impl Iterator<Item = Option<&'a Arc<[u32]>>>) -> Option<Arc<[u32]>> {
    let mut all = Arc::clone(clocks.next()??);
    let mut last = Arc::clone(&all);
    for clock in clocks {
        let clock = clock?;
        if !Arc::ptr_eq(clock, &last) {
            for (all, other) in Arc::make_mut(&mut all).iter_mut().zip(clock.iter()) {
                *all = (*all).min(*other);
            }
            last = Arc::clone(clock);
        }
    }
    Some(all)
}

/// As [`join`], where either may know nothing. Those who know the same share it.
fn join_shared(into: &mut Option<Arc<[u32]>>, other: &Option<Arc<[u32]>>) {
    match (into, other) {
        (Some(known), Some(other)) if Arc::ptr_eq(known, other) => {}
        (Some(known), Some(other)) => join(Arc::make_mut(known), other),
        (into @ None, other) => into.clone_from(other),
        (Some(_), None) => {}
    }
}

fn join(into: &mut [u32], other: &[u32]) {
    for (into, &other) in into.iter_mut().zip(other) {
        *into = other.max(*into);
    }
}
