//! Races by hand, and against a list of all accesses, each compared with each.

mod model;

use super::{By, Conflict, Kind, Races};
use crate::clock::{Clock, Clocks, Proxied};

const A: u32 = 10;
const B: u32 = 11;

/// An instruction of a warp of block 0 now.
fn by(clocks: &Clocks, warp: u16, pc: u32) -> By {
    By { block: 0, warp, lane: 0, pc, epoch: clocks.epoch(usize::from(warp)) }
}

fn conflict(warp: u16, lane: u8, pc: u32, kind: Kind, address: u64) -> Result<(), Conflict> {
    Err(Conflict { block: 0, warp, lane, pc, kind, address, unfenced: false })
}

impl Races {
    fn read(&mut self, address: u64, bytes: u32, by: &By, lane: u8, clocks: &Clocks) -> Result<(), Conflict> {
        self.access(Kind::Read, address, bytes, &By { lane, ..*by }, false, clocks)
    }

    fn write(
        &mut self,
        address: u64,
        bytes: u32,
        by: &By,
        lane: u8,
        same: bool,
        clocks: &Clocks,
    ) -> Result<(), Conflict> {
        self.access(Kind::Write, address, bytes, &By { lane, ..*by }, same, clocks)
    }

    fn atomic(&mut self, address: u64, bytes: u32, by: &By, lane: u8, clocks: &Clocks) -> Result<(), Conflict> {
        self.access(Kind::Atomic, address, bytes, &By { lane, ..*by }, false, clocks)
    }
}

#[test]
fn a_write_is_read_after_a_barrier_and_not_before() {
    let (mut races, mut clocks) = (Races::new(Proxied::Shared), Clocks::new(64, 0));
    races.write(64, 4, &by(&clocks, 0, A), 5, false, &clocks).unwrap();
    assert_eq!(races.read(64, 4, &by(&clocks, 0, B), 5, &clocks), Ok(()));
    assert_eq!(races.read(64, 4, &by(&clocks, 1, B), 7, &clocks), conflict(0, 5, A, Kind::Write, 64));
    clocks.synchronise(0..64);
    assert_eq!(races.read(64, 4, &by(&clocks, 1, B), 7, &clocks), Ok(()));
}

#[test]
fn lanes_of_a_warp_are_not_ordered_without_a_barrier() {
    let (mut races, mut clocks) = (Races::new(Proxied::Shared), Clocks::new(32, 0));
    races.write(0, 4, &by(&clocks, 0, A), 0, false, &clocks).unwrap();
    assert_eq!(races.read(0, 4, &by(&clocks, 0, B), 1, &clocks), conflict(0, 0, A, Kind::Write, 0));
    clocks.synchronise(0..32);
    assert_eq!(races.read(0, 4, &by(&clocks, 0, B), 1, &clocks), Ok(()));
}

#[test]
fn a_write_names_the_reader_that_it_overtakes() {
    let (mut races, mut clocks) = (Races::new(Proxied::Shared), Clocks::new(128, 0));
    for warp in 0..3 {
        for lane in 0..32 {
            races.read(16, 4, &by(&clocks, warp, A + u32::from(warp)), lane, &clocks).unwrap();
        }
    }
    clocks.synchronise((0..70).chain(71..128));
    assert_eq!(races.write(16, 4, &by(&clocks, 3, B), 0, false, &clocks), conflict(2, 6, A + 2, Kind::Read, 16));
}

#[test]
fn the_instruction_named_is_the_one_that_read() {
    let (mut races, clocks) = (Races::new(Proxied::Shared), Clocks::new(64, 0));
    races.read(0, 4, &by(&clocks, 0, A), 0, &clocks).unwrap();
    races.read(0, 4, &by(&clocks, 0, B), 0, &clocks).unwrap();
    assert_eq!(races.write(0, 4, &by(&clocks, 1, A), 0, false, &clocks), conflict(0, 0, B, Kind::Read, 0));
}

