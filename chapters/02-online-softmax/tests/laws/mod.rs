//! What each step of chapter 2 must do, as laws that take the step as an argument: the checks apply them to the code
//! under test, and `wrong.rs` proves that each rejects a wrong step.

use crate::subject::State;
use attention::{Attention, Head, Problem, Traffic, TrafficMeter};
use ndarray::{Array1, ArrayView1, ArrayView2, arr1};
use proptest::prelude::*;
use testkit::problems::Spec;
use testkit::{ByHand, RowTruth, all_close, all_shown, channels, close};

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
    State { m: m as f32, l: l as f32, o: arr1(&o.map(|o| o as f32)) }
}

/// A value of two channels.
pub(crate) fn value(v: f32) -> Array1<f32> {
    arr1(&channels(v))
}

/// Both channels NaN.
fn nan() -> Array1<f32> {
    Array1::from_elem(2, f32::NAN)
}

/// The state in words, as all messages show it.
pub(crate) fn shown(state: &State) -> String {
    format!("(m {}, l {}, o {:?})", testkit::shown(state.m), testkit::shown(state.l), all_shown(&state.o))
}

/// What a state should be, in the same words.
fn wanted(RowTruth { m, l, o }: RowTruth) -> String {
    format!("(m {}, l {}, o {:?})", testkit::shown(m), testkit::shown(l), all_shown(&o))
}

/// Fails unless `found` is (m, l, o) of `truth`.
fn same(what: &str, found: &State, truth: RowTruth) -> Result<(), TestCaseError> {
    let right = close(found.m, truth.m) && close(found.l, truth.l) && all_close(&found.o, &truth.o);
    prop_assert!(right, "{what}: {}, wanted {}", shown(found), wanted(truth));
    Ok(())
}

/// What a state says of its row, however it expresses it: o / l, and m + ln l.
fn row(state: &State) -> (Vec<f64>, f64) {
    let (m, l) = (f64::from(state.m), f64::from(state.l));
    let o = state.o.iter().map(|&o| if l == 0.0 { 0.0 } else { f64::from(o) / l });
    (o.collect(), m + l.ln())
}

