//! `mbarrier` objects (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier").
//!
//! A phase is over once as many threads have arrived as the object wants and as many bytes have come as were expected. Here an
//! object is a record beside memory, and its 8 bytes are nobody else's. Arriving releases, and a wait that succeeds acquires
//! what was released in all phases that are over, copies among it.
//!
//! A copy counts in the phase in which it is issued, and no phase may end without the copies that were issued in it: on a
//! GPU it would be luck in which of the two it counts.
//!
//! Who waits sleeps until some phase is over: that is one of the orders that a schedule may choose, also for those who only
//! ask. Once nothing else goes on, sleepers are told that their phase is not over, as the time limit of `try_wait` would; when
//! they have come back often, and nothing has happened in between, nothing will.

use super::Trouble;
use super::access::aligned;
use super::block::Block;
use super::warp::Waits;
use crate::clock::{Clock, Proxied};
use crate::fault::FaultKind;
use crate::lanes::{LANES, Mask, lanes};
use crate::lower::PENDING_BITS;
use crate::program::{Address, Arrival, Mbarrier, Operation, PhaseWait, Program};
use crate::ptx::Space;
use crate::races::{By, Conflict, Kind};
use std::collections::HashMap;

/// Bytes of an object.
const BYTES: u32 = 8;

/// Threads of a phase, and bytes, at most (PTX ISA, "Contents of the mbarrier object").
const MOST: u32 = (1 << PENDING_BITS) - 1;

/// Objects of a block, at most, by their addresses. A multiple of 32.
const MOST_OBJECTS: usize = 128;

/// One wait in so many, on average, for a phase that is not over, fails at once.
const GIVES_UP: u32 = 4;

#[derive(Default)]
pub(super) struct Mbarriers {
    objects: HashMap<u64, Object>,
    /// The ticket of each address that ever had an object, and the first epoch that is free.
    tickets: HashMap<u64, (usize, u32)>,
}

struct Object {
    made_by: By,
    /// A fence has made its making known to the async proxy.
    fenced: bool,
    ticket: usize,
    /// Of its ticket, in this phase.
    epoch: u32,
    phase: u64,
    /// Threads of the next phase.
    expected: u32,
    /// Threads that this phase waits for.
    pending: u32,
    /// Bytes that this phase waits for; below 0 for those that came before they were expected.
    bytes: i64,
    /// Copies under way.
    copies: usize,
    /// What those knew who arrived in this phase.
    arrived: Clock,
    /// What those knew who arrived in phases that are over.
    over: Clock,
}

/// Where a copy is counted.
pub(super) struct Counted {
    pub(super) phase: u64,
    /// Whose access it is, to those who race with it.
    pub(super) by: By,
}

impl Object {
    fn state(&self) -> u64 {
        self.phase << PENDING_BITS | u64::from(self.pending)
    }

    fn is_over(&self, phase: u64, by_parity: bool) -> Result<bool, Trouble> {
        if by_parity {
            return match phase {
                0 | 1 => Ok(self.phase & 1 != phase),
                _ => Err(wrong(format!("found parity {phase}, wanted 0 or 1"))),
            };
        }
        let phase = phase >> PENDING_BITS;
        if phase > self.phase || phase + 1 < self.phase {
            let now = self.phase;
            return Err(wrong(format!(
                "found the state of phase {phase}, wanted that of phase {now} or the one before"
            )));
        }
        Ok(phase < self.phase)
    }

    fn expect(&mut self, bytes: u64) -> Result<(), Trouble> {
        self.bytes += i64::try_from(bytes).unwrap_or(i64::MAX / 2);
        if bytes > MOST.into() || self.bytes > MOST.into() {
            return Err(wrong(format!("found {} bytes expected in a phase, wanted at most {MOST}", self.bytes)));
        }
        Ok(())
    }

    fn complete(&mut self, bytes: u64) -> Result<(), Trouble> {
        self.bytes -= i64::try_from(bytes).unwrap_or(i64::MAX / 2);
        if bytes > MOST.into() || self.bytes < -i64::from(MOST) {
            return Err(wrong(format!("found {} bytes more than expected, wanted at most {MOST}", -self.bytes)));
        }
        Ok(())
    }

