//! The marks of a block's threads, as what each did one thing after the other.

use anyhow::{Context, Result, ensure};
use cuda_fa2::Track;

/// What a thread had done or waited for, as `Did` of `kernels/tile/trace.cuh`, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Did {
    WaitForJob,
    WaitToCopyQ,
    WaitToCopyK,
    WaitToCopyV,
    WaitForQ,
    WaitForTurn,
    StartS,
    WaitForV,
    StartO,
    WaitForS,
    Softmax,
    WaitForK,
    WaitForO,
    Pack,
    Finish,
}

use Did::*;

/// All, with their names for people.
const NAMES: [(Did, &str); 15] = [
    (WaitForJob, "wait for a tile of rows"),
    (WaitToCopyQ, "wait to copy Q"),
    (WaitToCopyK, "wait to copy K"),
    (WaitToCopyV, "wait to copy V"),
    (WaitForQ, "wait for Q and the first K"),
    (WaitForTurn, "wait for its turn"),
    (StartS, "start S"),
    (WaitForV, "wait for V"),
    (StartO, "start O"),
    (WaitForS, "wait for S"),
    (Softmax, "softmax"),
    (WaitForK, "wait for K"),
    (WaitForO, "wait for O"),
    (Pack, "round P, rescale O"),
    (Finish, "epilogue"),
];

/// What may come before in a warpgroup that multiplies, in the kernel as it is and after the steps of its making.
const CONSUMER: [(Did, &[Did]); 12] = [
    (WaitForJob, &[Finish]),
    (WaitForQ, &[WaitForJob]),
    (WaitForTurn, &[WaitForQ, Pack]),
    (StartS, &[WaitForTurn, WaitForQ, Pack, WaitForK]),
    (WaitForV, &[StartS, Pack]),
    (StartO, &[WaitForV]),
    (WaitForS, &[StartS, StartO]),
    (Softmax, &[WaitForS, WaitForO]),
    (WaitForK, &[Softmax, WaitForQ, WaitForO]),
    (WaitForO, &[WaitForK, WaitForS, StartO]),
    (Pack, &[WaitForK, WaitForO, Softmax]),
    (Finish, &[WaitForO, WaitForQ, WaitForJob]),
];

/// The same of the thread that copies.
const PRODUCER: [(Did, &[Did]); 4] = [
    (WaitForJob, &[WaitForJob, WaitToCopyQ, WaitToCopyV]),
    (WaitToCopyQ, &[WaitForJob, WaitToCopyK]),
    (WaitToCopyK, &[WaitForJob, WaitToCopyQ, WaitToCopyV]),
    (WaitToCopyV, &[WaitToCopyQ, WaitToCopyK, WaitToCopyV]),
];

/// What a thread did from one mark to the next, in clocks since the block's first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) did: Did,
    pub(super) from: u64,
    pub(super) to: u64,
    /// Which of the block's tiles of rows it was for, and which tile of keys of that, from 0 up.
    pub(super) rows: usize,
    pub(super) keys: usize,
}

/// What a product is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Product {
    /// Q K^T.
    S,
    /// What P V adds.
    O,
}

/// A thread's spans, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) spans: Vec<Span>,
    /// Marks that there was no room for.
    pub(super) lost: u32,
}

/// What a block did.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Timeline {
    /// Of warpgroups that multiply, and of the thread that copies, which is the last.
    pub(super) lanes: Vec<Lane>,
    /// Clocks from the first of the block to the last that all lanes know of.
    pub(super) clocks: u64,
    /// Clocks in a microsecond; `None` on a simulated device, whose clock counts instructions of all warps.
    pub(super) clocks_per_us: Option<f64>,
}

impl Did {
    pub(super) fn name(self) -> &'static str {
        NAMES[self as usize].1
    }
}

