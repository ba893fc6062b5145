//! The checks of chapter 2, in the order of its steps. Each step's checks use that step alone.

use crate::laws::*;
use crate::subject::{self, OnlineSoftmax, State, stream};
use attention::{Mask, TrafficMeter};
use naive::{Naive, softmax};
use ndarray::{Array1, Array2, arr1};
use proptest::prelude::*;
use testkit::problems::{Spec, problems};
use testkit::{
    ByHand, all_close, all_shown, by_hand, by_hand_with_nan, channels, check_by_hand, close, must, scores_with_nan,
};

const NO_SINK: f32 = f32::NEG_INFINITY;

/// ln 2, the score difference that halves a weight.
const LN_2: f32 = std::f32::consts::LN_2;

fn whole(range: std::ops::RangeInclusive<i16>) -> impl Strategy<Value = f32> {
    range.prop_map(f32::from)
}

#[test]
fn step_1_rescale_by_hand() {
    // Against a maximum ln 2 higher, every weight is half of what it was.
    let mut state = State { m: 0.0, l: 3.0, o: arr1(&[8.0, -2.0]) };
    let before = shown(&state);
    state.rescale(LN_2);
    let right = close(state.m, LN_2.into()) && close(state.l, 1.5) && all_close(&state.o, &[4.0, -1.0]);
    assert!(right, "{before} against ln 2 gives {}, wanted (m {LN_2}, l 1.5, o [4.0, -1.0])", shown(&state));
}

#[test]
fn step_1_rescale_of_an_empty_state_keeps_it_empty() {
    must(rescale_changes_the_reference_alone(State::rescale, &[], 2.0));
}

#[test]
fn step_2_push_by_hand() {
    // Two equal scores weigh 1 and 1; a third, ln 2 higher, makes that 1/2 and 1/2 beside its own 1.
    let keys = [(1.0, 3.0), (1.0, 5.0)];
    must(push_adds_one_key(|state, s, v| state.push(s, v), &keys, (1.0 + LN_2, 8.0)));
}

#[test]
fn step_2_push_of_a_hidden_key_changes_nothing() {
    for keys in [vec![], vec![(1.0, 3.0)]] {
        must(push_adds_one_key(|state, s, v| state.push(s, v), &keys, (f32::NEG_INFINITY, 0.0)));
    }
}

#[test]
fn step_2_push_of_a_nan_score_is_nan() {
    must(push_keeps_nan(|state, s, v| state.push(s, v), &[], 0.0));
}

#[test]
fn step_3_finish_by_hand() {
    // Weights 1/2, 1/2 and 1 on values 3, 5 and 8: (4 + 8) / 2 = 6, and lse = 1 + ln 4. A value's second channel is 1 less
    // its first, so that of o is 1 - 6.
    must(finish_divides_once(State::finish, &[(1.0, 3.0), (1.0, 5.0), (1.0 + LN_2, 8.0)], NO_SINK));
}

#[test]
fn step_3_finish_of_an_empty_state_is_zero() {
    must(finish_divides_once(State::finish, &[], NO_SINK));
    must(finish_divides_once(State::finish, &[], 1.0));
}

#[test]
fn step_3_finish_of_a_nan_score_is_nan() {
    must(finish_keeps_nan(State::finish));
}

#[test]
fn step_4_merge_by_hand() {
    // One key of weight 1, and one ln 3 higher: against the higher maximum their weights are 1/3 and 1.
    must(merge_is_the_union(State::merge, [&[(0.0, 3.0)], &[(3f32.ln(), 6.0)], &[]]));
}

#[test]
fn step_4_merge_of_three_states_by_hand() {
    // The largest score lies in the second state: the first shrinks by e^-2, the third by e^-1.
    must(merge_is_the_union(State::merge, [&[(1.0, 3.0), (0.0, -2.0)], &[(3.0, 6.0)], &[(2.0, 1.0)]]));
}

#[test]
fn step_5_from_partial_by_hand() {
    must(a_partial_keeps_o_and_lse(State::from_partial, [3.0, -2.0], 0.5));
}

