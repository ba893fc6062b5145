//! Who touched which bytes of shared or global memory: the shadow of an address space, which finds data races.
//!
//! Two accesses to the same byte race when one of them writes, they are not both atomic, and neither happens before the other
//! (PTX ISA, "Memory Consistency Model", "Data-races"). What happens before what is [`Clocks`]'s to say. As in FastTrack
//! (Flanagan and Freund, PLDI 2009), what an access makes superfluous is forgotten: a later one that races with the
//! forgotten access races with the new one too. So every race of a block's own threads is found with some pair of
//! accesses, at the latest when the second one comes.
//!
//! - Threads of different blocks are ordered within a launch by atomics alone, which is rare. Readers of two
//!   blocks conflict with every writer of a third that waited for neither, so a block remembers no others but its own.
//! - Lanes of a warp are ordered by barriers alone, also within one instruction. Two lanes that store different values to
//!   one place are reported; the same value from the same instruction is not, as kernels do that and any winner is right: such
//!   a write counts as ordered after all that the first one is ordered after. Two runs of one instruction with no barrier
//!   between count as the same instruction here.
//! - An asynchronous copy in flight conflicts with every access to its destination and every write to its source, by whatever
//!   thread, until it is ended: then it is an access by its thread at that moment.
//! - An access by the async proxy needs more than order after one by the generic proxy, if one of them writes: a proxy fence
//!   between them ([`clock`](crate::clock), "Two proxies"). Where that alone is missing, the [`Conflict`] says so.
//!
//! # The async proxy
//!
//! There are two ways to enter what an instruction does by the async proxy, by how it ends:
//!
//! - The threads that issued it wait for it (bulk groups): [`Races::begin_async`] with [`Kind::AsyncFrom`] or
//!   [`Kind::AsyncTo`], and [`Races::end_async`] at the wait. Between the two it is in flight and conflicts with all that it
//!   does not agree with, whatever the order; afterwards it is a read or a write by the thread that waited. Each has a
//!   number of its own, which no other of the same thread has.
//! - A phase of an `mbarrier` ends it: [`Races::phase_access`] with [`Kind::PhaseRead`] or [`Kind::PhaseWrite`]. It belongs
//!   to the ticket of the `mbarrier`, in the epoch of the phase, and is ordered before who has learnt that epoch. So it is with
//!   what a `wgmma` reads, [`Kind::Operand`]: the ticket is its warpgroup's, and a group of products the epoch.
//!
//! One [`Races`] is made for the shared memory of each block, and one for global memory in each launch. It costs 16 bytes for
//! each byte that was touched. It does not know what is allocated or written: that is [`memory`](crate::memory).

mod cell;
#[cfg(test)]
mod tests;

pub(crate) use cell::Kind;

use crate::clock::{Clocks, Proxied};
use crate::lanes::LANES;
use cell::{Access, Cell, Overflow};
use std::collections::HashMap;

/// Words of a page: 4 KiB.
const WORDS: usize = 1024;
/// Pages found without a look at the index. All of a block's shared memory is among them.
const RECENT: usize = 64;

/// The accesses to one address space.
pub(crate) struct Races {
    /// Which space it is, for fences between the proxies.
    memory: Proxied,
    /// Where each page is, by its number.
    index: HashMap<u64, usize>,
    /// The number and the place of the page last used of those whose numbers end alike.
    recent: [(u64, usize); RECENT],
    pages: Vec<Box<[Cell; WORDS]>>,
    overflow: Overflow,
}

/// An instruction of a lane, as its access is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct By {
    pub(crate) block: u32,
    /// Its number in the block.
    pub(crate) warp: u16,
    pub(crate) lane: u8,
    /// Which instruction it is.
    pub(crate) pc: u32,
    /// The warp's present one, [`Clocks::epoch`].
    pub(crate) epoch: u32,
}

/// The earlier access with which one conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) block: u32,
    pub(crate) warp: u16,
    pub(crate) lane: u8,
    /// The instruction: of a copy, the one that began it.
    pub(crate) pc: u32,
    pub(crate) kind: Kind,
    /// The first byte in conflict.
    pub(crate) address: u64,
    /// The earlier access comes before this one, but no fence between the generic proxy, by which it is, and the async one.
    pub(crate) unfenced: bool,
}

impl Races {
    /// No accesses.
    pub(crate) fn new(memory: Proxied) -> Self {
        Self {
            memory,
            index: HashMap::new(),
            recent: [(u64::MAX, 0); RECENT],
            pages: Vec::new(),
            overflow: Overflow::default(),
        }
    }

    /// A lane reads or writes, or both at once. All calls take the clocks of the lane's block. Of a write, `same` says that
    /// what it writes is what is there.
    ///
    /// # Errors
    /// An earlier access that does not come before this one, if it is not so that both read or both are atomic; but for a
    /// write by the same instruction if the bytes are the same. A copy in flight to there, or from there if this writes.
    #[inline]
    pub(crate) fn access(
        &mut self,
        kind: Kind,
        address: u64,
        bytes: u32,
        by: &By,
        same: bool,
        clocks: &Clocks,
    ) -> Result<(), Conflict> {
        let mut access = Access::new(kind, by, self.memory, clocks);
        access.same = same && kind == Kind::Write;
        self.apply(address, bytes, access)
    }

