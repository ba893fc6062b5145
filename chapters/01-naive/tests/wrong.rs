//! Wrong variants of chapter 1. Each is what someone has shipped; the check must reject it.

use attention::{Head, Mask, weight};
use ndarray::{Array1, Array2};
use testkit::{Variant, assert_caught, check, problems::problems};

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
}

fn three_passes(head: &Head, fault: Fault) -> (Array2<f32>, Array1<f32>) {
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
        let l = row.sum();
        let with_sink = l + (head.sink - m).exp();
        row.mapv_inplace(|p| if l == 0.0 { 0.0 } else { p / with_sink });
        lse[i] = match fault {
            Fault::SinkInLse => m + with_sink.ln(),
            Fault::BaseTwo => (m + l.ln()) / 2f32.ln(),
            _ => m + l.ln(),
        };
    }
    let mut o = Array2::zeros((head.q_len, head.d_v()));
    head.accumulate((0..head.q_len, s.view()), (0..head.k_len, v.view()), o.view_mut());
    (o, lse)
}

fn caught(name: &'static str, fault: Fault) {
    let variant = Variant::new(name, move |head: &Head| three_passes(head, fault));
    assert_caught(name, 200, problems(), |spec| check(&variant, &spec));
}

#[test]
fn the_control_passes() {
    proptest::proptest!(|(spec in problems())| {
        check(&Variant::new("control", |head: &Head| three_passes(head, Fault::None)), &spec)?;
    });
}

#[test]
fn no_maximum_subtracted() {
    caught("no maximum", Fault::NoMaximum);
}

#[test]
fn causal_mask_at_the_top_left() {
    caught("top-left causal", Fault::TopLeftCausal);
}

#[test]
fn window_one_key_too_wide() {
    caught("left = W", Fault::OneKeyTooMany);
}

#[test]
fn soft_cap_dropped() {
    caught("cap dropped", Fault::CapDropped);
}

#[test]
fn soft_cap_after_the_mask() {
    caught("cap after mask", Fault::CapAfterMask);
}

#[test]
fn finite_mask_value() {
    caught("finite mask", Fault::FiniteMask);
}

#[test]
fn sink_counted_in_lse() {
    caught("sink in lse", Fault::SinkInLse);
}

#[test]
fn lse_in_base_two() {
    caught("base two", Fault::BaseTwo);
}