impl Timeline {
    /// Reads the tracks of a block.
    ///
    /// # Errors
    /// They are not what a block can have done.
    pub(super) fn new(tracks: &[Track], simulated: bool) -> Result<Self> {
        let begin = tracks.iter().map(|track| track.clock[0]).min().context("found no track, wanted one or more")?;
        let producer = tracks.len() - 1;
        let lane = |(number, track): (usize, &Track)| {
            let rules: &[(Did, &[Did])] = if number == producer { &PRODUCER } else { &CONSUMER };
            lane(track, begin, rules).with_context(|| format!("marks of warpgroup {number}"))
        };
        let lanes = tracks.iter().enumerate().map(lane).collect::<Result<Vec<_>>>()?;
        let known = |(lane, track): (&Lane, &Track)| {
            if lane.lost == 0 { track.clock[1] - begin } else { lane.spans.last().map_or(0, |span| span.to) }
        };
        let all = lanes.iter().zip(tracks);
        let clocks = if lanes.iter().all(|lane| lane.lost == 0) { all.map(known).max() } else { all.map(known).min() };
        let clocks_per_us = (!simulated).then(|| clocks_per_us(tracks)).transpose()?;
        Ok(Timeline { lanes, clocks: clocks.unwrap_or(0), clocks_per_us })
    }

    /// The lanes of warpgroups that multiply.
    pub(super) fn consumers(&self) -> &[Lane] {
        &self.lanes[..self.lanes.len() - 1]
    }

    /// The lane of the thread that copies.
    pub(super) fn producer(&self) -> &Lane {
        &self.lanes[self.lanes.len() - 1]
    }

    /// Clocks in which products of at least one warpgroup were under way, and of at least two, as a warpgroup knows of its own: from
    /// their first instruction until it had waited for them.
    pub(super) fn multiplying(&self) -> [u64; 2] {
        let mut edges: Vec<(u64, i32)> = Vec::new();
        for lane in self.consumers() {
            for (from, to) in lane.multiplying() {
                edges.extend([(from.min(self.clocks), 1), (to.min(self.clocks), -1)]);
            }
        }
        edges.sort_unstable();
        let (mut sums, mut under_way, mut last) = ([0, 0], 0, 0);
        for (at, change) in edges {
            for (sum, least) in sums.iter_mut().zip([1, 2]) {
                *sum += if under_way >= least { at - last } else { 0 };
            }
            (under_way, last) = (under_way + change, at);
        }
        sums
    }
}

/// The clocks of the block in a microsecond of the timer.
fn clocks_per_us(tracks: &[Track]) -> Result<f64> {
    let span = |times: fn(&Track) -> [u64; 2]| {
        let first = tracks.iter().map(|track| times(track)[0]).min().unwrap_or(0);
        tracks.iter().map(|track| times(track)[1]).max().unwrap_or(0).saturating_sub(first)
    };
    let (clocks, nanoseconds) = (span(|track| track.clock), span(|track| track.nanoseconds));
    ensure!(nanoseconds > 0, "found a block that was over before the device's timer moved, wanted a larger --n");
    Ok(clocks as f64 * 1e3 / nanoseconds as f64)
}

/// The spans of a track, each with what may come before.
fn lane(track: &Track, begin: u64, rules: &[(Did, &[Did])]) -> Result<Lane> {
    let [start, end] = track.clock;
    ensure!(!track.marks.is_empty(), "found none, wanted some");
    let (mut spans, mut last, mut before): (Vec<Span>, u64, Option<Did>) = (Vec::new(), start, None);
    let (mut rows, mut keys) = (0, [0; 2]);
    for (place, &[clock, did]) in track.marks.iter().enumerate() {
        let found = || format!("mark {place}");
        let &(did, name) =
            NAMES.get(did as usize).with_context(|| format!("{}: found {did}, wanted 0 to 14", found()))?;
        // Half of a clock that has moved on since the last mark by less than all of it.
        let at = last + u64::from(clock.wrapping_sub(last as u32));
        ensure!(at <= end, "{}: found clock {at}, wanted {last} to {end}", found());
        let allowed = rules.iter().find(|(known, _)| *known == did).map(|(_, allowed)| *allowed);
        let fits = allowed.is_some_and(|allowed| before.map_or(did == WaitForJob, |before| allowed.contains(&before)));
        ensure!(fits, "{}: found \"{name}\" behind {}", found(), before.map_or("the start", Did::name));
        if did == WaitForJob {
            (rows, keys) = (rows + usize::from(before.is_some()), [0; 2]);
        }
        // Of O, and what follows V, the tile is the one before.
        let of = &mut keys[usize::from(matches!(did, WaitForV | StartO | WaitForO | WaitToCopyV))];
        spans.push(Span { did, from: last - begin, to: at - begin, rows, keys: *of });
        *of += usize::from(matches!(did, WaitForO | Pack | WaitToCopyK | WaitToCopyV));
        (last, before) = (at, Some(did));
    }
    Ok(Lane { spans, lost: track.count - track.marks.len() as u32 })
}