#[test]
fn halves_of_a_word_are_two_places() {
    let (mut races, clocks) = (Races::new(Proxied::Shared), Clocks::new(64, 0));
    races.write(8, 2, &by(&clocks, 0, A), 0, false, &clocks).unwrap();
    races.write(10, 2, &by(&clocks, 0, A), 1, false, &clocks).unwrap();
    assert_eq!(races.read(8, 4, &by(&clocks, 0, B), 0, &clocks), conflict(0, 1, A, Kind::Write, 10));
    assert_eq!(races.read(0, 16, &by(&clocks, 1, B), 0, &clocks), conflict(0, 0, A, Kind::Write, 8));
}

#[test]
fn one_instruction_stores_one_value() {
    let (mut races, clocks) = (Races::new(Proxied::Shared), Clocks::new(64, 0));
    races.write(0, 4, &by(&clocks, 0, A), 0, false, &clocks).unwrap();
    assert_eq!(races.write(0, 4, &by(&clocks, 0, A), 1, true, &clocks), Ok(()));
    assert_eq!(races.write(0, 4, &by(&clocks, 0, A), 2, false, &clocks), conflict(0, 0, A, Kind::Write, 0));
    assert_eq!(races.write(0, 4, &by(&clocks, 0, B), 3, true, &clocks), conflict(0, 0, A, Kind::Write, 0));
    assert_eq!(races.write(0, 4, &by(&clocks, 1, A), 0, true, &clocks), conflict(0, 0, A, Kind::Write, 0));
    // Of both lanes that wrote, the second is not its own.
    assert_eq!(races.read(0, 4, &by(&clocks, 0, B), 0, &clocks), conflict(0, 1, A, Kind::Write, 0));
}

#[test]
fn atomics_race_with_plain_accesses_alone() {
    let (mut races, clocks) = (Races::new(Proxied::Shared), Clocks::new(64, 0));
    races.atomic(0, 4, &by(&clocks, 0, A), 0, &clocks).unwrap();
    races.atomic(0, 4, &by(&clocks, 1, A), 0, &clocks).unwrap();
    assert_eq!(races.read(0, 4, &by(&clocks, 0, B), 0, &clocks), conflict(1, 0, A, Kind::Atomic, 0));
    races.read(4, 4, &by(&clocks, 0, A), 0, &clocks).unwrap();
    assert_eq!(races.atomic(4, 4, &by(&clocks, 1, A), 0, &clocks), conflict(0, 0, A, Kind::Read, 4));
}

#[test]
fn blocks_are_never_ordered() {
    let (mut races, mut clocks) = (Races::new(Proxied::Shared), Clocks::new(32, 0));
    let mine = |clocks: &Clocks, block| By { block, ..by(clocks, 0, A) };
    for block in 0..1000 {
        races.read(0, 16, &mine(&clocks, block), 0, &clocks).unwrap();
    }
    assert!(races.overflow.is_empty());
    clocks.synchronise(0..32);
    for block in [0, 1, 500] {
        let conflict = races.write(12, 4, &mine(&clocks, block), 0, false, &clocks).unwrap_err();
        assert_ne!(conflict.block, block);
    }
}

#[test]
fn a_copy_in_flight_is_touched_by_nobody() {
    let (mut races, mut clocks) = (Races::new(Proxied::Shared), Clocks::new(64, 0));
    races.begin(Kind::CopyTo, 0, 16, &By { lane: 3, ..by(&clocks, 0, A) }, 0, &clocks).unwrap();
    clocks.synchronise(0..64);
    let in_flight = conflict(0, 3, A, Kind::CopyTo, 4);
    assert_eq!(races.read(4, 4, &by(&clocks, 0, B), 3, &clocks), in_flight);
    assert_eq!(races.write(4, 4, &by(&clocks, 1, B), 0, true, &clocks), in_flight);
    // Another group's end is not this one's.
    races.end_write(Kind::CopyTo, 0, 16, &By { lane: 3, ..by(&clocks, 0, B) }, 1);
    assert_eq!(races.read(4, 4, &by(&clocks, 0, B), 3, &clocks), in_flight);
    races.end_write(Kind::CopyTo, 0, 16, &By { lane: 3, ..by(&clocks, 0, B) }, 0);
    assert_eq!(races.read(4, 4, &by(&clocks, 0, B), 3, &clocks), Ok(()));
    // The barrier was before the wait.
    assert_eq!(races.read(4, 4, &by(&clocks, 1, B), 0, &clocks), conflict(0, 3, A, Kind::Write, 4));
    clocks.synchronise(0..64);
    assert_eq!(races.read(4, 4, &by(&clocks, 1, B), 0, &clocks), Ok(()));
}

