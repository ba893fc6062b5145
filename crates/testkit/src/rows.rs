//! Rows that meet a tile of keys, and what a tiled rung must make of them.

use crate::{RowTruth, all_close, all_shown, assert_caught, close, scores_with_nan, shown};
use ndarray::{Array1, Array2, ArrayViewMut1, ArrayViewMut2};
use proptest::prelude::*;

/// One row at one step: the scores and values before this tile, and the scores of the tile.
#[derive(Clone, Debug)]
pub struct Row {
    /// `(score, value)` of the keys so far.
    pub before: Vec<(f32, f32)>,
    /// The scores of the tile.
    pub tile: Vec<f32>,
}

/// One to three rows that share a tile of one to four keys; some keys hidden, some scores far above the others.
pub fn rows() -> impl Strategy<Value = Vec<Row>> {
    let score = || {
        prop_oneof![
            6 => (-3i16..=3).prop_map(f32::from),
            2 => Just(f32::NEG_INFINITY),
            1 => prop::sample::select(vec![40.0f32, -40.0, 1000.0]),
        ]
    };
    (1usize..=3, 1usize..=4).prop_flat_map(move |(rows, keys)| {
        let before = prop::collection::vec((score(), (-3i16..=3).prop_map(f32::from)), 0..=3);
        let tile = prop::collection::vec(score(), keys..=keys);
        prop::collection::vec((before, tile).prop_map(|(before, tile)| Row { before, tile }), rows..=rows)
    })
}

/// After `update(s, o, l, m)`, l and m take in the tile, s holds its weights, and o what is left of the keys before;
/// the product of weights and values is not added yet. o and the weights are kept divided by `divisor` of their row.
///
/// # Errors
/// One of the four is something else.
pub fn update_is_the_listings(
    update: impl Fn(ArrayViewMut2<f32>, ArrayViewMut2<f32>, ArrayViewMut1<f32>, ArrayViewMut1<f32>),
    rows: &[Row],
    divisor: fn(&RowTruth) -> f64,
) -> Result<(), TestCaseError> {
    let before: Vec<RowTruth> = rows.iter().map(|row| RowTruth::of(&row.before)).collect();
    // A row that has seen no key has l = 0, and nothing to divide.
    let share = |x: f64, row: &RowTruth| if row.l == 0.0 { 0.0 } else { x / divisor(row) };
    let kept: Vec<[f64; 2]> = before.iter().map(|row| row.o.map(|o| share(o, row))).collect();
    let mut s = Array2::from_shape_fn((rows.len(), rows[0].tile.len()), |(r, j)| rows[r].tile[j]);
    let mut o = Array2::from_shape_fn((rows.len(), 2), |(r, channel)| kept[r][channel] as f32);
    let mut l: Array1<f32> = before.iter().map(|row| row.l as f32).collect();
    let mut m: Array1<f32> = before.iter().map(|row| row.m as f32).collect();
    update(s.view_mut(), o.view_mut(), l.view_mut(), m.view_mut());
    for (r, (row, old)) in rows.iter().zip(&before).enumerate() {
        let tile: Vec<(f32, f32)> = row.tile.iter().map(|&s| (s, 0.0)).collect();
        let new = RowTruth::of(&[row.before.as_slice(), &tile].concat());
        let weights: Vec<f64> = row.tile.iter().map(|&s| share((f64::from(s) - new.m).exp(), &new)).collect();
        let wanted_o = old.o.map(|o| share(o * (old.m - new.m).exp(), &new));
        let at = format!(
            "row {r} of {}, before (m {}, l {}, o {:?}), tile scores {:?}",
            rows.len(),
            shown(old.m),
            shown(old.l),
            all_shown(&kept[r]),
            row.tile
        );
        prop_assert!(close(m[r], new.m), "{at}: m is {}, wanted {}", m[r], shown(new.m));
        prop_assert!(close(l[r], new.l), "{at}: l is {}, wanted {}", l[r], shown(new.l));
        let (p, kept) = (s.row(r), o.row(r));
        prop_assert!(
            all_close(p, &weights),
            "{at}: the weights are {:?}, wanted {:?}",
            all_shown(p),
            all_shown(&weights)
        );
        prop_assert!(
            all_close(kept, &wanted_o),
            "{at}: o, before P V is added, is {:?}, wanted {:?}",
            all_shown(kept),
            all_shown(&wanted_o)
        );
    }
    Ok(())
}

/// After `update(s, o, l, m)` of one row, a NaN among the scores of its tile has made l NaN, and the weight in its place.
///
/// # Errors
/// One of them is a number: the row looks as if it had not seen that key.
pub fn update_keeps_nan(
    update: impl Fn(ArrayViewMut2<f32>, ArrayViewMut2<f32>, ArrayViewMut1<f32>, ArrayViewMut1<f32>),
    row: &Row,
) -> Result<(), TestCaseError> {
    let before = RowTruth::of(&row.before);
    let mut s = Array2::from_shape_fn((1, row.tile.len()), |(_, j)| row.tile[j]);
    let mut o = Array2::from_shape_fn((1, 2), |(_, channel)| before.output()[channel] as f32);
    let (mut l, mut m) = (Array1::from_elem(1, before.l as f32), Array1::from_elem(1, before.m as f32));
    update(s.view_mut(), o.view_mut(), l.view_mut(), m.view_mut());
    let weights = s.row(0).to_vec();
    let kept = l[0].is_nan() && row.tile.iter().zip(&weights).all(|(s, p)| !s.is_nan() || p.is_nan());
    prop_assert!(
        kept,
        "a row before (m {}, l {}), tile scores {:?}: l is {} and the weights are {weights:?}; wanted NaN for l and for \
         the weight of each NaN score",
        shown(before.m),
        shown(before.l),
        row.tile,
        l[0]
    );
    Ok(())
}

/// Proves that [`update_keeps_nan`] rejects the two guards with which a row of NaN looks like one that sees no key.
///
/// # Panics
/// If one of them gets through.
#[track_caller]
pub fn assert_guards_that_drop_nan_are_caught(
    update: fn(ArrayViewMut2<f32>, ArrayViewMut2<f32>, ArrayViewMut1<f32>, ArrayViewMut1<f32>),
) {
    let rows = || (rows(), scores_with_nan()).prop_map(|(mut rows, tile)| Row { tile, ..rows.remove(0) });
    assert_caught("hidden by the maximum", 200, rows(), |row| {
        let skips = |mut s: ArrayViewMut2<f32>, o: ArrayViewMut2<f32>, l: ArrayViewMut1<f32>, m: ArrayViewMut1<f32>| {
            if s.iter().copied().fold(f32::NEG_INFINITY, f32::max) == f32::NEG_INFINITY {
                s.fill(0.0);
            } else {
                update(s, o, l, m);
            }
        };
        update_keeps_nan(skips, &row)
    });
    assert_caught("NaN taken for hidden", 200, rows(), |row| {
        let hides = |mut s: ArrayViewMut2<f32>, o: ArrayViewMut2<f32>, l: ArrayViewMut1<f32>, m: ArrayViewMut1<f32>| {
            s.mapv_inplace(|s| if s.is_nan() { f32::NEG_INFINITY } else { s });
            update(s, o, l, m);
        };
        update_keeps_nan(hides, &row)
    });
}