impl Lane {
    /// Clocks of everything that it did of one kind.
    pub(super) fn of(&self, did: Did) -> Vec<u64> {
        self.spans.iter().filter(|span| span.did == did).map(|span| span.to - span.from).collect()
    }

    /// Its products: of S and O each from its first instruction to the end of the wait for it, with their tiles.
    pub(super) fn products(&self) -> Vec<(Product, Span)> {
        let (mut products, mut started) = (Vec::new(), [0; 2]);
        for span in &self.spans {
            match span.did {
                StartS => started[0] = span.from,
                StartO => started[1] = span.from,
                WaitForS => products.push((Product::S, Span { from: started[0], ..*span })),
                WaitForO => products.push((Product::O, Span { from: started[1], ..*span })),
                _ => {}
            }
        }
        products
    }

    /// When any of its products was under way, in order.
    fn multiplying(&self) -> Vec<(u64, u64)> {
        let mut products: Vec<(u64, u64)> = self.products().iter().map(|(_, span)| (span.from, span.to)).collect();
        products.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (from, to) in products {
            match joined.last_mut() {
                Some((_, end)) if from <= *end => *end = to.max(*end),
                _ => joined.push((from, to)),
            }
        }
        joined
    }

    /// From the moment that it knew of each tile of rows until its first S was started.
    pub(super) fn prologues(&self) -> Vec<u64> {
        self.between(WaitForJob)
    }

    /// From the end of each tile's last product until the first S of the next was started.
    pub(super) fn gaps(&self) -> Vec<u64> {
        self.between(WaitForO)
    }

