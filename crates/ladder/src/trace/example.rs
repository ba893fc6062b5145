//! Marks of a block as a kernel might have kept them, for tests.

use super::timeline::Did::{self, *};
use cuda_fa2::Track;

/// Clocks of a tile of keys behind the first.
pub(super) const KEYS: u64 = 2000;

/// When the block begins: the clock's lower half soon begins anew.
pub(super) const BEGIN: u64 = (7 << 32) - 1000;

/// Two warpgroups that multiply, and who copies for them, 2 clocks a nanosecond.
pub(super) fn tracks(rows: usize, keys: usize) -> Vec<Track> {
    let mut tracks: Vec<Track> = (0..2).map(|number| track(20 * number, &consumer(rows, keys))).collect();
    tracks.push(track(5, &producer(rows, keys)));
    tracks
}

/// What a thread did, each with how long it took.
pub(super) fn track(begin: u64, did: &[(Did, u64)]) -> Track {
    let mut clock = [BEGIN + begin; 2];
    let marks: Vec<[u32; 2]> = did
        .iter()
        .map(|&(did, clocks)| {
            clock[1] += clocks;
            [clock[1] as u32, did as u32]
        })
        .collect();
    let nanoseconds = clock.map(|clock| clock / 2);
    Track { clock, nanoseconds, count: marks.len() as u32, marks }
}

/// A warpgroup that multiplies.
pub(super) fn consumer(rows: usize, keys: usize) -> Vec<(Did, u64)> {
    let first = [(StartS, 60), (WaitForS, 400), (Softmax, 600), (WaitForK, 10), (Pack, 80)];
    let next = [(WaitForTurn, 500), (StartS, 60), (WaitForV, 10), (StartO, 60), (WaitForS, 600)];
    let end = [(Softmax, 600), (WaitForK, 10), (WaitForO, 80), (Pack, 80)];
    let last = [(WaitForV, 10), (StartO, 60), (WaitForO, 500), (Finish, 700)];
    let tile = || {
        let begin = [(WaitForJob, 10), (WaitForQ, 200), (WaitForTurn, 100)].into_iter().chain(first);
        let middle = (1..keys).flat_map(move |_| next.into_iter().chain(end));
        begin.chain(middle).chain(last)
    };
    (0..rows).flat_map(|_| tile()).collect()
}

/// The thread that copies.
fn producer(rows: usize, keys: usize) -> Vec<(Did, u64)> {
    let tile = || {
        let begin = [(WaitForJob, 10), (WaitToCopyK, 50), (WaitToCopyQ, 20)];
        let middle = (1..keys).flat_map(|_| [(WaitToCopyK, 1200), (WaitToCopyV, 800)]);
        begin.into_iter().chain(middle).chain([(WaitToCopyV, 600)])
    };
    (0..rows).flat_map(|_| tile()).collect()
}
