//! Wrong variants of chapter 4: slips that are easy to make. The checks must reject each of them.

use fa2 as subject;

mod laws;

use attention::{
    AttentionError, DEFAULT_FAST_MEMORY, Head, Mask, NoMeter, Problem, Traffic, TrafficMeter, sink_factor, weight,
};
use fa1::Fa1;
use fa2::{Fa2, Tiles};
use laws::*;
use ndarray::{Array1, Array2, ArrayViewMut1, ArrayViewMut2, s};
use online_softmax::State;
use std::num::NonZeroUsize;
use std::ops::Range;
use testkit::problems::problems;
use testkit::{
    ByHand, Variant, assert_caught, assert_control_passes, assert_fault_caught, assert_guards_that_drop_nan_are_caught,
    by_hand, by_hand_with_nan, check_by_hand, must, rows,
};

/// Rows and keys of a tile: small, so that every problem has several.
const TILE: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The control: it must pass.
    None,
    /// O not rescaled when the maximum rises, since "FA2 rescales once at the end".
    ForgottenRescale,
    /// The slip of the printed listing: O times `diag(e^(m_old - m_new))^-1`.
    InverseRescale,
    /// The maximum of the current tile alone in place of the running one.
    TileMaximum,
    /// Key tiles skipped by what the first row of the tile sees: the diagonal goes missing.
    SkippedDiagonal,
    /// Tiles that touch the mask treated as wholly visible.
    UnmaskedDiagonal,
    /// Two halves of the keys merged by their plain average.
    AveragedSplits,
    /// Two halves merged in the wrong base: weights 2^lse.
    MergedInBaseTwo,
    /// lse from the last tile's maximum.
    LastMaximum,
    /// A tile taken for hidden by its maximum, which drops NaN.
    HiddenByMaximum,
    /// Line 10 as a plain product, in which a hidden NaN counts 0 * NaN.
    HiddenValueRead,
}

/// o, m and l of one row tile over `keys`.
fn stream(head: &Head, rows: std::ops::Range<usize>, keys: std::ops::Range<usize>, fault: Fault) -> [Array2<f32>; 3] {
    let q_i = head.q.load(rows.clone());
    let mut o = Array2::<f32>::zeros((rows.len(), head.d_v()));
    let mut l = Array2::<f32>::zeros((rows.len(), 1));
    let mut m = Array2::from_elem((rows.len(), 1), f32::NEG_INFINITY);
    let mut last = m.clone();
    let end = match fault {
        Fault::SkippedDiagonal => keys.end.min(head.visible(rows.start).end),
        _ => keys.end,
    };
    for keys in (keys.start..end).step_by(TILE).map(|j| j..end.min(j + TILE)) {
        let (k_j, v_j) = (head.k.load(keys.clone()), head.v.load(keys.clone()));
        let mut p = Array2::zeros((rows.len(), keys.len()));
        let seen = match fault {
            Fault::UnmaskedDiagonal => &Head { mask: attention::Mask::Full, ..head.clone() },
            _ => head,
        };
        if !head.visible_to_any(rows.clone()).any(|j| keys.contains(&j)) {
            continue;
        }
        seen.scores((rows.clone(), q_i.view()), (keys.clone(), k_j.view()), p.view_mut());
        for (r, mut p) in p.rows_mut().into_iter().enumerate() {
            last[[r, 0]] = p.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let m_new = if fault == Fault::TileMaximum { last[[r, 0]] } else { last[[r, 0]].max(m[[r, 0]]) };
            if fault == Fault::HiddenByMaximum && m_new == f32::NEG_INFINITY {
                p.fill(0.0);
                continue;
            }
            let rescale = weight(m[[r, 0]], m_new);
            p.mapv_inplace(|s| weight(s, m_new));
            l[[r, 0]] = rescale * l[[r, 0]] + p.sum();
            m[[r, 0]] = m_new;
            match fault {
                Fault::ForgottenRescale => {}
                Fault::InverseRescale if rescale > 0.0 => o.row_mut(r).mapv_inplace(|o| o / rescale),
                _ => o.row_mut(r).mapv_inplace(|o| o * rescale),
            }
        }
        if fault == Fault::HiddenValueRead {
            o += &p.dot(&v_j);
            continue;
        }
        seen.accumulate((rows.clone(), p.view()), (keys.clone(), v_j.view()), o.view_mut());
    }
    [o, if fault == Fault::LastMaximum { last } else { m }, l]
}

