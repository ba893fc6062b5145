//! One word of memory and the accesses to it that still matter.

use super::{By, Conflict, LANES};
use crate::clock::{Clocks, Proxied};

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Atomic,
    /// A read that does not race with atomics.
    AtomicRead,
    /// The destination of a copy in flight.
    CopyTo,
    /// The source of a copy in flight.
    CopyFrom,
    /// A read by the async proxy.
    AsyncRead,
    /// A write by the async proxy.
    AsyncWrite,
    /// A write by the async proxy in flight.
    AsyncTo,
    /// A read by the async proxy in flight.
    AsyncFrom,
    /// A read by the async proxy that a phase of an `mbarrier` ends: its thread is the ticket of that.
    PhaseRead,
    /// A write by the async proxy that a phase of an `mbarrier` ends.
    PhaseWrite,
    /// An `mbarrier` object is there: nothing else may be.
    Object,
    /// A read of an operand by a `wgmma`: its thread is the ticket of a warpgroup.
    Operand,
}

impl Kind {
    /// What an access of this kind is, in a report.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Atomic => "atomic access",
            Kind::AtomicRead => "atomic read",
            Kind::CopyTo | Kind::CopyFrom | Kind::AsyncTo | Kind::AsyncFrom | Kind::PhaseRead | Kind::PhaseWrite => {
                "copy"
            }
            Kind::AsyncRead => "read by the async proxy",
            Kind::AsyncWrite => "write by the async proxy",
            Kind::Object => "mbarrier object",
            Kind::Operand => "wgmma",
        }
    }

    #[inline]
    fn reads(self) -> bool {
        matches!(
            self,
            Self::Read
                | Self::AtomicRead
                | Self::CopyFrom
                | Self::AsyncRead
                | Self::AsyncFrom
                | Self::PhaseRead
                | Self::Operand
        )
    }

    #[inline]
    fn writes(self) -> bool {
        matches!(self, Self::Write | Self::CopyTo | Self::AsyncWrite | Self::AsyncTo | Self::PhaseWrite | Self::Object)
    }

    /// Whether it conflicts whatever is ordered.
    #[inline]
    fn in_flight(self) -> bool {
        matches!(self, Self::CopyTo | Self::CopyFrom | Self::AsyncTo | Self::AsyncFrom | Self::Object)
    }

    /// Whether it is of the async proxy.
    #[inline]
    fn is_async(self) -> bool {
        matches!(
            self,
            Self::AsyncRead
                | Self::AsyncWrite
                | Self::AsyncTo
                | Self::AsyncFrom
                | Self::PhaseRead
                | Self::PhaseWrite
                | Self::Operand
        )
    }

    /// What it is once it is over.
    pub(super) fn ended(self) -> Self {
        match self {
            Self::CopyTo | Self::Object => Self::Write,
            Self::CopyFrom => Self::Read,
            Self::AsyncTo => Self::AsyncWrite,
            Self::AsyncFrom => Self::AsyncRead,
            other => other,
        }
    }

    /// Both only read, or both are atomic: in no order they race.
    #[inline]
    fn agrees(self, other: Self) -> bool {
        let atomic = |kind| matches!(kind, Self::Atomic | Self::AtomicRead);
        (self.reads() && other.reads()) || (atomic(self) && atomic(other))
    }

    /// Whether all that races with the other kind races with this one too.
    #[inline]
    fn replaces(self, other: Self) -> bool {
        self.agrees(other) && (self != Self::AtomicRead || other == Self::AtomicRead)
    }
}

/// Accesses of lanes of a warp by one instruction within one epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) block: u32,
    /// Of a copy in flight, its group.
    pub(super) epoch: u32,
    pub(super) pc: u32,
    /// A mark without lanes is none.
    pub(super) lanes: u32,
    pub(super) warp: u16,
    pub(super) kind: Kind,
    /// Which of the word's four bytes.
    pub(super) bytes: u8,
}

impl Mark {
    const NONE: Self = Self { block: 0, epoch: 0, pc: 0, lanes: 0, warp: 0, kind: Kind::Read, bytes: 0 };

    #[inline]
    fn same_warp(&self, other: &Self) -> bool {
        self.block == other.block && self.warp == other.warp
    }

    /// But for lanes and bytes.
    #[inline]
    fn same_instruction(&self, other: &Self) -> bool {
        self.same_warp(other) && self.epoch == other.epoch && self.pc == other.pc && self.kind == other.kind
    }

    /// Whether it is of all those bytes.
    #[inline]
    fn covers(&self, bytes: u8) -> bool {
        bytes & !self.bytes == 0
    }
}

/// The accesses to a word. It fills one line of a cache.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    marks: [Mark; 3],
    /// Which overflow it has, or [`Cell::NONE`]. It keeps it, for what overflowed once does so in every round of a loop.
    more: u32,
}