    /// A lane begins an access that is under way until the lane waits for it: a copy to here or from here, one of a group whose
    /// number is its thread's own; a read or a write here by the async proxy, of which no two of a thread that are under way have
    /// the same number; or an `mbarrier` object, of number 0, that nothing else may touch.
    ///
    /// # Errors
    /// As of a read or a write; and, of the async proxy and of objects, an access by the generic proxy that is not fenced.
    pub(crate) fn begin(
        &mut self,
        kind: Kind,
        address: u64,
        bytes: u32,
        by: &By,
        number: u32,
        clocks: &Clocks,
    ) -> Result<(), Conflict> {
        self.apply(address, bytes, Access::new(kind, &By { epoch: number, ..*by }, self.memory, clocks))
    }

    /// What was [begun](Self::begin) as a write here is complete, for the thread that began it: from now on it is a write by it.
    pub(crate) fn end_write(&mut self, kind: Kind, address: u64, bytes: u32, by: &By, number: u32) {
        for (word, mask) in words(address, bytes) {
            let (cell, overflow) = self.cell(word);
            if let Some(mark) = cell.in_flight(overflow, kind, by, number, mask) {
                mark.kind = kind.ended();
                mark.epoch = by.epoch;
            }
        }
    }

    /// What was [begun](Self::begin) as a read here is complete, for the thread that began it: from now on it is a read by it.
    ///
    /// # Errors
    /// As of a read; there are none where its beginning had none.
    pub(crate) fn end_read(
        &mut self,
        kind: Kind,
        address: u64,
        bytes: u32,
        by: &By,
        number: u32,
        clocks: &Clocks,
    ) -> Result<(), Conflict> {
        let memory = self.memory;
        for (word, mask) in words(address, bytes) {
            let (cell, overflow) = self.cell(word);
            if let Some(mark) = cell.in_flight(overflow, kind, by, number, mask) {
                mark.lanes &= !(1 << by.lane);
                let by = By { pc: mark.pc, ..*by };
                let mut access = Access::new(kind.ended(), &by, memory, clocks);
                access.mark.bytes = mask;
                access.apply(cell, overflow).map_err(|earlier| earlier.at(word))?;
            }
        }
        Ok(())
    }

    /// A thread has the async proxy read ([`Kind::PhaseRead`]) or write ([`Kind::PhaseWrite`]) here, until a phase of an
    /// `mbarrier` is complete; or threads that act as one read an operand ([`Kind::Operand`]). `by` names the ticket and the
    /// epoch.
    ///
    /// # Errors
    /// As of a read or a write by the thread; and an access by the generic proxy that is not fenced.
    pub(crate) fn phase_access(
        &mut self,
        kind: Kind,
        address: u64,
        bytes: u32,
        by: &By,
        thread: usize,
        clocks: &Clocks,
    ) -> Result<(), Conflict> {
        let mut access = Access::new(kind, by, self.memory, clocks);
        access.thread = thread;
        self.apply(address, bytes, access)
    }

    /// The object that a lane made here is none any more: from now on it is a write by the lane that says so.
    pub(crate) fn end_object(&mut self, address: u64, bytes: u32, made_by: &By, by: &By) {
        for (word, mask) in words(address, bytes) {
            let (cell, overflow) = self.cell(word);
            if let Some(mark) = cell.in_flight(overflow, Kind::Object, made_by, 0, mask) {
                (mark.kind, mark.warp, mark.lanes) = (Kind::Write, by.warp, 1 << by.lane);
                (mark.epoch, mark.pc) = (by.epoch, by.pc);
            }
        }
    }

    #[inline]
    fn apply(&mut self, address: u64, bytes: u32, mut access: Access) -> Result<(), Conflict> {
        for (word, mask) in words(address, bytes) {
            access.mark.bytes = mask;
            let (cell, overflow) = self.cell(word);
            access.apply(cell, overflow).map_err(|earlier| earlier.at(word))?;
        }
        Ok(())
    }

    #[inline]
    fn cell(&mut self, word: u64) -> (&mut Cell, &mut Overflow) {
        let number = word / WORDS as u64;
        let recent = &mut self.recent[number as usize % RECENT];
        if recent.0 != number {
            *recent = (number, page(&mut self.index, &mut self.pages, number));
        }
        (&mut self.pages[recent.1][word as usize % WORDS], &mut self.overflow)
    }
}

/// Where the page of that number is, which is made if need be. Not inlined: a page is made on the stack.
#[cold]
#[inline(never)]
fn page(index: &mut HashMap<u64, usize>, pages: &mut Vec<Box<[Cell; WORDS]>>, number: u64) -> usize {
    *index.entry(number).or_insert_with(|| {
        pages.push(Box::new([Cell::EMPTY; WORDS]));
        pages.len() - 1
    })
}

/// The words of some bytes, by their numbers, each with the mask of its bytes.
#[inline]
fn words(address: u64, bytes: u32) -> impl Iterator<Item = (u64, u8)> {
    let end = address.saturating_add(u64::from(bytes));
    let mut at = address;
    std::iter::from_fn(move || {
        let count = (end - at).min(4 - at % 4);
        let word = (at / 4, ((1_u8 << count) - 1) << (at % 4));
        at += count;
        (count > 0).then_some(word)
    })
}
