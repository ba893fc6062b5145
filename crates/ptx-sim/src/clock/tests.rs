//! Clocks against a list of events with an edge for each thing that one event is ordered after.

use super::{Clock, Clocks, LANES, Proxied, TOGETHER};
use proptest::prelude::*;
use std::collections::HashSet;

impl Clocks {
    /// Whether all that another thread did up to an epoch comes before what a thread does now.
    fn knows(&self, thread: usize, other: usize, epoch: u32) -> bool {
        self.unknown(thread, other / LANES, 1 << (other % LANES), epoch).is_none()
    }
}

#[test]
fn a_barrier_orders_what_came_before_it_and_not_what_comes_after() {
    let mut clocks = Clocks::new(64, 0);
    let before = clocks.epoch(0);
    assert!(!clocks.knows(32, 0, before));
    clocks.synchronise(0..64);
    assert!(clocks.knows(32, 0, before));
    assert!(!clocks.knows(32, 0, clocks.epoch(0)));
    assert!(clocks.knows(0, 0, clocks.epoch(0)));
}

#[test]
fn a_barrier_of_one_warp_says_nothing_to_another() {
    let mut clocks = Clocks::new(64, 0);
    let before = clocks.epoch(0);
    clocks.synchronise(0..32);
    assert!(clocks.knows(31, 0, before));
    assert!(!clocks.knows(32, 0, before));
}

#[test]
fn the_lowest_unknown_lane_is_found() {
    let mut clocks = Clocks::new(96, 0);
    let epoch = clocks.epoch(1);
    clocks.synchronise([0, 33, 34].into_iter());
    assert_eq!(clocks.unknown(0, 1, 0b110, epoch), None);
    assert_eq!(clocks.unknown(0, 1, 0b1_1110, epoch), Some(3));
    assert_eq!(clocks.unknown(0, 1, 0b110, clocks.epoch(1)), Some(1));
    assert_eq!(clocks.unknown(35, 1, 0b1000, clocks.epoch(1)), None);
    assert_eq!(clocks.unknown(0, 1, 0, u32::MAX), None);
}

#[test]
fn all_who_meet_share_one_clock() {
    let mut clocks = Clocks::new(1000, 0);
    clocks.synchronise(0..1000);
    let mut clock = Clock::default();
    clocks.release(3, &mut clock);
    (500..600).for_each(|thread| clocks.acquire(thread, &clock));
    let distinct: HashSet<_> = clocks.known.iter().map(|known| known.as_ptr()).collect();
    assert_eq!(distinct.len(), 2);
}

#[test]
fn threads_that_act_as_one_know_what_all_of_them_do() {
    let mut clocks = Clocks::new(96, 0);
    let (first, second) = (clocks.epoch(0), clocks.epoch(1));
    let unfenced = |clocks: &Clocks, warp, epoch| clocks.unfenced(Proxied::Shared, TOGETHER, warp, 1, epoch).is_some();
    clocks.meet(32..64);
    assert_eq!(clocks.unknown(TOGETHER, 0, 1, first), Some(0));
    assert!(unfenced(&clocks, 0, first));
    // Thread 33 alone knows of thread 0; what it fences is not fenced for the others.
    clocks.synchronise([0, 33].into_iter());
    clocks.fence_proxy(33, &[Proxied::Shared]);
    clocks.meet(32..64);
    assert_eq!(clocks.unknown(TOGETHER, 0, 1, first), Some(0));
    clocks.meet(33..34);
    assert_eq!(clocks.unknown(TOGETHER, 0, 1, first), None);
    assert!(!unfenced(&clocks, 0, first));
    clocks.synchronise(32..64);
    clocks.meet(32..64);
    assert_eq!(clocks.unknown(TOGETHER, 0, 1, first), None);
    assert!(!unfenced(&clocks, 0, first) && unfenced(&clocks, 2, 1));
    // What one of them did is known to the others from the barrier on, and fenced for none of them.
    assert_eq!(clocks.unknown(TOGETHER, 1, 1 << 3, second), None);
    assert!(unfenced(&clocks, 1, clocks.epoch(1)));
}