#[test]
fn a_copy_must_not_overtake_a_reader() {
    let (mut races, mut clocks) = (Races::new(Proxied::Shared), Clocks::new(64, 0));
    races.read(8, 4, &by(&clocks, 1, A), 9, &clocks).unwrap();
    let early = races.begin(Kind::CopyTo, 0, 16, &By { lane: 0, ..by(&clocks, 0, B) }, 0, &clocks);
    assert_eq!(early, conflict(1, 9, A, Kind::Read, 8));
    clocks.synchronise(0..64);
    assert_eq!(races.begin(Kind::CopyTo, 16, 16, &By { lane: 0, ..by(&clocks, 0, B) }, 0, &clocks), Ok(()));
}

#[test]
fn the_source_of_a_copy_is_read_until_it_ends() {
    let (mut races, mut clocks) = (Races::new(Proxied::Shared), Clocks::new(64, 0));
    races.begin(Kind::CopyFrom, 0, 8, &By { lane: 0, ..by(&clocks, 0, A) }, 0, &clocks).unwrap();
    races.begin(Kind::CopyFrom, 0, 8, &By { lane: 1, ..by(&clocks, 0, A) }, 0, &clocks).unwrap();
    clocks.synchronise(0..64);
    assert_eq!(races.read(0, 8, &by(&clocks, 1, B), 0, &clocks), Ok(()));
    assert_eq!(races.write(4, 4, &by(&clocks, 0, B), 0, false, &clocks), conflict(0, 0, A, Kind::CopyFrom, 4));
    for lane in 0..2 {
        races.end_read(Kind::CopyFrom, 0, 8, &By { lane, ..by(&clocks, 0, B) }, 0, &clocks).unwrap();
    }
    assert_eq!(races.write(4, 4, &by(&clocks, 1, B), 0, false, &clocks), conflict(0, 0, A, Kind::Read, 4));
    clocks.synchronise(0..64);
    assert_eq!(races.write(4, 4, &by(&clocks, 1, B), 0, false, &clocks), Ok(()));
}

#[test]
fn an_access_may_lie_anywhere() {
    let (mut races, clocks) = (Races::new(Proxied::Shared), Clocks::new(64, 0));
    for address in [4094, u64::MAX - 16, 1 << 40, (1 << 40) + 64 * 4096, 0] {
        races.write(address, 16, &by(&clocks, 0, A), 0, false, &clocks).unwrap();
    }
    for address in [4096, u64::MAX - 16, 1 << 40, (1 << 40) + 64 * 4096, 12] {
        let conflict = races.read(address, 4, &by(&clocks, 1, A), 0, &clocks).unwrap_err();
        assert_eq!(conflict.address, address);
    }
    assert_eq!(races.read((1 << 40) + 4096, 4, &by(&clocks, 1, A), 0, &clocks), Ok(()));
}

/// Its number is the ticket's: what is done for a phase.
fn ticket(clocks: &Clocks, pc: u32, epoch: u32) -> By {
    let (warp, lane) = clocks.ticket(0);
    By { block: 0, warp, lane, pc, epoch }
}

fn unfenced(conflict: Result<(), Conflict>) -> Result<(), Conflict> {
    conflict.map_err(|conflict| Conflict { unfenced: true, ..conflict })
}

