//! What each step of chapter 2 must do, as laws that take the step as an argument: the checks apply them to the code
//! under test, and `wrong.rs` proves that each rejects a wrong step.

use crate::subject::State;
use attention::{Attention, Head, Problem, Traffic, TrafficMeter};
use ndarray::{Array1, ArrayView1, ArrayView2, array};
use proptest::prelude::*;
use testkit::problems::Spec;
use testkit::{ByHand, RowTruth, close};

/// Scores with a value each. A state over them is worked out in f64, so that a law needs no other step.
pub(crate) type Keys = Vec<(f32, f32)>;

/// Up to five keys with whole numbers, some hidden, some far above the others; now and then many.
pub(crate) fn keys() -> impl Strategy<Value = Keys> {
    let key = || {
        let score = prop_oneof![
            6 => (-3i16..=3).prop_map(f32::from),
            1 => Just(f32::NEG_INFINITY),
            1 => prop::sample::select(vec![40.0f32, -40.0, 1000.0]),
        ];
        (score, (-3i16..=3).prop_map(f32::from))
    };
    prop_oneof![4 => prop::collection::vec(key(), 0..=5), 1 => prop::collection::vec(key(), 6..=30)]
}

/// The state over keys, by the definition.
pub(crate) fn state(keys: &[(f32, f32)]) -> State {
    let RowTruth { m, l, o } = RowTruth::of(keys);
    State { m: m as f32, l: l as f32, o: array![o as f32] }
}

/// The state in words, as all messages show it.
pub(crate) fn shown(state: &State) -> String {
    format!("(m {}, l {}, o {})", state.m, state.l, state.o)
}

/// Fails unless `found` is (m, l, o) of `wanted`.
fn same(what: &str, found: &State, wanted: RowTruth) -> Result<(), TestCaseError> {
    let RowTruth { m, l, o } = wanted;
    let right = close(found.m, m) && close(found.l, l) && found.o.len() == 1 && close(found.o[0], o);
    prop_assert!(right, "{what}: {}, wanted (m {m}, l {l}, o [{o}])", shown(found));
    Ok(())
}

/// Fails unless the two give the same row, however they express it.
fn same_row(what: &str, a: &State, b: &State) -> Result<(), TestCaseError> {
    let row = |state: &State| RowTruth { m: state.m.into(), l: state.l.into(), o: state.o[0].into() };
    let (a_row, b_row) = (row(a), row(b));
    prop_assert!(
        close(a_row.output() as f32, b_row.output()) && close(a_row.lse() as f32, b_row.lse()),
        "{what}: {} and {} are not the same row",
        shown(a),
        shown(b)
    );
    Ok(())
}

/// l and o shrink by `e^(m_old - m)`, and m is the new maximum.
pub(crate) fn rescale_changes_the_reference_alone(
    rescale: impl Fn(&mut State, f32),
    keys: &[(f32, f32)],
    rise: f32,
) -> Result<(), TestCaseError> {
    let old = RowTruth::of(keys);
    let mut found = state(keys);
    let m = if found.l == 0.0 { rise } else { found.m + rise };
    let before = shown(&found);
    rescale(&mut found, m);
    let factor = (old.m - f64::from(m)).exp();
    same(&format!("{before} against {m}"), &found, RowTruth { m: m.into(), l: factor * old.l, o: factor * old.o })
}

/// Pushing a key gives the state over the keys and that one.
pub(crate) fn push_adds_one_key(
    push: impl Fn(&mut State, f32, ArrayView1<f32>),
    keys: &[(f32, f32)],
    (s, v): (f32, f32),
) -> Result<(), TestCaseError> {
    let mut found = state(keys);
    let before = shown(&found);
    // A hidden key's value must not be read: it may be anything.
    let v_stored = if s == f32::NEG_INFINITY { f32::NAN } else { v };
    push(&mut found, s, array![v_stored].view());
    let all = [keys, &[(s, v)]].concat();
    same(&format!("{before} and a key with score {s} and value {v_stored}"), &found, RowTruth::of(&all))
}

