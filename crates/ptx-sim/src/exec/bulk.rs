//! Bulk copies between global and shared memory, by the async proxy (PTX ISA, "Bulk copy" and "Tensor copy").
//!
//! All that a copy may do wrong is looked at when it is issued, and what it reads is read then: nobody may change it before the
//! copy is waited for. A load lands when the schedule draws it, one after another in any order, and at the latest when
//! nothing else goes on; a store when its group is waited for, or the block ends. In which order the bytes of one copy come
//! nobody can see who does no wrong, so they come at once.

use super::Trouble;
use super::access::{aligned, outside, uninitialised};
use super::block::Block;
use super::tensor::{Piece, boxed, read_map, round_to_tf32};
use crate::fault::{Fault, FaultKind};
use crate::lanes::{LANES, Mask, lanes};
use crate::program::{Address, BulkCopy, BulkGlobal, BulkKind};
use crate::ptx::Space;
use crate::races::{By, Conflict, Kind};

/// What addresses and sizes of a copy that is not of a tensor are multiples of.
const UNIT: u32 = 16;

/// What the address in shared memory of a box is a multiple of.
const BOX_ALIGNMENT: usize = 128;

/// Copies of a block that were not waited for, at most.
const MOST_COPIES: usize = 1 << 12;

/// Bytes of a copy that take as long as an instruction, to a launch's limit of steps.
const BYTES_OF_A_STEP: u64 = 256;

/// What a copy moves.
#[derive(Default)]
struct Moved {
    pieces: Vec<Piece>,
    /// In shared memory.
    bytes: u32,
    /// What a load finds outside of the tensor, over and over.
    fill: [u8; 2],
    /// A load rounds elements to TF32.
    rounds: bool,
}

/// The bulk copies of a block that were not waited for.
#[derive(Default)]
pub(super) struct Bulk {
    loads: Vec<Load>,
    /// Loads that have come: where they are counted, in which phase, and who issued them.
    come: Vec<(u64, u64, By)>,
    stores: Vec<Store>,
    /// Numbers of stores so far.
    numbers: u32,
}

struct Load {
    by: By,
    mbarrier: u64,
    phase: u64,
    bytes: u32,
    pieces: Vec<Piece>,
    data: Vec<u8>,
}

struct Store {
    by: By,
    /// Of the lane's groups.
    group: u32,
    /// For the shadow of memory.
    number: u32,
    pieces: Vec<Piece>,
    data: Vec<u8>,
    /// It was waited for that its source has been read.
    read: bool,
}

impl Bulk {
    pub(super) fn is_under_way(&self) -> bool {
        !self.loads.is_empty()
    }

    /// Who issued a load that an object counts.
    pub(super) fn counted_by(&self, mbarrier: u64) -> Option<By> {
        self.loads.iter().find(|load| load.mbarrier == mbarrier).map(|load| load.by)
    }

    /// A thread has seen that the phases of an object before this one are over.
    pub(super) fn waited_for(&mut self, mbarrier: u64, phase: u64) {
        self.come.retain(|(counted, of, _)| *counted != mbarrier || *of >= phase);
    }

    /// A copy into or out of shared memory that nobody waited for.
    fn left(&self) -> Option<(By, &'static str)> {
        let loads = self.loads.iter().map(|load| load.by).chain(self.come.iter().map(|(_, _, by)| *by));
        let load = loads.map(|by| (by, "writes its shared memory, and nobody waited for the phase that it completes"));
        let stores = self.stores.iter().filter(|store| !store.read).map(|store| store.by);
        load.chain(stores.map(|by| (by, "reads its shared memory, and nobody waited for its group"))).next()
    }
}

impl Block<'_, '_> {
    /// Lanes issue copies.
    pub(super) fn bulk_copies(&mut self, warp: usize, copy: &BulkCopy, active: Mask, by: By) -> Result<(), Trouble> {
        for lane in lanes(active) {
            let by = By { lane: lane as u8, epoch: self.clocks.epoch(warp), ..by };
            self.bulk_copy(copy, by).map_err(|trouble| trouble.lane(lane))?;
        }
        Ok(())
    }