    fn arrive(&mut self, count: u64, drops: bool) -> Result<(), Trouble> {
        let Some(pending) = u64::from(self.pending).checked_sub(count).filter(|_| count > 0) else {
            let wanted = match self.pending {
                0 => "none: the phase has all that it waits for".into(),
                pending => format!("1 to {pending}, which the phase still waits for"),
            };
            return Err(wrong(format!("found {count} arrivals, wanted {wanted}")));
        };
        self.pending = pending as u32;
        if drops {
            self.expected -= count as u32;
        }
        Ok(())
    }
}

/// Tickets of a block's objects.
pub(super) fn tickets(program: &Program) -> usize {
    if program.has_mbarriers { MOST_OBJECTS } else { 0 }
}

impl Block<'_, '_> {
    /// An instruction on objects, of lanes, but for waits.
    pub(super) fn mbarrier(&mut self, warp: usize, mbarrier: &Mbarrier, active: Mask, by: By) -> Result<(), Trouble> {
        for lane in lanes(active) {
            let by = By { lane: lane as u8, epoch: self.clocks.epoch(warp), ..by };
            let done = self.object_place(&mbarrier.address, by).and_then(|at| match &mbarrier.operation {
                Operation::Init(count) => self.init(at, self.operand(*count, by), by),
                Operation::Invalidate => self.invalidate(at, by),
                Operation::Arrive(arrival) => self.arrive_at(at, arrival, by),
                Operation::Expect(bytes) => {
                    let bytes = self.operand(*bytes, by);
                    self.object(at, by)?.expect(bytes)
                }
                Operation::Complete(bytes) => {
                    let bytes = self.operand(*bytes, by);
                    self.object(at, by)?.complete(bytes)?;
                    self.settle(at)
                }
                Operation::Wait(_) => Ok(()),
            });
            done.map_err(|trouble| trouble.lane(lane))?;
        }
        Ok(())
    }

    /// A lane's number of 32 bits.
    fn operand(&self, source: crate::lanes::Source, by: By) -> u64 {
        self.warps[usize::from(by.warp)].registers.lane(source, by.lane.into()) & u64::from(u32::MAX)
    }

    /// A lane's address of an object.
    pub(super) fn object_place(&self, address: &Address, by: By) -> Result<u64, Trouble> {
        let lane = usize::from(by.lane);
        let (space, at) = self.places(by.warp.into(), address, 1 << lane)[lane];
        if space != Space::Shared {
            let what = format!("found address {at:#x}, which is not of shared memory, wanted an mbarrier object");
            return Err(Trouble::new(FaultKind::OutOfBounds, what));
        }
        aligned(at, BYTES as usize)?;
        self.shared_at(at, BYTES)?;
        Ok(at)
    }

    /// The object there, which must have been made before.
    fn object(&mut self, at: u64, by: By) -> Result<&mut Object, Trouble> {
        let Some(object) = self.mbarriers.objects.get_mut(&at) else {
            return Err(wrong(format!("found no mbarrier object at {at:#x}, wanted one: none was made, or not yet")));
        };
        let (made, thread) = (object.made_by, usize::from(by.warp) * LANES + usize::from(by.lane));
        if self.clocks.unknown(thread, made.warp.into(), 1 << made.lane, made.epoch).is_some() {
            return Err(Trouble::conflict("shared", made.conflict(Kind::Write, at)));
        }
        Ok(object)
    }