/// The marks that do not fit their cells.
pub(super) type Overflow = Vec<More>;

/// The marks of a cell beyond its own.
#[derive(Default)]
pub(super) struct More {
    marks: Vec<Mark>,
    /// Not all of them are reads.
    writes: bool,
}

impl Cell {
    const NONE: u32 = u32::MAX;
    pub(super) const EMPTY: Self = Self { marks: [Mark::NONE; 3], more: Self::NONE };

    /// The mark of a copy that a thread began.
    pub(super) fn in_flight<'a>(
        &'a mut self,
        overflow: &'a mut Overflow,
        kind: Kind,
        by: &By,
        group: u32,
        bytes: u8,
    ) -> Option<&'a mut Mark> {
        self.marks
            .iter_mut()
            .chain(overflow.get_mut(self.more as usize).into_iter().flat_map(|more| &mut more.marks))
            .find(|mark| {
                mark.kind == kind
                    && mark.lanes & 1 << by.lane != 0
                    && (mark.block, mark.warp, mark.epoch, mark.bytes) == (by.block, by.warp, group, bytes)
            })
    }

    fn insert(&mut self, overflow: &mut Overflow, mark: Mark) {
        if let Some(free) = self.marks.iter_mut().find(|mark| mark.lanes == 0) {
            *free = mark;
            return;
        }
        if self.more == Self::NONE {
            self.more = overflow.len() as u32;
            overflow.push(More::default());
        }
        let more = &mut overflow[self.more as usize];
        more.writes |= !mark.kind.reads();
        more.marks.push(mark);
    }
}

/// One lane's access to a word.
pub(super) struct Access<'a> {
    pub(super) mark: Mark,
    /// A write of the bytes that are there.
    pub(super) same: bool,
    /// Who makes it: of one that a ticket stands for, the thread that issues it.
    pub(super) thread: usize,
    memory: Proxied,
    clocks: &'a Clocks,
}

/// An earlier access that conflicts with one.
pub(super) struct Earlier {
    mark: Mark,
    lane: usize,
    /// The first byte of the word that both touch.
    byte: u32,
    /// It is ordered, but for a fence between the proxies.
    unfenced: bool,
}

impl Earlier {
    #[cold]
    pub(super) fn at(self, word: u64) -> Conflict {
        Conflict {
            block: self.mark.block,
            warp: self.mark.warp,
            lane: self.lane as u8,
            pc: self.mark.pc,
            kind: self.mark.kind,
            address: word * 4 + u64::from(self.byte),
            unfenced: self.unfenced,
        }
    }
}

/// What a look at the marks found of the kind of a new access, covering its bytes.
#[derive(Default)]
struct Seen {
    /// Its instruction has a mark, to which it was added.
    added: bool,
    /// There is another mark of its warp.
    warp: bool,
    /// Another block's, of which there is one.
    other_block: Option<u32>,
}

impl More {
    /// The mark of an instruction changes places with a read among the cell's own.
    fn bring(&mut self, own: &mut [Mark], new: &Mark) {
        let read = own.iter_mut().find(|mark| mark.lanes != 0 && mark.kind.reads());
        let found = self.marks.iter_mut().find(|mark| mark.bytes == new.bytes && mark.same_instruction(new));
        if let (Some(read), Some(found)) = (read, found)
            && found.kind.reads()
        {
            std::mem::swap(read, found);
        }
    }
}

impl<'a> Access<'a> {
    #[inline]
    pub(super) fn new(kind: Kind, by: &By, memory: Proxied, clocks: &'a Clocks) -> Self {
        let By { block, warp, lane, pc, epoch } = *by;
        let mark = Mark { block, epoch, pc, lanes: 1 << lane, warp, kind, bytes: 0 };
        Self { mark, same: false, thread: usize::from(warp) * LANES + usize::from(lane), memory, clocks }
    }

    /// Checks it against the accesses to a cell, and puts it among them.
    #[inline]
    pub(super) fn apply(&self, cell: &mut Cell, overflow: &mut Overflow) -> Result<(), Earlier> {
        let mut seen = Seen::default();
        let mut more = overflow.get_mut(cell.more as usize);
        let ordered = self.look(&mut cell.marks, &mut seen);
        // Many warps that read a word have a mark each. One that reads it again has its own among the cell's, and what
        // does not conflict with a read need not be looked at.
        if ordered
            && seen.added
            && !seen.warp
            && self.mark.kind.reads()
            && more.as_ref().is_some_and(|more| !more.writes)
        {
            return Ok(());
        }
        let inline = seen.added;
        if !ordered || !more.as_mut().is_none_or(|more| self.look(&mut more.marks, &mut seen)) {
            return self.earliest(cell.marks.iter().chain(more.into_iter().flat_map(|more| more.marks.iter())));
        }
        if let Some(more) = &mut more
            && seen.added
            && !inline
        {
            more.bring(&mut cell.marks, &self.mark);
        }
        if seen.added && !seen.warp {
            return Ok(());
        }
        let mut keep = seen.other_block;
        let two_blocks = keep.is_some();
        self.supersede(&mut cell.marks, two_blocks, &mut keep);
        if let Some(more) = more {
            self.supersede(&mut more.marks, two_blocks, &mut keep);
            more.marks.retain(|mark| mark.lanes != 0);
            more.writes &= more.marks.iter().any(|mark| !mark.kind.reads());
        }
        if !seen.added {
            cell.insert(overflow, self.mark);
        }
        Ok(())
    }