fn algorithm_1(head: &Head, fault: Fault) -> (Array2<f32>, Array1<f32>) {
    let mut all = Array2::zeros((head.q_len, head.d_v()));
    let mut lse = Array1::zeros(head.q_len);
    for rows in (0..head.q_len).step_by(TILE).map(|i| i..head.q_len.min(i + TILE)) {
        let half = head.k_len / 2;
        let [mut o, m, l] = stream(head, rows.clone(), 0..half, fault);
        let [o_right, m_right, l_right] = stream(head, rows.clone(), half..head.k_len, fault);
        for (r, (i, mut o)) in rows.clone().zip(o.rows_mut()).enumerate() {
            let ([m, l], [m_right, l_right]) = ([m[[r, 0]], l[[r, 0]]], [m_right[[r, 0]], l_right[[r, 0]]]);
            let top = m.max(m_right);
            let (mut left, mut right) = (weight(m, top), weight(m_right, top));
            if fault == Fault::MergedInBaseTwo {
                (left, right) = (left.powf(2f32.ln()), right.powf(2f32.ln()));
            }
            if fault == Fault::AveragedSplits {
                (left, right) = (1.0 / (2.0 * l).max(1.0), 1.0 / (2.0 * l_right).max(1.0));
            }
            let sum = left * l + right * l_right;
            lse[i] = if sum == 0.0 { f32::NEG_INFINITY } else { top + sum.ln() };
            o *= left;
            o.scaled_add(right, &o_right.row(r));
            if sum != 0.0 {
                o *= sink_factor(head.sink, top, sum) / sum;
            }
        }
        all.slice_mut(s![rows, ..]).assign(&o);
    }
    (all, lse)
}

#[test]
fn wrong_tile_sizes() {
    type Fit = fn(usize, usize, usize) -> Result<Tiles, AttentionError>;
    let scores_forgotten: Fit = |memory, d, d_v| {
        let tiles = Tiles::fit(memory, d, d_v)?;
        Ok(Tiles { rows: memory / 4 / (d + d_v) - tiles.keys, ..tiles })
    };
    let bytes_as_elements: Fit = |memory, d, d_v| Tiles::fit(4 * memory, d, d_v);
    let one_row_less: Fit = |memory, d, d_v| {
        let tiles = Tiles::fit(memory, d, d_v)?;
        Ok(Tiles { rows: (tiles.rows - 1).max(1), ..tiles })
    };
    let blocks_of_fa1: Fit = |memory, d, d_v| {
        let fa1::Blocks { rows, keys } = fa1::Blocks::fit(memory, d.max(d_v))?;
        Ok(Tiles { rows, keys })
    };
    for (name, fit) in [
        ("S forgotten", scores_forgotten),
        ("bytes as elements", bytes_as_elements),
        ("one row less", one_row_less),
        ("the blocks of chapter 3", blocks_of_fa1),
    ] {
        assert_caught(name, 200, (0usize..5000, 1usize..20, 1usize..20), |case| tiles_fill_the_memory(fit, case));
    }
}

#[test]
fn wrong_covers() {
    type Over = fn(Tiles, Range<usize>, usize) -> std::vec::IntoIter<Range<usize>>;
    let one_tile_short: Over = |tiles, keys, k_len| {
        let mut all: Vec<_> = tiles.over(keys, k_len).collect();
        all.pop();
        all.into_iter()
    };
    let not_cut: Over = |tiles, keys, k_len| {
        let whole = |tile: Range<usize>| tile.start..tile.start + tiles.keys;
        tiles.over(keys, k_len).map(whole).collect::<Vec<_>>().into_iter()
    };
    let own_grid: Over = |tiles, keys, k_len| {
        let start = keys.start;
        let moved = tiles.over(0..keys.len(), k_len - start);
        moved.map(|tile| tile.start + start..tile.end + start).collect::<Vec<_>>().into_iter()
    };
    let from_zero: Over = |tiles, keys, k_len| tiles.over(0..keys.end, k_len).collect::<Vec<_>>().into_iter();
    let to_the_end: Over = |tiles, keys, k_len| tiles.over(keys.start..k_len, k_len).collect::<Vec<_>>().into_iter();
    for (name, over) in [
        ("one tile short", one_tile_short),
        ("the last tile not cut", not_cut),
        ("a grid from the first key", own_grid),
        ("all tiles before", from_zero),
        ("all tiles after", to_the_end),
    ] {
        let cases = (1usize..6, 0usize..20, 0usize..20, 0usize..6);
        assert_caught(name, 200, cases, |(tile, start, len, more)| {
            tiles_cover_the_keys(over, tile, start..start + len, start + len + more)
        });
    }
}