    fn init(&mut self, at: u64, count: u64, by: By) -> Result<(), Trouble> {
        if count == 0 || count > MOST.into() {
            return Err(wrong(format!("found {count} threads, wanted 1 to {MOST}")));
        }
        if self.mbarriers.objects.contains_key(&at) {
            let made = self.object(at, by)?.made_by;
            let trouble = wrong(format!("found an mbarrier object at {at:#x} already, wanted it invalidated first"));
            return Err(Trouble { earlier: Some(made.conflict(Kind::Object, at)), ..trouble });
        }
        let next = self.mbarriers.tickets.len();
        let (ticket, epoch) = *self.mbarriers.tickets.entry(at).or_insert((next, 1));
        if ticket >= MOST_OBJECTS {
            return Err(wrong(format!("found more than {MOST_OBJECTS} places of mbarrier objects in a block")));
        }
        let begun = self.shared_races.begin(Kind::Object, at, BYTES, &by, 0, &self.clocks);
        begun.map_err(|conflict| Trouble::conflict("shared", conflict))?;
        let object = Object {
            made_by: by,
            fenced: false,
            ticket,
            epoch,
            phase: 0,
            expected: count as u32,
            pending: count as u32,
            bytes: 0,
            copies: 0,
            arrived: Clock::default(),
            over: Clock::default(),
        };
        self.mbarriers.objects.insert(at, object);
        Ok(())
    }

    fn invalidate(&mut self, at: u64, by: By) -> Result<(), Trouble> {
        let object = self.object(at, by)?;
        let (made_by, copies) = (object.made_by, object.copies);
        if copies > 0 {
            return Err(wrong(format!(
                "found {copies} copies under way that the mbarrier at {at:#x} counts, wanted none"
            )));
        }
        self.shared_races.end_object(at, BYTES, &made_by, &by);
        self.mbarriers.objects.remove(&at);
        Ok(())
    }

    fn arrive_at(&mut self, at: u64, arrival: &Arrival, by: By) -> Result<(), Trouble> {
        let (count, expects) = (self.operand(arrival.count, by), self.operand(arrival.expects, by));
        let object = self.object(at, by)?;
        let state = object.state();
        object.expect(expects)?;
        object.arrive(count, arrival.drops)?;
        if arrival.last_is_wrong && object.pending == 0 {
            return Err(wrong(format!("found the last arrival of phase {}, wanted another", object.phase)));
        }
        let thread = usize::from(by.warp) * LANES + usize::from(by.lane);
        if let Some(object) = self.mbarriers.objects.get_mut(&at) {
            self.clocks.release(thread, &mut object.arrived);
        }
        self.warps[usize::from(by.warp)].registers.put_lane(arrival.state, by.lane.into(), state);
        self.settle(at)
    }

    /// Ends the phase, if all have come.
    fn settle(&mut self, at: u64) -> Result<(), Trouble> {
        let Some(object) = self.mbarriers.objects.get_mut(&at) else { return Ok(()) };
        if object.pending > 0 || object.bytes > 0 {
            return Ok(());
        }
        let (phase, bytes) = (object.phase, object.bytes);
        if bytes < 0 {
            let what = format!("mbarrier at {at:#x}: found {} bytes more than phase {phase} expects", -bytes);
            return Err(wrong(what));
        }
        if object.copies > 0 {
            let trouble = wrong(format!(
                "mbarrier at {at:#x}: phase {phase} ends without a copy that was issued in it: it expects too few bytes"
            ));
            let earlier = self.bulk.counted_by(at).map(|by| by.conflict(Kind::PhaseWrite, at));
            return Err(Trouble { earlier, ..trouble });
        }
        if object.expected == 0 {
            return Err(wrong(format!(
                "mbarrier at {at:#x}: found no threads left that arrive, wanted it invalidated"
            )));
        }
        self.clocks.release_ticket(object.ticket, object.epoch, &mut object.arrived);
        object.over.join(&std::mem::take(&mut object.arrived));
        object.phase += 1;
        object.epoch += 1;
        object.pending = object.expected;
        self.mbarriers.tickets.insert(at, (object.ticket, object.epoch));
        self.warps.iter_mut().for_each(|warp| {
            warp.rouse(|waits| matches!(waits, Waits::Phase(_)), Waits::Nothing);
        });
        Ok(())
    }