/// o divided by l with the sink in it, and `m + ln l`.
pub(crate) fn finish_divides_once(
    finish: impl Fn(State, f32) -> (Array1<f32>, f32),
    keys: &[(f32, f32)],
    sink: f32,
) -> Result<(), TestCaseError> {
    let row = RowTruth::of(keys);
    let before = state(keys);
    let (o, lse) = finish(before.clone(), sink);
    let share = if row.l == 0.0 { 0.0 } else { row.l / (row.l + (f64::from(sink) - row.m).exp()) };
    let wanted = row.output() * share;
    prop_assert!(
        o.len() == 1 && close(o[0], wanted) && close(lse, row.lse()),
        "{} with sink {sink}: o is {o} and lse {lse}, wanted [{wanted}] and {}",
        shown(&before),
        row.lse()
    );
    Ok(())
}

/// Merging gives the state over all keys, in either order, and in any grouping.
pub(crate) fn merge_is_the_union(
    merge: impl Fn(&mut State, &State),
    [a, b, c]: [&[(f32, f32)]; 3],
) -> Result<(), TestCaseError> {
    let merged = |a: &State, b: &State| {
        let mut merged = a.clone();
        merge(&mut merged, b);
        merged
    };
    let all = RowTruth::of(&[a, b, c].concat());
    let both = RowTruth::of(&[a, b].concat());
    let (a, b, c) = (state(a), state(b), state(c));
    let what = format!("{} merged with {}", shown(&a), shown(&b));
    same(&what, &merged(&a, &b), both)?;
    same_row(&format!("{what}, and in the other order"), &merged(&a, &b), &merged(&b, &a))?;
    same(&format!("{what}, then with {}", shown(&c)), &merged(&merged(&a, &b), &c), all)?;
    same_row("(a b) c and a (b c)", &merged(&merged(&a, &b), &c), &merged(&a, &merged(&b, &c)))
}

/// The empty state changes nothing, from either side, not even a state that is NaN.
pub(crate) fn empty_is_the_identity(
    merge: impl Fn(&mut State, &State),
    keys: &[(f32, f32)],
) -> Result<(), TestCaseError> {
    let nan = State { m: f32::NAN, l: 1.0, o: array![f32::NAN] };
    for side in [state(keys), nan] {
        let (mut right, mut left) = (side.clone(), State::empty(1));
        merge(&mut right, &State::empty(1));
        merge(&mut left, &side);
        same_row("the state merged with an empty one, and before", &right, &side)?;
        same_row("an empty state merged with it, and it alone", &left, &side)?;
    }
    Ok(())
}

/// What a row may know after a NaN score: l and o are NaN, and m is what comparisons with NaN left there.
fn nan_states() -> [State; 3] {
    [f32::NEG_INFINITY, 1.0, f32::NAN].map(|m| State { m, l: f32::NAN, o: array![f32::NAN] })
}

/// A NaN score makes the state NaN, whatever it held, and no key after it makes it a number again.
pub(crate) fn push_keeps_nan(
    push: impl Fn(&mut State, f32, ArrayView1<f32>),
    keys: &[(f32, f32)],
    s: f32,
) -> Result<(), TestCaseError> {
    let pushed = |mut found: State, s: f32| {
        let at = format!("{} and a key with score {s} and value 1", shown(&found));
        push(&mut found, s, array![1.0].view());
        prop_assert!(found.l.is_nan() && found.o[0].is_nan(), "{at}: {}, wanted NaN for l and o", shown(&found));
        Ok(())
    };
    pushed(state(keys), f32::NAN)?;
    nan_states().into_iter().try_for_each(|nan| pushed(nan, s))
}

/// A state that has met a NaN score ends as NaN, not as the row of no key.
pub(crate) fn finish_keeps_nan(finish: impl Fn(State, f32) -> (Array1<f32>, f32)) -> Result<(), TestCaseError> {
    for nan in nan_states() {
        let (o, lse) = finish(nan.clone(), f32::NEG_INFINITY);
        prop_assert!(o[0].is_nan() && lse.is_nan(), "{}: o is {o} and lse {lse}, wanted NaN", shown(&nan));
    }
    Ok(())
}

/// A state that has met a NaN score makes every state NaN that it merges with, from either side.
pub(crate) fn merge_keeps_nan(merge: impl Fn(&mut State, &State), keys: &[(f32, f32)]) -> Result<(), TestCaseError> {
    for nan in nan_states() {
        for (mut found, other) in [(nan.clone(), state(keys)), (state(keys), nan)] {
            let at = format!("{} merged with {}", shown(&found), shown(&other));
            merge(&mut found, &other);
            prop_assert!(found.l.is_nan() && found.o[0].is_nan(), "{at}: {}, wanted NaN for l and o", shown(&found));
        }
    }
    Ok(())
}

