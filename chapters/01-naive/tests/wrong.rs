//! Wrong variants of chapter 1: slips that are easy to make. The checks must reject each of them.

mod laws;

use attention::{Head, Mask, TrafficMeter, weight};
use laws::*;
use naive::Naive;
use ndarray::{Array1, Array2, ArrayView1, ArrayView2, ArrayViewMut1, ArrayViewMut2, Axis};
use testkit::problems::problems;
use testkit::{
    ByHand, Variant, assert_caught, assert_control_passes, assert_fault_caught, by_hand, by_hand_with_nan,
    check_by_hand, must, scores_with_nan,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The control: it must pass.
    None,
    /// `e^s / sum e^s` without subtracting the maximum.
    NoMaximum,
    /// The causal mask aligned to the first key instead of the last.
    TopLeftCausal,
    /// A window of W keys passed on as `left = W`.
    OneKeyTooMany,
    /// The soft cap accepted and dropped.
    CapDropped,
    /// The soft cap applied after the mask: -inf becomes -cap, and hidden keys leak.
    CapAfterMask,
    /// -1e4 in place of -inf.
    FiniteMask,
    /// The sink counted in lse.
    SinkInLse,
    /// lse in base 2.
    BaseTwo,
    /// A row taken for empty by its maximum, which drops NaN.
    EmptyByMaximum,
    /// P V as a plain product, in which a hidden NaN counts 0 * NaN.
    HiddenValueRead,
}

fn three_passes_with(head: &Head, fault: Fault) -> (Array2<f32>, Array1<f32>) {
    let mut head = head.clone();
    let cap = head.softcap;
    match (fault, head.mask) {
        (Fault::CapDropped | Fault::CapAfterMask, _) => head.softcap = 0.0,
        (Fault::OneKeyTooMany, Mask::Window { left: Some(left), right }) => {
            head.mask = Mask::Window { left: Some(left + 1), right };
        }
        (Fault::TopLeftCausal, Mask::Causal) => head.mask = Mask::Full,
        _ => {}
    }
    let (q, k, v) = (head.q.load(0..head.q_len), head.k.load(0..head.k_len), head.v.load(0..head.k_len));
    let mut s = Array2::zeros((head.q_len, head.k_len));
    head.scores((0..head.q_len, q.view()), (0..head.k_len, k.view()), s.view_mut());
    for ((i, j), s) in s.indexed_iter_mut() {
        match fault {
            Fault::TopLeftCausal if head.mask == Mask::Full && j > i => *s = f32::NEG_INFINITY,
            Fault::CapAfterMask if cap > 0.0 => *s = cap * (*s / cap).tanh(),
            Fault::FiniteMask => *s = s.max(-1e4),
            _ => {}
        }
    }
    let mut lse = Array1::zeros(head.q_len);
    for (i, mut row) in s.rows_mut().into_iter().enumerate() {
        let m = match fault {
            Fault::NoMaximum => 0.0,
            _ => row.iter().copied().fold(f32::NEG_INFINITY, f32::max),
        };
        row.mapv_inplace(|s| weight(s, m));
        let l = if fault == Fault::EmptyByMaximum && m == f32::NEG_INFINITY { 0.0 } else { row.sum() };
        let with_sink = l + (head.sink - m).exp();
        row.mapv_inplace(|p| if l == 0.0 { 0.0 } else { p / with_sink });
        lse[i] = match fault {
            Fault::SinkInLse => m + with_sink.ln(),
            Fault::BaseTwo => (m + l.ln()) / 2f32.ln(),
            _ => m + l.ln(),
        };
    }
    if fault == Fault::HiddenValueRead {
        return (s.dot(&v), lse);
    }
    let mut o = Array2::zeros((head.q_len, head.d_v()));
    head.accumulate((0..head.q_len, s.view()), (0..head.k_len, v.view()), o.view_mut());
    (o, lse)
}

