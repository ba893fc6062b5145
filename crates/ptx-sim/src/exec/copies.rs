//! Asynchronous copies from global to shared memory (PTX ISA, "Non-bulk copy: cp.async").
//!
//! A copy may land at any time after it was issued: the schedule draws when, and the wait that asks for it is the last moment.
//! Until that wait nobody may touch where it goes, landed or not.

use super::Trouble;
use super::access::{aligned, outside, uninitialised};
use super::block::Block;
use crate::fault::FaultKind;
use crate::lanes::{Lanes, Mask, lanes};
use crate::program::AsyncCopy;
use crate::races::{By, Kind};

/// Copies of a block that were not waited for, at most.
const MOST_COPIES: usize = 1 << 20;

/// A copy of a lane that was not waited for.
#[derive(Clone, Copy)]
pub(super) struct InFlight {
    warp: usize,
    lane: usize,
    /// The number of its group among the lane's.
    group: u32,
    to: u64,
    from: u64,
    bytes: u32,
    /// Bytes that come from memory; the rest is zeros.
    read: u32,
    landed: bool,
}

impl Block<'_, '_> {
    pub(super) fn begin_copies(&mut self, warp: usize, copy: &AsyncCopy, active: Mask, by: By) -> Result<(), Trouble> {
        let (to, from) = (self.places(warp, &copy.to, active), self.places(warp, &copy.from, active));
        let sizes: Lanes<u32> = self.warps[warp].registers.get(copy.read);
        let reads = lanes(active).filter(|lane| sizes[*lane] > 0).fold(0, |mask, lane| mask | 1 << lane);
        let counters = &mut self.grid.counters;
        counters.global_reads.count(&from.map(|(_, address)| address), reads, copy.bytes);
        counters.shared.count(&to.map(|(_, address)| address), active, copy.bytes);
        for lane in lanes(active) {
            let group = self.warps[warp].copy_group[lane];
            let (to, from) = (to[lane].1, from[lane].1);
            let copy = InFlight { warp, lane, group, to, from, bytes: copy.bytes, read: sizes[lane], landed: false };
            self.begin_copy(copy, By { lane: lane as u8, ..by }).map_err(|trouble| trouble.lane(lane))?;
        }
        Ok(())
    }

    fn begin_copy(&mut self, copy: InFlight, by: By) -> Result<(), Trouble> {
        let InFlight { group, to, from, bytes, read, .. } = copy;
        if self.copies.len() >= MOST_COPIES {
            let what = format!("more than {MOST_COPIES} copies of a block that were not waited for");
            return Err(Trouble::new(FaultKind::StepLimit, what));
        }
        if read > bytes {
            let what = format!("found {read} bytes to read of a copy of {bytes}");
            return Err(Trouble::new(FaultKind::OutOfBounds, what));
        }
        aligned(to, bytes as usize)?;
        aligned(from, bytes as usize)?;
        self.shared_at(to, bytes)?;
        let begun = self.shared_races.begin(Kind::CopyTo, to, bytes, &by, group, &self.clocks);
        begun.map_err(|conflict| Trouble::conflict("shared", conflict))?;
        if read > 0 {
            let (data, at) = self.grid.memory.allocation(from, read).map_err(|found| outside(from, read, found))?;
            let mut bytes = [0; 16];
            data.read(at, &mut bytes[..read as usize])
                .map_err(|missing| uninitialised("global", from - at as u64 + missing as u64))?;
            let begun = self.grid.races.begin(Kind::CopyFrom, from, read, &by, group, &self.clocks);
            begun.map_err(|conflict| Trouble::conflict("global", conflict))?;
        }
        self.copies.push(copy);
        Ok(())
    }

    /// One copy that has not landed does, whichever is drawn.
    pub(super) fn land_one(&mut self) {
        let place = self.draw.one_of(self.copies.len());
        self.land(place);
    }

    /// Moves the bytes of a copy. That they can be moved was seen when it was issued.
    fn land(&mut self, place: usize) {
        let copy = &mut self.copies[place];
        if std::mem::replace(&mut copy.landed, true) {
            return;
        }
        let mut bytes = [0; 16];
        if copy.read > 0
            && let Ok((data, at)) = self.grid.memory.allocation(copy.from, copy.read)
        {
            bytes[..copy.read as usize].copy_from_slice(data.raw(at, copy.read as usize));
        }
        self.shared.write(copy.to as usize, &bytes[..copy.bytes as usize]);
    }

    /// Lanes wait until at most `left` of the groups that they have committed are under way; for `None`, until no copy is.
    pub(super) fn wait_for_copies(
        &mut self,
        warp: usize,
        left: Option<u32>,
        active: Mask,
        by: By,
    ) -> Result<(), Trouble> {
        let mut place = 0;
        while place < self.copies.len() {
            let copy = self.copies[place];
            let committed = self.warps[warp].copy_group[copy.lane];
            let ends = left.is_none_or(|left| u64::from(copy.group) + u64::from(left) < u64::from(committed));
            if copy.warp != warp || active >> copy.lane & 1 == 0 || !ends {
                place += 1;
                continue;
            }
            self.land(place);
            self.copies.swap_remove(place);
            let by = By { lane: copy.lane as u8, ..by };
            self.shared_races.end_write(Kind::CopyTo, copy.to, copy.bytes, &by, copy.group);
            if copy.read > 0 {
                let ended =
                    self.grid.races.end_read(Kind::CopyFrom, copy.from, copy.read, &by, copy.group, &self.clocks);
                ended.map_err(|conflict| Trouble::conflict("global", conflict).lane(copy.lane))?;
            }
        }
        Ok(())
    }
}
