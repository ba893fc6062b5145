//! What each step of chapter 4 must do, as laws that take the step as an argument: the checks apply them to the code
//! under test, and `wrong.rs` proves that each rejects a wrong step.

use crate::subject::Tiles;
use attention::{Attention, AttentionError, Head, Problem, Traffic, TrafficMeter};
use ndarray::{ArrayViewMut1, ArrayViewMut2, arr1};
use online_softmax::State;
use proptest::prelude::*;
use std::ops::Range;
use testkit::problems::Spec;
use testkit::{ByHand, Row, RowTruth, all_close, all_shown, close, update_is_the_listings};

/// Tiles that fill the memory and no more, with a quarter for k and v, and an error that says how much is wanted.
pub(crate) fn tiles_fill_the_memory(
    fit: impl Fn(usize, usize, usize) -> Result<Tiles, AttentionError>,
    (fast_memory, d, d_v): (usize, usize, usize),
) -> Result<(), TestCaseError> {
    let least = 4 * (2 * (d + d_v) + 1);
    let found = fit(fast_memory, d, d_v);
    let at = format!("M = {fast_memory} bytes, d = {d}, d_v = {d_v}");
    if fast_memory < least {
        let wanted = format!(
            "fast_memory: found {fast_memory} bytes, wanted at least {least} bytes, for one row of q, k, v and o"
        );
        let said = found.map_or_else(|error| error.to_string(), |tiles| format!("{tiles:?}"));
        prop_assert!(said == wanted, "{at} gives: {said}; wanted the error: {wanted}");
        return Ok(());
    }
    let Tiles { rows, keys } = found.map_err(|error| TestCaseError::fail(format!("{at}: {error}")))?;
    // Counted up from nothing: the most keys in a quarter of the memory, at least one.
    let fit_in_a_quarter = |keys: &usize| keys * (d + d_v) * 4 * 4 <= fast_memory;
    let wanted = (1..).take_while(fit_in_a_quarter).last().unwrap_or(1);
    prop_assert!(keys == wanted, "{at}: {keys} keys, wanted {wanted}");
    let bytes = |rows: usize| 4 * ((rows + keys) * (d + d_v) + rows * keys);
    let (now, more) = (bytes(rows), bytes(rows + 1));
    prop_assert!(now <= fast_memory, "{at}: {rows} rows and {keys} keys take {now} bytes, more than there are");
    prop_assert!(rows > 0 && more > fast_memory, "{at}: with {keys} keys one row more than {rows} takes {more} bytes");
    Ok(())
}

/// The tiles of the grid that hold one of the keys, in order.
pub(crate) fn tiles_cover_the_keys<I: Iterator<Item = Range<usize>>>(
    over: impl Fn(Tiles, Range<usize>, usize) -> I,
    tile: usize,
    keys: Range<usize>,
    k_len: usize,
) -> Result<(), TestCaseError> {
    let grid = (0..k_len).step_by(tile).map(|start| start..k_len.min(start + tile));
    let wanted: Vec<_> = grid.filter(|tile| keys.clone().any(|key| tile.contains(&key))).collect();
    let found: Vec<_> = over(Tiles { rows: 1, keys: tile }, keys.clone(), k_len).take(wanted.len() + 5).collect();
    prop_assert!(found == wanted, "keys {keys:?} of {k_len} in tiles of {tile}: {found:?}, wanted {wanted:?}");
    Ok(())
}

/// After lines 9 and 10, s, o, l and m are the listing's, row by row: nothing is divided.
pub(crate) fn update_is_lines_9_and_10(
    update: impl Fn(ArrayViewMut2<f32>, ArrayViewMut2<f32>, ArrayViewMut1<f32>, ArrayViewMut1<f32>),
    rows: &[Row],
) -> Result<(), TestCaseError> {
    update_is_the_listings(update, rows, |_| 1.0)
}

/// The state in words, as all messages show it.
fn shown(state: &State) -> String {
    format!("(m {}, l {}, o {:?})", testkit::shown(state.m), testkit::shown(state.l), all_shown(&state.o))
}

