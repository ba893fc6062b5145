//! The checks of chapter 1, in the order of its steps. Each step's checks use that step alone.

use crate::laws::*;
use crate::subject::{self, Naive, output, scores, softmax, weights};
use attention::{Attention, Options, Problem, TrafficMeter, oracle::Oracle};
use ndarray::Array4;
use proptest::prelude::*;
use testkit::problems::{Spec, problems};
use testkit::{ByHand, by_hand, by_hand_with_nan, check_by_hand, must, scores_with_nan};

const NO_SINK: f32 = f32::NEG_INFINITY;

#[test]
fn step_1_softmax_by_hand() {
    // e^0 : e^(ln 3) is 1 : 3.
    must(softmax_is_the_definition(softmax, &[0.0, 3f32.ln()], NO_SINK));
    must(softmax_is_the_definition(softmax, &[0.0, 0.0, 0.0, 0.0], NO_SINK));
}

#[test]
fn step_1_softmax_of_large_scores_does_not_overflow() {
    must(softmax_is_the_definition(softmax, &[1000.0, 1000.0, f32::NEG_INFINITY], NO_SINK));
}

#[test]
fn step_1_softmax_of_a_row_that_sees_nothing_is_zero() {
    must(softmax_is_the_definition(softmax, &[f32::NEG_INFINITY, f32::NEG_INFINITY], NO_SINK));
    must(softmax_is_the_definition(softmax, &[], NO_SINK));
}

#[test]
fn step_1_softmax_of_a_nan_score_is_nan() {
    must(a_nan_score_gives_nan(softmax, &[f32::NAN, f32::NAN]));
    must(a_nan_score_gives_nan(softmax, &[f32::NAN, f32::NEG_INFINITY]));
}

#[test]
fn step_1_softmax_with_a_sink_leaves_lse_alone() {
    // The sink takes as much as the one key, and lse stays that of the key.
    must(softmax_is_the_definition(softmax, &[2.0], 2.0));
}

#[test]
fn step_2_weights_by_hand() {
    must(weights_are_each_rows_softmax(weights, &[vec![0.0, 3f32.ln()], vec![5.0, 5.0]], NO_SINK));
}

#[test]
fn step_3_scores_by_hand() {
    let case = ByHand { q: vec![1.0, 2.0], keys: vec![(3.0, 0.0), (-1.0, 0.0)], causal: true, ..ByHand::default() };
    must(scores_are_products(scores, &case));
}

#[test]
fn step_3_scores_with_more_than_a_product_by_hand() {
    // A scale and a bias, then a soft cap, then ALiBi.
    ByHand::scores_with_more().iter().for_each(|case| must(scores_are_products(scores, case)));
}

#[test]
fn step_4_output_by_hand() {
    // Weights 1, 2 and 3 on values 2, 3 and 6: 2 + 6 + 18 = 26.
    let keys = vec![(0.0, 2.0), (0.0, 3.0), (0.0, 6.0)];
    must(output_is_p_times_v(output, &ByHand { q: vec![0.0], keys, ..ByHand::default() }));
}

#[test]
fn step_4_output_ignores_a_hidden_value() {
    // Row 0 does not see key 1, whose value is NaN; row 1 does.
    must(output_is_p_times_v(output, &ByHand::hidden_nan()));
}

proptest! {
    #![proptest_config(testkit::config())]

    #[test]
    fn step_1_softmax_of_any_row(s in row(), sink in sink()) {
        softmax_is_the_definition(softmax, &s, sink)?;
    }

    #[test]
    fn step_1_softmax_of_any_row_with_nan_is_nan(s in scores_with_nan()) {
        a_nan_score_gives_nan(softmax, &s)?;
    }

    #[test]
    fn step_1_softmax_moves_lse_alone_by_a_constant(s in row(), constant in (-100i16..=100).prop_map(f32::from)) {
        a_constant_moves_lse_alone(softmax, &s, constant)?;
    }

    #[test]
    fn step_2_weights_of_each_row(s in matrix(), sink in sink()) {
        weights_are_each_rows_softmax(weights, &s, sink)?;
    }

    #[test]
    fn step_3_scores_of_any_head(case in by_hand()) {
        scores_are_products(scores, &case)?;
    }

    #[test]
    fn step_4_output_of_any_head(case in by_hand()) {
        output_is_p_times_v(output, &case)?;
    }

    #[test]
    fn step_5_rung_agrees_on_small_heads(case in by_hand()) {
        check_by_hand(&Naive::default(), &case)?;
    }

    #[test]
    fn step_5_rung_is_nan_where_nan_is_seen(case in by_hand_with_nan()) {
        check_by_hand(&Naive::default(), &case)?;
    }

    #[test]
    fn step_5_rung_agrees_with_the_oracle(spec in problems()) {
        testkit::check(&Naive::default(), &spec)?;
    }

    #[test]
    fn step_5_rung_agrees_with_the_oracle_as_a_rung(spec in problems()) {
        testkit::check_against(&Naive::default(), &Oracle, &spec)?;
    }

    #[test]
    fn step_5_rung_moves_what_three_passes_move(spec in problems()) {
        the_meter_counts_three_passes(Naive::with_meter, &TrafficMeter::default(), &spec)?;
        let owned = spec.build();
        let (found, wanted) = (subject::traffic(&owned.problem()), three_passes(&owned.problem()));
        prop_assert!(found == wanted, "traffic, which was given, predicts {found:?}, the three passes move {wanted:?}");
    }
}

#[test]
fn step_5_rung_ignores_a_hidden_value() {
    must(check_by_hand(&Naive::default(), &ByHand::hidden_nan()));
}

#[test]
fn step_5_rung_of_a_nan_query_is_nan() {
    let case =
        ByHand { q: vec![f32::NAN, 1.0], keys: vec![(1.0, 4.0), (2.0, 6.0)], causal: false, ..ByHand::default() };
    must(check_by_hand(&Naive::default(), &case));
}

#[test]
fn step_5_rung_formula_is_within_one_percent_at_4096() {
    let spec = Spec { kv_heads: 3, ..Spec::plain(4096, 4096, 64) };
    let owned = spec.build();
    let counted = three_passes(&owned.problem()).total() as f64;
    assert!((subject::formula(&owned.problem()) / counted - 1.0).abs() < 0.01);
}

#[test]
fn step_5_rung_holds_two_matrices() {
    let peak = |n: usize| {
        let q = Array4::<f32>::zeros((1, 1, n, 4));
        let problem = Problem::dense(q.view(), q.view(), q.view(), Options::default()).unwrap();
        let meter = TrafficMeter::default();
        Naive::with_meter(&meter).forward(&problem).unwrap();
        meter.peak_extra()
    };
    for n in [100, 200] {
        let (found, wanted) = (peak(n), 2 * 4 * (n * n) as u64);
        assert!(found == wanted, "S and P of {n} rows and keys take {wanted} bytes, and {found} are allocated");
    }
}
