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
