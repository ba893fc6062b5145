//! Order by atomics: what releases and acquires carry from thread to thread (PTX ISA, "Memory Consistency Model", "Release and
//! acquire patterns").
//!
//! Each place of memory that strong accesses touch carries what those knew who released there. An access with `.release`
//! releases what its thread knows; one without, what the thread knew at its last fence. One with `.acquire` learns at once;
//! one without, at the thread's next fence. What was released to a place stays there: a later write may belong to the same
//! release, and is taken to. Scopes are not told apart: a release of `.cta` is seen by other blocks too.

use super::block::Block;
use crate::clock::Clock;
use crate::lanes::LANES;
use crate::program::Order;
use crate::ptx::Space;
use std::collections::HashMap;

/// What was released, by place.
pub(super) type Signals = HashMap<u64, Signal>;

/// What was released: clocks of blocks.
#[derive(Clone, Default)]
pub(super) struct Signal(HashMap<u32, Clock>);

/// What fences hold back, by thread.
#[derive(Default)]
pub(super) struct Fences {
    /// What a thread knew at its last fence.
    known: HashMap<usize, Signal>,
    /// What it has seen and learns at its next one.
    seen: HashMap<usize, Signal>,
}

impl Signal {
    fn join(&mut self, other: &Signal) {
        for (block, clock) in &other.0 {
            self.0.entry(*block).or_default().join(clock);
        }
    }
}

impl Block<'_, '_> {
    /// A strong access of a lane has read a place.
    pub(super) fn observe(&mut self, warp: usize, lane: usize, space: Space, address: u64, order: Order) {
        if !is_shared_by_threads(space) {
            return;
        }
        let thread = warp * LANES + lane;
        let Some(signal) = self.signals(space).get(&address).cloned() else { return };
        if order.acquires {
            self.learn(thread, &signal);
        } else {
            self.fences.seen.entry(thread).or_default().join(&signal);
        }
    }

    /// A strong access of a lane has written a place.
    pub(super) fn signal(&mut self, warp: usize, lane: usize, space: Space, address: u64, order: Order) {
        if !is_shared_by_threads(space) {
            return;
        }
        let thread = warp * LANES + lane;
        let released =
            if order.releases { Some(self.release(thread)) } else { self.fences.known.get(&thread).cloned() };
        if let Some(released) = released {
            self.signals(space).entry(address).or_default().join(&released);
        }
    }

    /// A fence of a thread.
    pub(super) fn fence(&mut self, thread: usize) {
        if let Some(seen) = self.fences.seen.remove(&thread) {
            self.learn(thread, &seen);
        }
        let known = self.release(thread);
        self.fences.known.insert(thread, known);
    }

    fn signals(&mut self, space: Space) -> &mut Signals {
        if space == Space::Shared { &mut self.signals } else { &mut self.grid.signals }
    }

    /// What a thread knows, of its own block and of others.
    fn release(&mut self, thread: usize) -> Signal {
        let mut own = Clock::default();
        self.clocks.release(thread, &mut own);
        // What is known of many blocks takes long to copy.
        let cost = self.clocks.abroad().count() * self.warps.len();
        self.grid.steps_left = self.grid.steps_left.saturating_sub(cost as u64);
        let abroad = self.clocks.abroad().map(|(block, clock)| (block, clock.clone()));
        Signal(abroad.chain([(self.number, own)]).collect())
    }

    fn learn(&mut self, thread: usize, signal: &Signal) {
        for (block, clock) in &signal.0 {
            if *block == self.number {
                self.clocks.acquire(thread, clock);
            } else {
                self.clocks.acquire_abroad(*block, clock);
            }
        }
    }
}

/// Whether threads can meet there at all.
fn is_shared_by_threads(space: Space) -> bool {
    matches!(space, Space::Shared | Space::Global)
}
