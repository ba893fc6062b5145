//! Chapter 2: one pass with a running state, and the laws of that state.

use attention::{Attention, TrafficMeter};
use naive::{Naive, softmax};
use ndarray::{Array1, Array2, array};
use online_softmax::{OnlineSoftmax, State};
use proptest::prelude::*;
use testkit::problems::{Spec, problems};

const NO_SINK: f32 = f32::NEG_INFINITY;

/// Scores with a value each, `[d_v] = [2]`.
fn keys() -> impl Strategy<Value = Vec<(f32, [f32; 2])>> {
    let score = prop_oneof![8 => -30f32..30.0, 1 => Just(f32::NEG_INFINITY), 1 => -1e4f32..1e4];
    prop::collection::vec((score, [-2f32..2.0, -2f32..2.0]), 0..20)
}

fn state(keys: &[(f32, [f32; 2])]) -> State {
    let mut state = State::empty(2);
    for (s, v) in keys {
        state.push(*s, Array1::from(v.to_vec()).view());
    }
    state
}

fn merged(a: &State, b: &State) -> State {
    let mut merged = a.clone();
    merged.merge(b);
    merged
}

fn assert_same(a: &State, b: &State) -> Result<(), TestCaseError> {
    let ((o_a, lse_a), (o_b, lse_b)) = (a.clone().finish(NO_SINK), b.clone().finish(NO_SINK));
    prop_assert!(lse_a == lse_b || (lse_a - lse_b).abs() <= 1e-5 * (1.0 + lse_a.abs()), "lse {lse_a} and {lse_b}");
    for (a, b) in o_a.iter().zip(&o_b) {
        prop_assert!((a - b).abs() <= 1e-4, "o {a} and {b}");
    }
    Ok(())
}

proptest! {
    #[test]
    fn online_softmax_agrees_with_the_oracle(spec in problems()) {
        testkit::check(&OnlineSoftmax::default(), &spec)?;
    }

    #[test]
    fn online_softmax_agrees_with_naive(spec in problems()) {
        testkit::check_against(&OnlineSoftmax::default(), &Naive::default(), &spec)?;
    }

    #[test]
    fn a_pushed_state_is_the_three_pass_softmax(keys in keys()) {
        let s: Array1<f32> = keys.iter().map(|(s, _)| *s).collect();
        let v = Array2::from(keys.iter().map(|(_, v)| *v).collect::<Vec<_>>());
        let mut p = Array1::zeros(s.len());
        let lse = softmax(s.view(), NO_SINK, p.view_mut());
        let (o, online_lse) = state(&keys).finish(NO_SINK);
        prop_assert!(lse == online_lse || (lse - online_lse).abs() <= 1e-5 * (1.0 + lse.abs()));
        for (o, wanted) in o.iter().zip(&p.dot(&v)) {
            prop_assert!((o - wanted).abs() <= 1e-4);
        }
    }

    #[test]
    fn merge_is_commutative_and_associative(a in keys(), b in keys(), c in keys()) {
        let all = state(&[a.clone(), b.clone(), c.clone()].concat());
        let (a, b, c) = (state(&a), state(&b), state(&c));
        assert_same(&merged(&a, &b), &merged(&b, &a))?;
        assert_same(&merged(&merged(&a, &b), &c), &merged(&a, &merged(&b, &c)))?;
        assert_same(&merged(&merged(&a, &b), &c), &all)?;
    }

    #[test]
    fn empty_is_the_identity(keys in keys()) {
        let state = state(&keys);
        assert_same(&merged(&state, &State::empty(2)), &state)?;
        assert_same(&merged(&State::empty(2), &state), &state)?;
    }

    #[test]
    fn a_constant_on_all_scores_moves_lse_alone(keys in keys(), constant in -100f32..100.0) {
        let moved: Vec<_> = keys.iter().map(|&(s, v)| (s + constant, v)).collect();
        let ((o, lse), (o_moved, lse_moved)) = (state(&keys).finish(NO_SINK), state(&moved).finish(NO_SINK));
        // Scores of up to 1e4 are rounded by up to 2^-11 when the constant is added.
        prop_assert!(lse + constant == lse_moved || (lse + constant - lse_moved).abs() < 2e-3);
        prop_assert!(o.iter().zip(&o_moved).all(|(o, moved)| (o - moved).abs() < 5e-3));
    }

    #[test]
    fn a_finished_partial_merges_like_the_state_it_came_from(a in keys(), b in keys()) {
        let (a, b) = (state(&a), state(&b));
        let (o, lse) = b.clone().finish(NO_SINK);
        assert_same(&merged(&a, &State::from_partial(o.view(), lse)), &merged(&a, &b))?;
    }

    #[test]
    fn the_meter_counts_what_the_stream_moves(spec in problems()) {
        let owned = spec.build();
        let problem = owned.problem();
        let meter = TrafficMeter::default();
        OnlineSoftmax::with_meter(&meter).forward(&problem)?;
        prop_assert_eq!(meter.traffic(), online_softmax::traffic(&problem));
        prop_assert_eq!(meter.peak_extra(), 0);
    }
}

#[test]
fn six_scores_by_hand() {
    // e^(s - 3) of the scores ln 1, ln 2, ln 4, ln 8, ln 1, ln 4 against their maximum ln 8: 1/8, 1/4, 1/2, 1, 1/8, 1/2.
    let mut state = State::empty(1);
    for (s, v) in [(1f32, 1.0), (2.0, 2.0), (4.0, 3.0), (8.0, 4.0), (1.0, 5.0), (4.0, 6.0)] {
        state.push(s.ln(), array![v].view());
    }
    assert!((state.m - 8f32.ln()).abs() < 1e-6);
    assert!((state.l - 2.5).abs() < 1e-6);
    let (o, lse) = state.finish(NO_SINK);
    assert!((o[0] - 3.9).abs() < 1e-6);
    assert!((lse - 20f32.ln()).abs() < 1e-6);
}

#[test]
fn a_partial_with_infinite_lse_is_empty_whatever_it_holds() {
    let (o, lse) = (array![3.0f32], 0.5);
    for (garbage, infinite) in [(f32::NAN, f32::NEG_INFINITY), (5.0, f32::INFINITY), (f32::INFINITY, f32::INFINITY)] {
        let empty = State::from_partial(array![garbage].view(), infinite);
        let side = State::from_partial(o.view(), lse);
        for both in [merged(&empty, &side), merged(&side, &empty)] {
            assert_eq!(both.finish(NO_SINK), (o.clone(), lse));
        }
        assert_eq!(merged(&empty, &empty).finish(NO_SINK), (array![0.0], f32::NEG_INFINITY));
    }
}

#[test]
fn a_partial_that_is_nan_stays_nan() {
    let nan = State::from_partial(array![f32::NAN].view(), f32::NAN);
    let side = State::from_partial(array![1.0f32].view(), 2.0);
    for both in [merged(&nan, &side), merged(&side, &nan), merged(&State::empty(1), &nan)] {
        let (o, lse) = both.finish(NO_SINK);
        assert!(o[0].is_nan() && lse.is_nan());
    }
}

#[test]
fn the_formula_is_within_one_percent_at_4096() {
    for mask in [attention::Mask::Full, attention::Mask::Causal, attention::Mask::window(512, 0)] {
        let owned = Spec { mask, ..Spec::plain(4096, 4096, 64) }.build();
        let counted = online_softmax::traffic(&owned.problem()).total() as f64;
        assert!((online_softmax::formula(&owned.problem()) / counted - 1.0).abs() < 0.01, "{mask:?}");
    }
}