#[test]
fn the_async_proxy_needs_a_fence_behind_the_generic_one() {
    let (mut races, mut clocks) = (Races::new(Proxied::Shared), Clocks::new(64, 0));
    races.write(0, 16, &by(&clocks, 0, A), 3, false, &clocks).unwrap();
    races.read(16, 16, &by(&clocks, 0, A), 3, &clocks).unwrap();
    let issue = |races: &mut Races, clocks: &Clocks, kind, address, number| {
        races.begin(kind, address, 16, &by(clocks, 1, B), number, clocks)
    };
    let race = |kind, address| conflict(0, 3, A, kind, address);
    assert_eq!(issue(&mut races, &clocks, Kind::AsyncFrom, 0, 0), race(Kind::Write, 0));
    assert_eq!(issue(&mut races, &clocks, Kind::AsyncTo, 16, 0), race(Kind::Read, 16));
    clocks.synchronise(0..64);
    assert_eq!(issue(&mut races, &clocks, Kind::AsyncFrom, 0, 0), unfenced(race(Kind::Write, 0)));
    assert_eq!(issue(&mut races, &clocks, Kind::AsyncTo, 0, 0), unfenced(race(Kind::Write, 0)));
    assert_eq!(issue(&mut races, &clocks, Kind::AsyncTo, 16, 0), unfenced(race(Kind::Read, 16)));
    assert_eq!(issue(&mut races, &clocks, Kind::AsyncFrom, 16, 0), Ok(()));
    // A fence of another memory is none of this one, and who fences before the barrier fences for those behind it.
    clocks.fence_proxy(3, &[Proxied::Global]);
    clocks.synchronise(0..64);
    assert_eq!(issue(&mut races, &clocks, Kind::AsyncFrom, 0, 1), unfenced(race(Kind::Write, 0)));
    clocks.fence_proxy(3, &[Proxied::Shared]);
    assert_eq!(issue(&mut races, &clocks, Kind::AsyncFrom, 0, 1), unfenced(race(Kind::Write, 0)));
    clocks.synchronise(0..64);
    assert_eq!(issue(&mut races, &clocks, Kind::AsyncFrom, 0, 1), Ok(()));
}

#[test]
fn the_thread_that_issues_can_fence_what_it_knows() {
    let (mut races, mut clocks) = (Races::new(Proxied::Shared), Clocks::new(64, 0));
    races.write(0, 4, &by(&clocks, 0, A), 3, false, &clocks).unwrap();
    clocks.synchronise(0..64);
    clocks.fence_proxy(32, &[Proxied::Shared]);
    races.write(4, 4, &by(&clocks, 1, A), 0, false, &clocks).unwrap();
    let issue = |races: &mut Races, address| races.begin(Kind::AsyncFrom, address, 4, &by(&clocks, 1, B), 0, &clocks);
    assert_eq!(issue(&mut races, 0), Ok(()));
    // Its own write came after the fence.
    assert_eq!(issue(&mut races, 4), unfenced(conflict(1, 0, A, Kind::Write, 4)));
}

#[test]
fn the_async_proxy_is_in_flight_until_its_thread_waits() {
    let (mut races, mut clocks) = (Races::new(Proxied::Shared), Clocks::new(64, 0));
    races.begin(Kind::AsyncFrom, 0, 8, &by(&clocks, 0, A), 7, &clocks).unwrap();
    clocks.synchronise(0..64);
    assert_eq!(races.read(0, 8, &by(&clocks, 1, B), 0, &clocks), Ok(()));
    assert_eq!(races.write(4, 4, &by(&clocks, 1, B), 0, false, &clocks), conflict(0, 0, A, Kind::AsyncFrom, 4));
    races.end_read(Kind::AsyncFrom, 0, 8, &by(&clocks, 0, B), 7, &clocks).unwrap();
    // The reader of the other warp still is one.
    assert_eq!(races.write(4, 4, &by(&clocks, 0, B), 0, false, &clocks), conflict(1, 0, B, Kind::Read, 4));
    clocks.synchronise(0..64);
    assert_eq!(races.write(4, 4, &by(&clocks, 1, B), 0, false, &clocks), Ok(()));
}