    /// Adds it to the mark of its instruction, if there is one. False where it conflicts.
    #[inline]
    fn look(&self, marks: &mut [Mark], seen: &mut Seen) -> bool {
        let new = &self.mark;
        for mark in marks {
            if mark.lanes == 0 || mark.bytes & new.bytes == 0 {
                continue;
            }
            if !mark.kind.agrees(new.kind) {
                if self.unordered(mark).is_some() {
                    return false;
                }
            } else if mark.block != new.block && mark.covers(new.bytes) && mark.kind.replaces(new.kind) {
                seen.other_block = Some(mark.block);
            }
            if mark.bytes == new.bytes && mark.same_instruction(new) {
                mark.lanes |= new.lanes;
                seen.added = true;
            } else {
                seen.warp |= mark.same_warp(new);
            }
        }
        true
    }

    /// A lane of a mark that does not come before it, or is not fenced from it.
    #[inline]
    fn unordered(&self, mark: &Mark) -> Option<usize> {
        self.unknown(mark).or_else(|| self.unfenced(mark))
    }

    /// A lane of a mark that comes before it, with no fence between their proxies. That an access by the async proxy is complete
    /// was waited for, and that makes it visible to the generic one. What other blocks fenced is not known.
    #[inline]
    fn unfenced(&self, mark: &Mark) -> Option<usize> {
        if !self.mark.kind.is_async() || mark.kind.is_async() || mark.block != self.mark.block {
            return None;
        }
        self.clocks.unfenced(self.memory, self.thread, usize::from(mark.warp), mark.lanes, mark.epoch)
    }

    /// A lane of a mark that does not come before it.
    #[inline]
    fn unknown(&self, mark: &Mark) -> Option<usize> {
        let new = &self.mark;
        if mark.kind.in_flight() {
            return Some(mark.lanes.trailing_zeros() as usize);
        }
        if mark.block != new.block {
            return self.clocks.unknown_abroad(mark.block, usize::from(mark.warp), mark.lanes, mark.epoch);
        }
        if self.same && mark.same_instruction(new) {
            return None;
        }
        self.clocks.unknown(self.thread, usize::from(mark.warp), mark.lanes, mark.epoch)
    }

    /// Forgets what races with nothing that does not race with it too. Of other blocks, one mark of the block to keep is enough:
    /// who comes from a third races with either, and who comes from that one with this access.
    #[inline]
    fn supersede(&self, marks: &mut [Mark], two_blocks: bool, keep: &mut Option<u32>) {
        let new = &self.mark;
        for mark in marks {
            let same_instruction = mark.same_instruction(new);
            if mark.lanes == 0 || !new.covers(mark.bytes) || (same_instruction && mark.bytes == new.bytes) {
                continue;
            }
            let superfluous = if new.kind.writes() {
                // All but the same bytes written at once come before it.
                !same_instruction
            } else if !new.kind.replaces(mark.kind) {
                false
            } else if two_blocks && mark.block != new.block {
                let kept = |&mut block: &mut u32| {
                    block == mark.block && mark.covers(new.bytes) && mark.kind.replaces(new.kind)
                };
                keep.take_if(kept).is_none()
            } else {
                // To the async proxy, what the lane did by the generic one is not all fenced because this is.
                let one_proxy = mark.kind.is_async() || !new.kind.is_async();
                if mark.same_warp(new) && !mark.kind.in_flight() && one_proxy {
                    mark.lanes &= !new.lanes;
                }
                self.unordered(mark).is_none()
            };
            if superfluous {
                *mark = Mark::NONE;
            }
        }
    }

    /// Of the accesses with which it conflicts, one to the lowest byte.
    #[cold]
    fn earliest<'m>(&self, marks: impl Iterator<Item = &'m Mark>) -> Result<(), Earlier> {
        marks
            .filter(|mark| mark.lanes != 0 && mark.bytes & self.mark.bytes != 0 && !mark.kind.agrees(self.mark.kind))
            .filter_map(|mark| {
                let byte = (mark.bytes & self.mark.bytes).trailing_zeros();
                let unfenced = self.unknown(mark).is_none();
                self.unordered(mark).map(|lane| Earlier { mark: *mark, lane, byte, unfenced })
            })
            .min_by_key(|earlier| earlier.byte)
            .map_or(Ok(()), Err)
    }
}