#[test]
fn wrong_updates() {
    type Update = fn(ArrayViewMut2<f32>, ArrayViewMut2<f32>, ArrayViewMut1<f32>, ArrayViewMut1<f32>);
    let o_not_rescaled: Update = |s, mut o, l, m| {
        let old = o.to_owned();
        fa2::update(s, o.view_mut(), l, m);
        o.assign(&old);
    };
    let as_printed: Update = |s, mut o, l, mut m| {
        let (o_old, m_old) = (o.to_owned(), m.to_owned());
        fa2::update(s, o.view_mut(), l, m.view_mut());
        for r in 0..m.len() {
            let factor = weight(m_old[r], m[r]);
            o.row_mut(r).assign(&(&o_old.row(r) / if factor == 0.0 { 1.0 } else { factor }));
        }
    };
    let tile_maximum: Update = |s, o, l, mut m| {
        let tops: Array1<f32> =
            s.rows().into_iter().map(|s| s.iter().copied().fold(f32::NEG_INFINITY, f32::max)).collect();
        fa2::update(s, o, l, m.view_mut());
        m.assign(&tops);
    };
    let divided: Update = |s, mut o, mut l, m| {
        fa2::update(s, o.view_mut(), l.view_mut(), m);
        o.rows_mut().into_iter().zip(&l).for_each(|(mut o, l)| o.mapv_inplace(|o| if *l > 0.0 { o / l } else { o }));
    };
    let sum_of_the_tile: Update = |mut s, o, mut l, m| {
        fa2::update(s.view_mut(), o, l.view_mut(), m);
        l.iter_mut().zip(s.rows()).for_each(|(l, s)| *l = s.sum());
    };
    let channel_0: Update = |s, mut o, l, m| {
        let before = o.to_owned();
        fa2::update(s, o.view_mut(), l, m);
        o.slice_mut(s![.., 1..]).assign(&before.slice(s![.., 1..]));
    };
    for (name, update) in [
        ("channel 0 only", channel_0),
        ("o not rescaled", o_not_rescaled),
        ("the inverse factor, as printed", as_printed),
        ("the tile's maximum alone", tile_maximum),
        ("o divided", divided),
        ("the tile's sum alone", sum_of_the_tile),
    ] {
        assert_caught(name, 200, rows(), |rows| update_is_lines_9_and_10(update, &rows));
    }
}

#[test]
fn wrong_guards_that_drop_nan() {
    assert_guards_that_drop_nan_are_caught(fa2::update);
}