/// A row with a NaN score is NaN when all its keys have been pushed and the division is done.
pub(crate) fn a_row_with_nan_is_nan(
    push: impl Fn(&mut State, f32, ArrayView1<f32>),
    finish: impl Fn(State, f32) -> (Array1<f32>, f32),
    scores: &[f32],
) -> Result<(), TestCaseError> {
    let mut state = State::empty(1);
    scores.iter().for_each(|&s| push(&mut state, s, array![1.0].view()));
    let (o, lse) = finish(state, f32::NEG_INFINITY);
    prop_assert!(o[0].is_nan() && lse.is_nan(), "scores {scores:?}: o is {o} and lse {lse}, wanted NaN");
    Ok(())
}

/// A partial result is the row that it came from; an infinite lse is no key, whatever o holds.
pub(crate) fn a_partial_is_its_row(
    from_partial: impl Fn(ArrayView1<f32>, f32) -> State,
    keys: &[(f32, f32)],
) -> Result<(), TestCaseError> {
    let row = RowTruth::of(keys);
    let (o, lse) = (row.output() as f32, row.lse() as f32);
    let found = from_partial(array![o].view(), lse);
    same_row(&format!("the partial (o {o}, lse {lse}) and its row"), &found, &state(keys))?;
    for (garbage, lse) in [(f32::NAN, f32::NEG_INFINITY), (5.0, f32::INFINITY), (f32::INFINITY, f32::INFINITY)] {
        let found = from_partial(array![garbage].view(), lse);
        prop_assert!(
            found == State::empty(1),
            "the partial (o {garbage}, lse {lse}) saw no key: {}, wanted (m -inf, l 0, o [0])",
            shown(&found)
        );
    }
    let nan = from_partial(array![f32::NAN].view(), f32::NAN);
    prop_assert!(nan.m.is_nan() && nan.o[0].is_nan(), "a partial that is NaN stays NaN: {}", shown(&nan));
    Ok(())
}

/// Every row's state is that of the keys that it sees.
pub(crate) fn stream_sees_what_the_row_sees(
    stream: impl Fn(&Head, usize, ArrayView1<f32>, ArrayView2<f32>, ArrayView2<f32>) -> State,
    case: &ByHand,
) -> Result<(), TestCaseError> {
    case.with(|problem| {
        let head = problem.head(0, 0);
        let (q, k, v) = (head.q.load(0..head.q_len), head.k.load(0..head.k_len), head.v.load(0..head.k_len));
        for (i, q_i) in q.rows().into_iter().enumerate() {
            let found = stream(&head, i, q_i, k.view(), v.view());
            same(&case.row(i), &found, case.truth(i, 0..case.keys.len()))?;
        }
        Ok(())
    })
}

/// The meter's count is the number that the stream gives, worked out here once more from the shapes, and the rung takes
/// no memory beyond its inputs and outputs.
pub(crate) fn the_meter_counts_the_stream<'m, R: Attention + 'm>(
    rung: impl Fn(&'m TrafficMeter) -> R,
    meter: &'m TrafficMeter,
    spec: &Spec,
) -> Result<(), TestCaseError> {
    let owned = spec.build();
    let problem = owned.problem();
    rung(meter).forward(&problem)?;
    let (found, wanted) = (meter.traffic(), one_pass(&problem));
    prop_assert!(found == wanted, "the meter counts {found:?}, the stream moves {wanted:?}");
    prop_assert!(meter.peak_extra() == 0, "{} bytes of extra memory, wanted none", meter.peak_extra());
    Ok(())
}

/// Each row reads itself and every key and value that it sees, and writes o and lse.
pub(crate) fn one_pass(problem: &Problem) -> Traffic {
    let (d, d_v, e) = (problem.d(), problem.d_v(), problem.dtype().size());
    let mut all = Traffic::default();
    for sequence in 0..problem.sequences().len() {
        for head in (0..problem.heads()).map(|head| problem.head(sequence, head)) {
            for i in 0..head.q_len {
                all.read += (e * d + head.visible(i).map(|_| e * (d + d_v)).sum::<usize>()) as u64;
                all.written += (e * d_v + 4) as u64;
            }
        }
    }
    all
}