    /// From the last mark of that kind until the first start of S of a tile of rows.
    fn between(&self, did: Did) -> Vec<u64> {
        let (mut since, mut first, mut found) = (None, false, Vec::new());
        for span in &self.spans {
            first |= span.did == WaitForJob;
            if span.did == did {
                since = Some(span.to);
            }
            if span.did == StartS && first {
                first = false;
                found.extend(since.map(|since| span.from - since));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::example;

    #[test]
    fn what_a_mark_says_is_what_the_kernels_say() {
        let text = device::file("tile/trace.cuh").unwrap();
        let names = text.split_once("enum class Did {").unwrap().1.split_once("};").unwrap().0;
        let names = names.lines().filter_map(|line| line.split("//").next()?.trim().strip_suffix(','));
        let written = |did: Did| {
            format!("{did:?}").chars().fold(String::new(), |mut name, letter| {
                name.extend(letter.is_uppercase().then_some('_').filter(|_| !name.is_empty()));
                name.push(letter.to_ascii_uppercase());
                name
            })
        };
        assert_eq!(names.collect::<Vec<_>>(), NAMES.map(|(did, _)| written(did)));
        assert!(NAMES.iter().enumerate().all(|(place, (did, _))| *did as usize == place));
    }

    #[test]
    fn spans_follow_each_other_and_know_their_tiles() {
        let timeline = Timeline::new(&example::tracks(2, 3), false).unwrap();
        assert_eq!(timeline.clocks_per_us, Some(2000.0));
        let lane = &timeline.lanes[1];
        assert_eq!((lane.spans[0].from, lane.spans[0].to, lane.lost), (20, 30, 0), "across the clock's lower half");
        assert!(lane.spans.windows(2).all(|two| two[0].to == two[1].from));
        let tiles = |kind| {
            let of_kind = lane.products().into_iter().filter(move |(product, _)| *product == kind);
            of_kind.map(|(_, span)| (span.rows, span.keys, span.to - span.from)).collect::<Vec<_>>()
        };
        let (first, next) = (460, 730);
        assert_eq!(
            tiles(Product::S),
            [(0, 0, first), (0, 1, next), (0, 2, next), (1, 0, first), (1, 1, next), (1, 2, next)]
        );
        let (of_two, last) = (60 + 600 + 600 + 10 + 80, 560);
        assert_eq!(
            tiles(Product::O),
            [(0, 0, of_two), (0, 1, of_two), (0, 2, last), (1, 0, of_two), (1, 1, of_two), (1, 2, last)]
        );
        assert_eq!((lane.prologues(), lane.gaps()), (vec![300, 300], vec![700 + 10 + 300]));
        let copies: Vec<_> = timeline.producer().spans.iter().map(|span| (span.did, span.keys)).collect();
        assert_eq!(copies[1..5], [(WaitToCopyK, 0), (WaitToCopyQ, 1), (WaitToCopyK, 1), (WaitToCopyV, 0)]);
    }

    #[test]
    fn products_of_two_warpgroups_are_counted_once_and_twice() {
        // A tile of keys each: S for 460 clocks from 310 on and O for 560 from 1470 on, in the other warpgroup 20 later.
        let timeline = Timeline::new(&example::tracks(1, 1), true).unwrap();
        assert_eq!(timeline.multiplying(), [460 + 560 + 2 * 20, 460 + 560 - 2 * 20]);
        assert_eq!((timeline.clocks, timeline.clocks_per_us), (20 + 310 + 460 + 690 + 570 + 700, None));
    }

    #[test]
    fn marks_without_room_end_what_is_told() {
        let mut tracks = example::tracks(3, 3);
        tracks[0].marks.truncate(20);
        let timeline = Timeline::new(&tracks, false).unwrap();
        assert_eq!(timeline.lanes[0].lost as usize, example::consumer(3, 3).len() - 20);
        assert_eq!(timeline.clocks, timeline.lanes[0].spans[19].to);
    }

    #[test]
    fn what_no_block_can_have_done_is_refused() {
        let refused = |change: fn(&mut Vec<Track>)| {
            let mut tracks = example::tracks(2, 3);
            change(&mut tracks);
            format!("{:#}", Timeline::new(&tracks, false).unwrap_err())
        };
        let place = |did: Did| example::consumer(2, 3).iter().position(|(known, _)| *known == did).unwrap();
        for (wrong, words) in [
            (refused(|tracks| tracks.clear()), "found no track".to_string()),
            (refused(|tracks| tracks[1].marks.clear()), "marks of warpgroup 1: found none, wanted some".into()),
            (refused(|tracks| tracks[0].marks[2][1] = 15), "mark 2: found 15, wanted 0 to 14".into()),
            // Another order of the two halves of a mark, and a struct of another size.
            (refused(|tracks| tracks[0].marks.iter_mut().for_each(|mark| mark.reverse())), "mark 0: ".into()),
            (refused(|tracks| tracks[0].marks.rotate_left(1)), "mark 0: found \"wait for Q".into()),
            // A product that nobody waited for, and a wait for none.
            (
                refused(|tracks| tracks[0].marks.retain(|mark| mark[1] != WaitForS as u32)),
                format!("mark {}: found \"softmax\" behind start S", place(WaitForS)),
            ),
            (
                refused(|tracks| tracks[0].marks.retain(|mark| mark[1] != StartO as u32)),
                format!("mark {}: found \"wait for S\" behind wait for V", place(StartO)),
            ),
            (refused(|tracks| tracks.swap(1, 2)), "marks of warpgroup 1: ".into()),
            (
                refused(|tracks| tracks[2].marks[3][0] = tracks[2].marks[3][0].wrapping_sub(2000)),
                "marks of warpgroup 2: mark 3: found clock".into(),
            ),
            (
                refused(|tracks| tracks.iter_mut().for_each(|track| track.nanoseconds = [4; 2])),
                "before the device's timer moved".into(),
            ),
        ] {
            assert!(wrong.contains(&words), "wanted {words:?} in {wrong}");
        }
    }
}
