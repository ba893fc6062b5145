//! What each step of chapter 1 must do, as laws that take the step as an argument: the checks apply them to the code
//! under test, and `wrong.rs` proves that each rejects a wrong step.

use attention::{Attention, Head, Problem, Traffic, TrafficMeter};
use ndarray::{Array1, Array2, ArrayView1, ArrayView2, ArrayViewMut1, ArrayViewMut2};
use proptest::prelude::*;
use testkit::problems::Spec;
use testkit::{ByHand, RowTruth, all_close, all_shown, channels, close, shown, unwritten};

/// What memory holds before a step fills it.
const CANARY: f32 = 777.0;

/// Scores as whole numbers, with hidden keys and some too large for a plain exponential.
pub(crate) fn row() -> impl Strategy<Value = Vec<f32>> {
    let score = || {
        prop_oneof![
            6 => (-3i16..=3).prop_map(f32::from),
            1 => Just(f32::NEG_INFINITY),
            1 => prop::sample::select(vec![100.0f32, -100.0, 1000.0]),
        ]
    };
    prop_oneof![3 => prop::collection::vec(score(), 0..=4), 1 => prop::collection::vec(score(), 5..=20)]
}

/// No sink most of the time, else a small one.
pub(crate) fn sink() -> impl Strategy<Value = f32> {
    prop_oneof![3 => Just(f32::NEG_INFINITY), 1 => (-2i8..=4).prop_map(f32::from)]
}

/// Up to four rows of up to four scores.
pub(crate) fn matrix() -> impl Strategy<Value = Vec<Vec<f32>>> {
    let score = || prop_oneof![5 => (-3i16..=3).prop_map(f32::from), 1 => Just(f32::NEG_INFINITY), 1 => Just(200.0f32)];
    (1usize..=4, 1usize..=4).prop_flat_map(move |(rows, keys)| {
        prop::collection::vec(prop::collection::vec(score(), keys..=keys), rows..=rows)
    })
}

fn array(rows: &[Vec<f32>]) -> Array2<f32> {
    Array2::from_shape_fn((rows.len(), rows[0].len()), |(i, j)| rows[i][j])
}

/// p and lse of a row by the definition, in f64.
fn truth(s: &[f32], sink: f32) -> (Vec<f64>, f64) {
    let row = RowTruth::of(&s.iter().map(|&s| (s, 0.0)).collect::<Vec<_>>());
    let whole = row.l + (f64::from(sink) - row.m).exp();
    let p = s.iter().map(|&s| if row.l == 0.0 { 0.0 } else { (f64::from(s) - row.m).exp() / whole });
    (p.collect(), row.lse())
}

fn with_sink(sink: f32) -> String {
    if sink == f32::NEG_INFINITY { String::new() } else { format!(" with sink {sink}") }
}

/// p and lse of a row are the definition's.
pub(crate) fn softmax_is_the_definition(
    softmax: impl Fn(ArrayView1<f32>, f32, ArrayViewMut1<f32>) -> f32,
    s: &[f32],
    sink: f32,
) -> Result<(), TestCaseError> {
    let mut p = Array1::from_elem(s.len(), CANARY);
    let lse = softmax(ArrayView1::from(s), sink, p.view_mut());
    let (wanted, wanted_lse) = truth(s, sink);
    let at = format!("softmax of {s:?}{}", with_sink(sink));
    prop_assert!(
        all_close(&p, &wanted),
        "{at}: p is {:?}, wanted {:?}{}",
        all_shown(&p),
        all_shown(&wanted),
        unwritten(&p.to_vec(), CANARY)
    );
    prop_assert!(close(lse, wanted_lse), "{at}: lse is {}, wanted {}", shown(lse), shown(wanted_lse));
    Ok(())
}

/// A NaN score gives NaN, for its p and for lse, even where all others are -inf: the row is not empty.
pub(crate) fn a_nan_score_gives_nan(
    softmax: impl Fn(ArrayView1<f32>, f32, ArrayViewMut1<f32>) -> f32,
    s: &[f32],
) -> Result<(), TestCaseError> {
    let mut p = Array1::from_elem(s.len(), CANARY);
    let lse = softmax(ArrayView1::from(s), f32::NEG_INFINITY, p.view_mut());
    prop_assert!(
        lse.is_nan() && s.iter().zip(&p).all(|(s, p)| !s.is_nan() || p.is_nan()),
        "softmax of {s:?}: p is {:?} and lse {lse}, wanted NaN for lse and for the p of each NaN score{}",
        all_shown(&p),
        unwritten(&p.to_vec(), CANARY)
    );
    Ok(())
}

/// A constant on all scores moves lse by itself and leaves p alone.
pub(crate) fn a_constant_moves_lse_alone(
    softmax: impl Fn(ArrayView1<f32>, f32, ArrayViewMut1<f32>) -> f32,
    s: &[f32],
    constant: f32,
) -> Result<(), TestCaseError> {
    let moved: Vec<f32> = s.iter().map(|s| s + constant).collect();
    let run = |s: &[f32]| {
        let mut p = Array1::from_elem(s.len(), CANARY);
        let lse = softmax(ArrayView1::from(s), f32::NEG_INFINITY, p.view_mut());
        (p.to_vec(), lse)
    };
    let ((p, lse), (p_moved, lse_moved)) = (run(s), run(&moved));
    prop_assert!(
        p.iter().zip(&p_moved).all(|(&p, &moved)| close(moved, f64::from(p))),
        "softmax of {s:?} is {p:?}, and with {constant} more on every score {p_moved:?}: wanted the same"
    );
    prop_assert!(
        close(lse_moved, f64::from(lse) + f64::from(constant)),
        "lse of {s:?} is {lse}, and with {constant} more on every score {lse_moved}: wanted {constant} more"
    );
    Ok(())
}