#[test]
fn a_phase_is_known_to_those_who_learn_it() {
    let (mut races, mut clocks) = (Races::new(Proxied::Shared), Clocks::new(64, 32));
    let fill = |races: &mut Races, clocks: &Clocks, epoch| {
        races.phase_access(Kind::PhaseWrite, 4, 4, &ticket(clocks, A, epoch), 0, clocks)
    };
    fill(&mut races, &clocks, 1).unwrap();
    let (warp, lane) = clocks.ticket(0);
    let early = conflict(warp, lane, A, Kind::PhaseWrite, 4);
    // Neither the thread that issued it nor one behind a barrier knows that it is there.
    assert_eq!(races.read(4, 4, &by(&clocks, 0, B), 0, &clocks), early);
    clocks.synchronise(0..64);
    assert_eq!(races.read(4, 4, &by(&clocks, 1, B), 0, &clocks), early);
    let mut phase = Clock::default();
    clocks.release(0, &mut phase);
    clocks.release_ticket(0, 1, &mut phase);
    clocks.acquire(32, &phase);
    assert_eq!(races.read(4, 4, &by(&clocks, 1, B), 0, &clocks), Ok(()));
    assert_eq!(races.read(4, 4, &by(&clocks, 1, B), 1, &clocks), early);
    // The next copy comes after the one before and its reader, and behind a fence.
    assert_eq!(fill(&mut races, &clocks, 2), early);
    clocks.acquire(0, &phase);
    assert_eq!(fill(&mut races, &clocks, 2), conflict(1, 0, B, Kind::Read, 4));
    let mut empty = Clock::default();
    clocks.release(32, &mut empty);
    clocks.acquire(0, &empty);
    assert_eq!(fill(&mut races, &clocks, 2), unfenced(conflict(1, 0, B, Kind::Read, 4)));
    clocks.fence_proxy(0, &[Proxied::Shared]);
    assert_eq!(fill(&mut races, &clocks, 2), Ok(()));
}

#[test]
fn a_read_by_the_async_proxy_hides_no_read_that_is_not_fenced() {
    let (mut races, mut clocks) = (Races::new(Proxied::Shared), Clocks::new(32, 0));
    races.read(0, 4, &by(&clocks, 0, A), 0, &clocks).unwrap();
    races.begin(Kind::AsyncFrom, 0, 4, &by(&clocks, 0, B), 0, &clocks).unwrap();
    races.end_read(Kind::AsyncFrom, 0, 4, &by(&clocks, 0, B), 0, &clocks).unwrap();
    let write = |races: &mut Races, clocks: &Clocks| races.begin(Kind::AsyncTo, 0, 4, &by(clocks, 0, B), 1, clocks);
    assert_eq!(write(&mut races, &clocks), unfenced(conflict(0, 0, A, Kind::Read, 0)));
    clocks.fence_proxy(0, &[Proxied::Shared]);
    assert_eq!(write(&mut races, &clocks), Ok(()));
}

#[test]
fn nothing_touches_an_object() {
    let (mut races, mut clocks) = (Races::new(Proxied::Shared), Clocks::new(64, 0));
    let maker = By { lane: 2, ..by(&clocks, 0, A) };
    races.begin(Kind::Object, 8, 8, &maker, 0, &clocks).unwrap();
    clocks.synchronise(0..64);
    assert_eq!(races.read(12, 4, &by(&clocks, 1, B), 0, &clocks), conflict(0, 2, A, Kind::Object, 12));
    let ender = By { lane: 1, ..by(&clocks, 1, B) };
    races.end_object(8, 8, &maker, &ender);
    assert_eq!(races.read(12, 4, &by(&clocks, 1, B), 0, &clocks), conflict(1, 1, B, Kind::Write, 12));
    clocks.synchronise(0..64);
    assert_eq!(races.read(12, 4, &by(&clocks, 1, B), 0, &clocks), Ok(()));
}
