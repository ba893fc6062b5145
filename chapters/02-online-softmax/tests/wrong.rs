//! Wrong variants of chapter 2: slips that are easy to make. The checks must reject each of them.

use online_softmax as subject;

mod laws;

use attention::{Head, Mask, TrafficMeter, sink_factor, weight};
use laws::*;
use ndarray::{Array1, Array2, ArrayView1, ArrayView2, s};
use online_softmax::{OnlineSoftmax, State};
use testkit::problems::problems;
use testkit::{
    ByHand, Variant, assert_caught, assert_control_passes, assert_fault_caught, by_hand, by_hand_with_nan,
    check_by_hand, must, scores_with_nan,
};

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
    /// A row taken for empty by its maximum, which drops NaN.
    EmptyByMaximum,
    /// Every value read, those of hidden keys with weight 0.
    HiddenValueRead,
}

fn one_pass(head: &Head, fault: Fault) -> (Array2<f32>, Array1<f32>) {
    let (q, k, v) = (head.q.load(0..head.q_len), head.k.load(0..head.k_len), head.v.load(0..head.k_len));
    let mut o = Array2::<f32>::zeros((head.q_len, head.d_v()));
    let mut lse = Array1::zeros(head.q_len);
    for (i, mut o) in o.rows_mut().into_iter().enumerate() {
        let (mut m, mut l) = (if fault == Fault::MaximumFromZero { 0.0 } else { f32::NEG_INFINITY }, 0.0);
        for j in 0..head.k_len {
            let s = head.score(q.row(i).dot(&k.row(j)), i, j);
            if s == f32::NEG_INFINITY && fault != Fault::HiddenValueRead {
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
        if fault == Fault::EmptyByMaximum && m == f32::NEG_INFINITY {
            l = 0.0;
            o.fill(0.0);
        }
        if l != 0.0 {
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

fn caught(fault: Fault) {
    assert_fault_caught(one_pass, fault);
    // A maximum that starts at 0 harms no small whole number: e^-3 and e^3 both fit f32.
    if fault != Fault::MaximumFromZero {
        let variant = Variant::new("variant", move |head: &Head| one_pass(head, fault));
        assert_caught(&format!("{fault:?}"), 200, by_hand(), |case| check_by_hand(&variant, &case));
    }
}

/// What `step` does to a state, but of o to its first channel alone.
fn only_channel_0(state: &mut State, step: impl Fn(&mut State)) {
    let before = state.o.clone();
    step(state);
    state.o.slice_mut(s![1..]).assign(&before.slice(s![1..]));
}

#[test]
fn wrong_rescales() {
    type Rescale = fn(&mut State, f32);
    let inverse: Rescale = |state, m| {
        let factor = (m - state.m).exp();
        *state = State { m, l: state.l * factor, o: &state.o * factor };
    };
    let o_forgotten: Rescale = |state, m| *state = State { m, l: state.l * weight(state.m, m), o: state.o.clone() };
    let l_forgotten: Rescale = |state, m| *state = State { m, l: state.l, o: &state.o * weight(state.m, m) };
    let m_not_stored: Rescale = |state, m| {
        let old = state.m;
        state.rescale(m);
        state.m = old;
    };
    let channel_0: Rescale = |state, m| only_channel_0(state, |state| state.rescale(m));
    for (name, rescale) in [
        ("inverse", inverse),
        ("o forgotten", o_forgotten),
        ("l forgotten", l_forgotten),
        ("m lost", m_not_stored),
        ("channel 0 only", channel_0),
    ] {
        assert_caught(name, 200, (keys(), 0u8..5), |(keys, rise)| {
            rescale_changes_the_reference_alone(rescale, &keys, rise.into())
        });
    }
}

#[test]
fn wrong_pushes() {
    type Push = fn(&mut State, f32, ArrayView1<f32>);
    let hidden_value_read: Push = |state, s, v| {
        let m = state.m.max(s);
        state.rescale(m);
        state.l += weight(s, m);
        state.o.scaled_add(weight(s, m), &v);
    };
    let not_rescaled: Push = |state, s, v| {
        if s != f32::NEG_INFINITY {
            state.m = state.m.max(s);
            state.l += weight(s, state.m);
            state.o.scaled_add(weight(s, state.m), &v);
        }
    };
    let value_not_weighed: Push = |state, s, v| {
        state.push(s, v);
        if s < state.m && s != f32::NEG_INFINITY {
            state.o.scaled_add(1.0 - weight(s, state.m), &v);
        }
    };
    let last_score: Push = |state, s, v| {
        state.push(s, v);
        state.m = s;
    };
    for (name, push) in [
        ("hidden value read", hidden_value_read),
        ("not rescaled", not_rescaled),
        ("value not weighed", value_not_weighed),
        ("m is the last score", last_score),
        ("channel 0 only", |state, s, v| only_channel_0(state, |state| state.push(s, v))),
    ] {
        assert_caught(name, 200, (keys(), keys()), |(keys, more)| match more.first() {
            Some(&key) => push_adds_one_key(push, &keys, key),
            None => Ok(()),
        });
    }
}

#[test]
fn wrong_finishes() {
    type Finish = fn(State, f32) -> (Array1<f32>, f32);
    let nan_when_empty: Finish = |state, sink| {
        let factor = sink_factor(sink, state.m, state.l) / state.l;
        (&state.o * factor, state.m + state.l.ln())
    };
    let sink_in_lse: Finish = |state, sink| {
        let lse = state.m + (state.l + (sink - state.m).exp()).ln();
        (state.finish(sink).0, lse)
    };
    let no_sink: Finish = |state, _| state.finish(f32::NEG_INFINITY);
    let no_maximum: Finish = |state, sink| (state.clone().finish(sink).0, state.l.ln());
    let not_divided: Finish = |state, sink| (state.o.clone(), state.finish(sink).1);
    let channel_0: Finish = |mut state, sink| {
        let mut o = state.o.clone();
        state.o.slice_mut(s![1..]).fill(0.0);
        let (finished, lse) = state.finish(sink);
        o[0] = finished[0];
        (o, lse)
    };
    let one_channel: Finish = |state, sink| {
        let (o, lse) = state.finish(sink);
        (o.slice(s![..1]).to_owned(), lse)
    };
    for (name, finish) in [
        ("NaN when empty", nan_when_empty),
        ("sink in lse", sink_in_lse),
        ("no sink", no_sink),
        ("lse without m", no_maximum),
        ("not divided", not_divided),
        ("channel 0 only", channel_0),
        ("one channel", one_channel),
    ] {
        assert_caught(name, 200, (keys(), 0u8..3), |(keys, sink)| finish_divides_once(finish, &keys, sink.into()));
    }
}

#[test]
fn wrong_merges() {
    type Merge = fn(&mut State, &State);
    let averages: Merge = |state, other| {
        let m = state.m.max(other.m);
        *state = State { m, l: (state.l + other.l) / 2.0, o: (&state.o + &other.o) / 2.0 };
    };
    let no_factor: Merge = |state, other| {
        *state = State { m: state.m.max(other.m), l: state.l + other.l, o: &state.o + &other.o };
    };
    let base_two: Merge = |state, other| {
        let m = state.m.max(other.m);
        let (a, b) = ((state.m - m).exp2(), (other.m - m).exp2());
        *state = State { m, l: a * state.l + b * other.l, o: &state.o * a + &other.o * b };
    };
    let own_maximum: Merge = |state, other| {
        let b = (other.m - state.m).exp();
        state.l += b * other.l;
        state.o.scaled_add(b, &other.o);
    };
    let channel_0: Merge = |state, other| only_channel_0(state, |state| state.merge(other));
    for (name, merge) in [
        ("averages", averages),
        ("no factor", no_factor),
        ("base two", base_two),
        ("own maximum", own_maximum),
        ("channel 0 only", channel_0),
    ] {
        assert_caught(name, 200, (keys(), keys(), keys()), |(a, b, c)| merge_is_the_union(merge, [&a, &b, &c]));
    }
    for (name, merge) in [("own maximum", own_maximum), ("averages", averages)] {
        assert_caught(name, 200, keys(), |keys| empty_is_the_identity(merge, &keys));
    }
}

/// m stands at -inf where no key was seen, and where every score was NaN: only l tells the two apart.
#[test]
fn wrong_guards_that_drop_nan() {
    type Push = fn(&mut State, f32, ArrayView1<f32>);
    type Finish = fn(State, f32) -> (Array1<f32>, f32);
    type Merge = fn(&mut State, &State);
    let first_by_maximum: Push = |state, s, v| match state.m {
        f32::NEG_INFINITY if s != f32::NEG_INFINITY => *state = State { m: s, l: 1.0, o: v.to_owned() },
        _ => state.push(s, v),
    };
    let nan_not_pushed: Push = |state, s, v| {
        if s > f32::NEG_INFINITY {
            state.push(s, v);
        }
    };
    let empty_by_maximum: Finish = |state, sink| match state.m {
        f32::NEG_INFINITY => (Array1::zeros(state.o.len()), f32::NEG_INFINITY),
        _ => state.finish(sink),
    };
    let empty_unless_positive: Finish =
        |state, sink| if state.l > 0.0 { state.finish(sink) } else { State::empty(state.o.len()).finish(sink) };
    let other_empty_by_maximum: Merge = |state, other| {
        if other.m != f32::NEG_INFINITY {
            state.merge(other);
        }
    };
    let own_empty_by_maximum: Merge = |state, other| match state.m {
        f32::NEG_INFINITY => *state = other.clone(),
        _ => state.merge(other),
    };
    for (name, push) in [("first by the maximum", first_by_maximum), ("NaN is not pushed", nan_not_pushed)] {
        assert_caught(name, 200, keys(), |keys| push_keeps_nan(push, &keys, 2.0));
    }
    for (name, finish) in [("empty by the maximum", empty_by_maximum), ("empty unless l > 0", empty_unless_positive)] {
        assert_caught(name, 1, keys(), |_| finish_keeps_nan(finish));
        let push: Push = State::push;
        assert_caught(name, 200, scores_with_nan(), |scores| a_row_with_nan_is_nan(push, finish, &scores));
    }
    for (name, merge) in [
        ("the other empty by its maximum", other_empty_by_maximum),
        ("itself empty by its maximum", own_empty_by_maximum),
    ] {
        assert_caught(name, 200, keys(), |keys| merge_keeps_nan(merge, &keys));
    }
}

#[test]
fn wrong_partials() {
    type FromPartial = fn(ArrayView1<f32>, f32) -> State;
    let taken_as_it_is: FromPartial = |o, lse| State { m: lse, l: 1.0, o: o.to_owned() };
    let only_minus: FromPartial = |o, lse| {
        if lse == f32::NEG_INFINITY { State::empty(o.len()) } else { State { m: lse, l: 1.0, o: o.to_owned() } }
    };
    let multiplied: FromPartial = |o, lse| match State::from_partial(o, lse) {
        state if state.l == 0.0 => state,
        state => State { l: 2.0, ..state },
    };
    let nan_dropped: FromPartial =
        |o, lse| if lse.is_finite() { State::from_partial(o, lse) } else { State::empty(o.len()) };
    let sum_of_weights: FromPartial = |o, lse| match State::from_partial(o, lse) {
        state if state.l == 0.0 => state,
        state => State { m: 0.0, l: lse.exp(), o: state.o * lse.exp() },
    };
    assert!(a_partial_keeps_o_and_lse(sum_of_weights, [3.0, -2.0], 1000.0).is_err());
    for (name, from_partial) in [
        ("infinite lse taken as it is", taken_as_it_is),
        ("+inf taken as it is", only_minus),
        ("l of 2", multiplied),
        ("NaN dropped", nan_dropped),
        ("l = e^lse, which overflows", sum_of_weights),
        ("one channel", |o, lse| State::from_partial(o.slice(s![..1]), lse)),
        ("channel 0 only", |o, lse| {
            let mut state = State::from_partial(o, lse);
            state.o[1] = 0.0;
            state
        }),
    ] {
        assert_caught(name, 200, keys(), |keys| a_partial_is_its_row(from_partial, &keys));
    }
}

/// A state may express a row in another way than the reference's.
#[test]
fn other_right_partials() {
    type FromPartial = fn(ArrayView1<f32>, f32) -> State;
    let nan_in_l: FromPartial = |o, lse| match lse.is_nan() {
        true => State { m: 0.0, l: f32::NAN, o: o.to_owned() },
        false => State::from_partial(o, lse),
    };
    let against_another_maximum: FromPartial = |o, lse| match State::from_partial(o, lse) {
        state if state.l == 0.0 => state,
        state => State { m: lse + 2.0, l: (-2f32).exp(), o: state.o * (-2f32).exp() },
    };
    for from_partial in [nan_in_l, against_another_maximum] {
        for keys in [&[][..], &[(1.0, 3.0), (2.0, -2.0)], &[(1000.0, 1.0)]] {
            must(a_partial_is_its_row(from_partial, keys));
        }
    }
}

#[test]
fn wrong_streams() {
    type Stream = fn(&Head, usize, ArrayView1<f32>, ArrayView2<f32>, ArrayView2<f32>) -> State;
    let unmasked: Stream = |head, i, q, k, v| subject::stream(&Head { mask: Mask::Full, ..head.clone() }, i, q, k, v);
    let last_key_missing: Stream = |head, i, q, k, v| {
        let mut state = State::empty(head.d_v());
        for j in head.visible(i).rev().skip(1) {
            state.push(head.score(q.dot(&k.row(j)), i, j), v.row(j));
        }
        state
    };
    let first_value: Stream = |head, i, q, k, v| {
        let mut state = State::empty(head.d_v());
        head.visible(i).for_each(|j| state.push(head.score(q.dot(&k.row(j)), i, j), v.row(0)));
        state
    };
    let scale_twice: Stream =
        |head, i, q, k, v| subject::stream(&Head { scale: head.scale * head.scale, ..head.clone() }, i, q, k, v);
    let no_cap: Stream = |head, i, q, k, v| subject::stream(&Head { softcap: 0.0, ..head.clone() }, i, q, k, v);
    let no_alibi: Stream = |head, i, q, k, v| subject::stream(&Head { slope: None, ..head.clone() }, i, q, k, v);
    let no_bias: Stream = |head, i, q, k, v| subject::stream(&Head { bias: None, ..head.clone() }, i, q, k, v);
    for (name, stream) in
        [("scale twice", scale_twice), ("no cap", no_cap), ("no ALiBi", no_alibi), ("no bias", no_bias)]
    {
        let by_hand =
            || ByHand::scores_with_more().iter().try_for_each(|case| stream_sees_what_the_row_sees(stream, case));
        assert!(by_hand().is_err(), "{name} passes by hand");
        assert_caught(name, 200, testkit::by_hand(), |case| stream_sees_what_the_row_sees(stream, &case));
    }
    for (name, stream) in
        [("unmasked", unmasked), ("last key missing", last_key_missing), ("always the first value", first_value)]
    {
        assert_caught(name, 200, by_hand(), |case| stream_sees_what_the_row_sees(stream, &case));
    }
}

#[test]
fn wrong_traffic() {
    assert_caught("unmetered", 200, problems(), |spec| {
        let meter = TrafficMeter::default();
        the_meter_counts_the_stream(|_| OnlineSoftmax::default(), &meter, &spec)
    });
}

#[test]
fn the_control_passes() {
    assert_control_passes(one_pass, Fault::None);
}

#[test]
fn o_not_rescaled() {
    caught(Fault::ForgottenRescale);
}

#[test]
fn l_not_rescaled() {
    caught(Fault::ForgottenSum);
}

#[test]
fn rescaled_by_the_inverse() {
    caught(Fault::InverseRescale);
}

#[test]
fn maximum_started_at_zero() {
    caught(Fault::MaximumFromZero);
}

#[test]
fn divided_at_every_key() {
    caught(Fault::DividedTwice);
}

#[test]
fn lse_without_the_maximum() {
    caught(Fault::LseWithoutMaximum);
}

#[test]
fn nan_dropped_and_hidden_nan_read() {
    let control = Variant::new("control", |head: &Head| one_pass(head, Fault::None));
    for fault in [Fault::EmptyByMaximum, Fault::HiddenValueRead] {
        let variant = Variant::new("variant", move |head: &Head| one_pass(head, fault));
        assert_caught(&format!("{fault:?}"), 200, by_hand_with_nan(), |case| {
            must(check_by_hand(&control, &case));
            check_by_hand(&variant, &case)
        });
    }
}