/// A softmax whose parts can be replaced: the reference m, the denominator from l, and lse from m and l.
fn softmax_with(
    reference: fn(f32) -> f32,
    denominator: fn(&[f32], f32, f32) -> f32,
    lse: fn(f32, f32) -> f32,
) -> impl Fn(ArrayView1<f32>, f32, ArrayViewMut1<f32>) -> f32 {
    move |s, sink, mut p| {
        let m = reference(s.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let l: f32 = s.iter().map(|&s| weight(s, m)).sum();
        let whole = denominator(s.to_slice().unwrap(), l, l + (sink - m).exp());
        p.zip_mut_with(&s, |p, &s| *p = if l == 0.0 { 0.0 } else { weight(s, m) / whole });
        lse(m, l)
    }
}

fn softmax_caught(name: &str, softmax: impl Fn(ArrayView1<f32>, f32, ArrayViewMut1<f32>) -> f32) {
    assert_caught(name, 200, (row(), sink()), |(s, sink)| softmax_is_the_definition(&softmax, &s, sink));
}

#[test]
fn wrong_softmaxes() {
    softmax_caught("no maximum", softmax_with(|_| 0.0, |_, _, whole| whole, |m, l| m + l.ln()));
    softmax_caught("divided by the keys", softmax_with(|m| m, |s, _, _| s.len() as f32, |m, l| m + l.ln()));
    softmax_caught("the sink left out", softmax_with(|m| m, |_, l, _| l, |m, l| m + l.ln()));
    softmax_caught("lse without the maximum", softmax_with(|m| m, |_, _, whole| whole, |_, l| l.ln()));
    softmax_caught("NaN for a row that sees nothing", |s, sink, mut p| {
        let m = s.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let l: f32 = s.iter().map(|s| (s - m).exp()).sum();
        p.zip_mut_with(&s, |p, s| *p = (s - m).exp() / (l + (sink - m).exp()));
        m + l.ln()
    });
    let empty_by_maximum = |s: ArrayView1<f32>, sink: f32, mut p: ArrayViewMut1<f32>| {
        if s.iter().copied().fold(f32::NEG_INFINITY, f32::max) == f32::NEG_INFINITY {
            p.fill(0.0);
            return f32::NEG_INFINITY;
        }
        naive::softmax(s, sink, p)
    };
    assert_caught("empty by the maximum", 200, scores_with_nan(), |s| a_nan_score_gives_nan(empty_by_maximum, &s));
    let nan_dropped = |s: ArrayView1<f32>, sink: f32, p: ArrayViewMut1<f32>| {
        naive::softmax(s.mapv(|s| s.max(f32::NEG_INFINITY)).view(), sink, p)
    };
    assert_caught("NaN taken for hidden", 200, scores_with_nan(), |s| a_nan_score_gives_nan(nan_dropped, &s));
    let forgets_the_constant = softmax_with(|m| m, |_, _, whole| whole, |_, l| l.ln());
    assert_caught("lse without the maximum", 200, row(), |s| {
        a_constant_moves_lse_alone(&forgets_the_constant, &s, 3.0)
    });
}

#[test]
fn wrong_weights() {
    type Weights = fn(ArrayView2<f32>, f32, ArrayViewMut2<f32>) -> Array1<f32>;
    let columns: Weights = |s, sink, mut p| {
        s.columns().into_iter().zip(p.columns_mut()).map(|(s, p)| naive::softmax(s, sink, p)).collect::<Vec<_>>().into()
    };
    let one_sum: Weights = |s, sink, mut p| {
        let lse = naive::weights(s, sink, p.view_mut());
        p /= s.nrows() as f32;
        lse
    };
    let one_maximum: Weights = |s, _, mut p| {
        let m = s.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        p.assign(&s.mapv(|s| weight(s, m)));
        let l = p.sum_axis(Axis(1));
        p.rows_mut().into_iter().zip(&l).for_each(|(mut p, l)| p /= *l);
        l.mapv(|l| m + l.ln())
    };
    for (name, weights) in [("columns", columns), ("one sum", one_sum), ("one maximum", one_maximum)] {
        assert_caught(name, 200, (matrix(), sink()), |(s, sink)| weights_are_each_rows_softmax(weights, &s, sink));
    }
}

#[test]
fn wrong_scores() {
    type Scores = fn(&Head, ArrayViewMut2<f32>);
    let unmasked: Scores = |head, s| naive::scores(&Head { mask: Mask::Full, ..head.clone() }, s);
    let added: Scores = |head, mut s| {
        let before = s.to_owned();
        naive::scores(head, s.view_mut());
        s += &before;
    };
    let first_row: Scores = |head, mut s| {
        naive::scores(head, s.view_mut());
        let first = s.row(0).to_owned();
        s.rows_mut().into_iter().for_each(|mut row| row.assign(&first));
    };
    let top_left: Scores = |head, mut s| {
        naive::scores(&Head { mask: Mask::Full, ..head.clone() }, s.view_mut());
        for ((i, j), s) in s.indexed_iter_mut() {
            *s = if head.mask == Mask::Causal && j > i { f32::NEG_INFINITY } else { *s };
        }
    };
    let scale_twice: Scores = |head, s| naive::scores(&Head { scale: head.scale * head.scale, ..head.clone() }, s);
    let no_cap: Scores = |head, s| naive::scores(&Head { softcap: 0.0, ..head.clone() }, s);
    let no_alibi: Scores = |head, s| naive::scores(&Head { slope: None, ..head.clone() }, s);
    let no_bias: Scores = |head, s| naive::scores(&Head { bias: None, ..head.clone() }, s);
    for (name, scores) in
        [("scale twice", scale_twice), ("no cap", no_cap), ("no ALiBi", no_alibi), ("no bias", no_bias)]
    {
        let by_hand = || ByHand::scores_with_more().iter().try_for_each(|case| scores_are_products(scores, case));
        assert!(by_hand().is_err(), "{name} passes by hand");
        assert_caught(name, 200, testkit::by_hand(), |case| scores_are_products(scores, &case));
    }
    for (name, scores) in [("unmasked", unmasked), ("added", added), ("first row", first_row), ("top left", top_left)] {
        assert_caught(name, 200, by_hand(), |case| scores_are_products(scores, &case));
    }
}

#[test]
fn wrong_outputs() {
    type Outputs = fn(&Head, ArrayView2<f32>) -> Array2<f32>;
    let plain_product: Outputs = |head, p| p.dot(&head.v.load(0..head.k_len));
    let averaged: Outputs = |head, p| naive::output(head, p) / head.k_len as f32;
    let keys_as_values: Outputs = |head, p| naive::output(&Head { v: head.k.clone(), ..head.clone() }, p);
    let channel_0: Outputs = |head, p| {
        let mut o = naive::output(head, p);
        o.column_mut(1).fill(0.0);
        o
    };
    let last_key_missing: Outputs = |head, p| {
        let mut p = p.to_owned();
        p.column_mut(head.k_len - 1).fill(0.0);
        naive::output(head, p.view())
    };
    for (name, output) in [
        ("0 * NaN", plain_product),
        ("averaged", averaged),
        ("k in place of v", keys_as_values),
        ("channel 0 only", channel_0),
        ("the last key missing", last_key_missing),
    ] {
        assert_caught(name, 200, by_hand(), |case| output_is_p_times_v(output, &case));
    }
}

#[test]
fn wrong_rungs_by_their_traffic_and_by_hand() {
    assert_caught("unmetered", 200, problems(), |spec| {
        let meter = TrafficMeter::default();
        the_meter_counts_three_passes(|_| Naive::default(), &meter, &spec)
    });
    let variant = Variant::new("top-left causal", |head: &Head| three_passes_with(head, Fault::TopLeftCausal));
    assert_caught("top-left causal", 200, by_hand(), |case| check_by_hand(&variant, &case));
    let control = Variant::new("control", |head: &Head| three_passes_with(head, Fault::None));
    for fault in [Fault::EmptyByMaximum, Fault::HiddenValueRead] {
        let variant = Variant::new("variant", move |head: &Head| three_passes_with(head, fault));
        assert_caught(&format!("{fault:?}"), 200, by_hand_with_nan(), |case| {
            must(check_by_hand(&control, &case));
            check_by_hand(&variant, &case)
        });
    }
}

#[test]
fn the_control_passes() {
    assert_control_passes(three_passes_with, Fault::None);
}

#[test]
fn no_maximum_subtracted() {
    assert_fault_caught(three_passes_with, Fault::NoMaximum);
}

#[test]
fn causal_mask_at_the_top_left() {
    assert_fault_caught(three_passes_with, Fault::TopLeftCausal);
}

#[test]
fn window_one_key_too_wide() {
    assert_fault_caught(three_passes_with, Fault::OneKeyTooMany);
}

#[test]
fn soft_cap_dropped() {
    assert_fault_caught(three_passes_with, Fault::CapDropped);
}

#[test]
fn soft_cap_after_the_mask() {
    assert_fault_caught(three_passes_with, Fault::CapAfterMask);
}

#[test]
fn finite_mask_value() {
    assert_fault_caught(three_passes_with, Fault::FiniteMask);
}

#[test]
fn sink_counted_in_lse() {
    assert_fault_caught(three_passes_with, Fault::SinkInLse);
}

#[test]
fn lse_in_base_two() {
    assert_fault_caught(three_passes_with, Fault::BaseTwo);
}