#[test]
fn step_5_from_partial_of_a_large_lse_by_hand() {
    // e^1000 is infinite in f32.
    must(a_partial_keeps_o_and_lse(State::from_partial, [3.0, -2.0], 1000.0));
}

#[test]
fn step_5_from_partial_of_no_key_by_hand() {
    must(a_partial_keeps_o_and_lse(State::from_partial, [f32::NAN; 2], f32::NEG_INFINITY));
    must(a_partial_keeps_o_and_lse(State::from_partial, [3.0, -2.0], f32::INFINITY));
}

#[test]
fn step_5_from_partial_of_a_nan_row_is_nan() {
    must(a_partial_keeps_o_and_lse(State::from_partial, [f32::NAN; 2], f32::NAN));
}

#[test]
fn step_6_stream_by_hand() {
    let case = ByHand { q: vec![0.0, 1.0], keys: vec![(0.0, 2.0), (1.0, 4.0)], causal: true, ..ByHand::default() };
    must(stream_sees_what_the_row_sees(stream, &case));
}

#[test]
fn step_6_stream_of_scores_with_more_than_a_product_by_hand() {
    // A scale and a bias, then a soft cap, then ALiBi.
    ByHand::scores_with_more().iter().for_each(|case| must(stream_sees_what_the_row_sees(stream, case)));
}

proptest! {
    #![proptest_config(testkit::config())]

    #[test]
    fn step_1_rescale_of_any_state(keys in keys(), rise in whole(0..=4)) {
        rescale_changes_the_reference_alone(State::rescale, &keys, rise)?;
    }

    #[test]
    fn step_2_push_of_any_key(keys in keys(), s in whole(-4..=50), v in whole(-3..=3)) {
        push_adds_one_key(|state, s, v| state.push(s, v), &keys, (s, v))?;
    }

    #[test]
    fn step_2_push_keeps_nan(keys in keys(), s in whole(-4..=50)) {
        push_keeps_nan(|state, s, v| state.push(s, v), &keys, s)?;
    }

    #[test]
    fn step_3_finish_of_any_state(keys in keys(), sink in prop::option::of(whole(-3..=3))) {
        finish_divides_once(State::finish, &keys, sink.unwrap_or(NO_SINK))?;
    }

    #[test]
    fn step_4_merge_in_any_order_and_grouping(a in keys(), b in keys(), c in keys()) {
        merge_is_the_union(State::merge, [&a, &b, &c])?;
    }

    #[test]
    fn step_4_merge_with_an_empty_state_changes_nothing(keys in keys()) {
        empty_is_the_identity(State::merge, &keys)?;
    }

    #[test]
    fn step_4_merge_keeps_nan(keys in keys()) {
        merge_keeps_nan(State::merge, &keys)?;
    }

    #[test]
    fn step_5_from_partial_is_the_row_it_came_from(keys in keys()) {
        a_partial_is_its_row(State::from_partial, &keys)?;
    }

    #[test]
    fn step_6_stream_of_any_head(case in by_hand()) {
        stream_sees_what_the_row_sees(stream, &case)?;
    }

    #[test]
    fn step_7_rung_pushes_to_the_softmax_of_three_passes(keys in keys()) {
        let s: Array1<f32> = keys.iter().map(|(s, _)| *s).collect();
        let v = Array2::from_shape_fn((keys.len(), 2), |(j, channel)| channels(keys[j].1)[channel]);
        let mut p = Array1::zeros(s.len());
        let wanted_lse = softmax(s.view(), NO_SINK, p.view_mut());
        let wanted = p.dot(&v).mapv(f64::from).to_vec();
        let mut state = State::empty(2);
        keys.iter().for_each(|&(s, v)| state.push(s, value(v).view()));
        let (o, lse) = state.finish(NO_SINK);
        prop_assert!(close(lse, wanted_lse.into()), "lse is {lse}, and of three passes {wanted_lse}");
        prop_assert!(all_close(&o, &wanted), "o is {:?}, and of three passes {:?}", all_shown(&o), all_shown(&wanted));
    }

    #[test]
    fn step_7_rung_moves_lse_alone_by_a_constant(keys in keys(), constant in whole(-100..=100)) {
        let run = |constant: f32| {
            let mut state = State::empty(2);
            keys.iter().for_each(|&(s, v)| state.push(s + constant, value(v).view()));
            state.finish(NO_SINK)
        };
        let ((o, lse), (o_moved, lse_moved)) = (run(0.0), run(constant));
        let right = all_close(&o_moved, &o.mapv(f64::from).to_vec());
        prop_assert!(right, "o is {o}, and with {constant} more on every score {o_moved}");
        let wanted = f64::from(lse) + f64::from(constant);
        prop_assert!(close(lse_moved, wanted), "lse is {lse_moved} with {constant} more on every score, wanted {wanted}");
    }

    #[test]
    fn step_7_rung_pushes_nan_and_finishes_nan(scores in scores_with_nan()) {
        a_row_with_nan_is_nan(|state, s, v| state.push(s, v), State::finish, &scores)?;
    }

    #[test]
    fn step_7_rung_is_nan_where_nan_is_seen(case in by_hand_with_nan()) {
        check_by_hand(&OnlineSoftmax::default(), &case)?;
    }

    #[test]
    fn step_7_rung_agrees_on_small_heads(case in by_hand()) {
        check_by_hand(&OnlineSoftmax::default(), &case)?;
    }

    #[test]
    fn step_7_rung_agrees_with_the_oracle(spec in problems()) {
        testkit::check(&OnlineSoftmax::default(), &spec)?;
    }

    #[test]
    fn step_7_rung_agrees_with_naive(spec in problems()) {
        testkit::check_against(&OnlineSoftmax::default(), &Naive::default(), &spec)?;
    }

    #[test]
    fn step_7_rung_moves_what_the_stream_moves(spec in problems()) {
        the_meter_counts_the_stream(OnlineSoftmax::with_meter, &TrafficMeter::default(), &spec)?;
        let owned = spec.build();
        let (found, wanted) = (subject::traffic(&owned.problem()), one_pass(&owned.problem()));
        prop_assert!(found == wanted, "traffic, which was given, predicts {found:?}, the stream moves {wanted:?}");
    }
}