/// Every row of P and every lse is that row's own softmax.
pub(crate) fn weights_are_each_rows_softmax(
    weights: impl Fn(ArrayView2<f32>, f32, ArrayViewMut2<f32>) -> Array1<f32>,
    s: &[Vec<f32>],
    sink: f32,
) -> Result<(), TestCaseError> {
    let matrix = array(s);
    let mut p = Array2::from_elem(matrix.dim(), CANARY);
    let lse = weights(matrix.view(), sink, p.view_mut());
    prop_assert!(lse.len() == s.len(), "{} rows of scores gave {} values of lse", s.len(), lse.len());
    for (i, s) in s.iter().enumerate() {
        let (wanted, wanted_lse) = truth(s, sink);
        let found = p.row(i).to_vec();
        prop_assert!(
            all_close(&found, &wanted) && close(lse[i], wanted_lse),
            "row {i} has scores {s:?}{}: p is {:?} and lse {}, wanted {:?} and {}{}",
            with_sink(sink),
            all_shown(&found),
            shown(lse[i]),
            all_shown(&wanted),
            shown(wanted_lse),
            unwritten(&found, CANARY)
        );
    }
    Ok(())
}

/// `S_ij = scale q_i k_j` with all that the options add, -inf where the key is hidden, whatever `s` held.
pub(crate) fn scores_are_products(
    scores: impl Fn(&Head, ArrayViewMut2<f32>),
    case: &ByHand,
) -> Result<(), TestCaseError> {
    let mut s = Array2::from_elem((case.q.len(), case.keys.len()), CANARY);
    case.with(|problem| scores(&problem.head(0, 0), s.view_mut()));
    for ((i, j), &s) in s.indexed_iter() {
        let (q, k, wanted) = (case.q[i], case.keys[j].0, f64::from(case.score(i, j)));
        let why = match case.sees(i, j) {
            true => case.made(),
            false => "; the causal mask hides the key".into(),
        };
        prop_assert!(
            close(s, wanted),
            "S[{i}, {j}] of q {q} and k {k} is {}, wanted {}{why}{}",
            shown(s),
            shown(wanted),
            unwritten(&[s], CANARY)
        );
    }
    Ok(())
}

/// `O = P V`; a key hidden from a row has no part in it, though its value be NaN.
pub(crate) fn output_is_p_times_v(
    output: impl Fn(&Head, ArrayView2<f32>) -> Array2<f32>,
    case: &ByHand,
) -> Result<(), TestCaseError> {
    // Weights by hand: 1, 2, 3 ... for the visible keys; they need not sum to 1.
    let weight = |i: usize, j: usize| if case.sees(i, j) { (1 + i + j) as f32 } else { 0.0 };
    let p = Array2::from_shape_fn((case.q.len(), case.keys.len()), |(i, j)| weight(i, j));
    let mut wild = case.clone();
    if let Some(last) = wild.keys.last_mut().filter(|_| case.causal) {
        last.1 = f32::NAN;
    }
    let o = wild.with(|problem| output(&problem.head(0, 0), p.view()));
    prop_assert!(o.dim() == (case.q.len(), 2), "o is {:?}, wanted [q_len, d_v] = {:?}", o.dim(), (case.q.len(), 2));
    for i in 0..case.q.len() {
        let seen: Vec<usize> = (0..case.keys.len()).filter(|&j| case.sees(i, j)).collect();
        let (p, v): (Vec<f32>, Vec<[f32; 2]>) = seen.iter().map(|&j| (p[[i, j]], channels(wild.keys[j].1))).unzip();
        let sum = |channel: usize| p.iter().zip(&v).fold(0.0, |sum, (p, v)| sum + f64::from(p * v[channel]));
        let wanted = [sum(0), sum(1)];
        prop_assert!(
            all_close(o.row(i), &wanted),
            "row {i} sees keys {seen:?}, with weights {p:?} on values {v:?}{}: o is {:?}, wanted {:?}",
            wild.hides(i),
            all_shown(o.row(i)),
            all_shown(&wanted)
        );
    }
    Ok(())
}

/// The meter's count is the number that the three passes give, worked out here once more from the shapes.
pub(crate) fn the_meter_counts_three_passes<'m, R: Attention + 'm>(
    rung: impl Fn(&'m TrafficMeter) -> R,
    meter: &'m TrafficMeter,
    spec: &Spec,
) -> Result<(), TestCaseError> {
    let owned = spec.build();
    let problem = owned.problem();
    rung(meter).forward(&problem)?;
    let (found, wanted) = (meter.traffic(), three_passes(&problem));
    prop_assert!(found == wanted, "the meter counts {found:?}, the three passes move {wanted:?}");
    Ok(())
}

/// Read: q, k, then S, then P and v. Written: S, then P and lse, then o.
pub(crate) fn three_passes(problem: &Problem) -> Traffic {
    let (d, d_v, e) = (problem.d(), problem.d_v(), problem.dtype().size());
    let mut all = Traffic::default();
    for (n, k) in problem.sequences().iter().map(|s| (s.q.len(), s.k.len())).filter(|&(n, _)| n > 0) {
        let read = [e * n * d + e * k * d, 4 * n * k, 4 * n * k + e * k * d_v];
        let written = [4 * n * k, 4 * n * k + 4 * n, e * n * d_v];
        all.read += (problem.heads() * read.iter().sum::<usize>()) as u64;
        all.written += (problem.heads() * written.iter().sum::<usize>()) as u64;
    }
    all
}
