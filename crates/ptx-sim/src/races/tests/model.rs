//! Random programs of a few threads on a few words. Each access is compared with all before it.

use super::super::{By, Conflict, Kind, Races};
use crate::clock::{Clocks, Proxied};
use crate::lanes::LANES;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::HashSet;

const BLOCKS: usize = 3;
/// The threads that do something: block and number. A block has 34, the second of its warps two.
const THREADS: [(usize, usize); 9] = [(0, 0), (0, 1), (0, 31), (0, 32), (0, 33), (1, 0), (1, 1), (1, 32), (2, 0)];

#[derive(Clone, Copy, Debug)]
struct Access {
    thread: usize,
    kind: Kind,
    same: bool,
    address: u64,
    bytes: u32,
    pc: u32,
    /// Of a copy; no two of a thread are alike.
    group: u32,
}

#[derive(Clone, Debug)]
enum Step {
    Access(Access),
    /// The copy in flight of that index, of those there are, ends.
    End(prop::sample::Index),
    Barrier(usize, Vec<usize>),
    /// A thread fences what it knows, for the async proxy.
    Fence(usize),
}

/// What is done to races and clocks.
#[derive(Clone, Debug)]
enum Call {
    Access(Access),
    End(Access),
    Barrier(usize, Vec<usize>),
    Fence(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        6 => Just(Kind::Read), 4 => Just(Kind::Write), 2 => Just(Kind::Atomic), 2 => Just(Kind::AtomicRead), 1 => Just(Kind::CopyTo), 1 => Just(Kind::CopyFrom),
        2 => Just(Kind::AsyncTo), 2 => Just(Kind::AsyncFrom),
    ];
    let place = (select(vec![1_u32, 2, 4, 4, 4, 8, 16]), 0..16_u64);
    let access = (0..THREADS.len(), kind, any::<bool>(), place, 0..3_u32).prop_map(
        |(thread, kind, same, (bytes, place), pc)| {
            let address = place % (16 / u64::from(bytes)) * u64::from(bytes);
            Step::Access(Access { thread, kind, same, address, bytes, pc, group: 0 })
        },
    );
    let whole = (0..BLOCKS).prop_map(|block| Step::Barrier(block, (0..34).collect()));
    let warp = (0..BLOCKS, 0..2)
        .prop_map(|(block, warp)| Step::Barrier(block, if warp == 0 { (0..32).collect() } else { vec![32, 33] }));
    let some = (0..BLOCKS, prop::sample::subsequence(vec![0, 1, 31, 32, 33], 2..4))
        .prop_map(|(block, threads)| Step::Barrier(block, threads));
    let end = any::<prop::sample::Index>().prop_map(Step::End);
    let fence = (0..THREADS.len()).prop_map(Step::Fence);
    prop_oneof![20 => access, 4 => end, 2 => whole, 2 => warp, 2 => some, 4 => fence]
}

struct Machine {
    races: Races,
    clocks: Vec<Clocks>,
}

impl Machine {
    fn new() -> Self {
        Self { races: Races::new(Proxied::Shared), clocks: vec![Clocks::new(34, 0); BLOCKS] }
    }

    fn call(&mut self, call: &Call) -> Result<(), Conflict> {
        let (access, end) = match call {
            Call::Barrier(block, threads) => {
                self.clocks[*block].synchronise(threads.iter().copied());
                return Ok(());
            }
            Call::Fence(thread) => {
                let (block, number) = THREADS[*thread];
                self.clocks[block].fence_proxy(number, &[Proxied::Shared]);
                return Ok(());
            }
            Call::Access(access) => (access, false),
            Call::End(access) => (access, true),
        };
        let Access { thread, kind, same, address, bytes, pc, group } = *access;
        let (block, number) = THREADS[thread];
        let (warp, lane) = (number / LANES, (number % LANES) as u8);
        let clocks = &self.clocks[block];
        let by = By { block: block as u32, warp: warp as u16, lane, pc, epoch: clocks.epoch(warp) };
        let races = &mut self.races;
        match kind {
            Kind::CopyTo | Kind::AsyncTo if end => {
                races.end_write(kind, address, bytes, &by, group);
                Ok(())
            }
            Kind::CopyFrom | Kind::AsyncFrom if end => races.end_read(kind, address, bytes, &by, group, clocks),
            Kind::CopyTo | Kind::CopyFrom | Kind::AsyncTo | Kind::AsyncFrom => {
                races.begin(kind, address, bytes, &by, group, clocks)
            }
            _ => races.access(kind, address, bytes, &by, same, clocks),
        }
    }
}

