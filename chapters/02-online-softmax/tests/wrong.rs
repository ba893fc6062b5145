//! Wrong variants of chapter 2. Each is what someone has shipped; the check must reject it.

use attention::{Head, sink_factor, weight};
use ndarray::{Array1, Array2};
use testkit::{Variant, assert_caught, check, problems::problems};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The control: it must pass.
    None,
    /// o stays as it was when the maximum rises.
    ForgottenRescale,
    /// l stays as it was when the maximum rises.
    ForgottenSum,
    /// Rescaled by the inverse, e^(m_new - m_old).
    InverseRescale,
    /// The running maximum starts at 0.
    MaximumFromZero,
    /// o divided at every key and never multiplied back.
    DividedTwice,
    /// lse without the maximum.
    LseWithoutMaximum,
}

fn one_pass(head: &Head, fault: Fault) -> (Array2<f32>, Array1<f32>) {
    let (q, k, v) = (head.q.load(0..head.q_len), head.k.load(0..head.k_len), head.v.load(0..head.k_len));
    let mut o = Array2::<f32>::zeros((head.q_len, head.d_v()));
    let mut lse = Array1::zeros(head.q_len);
    for (i, mut o) in o.rows_mut().into_iter().enumerate() {
        let (mut m, mut l) = (if fault == Fault::MaximumFromZero { 0.0 } else { f32::NEG_INFINITY }, 0.0);
        for j in 0..head.k_len {
            let s = head.score(q.row(i).dot(&k.row(j)), i, j);
            if s == f32::NEG_INFINITY {
                continue;
            }
            let m_new = f32::max(m, s);
            let rescale = match fault {
                Fault::InverseRescale if l > 0.0 => (m_new - m).exp(),
                _ => weight(m, m_new),
            };
            let p = weight(s, m_new);
            l = p + if fault == Fault::ForgottenSum { l } else { rescale * l };
            o.mapv_inplace(|o| if fault == Fault::ForgottenRescale { o } else { rescale * o });
            o.scaled_add(p, &v.row(j));
            if fault == Fault::DividedTwice {
                o.mapv_inplace(|o| o / l);
            }
            m = m_new;
        }
        if l > 0.0 {
            o.mapv_inplace(|o| o * sink_factor(head.sink, m, l) / l);
        }
        lse[i] = match fault {
            Fault::LseWithoutMaximum => l.ln(),
            _ if l == 0.0 => f32::NEG_INFINITY,
            _ => m + l.ln(),
        };
    }
    (o, lse)
}

fn caught(name: &'static str, fault: Fault) {
    let variant = Variant::new(name, move |head: &Head| one_pass(head, fault));
    assert_caught(name, 200, problems(), |spec| check(&variant, &spec));
}

#[test]
fn the_control_passes() {
    proptest::proptest!(|(spec in problems())| {
        check(&Variant::new("control", |head: &Head| one_pass(head, Fault::None)), &spec)?;
    });
}

#[test]
fn o_not_rescaled() {
    caught("o not rescaled", Fault::ForgottenRescale);
}

#[test]
fn l_not_rescaled() {
    caught("l not rescaled", Fault::ForgottenSum);
}

#[test]
fn rescaled_by_the_inverse() {
    caught("inverse rescale", Fault::InverseRescale);
}

#[test]
fn maximum_started_at_zero() {
    caught("maximum from zero", Fault::MaximumFromZero);
}

#[test]
fn divided_at_every_key() {
    caught("divided twice", Fault::DividedTwice);
}

#[test]
fn lse_without_the_maximum() {
    caught("lse without the maximum", Fault::LseWithoutMaximum);
}