#[test]
fn wrong_streams() {
    type KeyTiles = std::vec::IntoIter<Range<usize>>;
    type Stream = fn(&Head, Range<usize>, KeyTiles, &TrafficMeter) -> Vec<State>;
    let last_tile_alone: Stream = |head, rows, tiles, meter| {
        let mut last = Vec::new();
        let mut left = tiles;
        while let Some(tile) = left.next() {
            let used = if left.len() == 0 { Some(tile) } else { None };
            last = fa2::stream(head, rows.clone(), used.into_iter(), meter);
        }
        last
    };
    let unmasked: Stream =
        |head, rows, tiles, meter| fa2::stream(&Head { mask: Mask::Full, ..head.clone() }, rows, tiles, meter);
    let all_keys: Stream = |head, rows, _, meter| fa2::stream(head, rows, std::iter::once(0..head.k_len), meter);
    let rows_from_zero: Stream = |head, rows, tiles, meter| fa2::stream(head, 0..rows.len(), tiles, meter);
    let q_every_tile: Stream = |head, rows, tiles, meter| {
        attention::Meter::read(meter, 4 * rows.len() * tiles.len().saturating_sub(1));
        fa2::stream(head, rows, tiles, meter)
    };
    let uncounted: Stream = |head, rows, tiles, _| fa2::stream(head, rows, tiles, &NoMeter);
    let scale_twice: Stream = |head, rows, tiles, meter| {
        fa2::stream(&Head { scale: head.scale * head.scale, ..head.clone() }, rows, tiles, meter)
    };
    let no_cap: Stream =
        |head, rows, tiles, meter| fa2::stream(&Head { softcap: 0.0, ..head.clone() }, rows, tiles, meter);
    let no_alibi: Stream =
        |head, rows, tiles, meter| fa2::stream(&Head { slope: None, ..head.clone() }, rows, tiles, meter);
    let no_bias: Stream =
        |head, rows, tiles, meter| fa2::stream(&Head { bias: None, ..head.clone() }, rows, tiles, meter);
    for (name, stream) in
        [("scale twice", scale_twice), ("no cap", no_cap), ("no ALiBi", no_alibi), ("no bias", no_bias)]
    {
        let by_hand = ByHand::scores_with_more().iter().try_for_each(|case| stream_is_lines_4_to_11(stream, case, 2));
        assert!(by_hand.is_err(), "{name} passes by hand");
        assert_caught(name, 200, (testkit::by_hand(), 1usize..4), |(case, tile)| {
            stream_is_lines_4_to_11(stream, &case, tile)
        });
    }
    let channel_0: Stream = |head, rows, tiles, meter| {
        let mut states = fa2::stream(head, rows, tiles, meter);
        states.iter_mut().for_each(|state| state.o[1] = 0.0);
        states
    };
    for (name, stream) in [
        ("channel 0 only", channel_0),
        ("the last tile alone", last_tile_alone),
        ("unmasked", unmasked),
        ("all keys", all_keys),
        ("rows from zero", rows_from_zero),
        ("q at every tile", q_every_tile),
        ("uncounted", uncounted),
    ] {
        assert_caught(name, 200, (by_hand(), 1usize..4), |(case, tile)| stream_is_lines_4_to_11(stream, &case, tile));
    }
}

#[test]
fn wrong_merges() {
    type Merge = fn(Vec<Vec<State>>) -> Vec<State>;
    let first_alone: Merge = |parts| parts.into_iter().next().unwrap_or_default();
    let concatenated: Merge = |parts| parts.into_iter().flatten().collect();
    let summed: Merge = |parts| {
        let add = |a: State, b: &State| State { m: a.m.max(b.m), l: a.l + b.l, o: a.o + &b.o };
        let both = |a: Vec<State>, b: Vec<State>| a.into_iter().zip(&b).map(|(a, b)| add(a, b)).collect();
        parts.into_iter().reduce(both).unwrap_or_default()
    };
    let two_parts: Merge = |parts| fa2::merge(parts.into_iter().take(2).collect());
    let row_zero: Merge = |parts| {
        let mut whole = fa2::merge(parts);
        let first = whole.first().cloned();
        whole.iter_mut().for_each(|state| *state = first.clone().expect("there is one"));
        whole
    };
    let channel_0: Merge = |parts| {
        let mut whole = fa2::merge(parts.clone());
        whole.iter_mut().zip(parts.concat()).for_each(|(state, first)| state.o[1] = first.o[1]);
        whole
    };
    for (name, merge) in [
        ("channel 0 only", channel_0),
        ("the first part alone", first_alone),
        ("concatenated", concatenated),
        ("summed against different maxima", summed),
        ("two parts and no more", two_parts),
        ("row 0 for all", row_zero),
    ] {
        assert_caught(name, 200, rows(), |rows| merge_is_row_by_row(merge, &rows));
    }
}

/// The rung with splits as asked for.
fn rung<M: attention::Meter>(memory: usize, meter: M, splits: Option<usize>) -> Fa2<M> {
    let fa2 = Fa2::new(memory, meter);
    match splits.and_then(NonZeroUsize::new) {
        Some(splits) => fa2.with_splits(splits),
        None => fa2,
    }
}