    fn bulk_copy(&mut self, copy: &BulkCopy, by: By) -> Result<(), Trouble> {
        if self.bulk.loads.len() + self.bulk.come.len() + self.bulk.stores.len() >= MOST_COPIES {
            let what = format!("more than {MOST_COPIES} bulk copies of a block that were not waited for");
            return Err(Trouble::new(FaultKind::StepLimit, what));
        }
        let shared = match &copy.kind {
            BulkKind::Load { to: address, .. } | BulkKind::Store { from: address } => self.lane_place(address, by).1,
            BulkKind::Prefetch => 0,
        };
        let moved = self.moved(copy, shared, by)?;
        self.grid.steps_left = self.grid.steps_left.saturating_sub(u64::from(moved.bytes) / BYTES_OF_A_STEP);
        match &copy.kind {
            BulkKind::Load { mbarrier, .. } => self.bulk_load(mbarrier, moved, by),
            BulkKind::Store { .. } => self.bulk_store(moved, by),
            BulkKind::Prefetch => Ok(()),
        }
    }

    fn lane_place(&self, address: &Address, by: By) -> (Space, u64) {
        let lane = usize::from(by.lane);
        self.places(by.warp.into(), address, 1 << lane)[lane]
    }

    /// What a copy moves between global memory and an address of shared memory.
    fn moved(&mut self, copy: &BulkCopy, shared: u64, by: By) -> Result<Moved, Trouble> {
        let registers = &self.warps[usize::from(by.warp)].registers;
        let lane = usize::from(by.lane);
        let prefetches = matches!(copy.kind, BulkKind::Prefetch);
        match &copy.global {
            BulkGlobal::Line { address, bytes } => {
                let bytes = registers.lane(*bytes, lane) as u32;
                if bytes == 0 || !bytes.is_multiple_of(UNIT) {
                    let what = format!("found {bytes} bytes, wanted a multiple of {UNIT} above 0");
                    return Err(Trouble::new(FaultKind::Misaligned, what));
                }
                let global = self.lane_place(address, by).1;
                aligned(shared, UNIT as usize)?;
                aligned(global, UNIT as usize)?;
                if prefetches {
                    let found = self.grid.memory.allocation(global, bytes);
                    found.map_err(|found| outside(global, bytes, found))?;
                } else {
                    self.shared_at(shared, bytes)?;
                }
                Ok(Moved { pieces: vec![Piece { shared, global: Some(global), bytes }], bytes, ..Moved::default() })
            }
            BulkGlobal::Box { map, at } => {
                let at: Vec<i32> = at.iter().map(|one| registers.lane(*one, lane) as i32).collect();
                let place = self.lane_place(map, by);
                let mut bytes = [0; 128];
                let (first, second) = bytes.split_at_mut(64);
                self.read(place, first, Kind::Read, by)?;
                self.read((place.0, place.1.wrapping_add(64)), second, Kind::Read, by)?;
                let mut map = read_map(&bytes, at.len())?;
                if prefetches {
                    return Ok(Moved::default());
                }
                aligned(shared, BOX_ALIGNMENT)?;
                // An H200 stops at another place, on either side of the tensor's edge, as at an illegal instruction.
                let first = i64::from(at[0]) * i64::from(map.element_bytes);
                if first % i64::from(UNIT) != 0 {
                    let what = format!("found a box whose rows begin at byte {first}, wanted a multiple of {UNIT}");
                    return Err(Trouble::new(FaultKind::Misaligned, what));
                }
                if matches!(copy.kind, BulkKind::Store { .. }) {
                    // Before the tensor an H200 stops at a store as at an illegal instruction, while it fills what a load finds.
                    if let Some((axis, at)) = at.iter().enumerate().find(|(_, at)| **at < 0) {
                        let what = format!("found a box to store at {at} along axis {axis}, wanted 0 or more");
                        return Err(Trouble::new(FaultKind::TensorMap, what));
                    }
                    map = map.stored();
                }
                let bytes = u32::try_from(map.box_bytes()).unwrap_or(u32::MAX);
                self.shared_at(shared, bytes)?;
                Ok(Moved { pieces: boxed(&map, &at, shared), bytes, fill: map.fill, rounds: map.rounds })
            }
        }
    }