fn same(at: &str, found: &State, wanted: RowTruth) -> Result<(), TestCaseError> {
    let RowTruth { m, l, o } = wanted;
    let right = close(found.m, m) && close(found.l, l) && all_close(&found.o, &o);
    let (found, m, l, o) = (shown(found), testkit::shown(m), testkit::shown(l), all_shown(&o));
    prop_assert!(right, "{at}: {found}, wanted (m {m}, l {l}, o {o:?})");
    Ok(())
}

/// A tile of rows knows the keys of the tiles that it was given, and the meter has counted lines 4 to 11.
pub(crate) fn stream_is_lines_4_to_11(
    stream: impl Fn(&Head, Range<usize>, std::vec::IntoIter<Range<usize>>, &TrafficMeter) -> Vec<State>,
    case: &ByHand,
    tile: usize,
) -> Result<(), TestCaseError> {
    let k = case.keys.len();
    // Every tile of the keys, then all but the first.
    for from in [0, tile.min(k)] {
        let key_tiles: Vec<_> = (from..k).step_by(tile).map(|start| start..k.min(start + tile)).collect();
        for rows in [0..case.q.len(), case.q.len() - 1..case.q.len()] {
            let meter = TrafficMeter::default();
            let states =
                case.with(|problem| stream(&problem.head(0, 0), rows.clone(), key_tiles.clone().into_iter(), &meter));
            prop_assert!(states.len() == rows.len(), "{} states for {} rows", states.len(), rows.len());
            for (i, state) in rows.clone().zip(&states) {
                same(&format!("{}, key tiles {key_tiles:?}", case.row(i)), state, case.truth(i, from..k))?;
            }
            let wanted = Traffic { read: (4 * rows.len() + 12 * (k - from)) as u64, written: 0 };
            let found = meter.traffic();
            prop_assert!(
                found == wanted,
                "{} rows, key tiles {key_tiles:?}, d = 1, d_v = 2: the meter counts {found:?}, lines 4 to 11 move \
                 {wanted:?} (bytes: q 4 a row, k and v 12 a key, no o, l and m)",
                rows.len()
            );
        }
    }
    Ok(())
}

/// Parts of the keys merge, row by row, to the state over all of them.
pub(crate) fn merge_is_row_by_row(
    merge: impl Fn(Vec<Vec<State>>) -> Vec<State>,
    rows: &[Row],
) -> Result<(), TestCaseError> {
    let state = |keys: &[(f32, f32)]| {
        let RowTruth { m, l, o } = RowTruth::of(keys);
        State { m: m as f32, l: l as f32, o: arr1(&o.map(|o| o as f32)) }
    };
    let tile = |row: &Row| row.tile.iter().zip(1u8..).map(|(&s, v)| (s, f32::from(v))).collect::<Vec<_>>();
    let first: Vec<State> = rows.iter().map(|row| state(&row.before)).collect();
    let second: Vec<State> = rows.iter().map(|row| state(&tile(row))).collect();
    let third: Vec<State> = rows.iter().map(|row| state(&[(row.tile[0], -2.0)])).collect();
    let found = merge(vec![first.clone(), second.clone(), third.clone()]);
    prop_assert!(found.len() == rows.len(), "three parts of {} rows merge to {} rows", rows.len(), found.len());
    for (r, row) in rows.iter().enumerate() {
        let all = [row.before.as_slice(), &tile(row), &[(row.tile[0], -2.0)]].concat();
        let parts = [&first[r], &second[r], &third[r]].map(shown);
        let at = format!("row {r} of {} from parts {}", rows.len(), parts.join(", "));
        same(&at, &found[r], RowTruth::of(&all))?;
    }
    let alone = merge(vec![first.clone()]);
    let all = |states: &[State]| states.iter().map(shown).collect::<Vec<_>>().join(", ");
    prop_assert!(alone == first, "one part {} merges to {}, wanted itself", all(&first), all(&alone));
    prop_assert!(merge(Vec::new()).is_empty(), "no part merges to no row");
    Ok(())
}

