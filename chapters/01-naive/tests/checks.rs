//! Chapter 1: three passes give softmax(Q K^T) V, and what they cost.

use attention::{Attention, Options, Problem, TrafficMeter, oracle::Oracle};
use naive::{Naive, softmax};
use ndarray::{Array1, Array4};
use proptest::prelude::*;
use testkit::problems::{Spec, problems};

proptest! {
    #[test]
    fn naive_agrees_with_the_oracle(spec in problems()) {
        testkit::check(&Naive::default(), &spec)?;
    }

    #[test]
    fn naive_agrees_with_the_oracle_as_a_rung(spec in problems()) {
        testkit::check_against(&Naive::default(), &Oracle, &spec)?;
    }

    #[test]
    fn weights_sum_to_one_and_a_constant_moves_lse_alone(
        scores in prop::collection::vec(-50f32..50.0, 1..40),
        constant in -1e4f32..1e4,
    ) {
        let s = Array1::from(scores);
        let (mut p, mut p_moved) = (s.clone(), s.clone());
        let lse = softmax(s.view(), f32::NEG_INFINITY, p.view_mut());
        let moved = s.mapv(|s| s + constant);
        let lse_moved = softmax(moved.view(), f32::NEG_INFINITY, p_moved.view_mut());
        prop_assert!((p.sum() - 1.0).abs() < 1e-5);
        // The scores themselves are rounded when the constant is added: by up to 2^-11 at 1e4.
        prop_assert!((lse_moved - lse - constant).abs() < 2e-3);
        prop_assert!(p.iter().zip(&p_moved).all(|(p, moved)| (p - moved).abs() < 1e-3));
    }

    #[test]
    fn the_meter_counts_what_the_three_passes_move(spec in problems()) {
        let owned = spec.build();
        let problem = owned.problem();
        let meter = TrafficMeter::default();
        Naive::with_meter(&meter).forward(&problem)?;
        prop_assert_eq!(meter.traffic(), naive::traffic(&problem));
    }
}

#[test]
fn the_formula_is_within_one_percent_at_4096() {
    let spec = Spec { kv_heads: 3, ..Spec::plain(4096, 4096, 64) };
    let owned = spec.build();
    let counted = naive::traffic(&owned.problem()).total() as f64;
    assert!((naive::formula(&owned.problem()) / counted - 1.0).abs() < 0.01);
}

#[test]
fn extra_memory_is_quadratic() {
    let peak = |n: usize| {
        let q = Array4::<f32>::zeros((1, 1, n, 4));
        let problem = Problem::dense(q.view(), q.view(), q.view(), Options::default()).unwrap();
        let meter = TrafficMeter::default();
        Naive::with_meter(&meter).forward(&problem).unwrap();
        meter.peak_extra()
    };
    assert_eq!(peak(100), 2 * 4 * 100 * 100);
    assert_eq!(peak(200), 4 * peak(100));
}