#[test]
fn those_who_learn_of_a_ticket_share_what_they_know() {
    let mut clocks = Clocks::new(64, 32);
    let (warp, lane) = clocks.ticket(5);
    let knows = |clocks: &Clocks, thread, epoch| clocks.unknown(thread, warp.into(), 1 << lane, epoch).is_none();
    clocks.synchronise(0..48);
    clocks.learn_ticket(32..64, 5, 2);
    assert!(knows(&clocks, 32, 2) && knows(&clocks, 63, 2) && !knows(&clocks, 32, 3) && !knows(&clocks, 31, 1));
    let distinct: HashSet<_> = clocks.known.iter().map(|known| known.as_ptr()).collect();
    assert_eq!(distinct.len(), 3);
    // Who knows more forgets nothing, and others hear of it as of anything.
    clocks.learn_ticket(32..33, 5, 1);
    clocks.synchronise([0, 40].into_iter());
    assert!(knows(&clocks, 32, 2) && knows(&clocks, 0, 2) && !knows(&clocks, 1, 1));
}

#[derive(Clone, Debug)]
enum Step {
    Access(usize),
    Synchronise(Vec<usize>),
    Release(usize, usize),
    Acquire(usize, usize),
}

fn steps(threads: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..threads).prop_map(Step::Access),
        2 => prop::sample::subsequence((0..threads).collect::<Vec<_>>(), 0..=threads).prop_map(Step::Synchronise),
        1 => (0..threads.div_ceil(LANES)).prop_map(move |warp| {
            Step::Synchronise((warp * LANES..threads.min((warp + 1) * LANES)).collect())
        }),
        2 => (0..threads, 0..3_usize).prop_map(|(thread, clock)| Step::Release(thread, clock)),
        2 => (0..threads, 0..3_usize).prop_map(|(thread, clock)| Step::Acquire(thread, clock)),
    ];
    prop::collection::vec(step, 1..40)
}

/// Events in the order in which they happened; an edge leads to each one that comes before.
#[derive(Default)]
struct Events {
    before: Vec<Vec<usize>>,
}

impl Events {
    fn add(&mut self, before: Vec<usize>) -> usize {
        self.before.push(before);
        self.before.len() - 1
    }

    /// All that comes before an event, itself included.
    fn past(&self, event: usize) -> HashSet<usize> {
        let mut past = HashSet::from([event]);
        let mut ahead = vec![event];
        while let Some(event) = ahead.pop() {
            ahead.extend(self.before[event].iter().copied().filter(|&before| past.insert(before)));
        }
        past
    }
}

proptest! {
    /// In the end each thread knows an access exactly where a path of edges leads to it.
    #[test]
    fn a_thread_knows_what_happened_before(
        (threads, steps) in prop::sample::select(vec![3, 33, 70]).prop_flat_map(|n| (Just(n), steps(n))),
    ) {
        let mut clocks = Clocks::new(threads, 0);
        let mut shared = vec![Clock::default(); 3];
        let mut events = Events::default();
        // The last event of each thread, what each clock was given, and the accesses with thread and epoch.
        let mut last: Vec<usize> = (0..threads).map(|_| events.add(vec![])).collect();
        let mut given: Vec<Vec<usize>> = vec![vec![]; 3];
        let mut accesses = vec![];
        for step in steps {
            match step {
                Step::Access(thread) => {
                    last[thread] = events.add(vec![last[thread]]);
                    accesses.push((last[thread], thread, clocks.epoch(thread / LANES)));
                }
                Step::Synchronise(threads) => {
                    clocks.synchronise(threads.iter().copied());
                    let meeting = events.add(threads.iter().map(|&thread| last[thread]).collect());
                    threads.iter().for_each(|&thread| last[thread] = events.add(vec![meeting]));
                }
                Step::Release(thread, clock) => {
                    clocks.release(thread, &mut shared[clock]);
                    given[clock].push(last[thread]);
                }
                Step::Acquire(thread, clock) => {
                    clocks.acquire(thread, &shared[clock]);
                    let before = given[clock].iter().copied().chain([last[thread]]).collect();
                    last[thread] = events.add(before);
                }
            }
        }
        for (thread, &event) in last.iter().enumerate() {
            let past = events.past(event);
            for &(event, other, epoch) in &accesses {
                prop_assert_eq!(clocks.knows(thread, other, epoch), past.contains(&event), "{} of {}", thread, other);
                let unknown = clocks.unknown(thread, other / LANES, 1 << (other % LANES), epoch);
                prop_assert_eq!(unknown.is_none(), past.contains(&event));
            }
        }
    }
}