/// An access that was made, with how many barriers its warp had met.
#[derive(Clone, Debug)]
struct Past {
    access: Access,
    in_flight: bool,
    round: usize,
    /// What came before it, by its place in the list.
    known: HashSet<usize>,
}

#[derive(Default)]
struct Model {
    past: Vec<Past>,
    /// What comes before the next step of each thread of each block.
    known: Vec<HashSet<usize>>,
    /// What is fenced from what each of them issues to the async proxy.
    fenced: Vec<HashSet<usize>>,
    rounds: [[usize; 2]; BLOCKS],
}

impl Model {
    fn new() -> Self {
        let nothing = vec![HashSet::new(); BLOCKS * 34];
        Self { known: nothing.clone(), fenced: nothing, ..Self::default() }
    }

    fn known(&mut self, thread: usize) -> &mut HashSet<usize> {
        let (block, number) = THREADS[thread];
        &mut self.known[block * 34 + number]
    }

    fn round(&self, thread: usize) -> usize {
        let (block, number) = THREADS[thread];
        self.rounds[block][number / LANES]
    }

    fn barrier(&mut self, block: usize, threads: &[usize]) {
        let of = |&thread: &usize| block * 34 + thread;
        let all: HashSet<usize> = threads.iter().flat_map(|thread| self.known[of(thread)].clone()).collect();
        threads.iter().for_each(|thread| self.known[of(thread)] = all.clone());
        let all: HashSet<usize> = threads.iter().flat_map(|thread| self.fenced[of(thread)].clone()).collect();
        threads.iter().for_each(|thread| self.fenced[of(thread)] = all.clone());
        let warps: HashSet<usize> = threads.iter().map(|thread| thread / LANES).collect();
        warps.into_iter().for_each(|warp| self.rounds[block][warp] += 1);
    }

    fn fence(&mut self, thread: usize) {
        let (block, number) = THREADS[thread];
        self.fenced[block * 34 + number] = self.known[block * 34 + number].clone();
        self.rounds[block][number / LANES] += 1;
    }

    fn add(&mut self, access: Access, in_flight: bool) {
        let past =
            Past { access, in_flight, round: self.round(access.thread), known: self.known(access.thread).clone() };
        let place = self.past.len();
        self.past.push(past);
        self.known(access.thread).insert(place);
    }

    /// A copy in flight is over: it is an access that only its thread knows.
    fn end(&mut self, access: Access) {
        let place = self
            .past
            .iter()
            .position(|past| past.in_flight && (past.access.thread, past.access.group) == (access.thread, access.group))
            .unwrap();
        self.past[place].access.bytes = 0;
        self.past[place].in_flight = false;
        let kind = match access.kind {
            Kind::CopyTo => Kind::Write,
            Kind::CopyFrom => Kind::Read,
            Kind::AsyncTo => Kind::AsyncWrite,
            _ => Kind::AsyncRead,
        };
        self.add(Access { kind, ..access }, false);
    }

    /// Whether two writes are one instruction of a warp.
    fn same_instruction(&self, past: &Past, new: &Access) -> bool {
        let warp = |thread: usize| (THREADS[thread].0, THREADS[thread].1 / LANES);
        past.access.kind == Kind::Write
            && new.kind == Kind::Write
            && warp(past.access.thread) == warp(new.thread)
            && past.access.pc == new.pc
            && past.round == self.round(new.thread)
    }