    fn bulk_load(&mut self, mbarrier: &Address, moved: Moved, by: By) -> Result<(), Trouble> {
        let Moved { pieces, bytes, fill, rounds } = moved;
        let mbarrier = self.object_place(mbarrier, by)?;
        let counted = self.count_copy(mbarrier, by)?;
        let thread = usize::from(by.warp) * LANES + usize::from(by.lane);
        let read = pieces.iter().filter_map(|piece| Some((piece.global?, piece.bytes)));
        self.grid.counters.global_reads.count_bulk(read);
        self.grid.counters.shared.count_bulk(bytes);
        let mut data = Vec::with_capacity(bytes as usize);
        for piece in &pieces {
            let (&Piece { shared, bytes, .. }, end) = (piece, data.len());
            let noted =
                self.shared_races.phase_access(Kind::PhaseWrite, shared, bytes, &counted.by, thread, &self.clocks);
            noted.map_err(|conflict| Trouble::conflict("shared", conflict))?;
            let Some(global) = piece.global else {
                data.extend(fill.iter().cycle().take(bytes as usize));
                continue;
            };
            self.read_global(global, bytes, &mut data)?;
            if rounds {
                round_to_tf32(&mut data[end..]);
            }
            let races = &mut self.grid.races;
            let noted = races.phase_access(Kind::PhaseRead, global, bytes, &counted.by, thread, &self.clocks);
            noted.map_err(|conflict| Trouble::conflict("global", conflict))?;
        }
        self.bulk.loads.push(Load { by, mbarrier, phase: counted.phase, bytes, pieces, data });
        Ok(())
    }

    fn read_global(&mut self, address: u64, bytes: u32, data: &mut Vec<u8>) -> Result<(), Trouble> {
        let (from, at) = self.grid.memory.allocation(address, bytes).map_err(|found| outside(address, bytes, found))?;
        let end = data.len();
        data.resize(end + bytes as usize, 0);
        from.read(at, &mut data[end..]).map_err(|missing| uninitialised("global", address - at as u64 + missing as u64))
    }

    fn bulk_store(&mut self, Moved { mut pieces, bytes, .. }: Moved, by: By) -> Result<(), Trouble> {
        let number = self.async_number();
        // What lies outside of the tensor is not written, and need not be there.
        pieces.retain(|piece| piece.global.is_some());
        let written = pieces.iter().filter_map(|piece| Some((piece.global?, piece.bytes)));
        self.grid.counters.global_writes.count_bulk(written);
        self.grid.counters.shared.count_bulk(bytes);
        let mut data = Vec::with_capacity(bytes as usize);
        for piece in &pieces {
            let (&Piece { shared, bytes, .. }, end) = (piece, data.len());
            let begun = self.shared_races.begin(Kind::AsyncFrom, shared, bytes, &by, number, &self.clocks);
            begun.map_err(|conflict| Trouble::conflict("shared", conflict))?;
            data.resize(end + bytes as usize, 0);
            self.shared
                .read(shared as usize, &mut data[end..])
                .map_err(|missing| uninitialised("shared", missing as u64))?;
            let Some(global) = piece.global else { continue };
            self.grid.memory.allocation(global, bytes).map_err(|found| outside(global, bytes, found))?;
            let begun = self.grid.races.begin(Kind::AsyncTo, global, bytes, &by, number, &self.clocks);
            begun.map_err(|conflict| Trouble::conflict("global", conflict))?;
        }
        let group = self.warps[usize::from(by.warp)].bulk_group[usize::from(by.lane)];
        self.bulk.stores.push(Store { by, group, number, pieces, data, read: false });
        Ok(())
    }