    /// Lanes ask whether a phase is over, or wait for it.
    pub(super) fn wait_for_phase(
        &mut self,
        warp: usize,
        place: usize,
        address: &Address,
        wait: PhaseWait,
        active: Mask,
    ) -> Result<(), Trouble> {
        let group = self.warps[warp].groups[place];
        let (mut over, mut first) = (0, None);
        for lane in lanes(active) {
            let by = By { block: self.number, warp: warp as u16, lane: lane as u8, pc: group.step, epoch: 0 };
            let at = self.object_place(address, by).map_err(|trouble| trouble.lane(lane))?;
            let phase = if wait.by_parity {
                self.operand(wait.phase, by)
            } else {
                self.warps[warp].registers.lane(wait.phase, lane)
            };
            let object = self.object(at, by).map_err(|trouble| trouble.lane(lane))?;
            if object.is_over(phase, wait.by_parity).map_err(|trouble| trouble.lane(lane))? {
                over |= 1 << lane;
                self.learn_phase(warp * LANES + lane, at);
            }
            first.get_or_insert(at as u32);
        }
        let tries = if wait.may_wait { GIVES_UP } else { 2 };
        if let (0, Some(first)) = (over, first)
            && group.waits != Waits::Expired
            && !self.draw.once_in(tries)
        {
            self.warps[warp].groups[place].waits = Waits::Phase(first);
            return Ok(());
        }
        self.grid.count_step(group.step, active);
        self.warps[warp].registers.put_predicate(wait.to, active, over);
        self.warps[warp].go(place, active, group.step + 1);
        Ok(())
    }

    /// A thread has seen that the phases before the present one are over.
    fn learn_phase(&mut self, thread: usize, at: u64) {
        if let Some(object) = self.mbarriers.objects.get(&at) {
            self.clocks.acquire(thread, &object.over);
            self.bulk.waited_for(at, object.phase);
        }
    }

    /// `fence.mbarrier_init` of a lane: the objects that it made are known to the async proxy.
    pub(super) fn fence_mbarriers(&mut self, warp: usize, lane: usize) {
        for object in self.mbarriers.objects.values_mut() {
            object.fenced |= (usize::from(object.made_by.warp), usize::from(object.made_by.lane)) == (warp, lane);
        }
    }

    /// A copy that a lane issues is counted by an object.
    pub(super) fn count_copy(&mut self, at: u64, by: By) -> Result<Counted, Trouble> {
        let thread = usize::from(by.warp) * LANES + usize::from(by.lane);
        let object = self.object(at, by)?;
        let (made, fenced, phase) = (object.made_by, object.fenced, object.phase);
        let unfenced = self.clocks.unfenced(Proxied::Shared, thread, made.warp.into(), 1 << made.lane, made.epoch);
        if !fenced && unfenced.is_some() {
            let conflict = Conflict { unfenced: true, ..made.conflict(Kind::Object, at) };
            return Err(Trouble::conflict("shared", conflict));
        }
        let object = self.object(at, by)?;
        object.copies += 1;
        let (ticket, epoch) = (object.ticket, object.epoch);
        // Who learns of the copy learns what came before it.
        if let Some(object) = self.mbarriers.objects.get_mut(&at) {
            self.clocks.release(thread, &mut object.arrived);
        }
        let (warp, lane) = self.clocks.ticket(ticket);
        self.grid.issuers.insert((self.number, warp, lane, by.pc), (by.warp, by.lane));
        Ok(Counted { phase, by: By { warp, lane, epoch, ..by } })
    }

    /// The bytes of a copy have come.
    pub(super) fn copy_has_come(&mut self, at: u64, bytes: u32) -> Result<(), Trouble> {
        if let Some(object) = self.mbarriers.objects.get_mut(&at) {
            object.copies -= 1;
            object.complete(bytes.into())?;
        }
        self.settle(at)
    }
}

impl Mbarriers {
    /// What those wait for who wait for a phase.
    pub(super) fn told(&self, at: u32) -> String {
        let Some(object) = self.objects.get(&at.into()) else { return format!("an mbarrier at {at:#x} that is gone") };
        let Object { phase, pending, bytes, .. } = object;
        format!("phase {phase} of the mbarrier at {at:#x}, which awaits {pending} arrivals and {bytes} bytes")
    }
}

impl By {
    fn conflict(self, kind: Kind, address: u64) -> Conflict {
        let By { block, warp, lane, pc, .. } = self;
        Conflict { block, warp, lane, pc, kind, address, unfenced: false }
    }
}

fn wrong(what: String) -> Trouble {
    Trouble::new(FaultKind::Mbarrier, what)
}