#[test]
fn step_7_rung_on_six_scores_by_hand() {
    // e^(s - 3) of the scores ln 1, ln 2, ln 4, ln 8, ln 1, ln 4 against their maximum ln 8: 1/8, 1/4, 1/2, 1, 1/8, 1/2.
    let mut state = State::empty(2);
    for (s, v) in [(1f32, 1.0), (2.0, 2.0), (4.0, 3.0), (8.0, 4.0), (1.0, 5.0), (4.0, 6.0)] {
        state.push(s.ln(), value(v).view());
    }
    assert!(close(state.m, 8f64.ln()), "m is {}, wanted ln 8", state.m);
    assert!(close(state.l, 2.5), "l is {}, wanted 2.5", state.l);
    let (o, lse) = state.finish(NO_SINK);
    assert!(all_close(&o, &[3.9, -2.9]), "o is {o}, wanted [3.9, -2.9]");
    assert!(close(lse, 20f64.ln()), "lse is {lse}, wanted ln 20");
}

#[test]
fn step_7_rung_ignores_a_hidden_value() {
    must(check_by_hand(&OnlineSoftmax::default(), &ByHand::hidden_nan()));
}

#[test]
fn step_7_rung_of_a_nan_query_is_nan() {
    let case =
        ByHand { q: vec![f32::NAN, 1.0], keys: vec![(1.0, 4.0), (2.0, 6.0)], causal: false, ..ByHand::default() };
    must(check_by_hand(&OnlineSoftmax::default(), &case));
}

#[test]
fn step_7_rung_formula_is_within_one_percent_at_4096() {
    for mask in [Mask::Full, Mask::Causal, Mask::window(512, 0)] {
        let owned = Spec { mask, ..Spec::plain(4096, 4096, 64) }.build();
        let counted = one_pass(&owned.problem()).total() as f64;
        assert!((subject::formula(&owned.problem()) / counted - 1.0).abs() < 0.01, "{mask:?}");
    }
}