    /// A number for an access by the async proxy that is under way, which no other of the block has.
    pub(super) fn async_number(&mut self) -> u32 {
        self.bulk.numbers = self.bulk.numbers.wrapping_add(1);
        self.bulk.numbers
    }

    /// A load comes, whichever is drawn.
    pub(super) fn land_bulk(&mut self) -> Result<(), Box<Fault>> {
        let place = self.draw.one_of(self.bulk.loads.len());
        let Load { by, mbarrier, phase, bytes, pieces, data } = self.bulk.loads.swap_remove(place);
        let mut from = data.as_slice();
        for piece in &pieces {
            let (own, rest) = from.split_at(piece.bytes as usize);
            self.shared.write(piece.shared as usize, own);
            from = rest;
        }
        self.bulk.come.push((mbarrier, phase, by));
        self.progress += 1;
        self.copy_has_come(mbarrier, bytes)
            .map_err(|trouble| self.fault(by.warp.into(), by.pc, trouble.lane(by.lane.into())))
    }

    /// Lanes wait until at most `left` of the bulk groups that they have committed are under way, or read their sources.
    pub(super) fn wait_for_bulk(
        &mut self,
        warp: usize,
        left: u32,
        reads: bool,
        active: Mask,
        by: By,
    ) -> Result<(), Trouble> {
        let stores = std::mem::take(&mut self.bulk.stores);
        for mut store in stores {
            let (group, lane) = (store.group, usize::from(store.by.lane));
            let waits = usize::from(store.by.warp) == warp && active >> lane & 1 != 0;
            let committed = self.warps[warp].bulk_group[lane];
            let ends = waits && u64::from(group) + u64::from(left) < u64::from(committed);
            if ends {
                let by = By { lane: lane as u8, ..by };
                self.end_reads(&mut store, by).map_err(|trouble| trouble.lane(lane))?;
            }
            if ends && !reads {
                self.land_store(&store, Some(by));
            } else {
                self.bulk.stores.push(store);
            }
        }
        Ok(())
    }

    fn end_reads(&mut self, store: &mut Store, by: By) -> Result<(), Trouble> {
        if std::mem::replace(&mut store.read, true) {
            return Ok(());
        }
        for piece in &store.pieces {
            let races = &mut self.shared_races;
            let ended = races.end_read(Kind::AsyncFrom, piece.shared, piece.bytes, &by, store.number, &self.clocks);
            ended.map_err(|conflict| Trouble::conflict("shared", conflict))?;
        }
        Ok(())
    }

    /// What a store writes is there; for who waited, it is written.
    fn land_store(&mut self, store: &Store, waited: Option<By>) {
        let mut from = store.data.as_slice();
        for piece in &store.pieces {
            let (own, rest) = from.split_at(piece.bytes as usize);
            from = rest;
            let Some(global) = piece.global else { continue };
            // That it is there was seen when the copy was issued.
            if let Ok((to, at)) = self.grid.memory.allocation(global, piece.bytes) {
                to.write(at, own);
            }
            if let Some(by) = waited {
                let by = By { lane: store.by.lane, ..by };
                let races = &mut self.grid.races;
                races.end_write(Kind::AsyncTo, global, piece.bytes, &by, store.number);
            }
        }
    }

    /// All threads have exited: no copy may need the block's shared memory any more, and what is stored lands.
    pub(super) fn end_bulk(&mut self) -> Result<(), Box<Fault>> {
        if let Some((by, what)) = self.bulk.left() {
            let trouble = Trouble::new(FaultKind::InFlight, format!("the block ends while a copy {what}"));
            return Err(self.fault(by.warp.into(), by.pc, trouble.lane(by.lane.into())));
        }
        for store in std::mem::take(&mut self.bulk.stores) {
            self.land_store(&store, None);
        }
        Ok(())
    }

    /// The thread that issued what a ticket stands for.
    pub(super) fn issuer(&self, conflict: Conflict) -> (u16, u8) {
        let key = (conflict.block, conflict.warp, conflict.lane, conflict.pc);
        self.grid.issuers.get(&key).copied().unwrap_or((conflict.warp, conflict.lane))
    }
}