/// Fails unless the two give the same row.
fn same_row(what: &str, a: &State, b: &State) -> Result<(), TestCaseError> {
    let ((a_o, a_lse), (b_o, b_lse)) = (row(a), row(b));
    prop_assert!(
        all_close(&a_o.iter().map(|&o| o as f32).collect::<Vec<_>>(), &b_o) && close(a_lse as f32, b_lse),
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
    same(
        &format!("{before} against {m}"),
        &found,
        RowTruth { m: m.into(), l: factor * old.l, o: old.o.map(|o| factor * o) },
    )
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
    push(&mut found, s, value(v_stored).view());
    let all = [keys, &[(s, v)]].concat();
    let at = format!("{before} and a key with score {s} and value {:?}", channels(v_stored));
    same(&at, &found, RowTruth::of(&all))
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
    let wanted = row.output().map(|o| o * share);
    let with = if sink == f32::NEG_INFINITY { String::new() } else { format!(" with sink {sink}") };
    prop_assert!(
        all_close(&o, &wanted) && close(lse, row.lse()),
        "{}{with}: o is {:?} and lse {}, wanted {:?} and {}",
        shown(&before),
        all_shown(&o),
        testkit::shown(lse),
        all_shown(&wanted),
        testkit::shown(row.lse())
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
    let nan = State { m: f32::NAN, l: 1.0, o: nan() };
    for side in [state(keys), nan] {
        let (mut right, mut left) = (side.clone(), State::empty(2));
        merge(&mut right, &State::empty(2));
        merge(&mut left, &side);
        same_row("the state merged with an empty one, and before", &right, &side)?;
        same_row("an empty state merged with it, and it alone", &left, &side)?;
    }
    Ok(())
}

/// What a row may know after a NaN score: l and o are NaN, and m is what comparisons with NaN left there.
fn nan_states() -> [State; 3] {
    [f32::NEG_INFINITY, 1.0, f32::NAN].map(|m| State { m, l: f32::NAN, o: nan() })
}

/// Fails unless l and all of o are NaN.
fn is_nan(what: &str, found: &State) -> Result<(), TestCaseError> {
    let nan = found.l.is_nan() && all_close(&found.o, &[f64::NAN; 2]);
    prop_assert!(nan, "{what}: {}, wanted NaN for l and o", shown(found));
    Ok(())
}

/// A NaN score makes the state NaN, whatever it held, and no key after it makes it a number again.
pub(crate) fn push_keeps_nan(
    push: impl Fn(&mut State, f32, ArrayView1<f32>),
    keys: &[(f32, f32)],
    s: f32,
) -> Result<(), TestCaseError> {
    let pushed = |mut found: State, s: f32| {
        let at = format!("{} and a key with score {s} and value {:?}", shown(&found), channels(1.0));
        push(&mut found, s, value(1.0).view());
        is_nan(&at, &found)
    };
    pushed(state(keys), f32::NAN)?;
    nan_states().into_iter().try_for_each(|nan| pushed(nan, s))
}

/// A state that has met a NaN score ends as NaN, not as the row of no key.
pub(crate) fn finish_keeps_nan(finish: impl Fn(State, f32) -> (Array1<f32>, f32)) -> Result<(), TestCaseError> {
    for nan in nan_states() {
        let (o, lse) = finish(nan.clone(), f32::NEG_INFINITY);
        let right = all_close(&o, &[f64::NAN; 2]) && lse.is_nan();
        prop_assert!(right, "{}: o is {:?} and lse {lse}, wanted NaN", shown(&nan), all_shown(&o));
    }
    Ok(())
}

/// A state that has met a NaN score makes every state NaN that it merges with, from either side.
pub(crate) fn merge_keeps_nan(merge: impl Fn(&mut State, &State), keys: &[(f32, f32)]) -> Result<(), TestCaseError> {
    for nan in nan_states() {
        for (mut found, other) in [(nan.clone(), state(keys)), (state(keys), nan)] {
            let at = format!("{} merged with {}", shown(&found), shown(&other));
            merge(&mut found, &other);
            is_nan(&at, &found)?;
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
    let mut state = State::empty(2);
    scores.iter().for_each(|&s| push(&mut state, s, value(1.0).view()));
    let (o, lse) = finish(state, f32::NEG_INFINITY);
    let right = all_close(&o, &[f64::NAN; 2]) && lse.is_nan();
    prop_assert!(right, "scores {scores:?}: o is {:?} and lse {lse}, wanted NaN", all_shown(&o));
    Ok(())
}

/// A partial result keeps its o and its lse: o / l and m + ln l of the state are those, NaN as well. An infinite lse is no
/// key, whatever o holds.
pub(crate) fn a_partial_keeps_o_and_lse(
    from_partial: impl Fn(ArrayView1<f32>, f32) -> State,
    o: [f32; 2],
    lse: f32,
) -> Result<(), TestCaseError> {
    let found = from_partial(arr1(&o).view(), lse);
    let at = format!("the partial (o {:?}, lse {}) gives {}", all_shown(&o), testkit::shown(lse), shown(&found));
    if lse.is_infinite() {
        prop_assert!(found == State::empty(2), "{at}: it saw no key, wanted {}", shown(&State::empty(2)));
        return Ok(());
    }
    let (found_o, found_lse) = row(&found);
    let found_o: Vec<f32> = found_o.into_iter().map(|o| o as f32).collect();
    prop_assert!(
        all_close(&found_o, &o.map(f64::from)) && close(found_lse as f32, lse.into()),
        "{at}, whose o / l is {:?} and m + ln l {}: wanted those of the partial",
        all_shown(&found_o),
        testkit::shown(found_lse)
    );
    Ok(())
}

/// A partial result is the row that it came from.
pub(crate) fn a_partial_is_its_row(
    from_partial: impl Fn(ArrayView1<f32>, f32) -> State,
    keys: &[(f32, f32)],
) -> Result<(), TestCaseError> {
    let row = RowTruth::of(keys);
    let (o, lse) = (row.output().map(|o| o as f32), row.lse() as f32);
    a_partial_keeps_o_and_lse(&from_partial, o, lse)?;
    for (garbage, lse) in [(f32::NAN, f32::NEG_INFINITY), (5.0, f32::INFINITY), (f32::INFINITY, f32::INFINITY)] {
        a_partial_keeps_o_and_lse(&from_partial, [garbage; 2], lse)?;
    }
    a_partial_keeps_o_and_lse(&from_partial, [f32::NAN; 2], f32::NAN)
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