/// The bytes of Algorithm 1 tile by tile, with `splits(q_len, k_len)` parts of the keys.
pub(crate) fn tile_by_tile(problem: &Problem, tiles: Tiles, splits: impl Fn(usize, usize) -> usize) -> Traffic {
    let (d, d_v, e) = (problem.d(), problem.d_v(), problem.dtype().size());
    let (mut read, mut written) = (0, 0);
    for (n, k) in problem.sequences().iter().map(|s| (s.q.len(), s.k.len())) {
        let splits = splits(n, k);
        for rows in (0..n).step_by(tiles.rows).map(|start| start..n.min(start + tiles.rows)) {
            read += e * splits * rows.len() * d; // line 4
            let seen: Vec<Range<usize>> = rows.clone().map(|i| problem.options().mask.visible(i, n, k)).collect();
            let (from, to) = (seen[0].start, seen[rows.len() - 1].end);
            for keys in (0..k).step_by(tiles.keys).map(|start| start..k.min(start + tiles.keys)) {
                if keys.start < to && from < keys.end && from < to {
                    read += e * keys.len() * (d + d_v); // line 7
                }
            }
            if splits > 1 {
                read += splits * 4 * rows.len() * (d_v + 2);
                written += splits * 4 * rows.len() * (d_v + 2);
            }
            written += rows.len() * (e * d_v + 4); // lines 14 and 15
        }
    }
    let heads = problem.heads() as u64;
    Traffic { read: heads * read as u64, written: heads * written as u64 }
}

/// What a row and a key weigh, in words.
fn bytes(problem: &Problem) -> String {
    let (d, d_v, e) = (problem.d(), problem.d_v(), problem.dtype().size());
    let (partial, kv, o) = (4 * (d_v + 2), e * (d + d_v), e * d_v);
    format!(" (bytes: q {}, o {o}, lse 4 and a partial result {partial} a row, k and v {kv} a key)", e * d)
}

/// B_c from a quarter of the memory and B_r from the rest, as in step 1, or nothing where they do not fit.
fn tiles(problem: &Problem, fast_memory: usize) -> Option<Tiles> {
    let (elements, channels) = (fast_memory / 4, problem.d() + problem.d_v());
    let keys = (elements / 4 / channels).max(1);
    let rows = elements.checked_sub(keys * channels)? / (channels + keys);
    (rows > 0).then_some(Tiles { rows, keys })
}

/// The number of splits that the rung takes: as asked, else by the length of the keys of a short q.
fn splits(tiles: Tiles, asked: Option<usize>) -> impl Fn(usize, usize) -> usize {
    move |q_len, k_len| {
        let wanted = asked.unwrap_or(if q_len <= tiles.rows { k_len.div_ceil(2048) } else { 1 });
        wanted.clamp(1, k_len.div_ceil(tiles.keys).max(1))
    }
}

/// The predicted traffic is the listing's, tile by tile.
pub(crate) fn traffic_is_the_listings(
    traffic: impl Fn(&Problem, usize, Option<usize>) -> Result<Traffic, AttentionError>,
    spec: &Spec,
    fast_memory: usize,
    asked: Option<usize>,
) -> Result<(), TestCaseError> {
    let owned = spec.build();
    let problem = owned.problem();
    let Some(tiles) = tiles(&problem, fast_memory) else {
        prop_assert!(traffic(&problem, fast_memory, asked).is_err(), "M = {fast_memory} bytes hold no row and key");
        return Ok(());
    };
    let (found, wanted) = (traffic(&problem, fast_memory, asked)?, tile_by_tile(&problem, tiles, splits(tiles, asked)));
    prop_assert!(
        found == wanted,
        "{tiles:?}, splits {asked:?}: predicted {found:?}, the listing moves {wanted:?}{}",
        bytes(&problem)
    );
    Ok(())
}

/// What a metered run counts is the listing's.
pub(crate) fn the_meter_counts_the_listing(
    rung: &dyn Attention,
    meter: &TrafficMeter,
    spec: &Spec,
    fast_memory: usize,
    asked: Option<usize>,
) -> Result<(), TestCaseError> {
    let owned = spec.build();
    let problem = owned.problem();
    let tiles = tiles(&problem, fast_memory).expect("a memory that fits the problems");
    rung.forward(&problem)?;
    let (found, wanted) = (meter.traffic(), tile_by_tile(&problem, tiles, splits(tiles, asked)));
    prop_assert!(
        found == wanted,
        "{tiles:?}, splits {asked:?}: the meter counts {found:?}, the listing moves {wanted:?}{}",
        bytes(&problem)
    );
    Ok(())
}