#[test]
fn wrong_predictions_of_traffic() {
    type Predict = fn(&Problem, usize, Option<usize>) -> Result<Traffic, AttentionError>;
    let no_skipping: Predict = |problem, memory, splits| {
        let mask = Mask::Full;
        let options = attention::Options { mask, ..problem.options().clone() };
        let kv = attention::Kv::Contiguous { k: problem.k().clone(), v: problem.v().clone() };
        match Problem::new(problem.q().clone(), kv, attention::Batch::Dense, options) {
            Ok(full) => fa2::traffic(&full, &rung(memory, NoMeter, splits)),
            Err(_) => fa2::traffic(problem, &rung(memory, NoMeter, splits)),
        }
    };
    let partials_forgotten: Predict = |problem, memory, _| fa2::traffic(problem, &rung(memory, NoMeter, Some(1)));
    let as_fa1: Predict = |problem, memory, _| fa1::traffic(problem, memory);
    let lse_forgotten: Predict = |problem, memory, splits| {
        let traffic = fa2::traffic(problem, &rung(memory, NoMeter, splits))?;
        let rows: usize = problem.sequences().iter().map(|s| s.q.len()).sum();
        Ok(Traffic { written: traffic.written - (4 * problem.heads() * rows) as u64, ..traffic })
    };
    let kv_once: Predict = |problem, memory, splits| {
        let traffic = fa2::traffic(problem, &rung(memory, NoMeter, splits))?;
        Ok(Traffic { read: traffic.read.min(Traffic::compulsory(problem).read), ..traffic })
    };
    for (name, predict) in [
        ("no skipping", no_skipping),
        ("partials forgotten", partials_forgotten),
        ("that of chapter 3", as_fa1),
        ("lse forgotten", lse_forgotten),
        ("k and v once", kv_once),
    ] {
        let cases = (problems(), proptest::option::of(2usize..6));
        assert_caught(name, 200, cases, |(spec, splits)| traffic_is_the_listings(predict, &spec, 5000, splits));
    }
}

#[test]
fn wrong_rungs_by_their_traffic() {
    assert_caught("the rung below", 200, problems(), |spec| {
        let meter = TrafficMeter::default();
        the_meter_counts_the_listing(&Fa1::new(DEFAULT_FAST_MEMORY, &meter), &meter, &spec, DEFAULT_FAST_MEMORY, None)
    });
    assert_caught("splits refused", 200, problems(), |spec| {
        let meter = TrafficMeter::default();
        the_meter_counts_the_listing(&rung(5000, &meter, None), &meter, &spec, 5000, Some(3))
    });
}

#[test]
fn the_control_passes() {
    assert_control_passes(algorithm_1, Fault::None);
}

#[test]
fn o_not_rescaled() {
    assert_fault_caught(algorithm_1, Fault::ForgottenRescale);
}

#[test]
fn rescaled_as_printed() {
    assert_fault_caught(algorithm_1, Fault::InverseRescale);
}

#[test]
fn maximum_of_the_tile_alone() {
    assert_fault_caught(algorithm_1, Fault::TileMaximum);
}

#[test]
fn diagonal_tile_skipped() {
    assert_fault_caught(algorithm_1, Fault::SkippedDiagonal);
}

#[test]
fn diagonal_tile_unmasked() {
    assert_fault_caught(algorithm_1, Fault::UnmaskedDiagonal);
}

#[test]
fn splits_averaged() {
    assert_fault_caught(algorithm_1, Fault::AveragedSplits);
}

#[test]
fn splits_merged_in_base_two() {
    assert_fault_caught(algorithm_1, Fault::MergedInBaseTwo);
}

#[test]
fn lse_from_the_last_tile() {
    assert_fault_caught(algorithm_1, Fault::LastMaximum);
}

#[test]
fn nan_dropped_and_hidden_nan_read() {
    let control = Variant::new("control", |head: &Head| algorithm_1(head, Fault::None));
    for fault in [Fault::HiddenByMaximum, Fault::HiddenValueRead] {
        let variant = Variant::new("variant", move |head: &Head| algorithm_1(head, fault));
        assert_caught(&format!("{fault:?}"), 200, by_hand_with_nan(), |case| {
            must(check_by_hand(&control, &case));
            check_by_hand(&variant, &case)
        });
    }
}