    /// The accesses to a byte with which a new one races. `lenient` counts what an equal write of the same instruction was
    /// ordered after as ordered before this one.
    fn races(&mut self, new: &Access, byte: u64, lenient: bool) -> Vec<Past> {
        let touches = |access: &Access| (access.address..access.address + u64::from(access.bytes)).contains(&byte);
        let mut known = self.known(new.thread).clone();
        let equal: HashSet<usize> = (0..self.past.len())
            .filter(|&place| {
                let past = &self.past[place];
                new.same && !past.in_flight && touches(&past.access) && self.same_instruction(past, new)
            })
            .collect();
        if lenient {
            equal.iter().for_each(|&place| known.extend(&self.past[place].known));
        }
        let (block, number) = THREADS[new.thread];
        let fenced = &self.fenced[block * 34 + number];
        let is_async = |kind| matches!(kind, Kind::AsyncRead | Kind::AsyncWrite | Kind::AsyncTo | Kind::AsyncFrom);
        let reads =
            |kind| matches!(kind, Kind::Read | Kind::AtomicRead | Kind::CopyFrom | Kind::AsyncRead | Kind::AsyncFrom);
        let atomic = |kind| matches!(kind, Kind::Atomic | Kind::AtomicRead);
        let racing = |(place, past): (usize, &Past)| {
            let agree = (reads(past.access.kind) && reads(new.kind)) || (atomic(past.access.kind) && atomic(new.kind));
            // What other blocks fenced is not told apart.
            let needs_fence =
                is_async(new.kind) && !is_async(past.access.kind) && THREADS[past.access.thread].0 == block;
            let ordered =
                (known.contains(&place) || equal.contains(&place)) && (!needs_fence || fenced.contains(&place));
            touches(&past.access) && !agree && (past.in_flight || !ordered)
        };
        self.past
            .iter()
            .enumerate()
            .filter(|&(place, past)| racing((place, past)))
            .map(|(_, past)| past.clone())
            .collect()
    }
}

/// Whether the reported access is one of those with which there is a race.
fn names(conflict: &Conflict, races: &[Past]) -> bool {
    races.iter().any(|past| {
        let (block, number) = THREADS[past.access.thread];
        (conflict.block, usize::from(conflict.warp), usize::from(conflict.lane))
            == (block as u32, number / LANES, number % LANES)
            && (conflict.pc, conflict.kind) == (past.access.pc, past.access.kind)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// An access is refused exactly where it races with one before it, which is named. The refused are left out, and the
    /// program goes on.
    #[test]
    fn a_race_is_found_where_each_is_compared_with_each(steps in prop::collection::vec(step(), 1..80)) {
        let (mut machine, mut model) = (Machine::new(), Model::new());
        let (mut calls, mut copies): (Vec<Call>, Vec<Access>) = (vec![], vec![]);
        for step in steps {
            let call = match step {
                Step::Barrier(block, threads) => {
                    model.barrier(block, &threads);
                    Call::Barrier(block, threads)
                }
                Step::Fence(thread) => {
                    model.fence(thread);
                    Call::Fence(thread)
                }
                Step::End(_) if copies.is_empty() => continue,
                Step::End(index) => {
                    let copy = copies.swap_remove(index.index(copies.len()));
                    model.end(copy);
                    Call::End(copy)
                }
                Step::Access(access) => {
                    let earlier = model.past.iter().filter(|past| past.access.thread == access.thread).count();
                    Call::Access(Access { group: earlier as u32, ..access })
                }
            };
            let result = machine.call(&call);
            if let Call::Access(access) = call {
                let bytes = access.address..access.address + u64::from(access.bytes);
                let first = |model: &mut Model, lenient| {
                    bytes.clone().find(|&byte| !model.races(&access, byte, lenient).is_empty())
                };
                match result {
                    Ok(()) => prop_assert_eq!(first(&mut model, true), None, "not found: {:?}", access),
                    Err(conflict) => {
                        let races = model.races(&access, conflict.address, false);
                        prop_assert!(names(&conflict, &races), "{:?} is none of {:?}", conflict, races);
                        if !access.same {
                            prop_assert_eq!(Some(conflict.address), first(&mut model, false));
                        }
                        // What is refused may be there in part.
                        machine = Machine::new();
                        for call in &calls {
                            prop_assert_eq!(machine.call(call), Ok(()));
                        }
                        continue;
                    }
                }
                let copy = matches!(access.kind, Kind::CopyTo | Kind::CopyFrom | Kind::AsyncTo | Kind::AsyncFrom);
                model.add(access, copy);
                copies.extend(copy.then_some(access));
            } else {
                prop_assert_eq!(result, Ok(()));
            }
            calls.push(call);
        }
    }
}
