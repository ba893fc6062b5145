//! What each step of chapter 3 must do, as laws that take the step as an argument: the checks apply them to the code
//! under test, and `wrong.rs` proves that each rejects a wrong step.

use crate::subject::{Blocks, Running};
use attention::{Attention, AttentionError, Head, Options, Output, Problem, RowsMut, Traffic, TrafficMeter};
use ndarray::{Array2, Array4, ArrayViewMut1, ArrayViewMut2, array};
use proptest::prelude::*;
use testkit::problems::Spec;
use testkit::{ByHand, Row, RowTruth, all_close, all_shown, close, shown, update_is_the_listings};

/// `B_c = floor(M / 4 d)`, `B_r = min(B_c, d)`: four tiles that fit, and an error that says how much is wanted.
pub(crate) fn blocks_are_line_1(
    fit: impl Fn(usize, usize) -> Result<Blocks, AttentionError>,
    fast_memory: usize,
    d: usize,
) -> Result<(), TestCaseError> {
    // Counted up from nothing: the most rows of k of which four tiles fit in M bytes.
    let keys = (1..).take_while(|keys| 4 * keys * d * 4 <= fast_memory).last().unwrap_or(0);
    let found = fit(fast_memory, d);
    if keys == 0 {
        let wanted = format!(
            "fast_memory: found {fast_memory} bytes, wanted at least {} bytes, for one row of {d} channels of q, k, v and o",
            16 * d
        );
        let said = found.map_or_else(|error| error.to_string(), |blocks| format!("{blocks:?}"));
        prop_assert!(said == wanted, "M = {fast_memory} bytes, d = {d} gives: {said}; wanted the error: {wanted}");
        return Ok(());
    }
    let wanted = Blocks { rows: keys.min(d), keys };
    prop_assert!(found == Ok(wanted), "M = {fast_memory} bytes, d = {d}: {found:?}, wanted {wanted:?}");
    Ok(())
}

/// After lines 10 to 13, s, o, l and m are the listing's, row by row: o and the weights are divided by l at every step.
pub(crate) fn update_is_lines_10_to_13(
    update: impl Fn(ArrayViewMut2<f32>, ArrayViewMut2<f32>, ArrayViewMut1<f32>, ArrayViewMut1<f32>),
    rows: &[Row],
) -> Result<(), TestCaseError> {
    update_is_the_listings(update, rows, |row| row.l)
}

/// After the two loops every row knows all its keys, and the meter has counted lines 2 to 15.
pub(crate) fn head_is_lines_2_to_15(
    head: impl Fn(&Head, Blocks, &TrafficMeter) -> Running,
    case: &ByHand,
    blocks: Blocks,
) -> Result<(), TestCaseError> {
    let meter = TrafficMeter::default();
    let Running { o, l, m } = case.with(|problem| head(&problem.head(0, 0), blocks, &meter));
    let (n, k) = (case.q.len(), case.keys.len());
    prop_assert!(
        o.dim() == (n, 2) && l.len() == n && m.len() == n,
        "o {:?}, l [{}], m [{}] for {n} rows of 2 channels",
        o.dim(),
        l.len(),
        m.len()
    );
    for i in 0..n {
        let wanted = case.truth(i, 0..k);
        let (output, found_o) = (wanted.output(), o.row(i));
        prop_assert!(
            close(m[i], wanted.m) && close(l[i], wanted.l) && all_close(found_o, &output),
            "{}, {blocks:?}: (m {}, l {}, o {:?}), wanted (m {}, l {}, o {:?})",
            case.row(i),
            shown(m[i]),
            shown(l[i]),
            all_shown(found_o),
            shown(wanted.m),
            shown(wanted.l),
            all_shown(&output)
        );
    }
    // With d = 1 and d_v = 2, of 4 bytes: k and v are 12 bytes a key, q 4 a row, o, l and m together 16 a row.
    let passes = k.div_ceil(blocks.keys);
    let wanted = Traffic { read: (12 * k + passes * n * (4 + 16)) as u64, written: (n * 16 + passes * n * 16) as u64 };
    let found = meter.traffic();
    prop_assert!(
        found == wanted,
        "{n} rows, {k} keys, d = 1, d_v = 2, {blocks:?}: the meter counts {found:?}, lines 2 to 15 move {wanted:?} \
         (bytes: q 4 and o, l and m 16 a row, k and v 12 a key)"
    );
    prop_assert!(
        meter.peak_extra() == 16 * n as u64,
        "o, l and m of {n} rows of 2 channels take {} bytes, and {} are allocated",
        16 * n,
        meter.peak_extra()
    );
    Ok(())
}

/// The last pass applies the sink, takes lse, and counts itself.
pub(crate) fn finish_is_one_more_pass(
    finish: impl Fn(&Head, Running, &mut RowsMut, &TrafficMeter),
    keys: &[Vec<(f32, f32)>],
    sink: f32,
) -> Result<(), TestCaseError> {
    let rows: Vec<RowTruth> = keys.iter().map(|keys| RowTruth::of(keys)).collect();
    let n = rows.len();
    let tensor = Array4::<f32>::zeros((1, 1, n, 1));
    let sinks = array![sink];
    let options = Options { sinks: Some(sinks.view()), ..Options::default() };
    let values = Array4::<f32>::zeros((1, 1, n, 2));
    let problem = Problem::dense(tensor.view(), tensor.view(), values.view(), options)?;
    let running = Running {
        o: Array2::from_shape_fn((n, 2), |(r, channel)| rows[r].output()[channel] as f32),
        l: rows.iter().map(|row| row.l as f32).collect(),
        m: rows.iter().map(|row| row.m as f32).collect(),
    };
    let meter = TrafficMeter::default();
    attention::Meter::allocate(&meter, 16 * n);
    let mut output = Output::empty(&problem)?;
    finish(&problem.head(0, 0), running, &mut output.view_mut().heads(&problem)?[0], &meter);
    let o = output.o.view().to_f64();
    for (r, row) in rows.iter().enumerate() {
        let share = if row.l == 0.0 { 0.0 } else { row.l / (row.l + (f64::from(sink) - row.m).exp()) };
        let (found, lse) = ([0, 1].map(|channel| o[[0, 0, r, channel]] as f32), output.lse[[0, 0, r]]);
        let wanted = row.output().map(|o| o * share);
        let with = if sink == f32::NEG_INFINITY { String::new() } else { format!(" and sink {sink}") };
        prop_assert!(
            all_close(&found, &wanted) && close(lse, row.lse()),
            "row {r} has (m {}, l {}, o {:?}){with}: o is {:?} and lse {}, wanted {:?} and {}",
            shown(row.m),
            shown(row.l),
            all_shown(&row.output()),
            all_shown(&found),
            shown(lse),
            all_shown(&wanted),
            shown(row.lse())
        );
    }
    let (found, wanted) = (meter.traffic(), Traffic { read: 16 * n as u64, written: 12 * n as u64 });
    prop_assert!(
        found == wanted,
        "{n} rows of 2 channels: the meter counts {found:?}, one pass moves {wanted:?} (bytes a row: o, l and m 16 read, \
         o 8 and lse 4 written)"
    );
    attention::Meter::allocate(&meter, 16 * n);
    prop_assert!(meter.peak_extra() == 16 * n as u64, "the memory of o, l and m is not released once");
    Ok(())
}

/// A row that has met a NaN score ends as NaN: l is NaN, and m is what comparisons with NaN left there.
pub(crate) fn finish_keeps_nan(
    finish: impl Fn(&Head, Running, &mut RowsMut, &TrafficMeter),
) -> Result<(), TestCaseError> {
    let tensor = Array4::<f32>::zeros((1, 1, 1, 1));
    let values = Array4::<f32>::zeros((1, 1, 1, 2));
    let problem = Problem::dense(tensor.view(), tensor.view(), values.view(), Options::default())?;
    for m in [f32::NEG_INFINITY, 1.0, f32::NAN] {
        let running = Running { o: array![[f32::NAN, f32::NAN]], l: array![f32::NAN], m: array![m] };
        let meter = TrafficMeter::default();
        attention::Meter::allocate(&meter, 16);
        let mut output = Output::empty(&problem)?;
        finish(&problem.head(0, 0), running, &mut output.view_mut().heads(&problem)?[0], &meter);
        let (o, lse) = (output.o.view().to_f64(), output.lse[[0, 0, 0]]);
        prop_assert!(
            o.iter().all(|o| o.is_nan()) && lse.is_nan(),
            "a row with (m {m}, l NaN, o NaN): o is {:?} and lse {lse}, wanted NaN",
            all_shown(&o)
        );
    }
    Ok(())
}

/// The bytes of Algorithm 1, tile by tile: what its lines load and store.
pub(crate) fn line_by_line(problem: &Problem, blocks: Blocks) -> Traffic {
    let (d, d_v, e) = (problem.d(), problem.d_v(), problem.dtype().size());
    let state = |rows: usize| 4 * rows * (d_v + 2);
    let (mut read, mut written) = (0, 0);
    for (n, k) in problem.sequences().iter().map(|s| (s.q.len(), s.k.len())).filter(|&(n, _)| n > 0) {
        written += state(n); // line 2
        for keys in (0..k).step_by(blocks.keys).map(|start| blocks.keys.min(k - start)) {
            read += e * keys * (d + d_v); // line 6
            for rows in (0..n).step_by(blocks.rows).map(|start| blocks.rows.min(n - start)) {
                read += e * rows * d + state(rows); // line 8
                written += state(rows); // lines 12 and 13
            }
        }
        read += state(n); // the pass that finishes
        written += e * n * d_v + 4 * n;
    }
    let heads = problem.heads() as u64;
    Traffic { read: heads * read as u64, written: heads * written as u64 }
}

/// What a row and a key weigh, in words.
fn bytes(problem: &Problem) -> String {
    let (d, d_v, e) = (problem.d(), problem.d_v(), problem.dtype().size());
    let (state, kv, o) = (4 * (d_v + 2), e * (d + d_v), e * d_v);
    format!(" (bytes: q {}, o, l and m {state}, the result {o} and lse 4 a row, k and v {kv} a key)", e * d)
}

/// The predicted traffic is the listing's, line by line.
pub(crate) fn traffic_is_the_listings(
    traffic: impl Fn(&Problem, usize) -> Result<Traffic, AttentionError>,
    spec: &Spec,
    fast_memory: usize,
) -> Result<(), TestCaseError> {
    let owned = spec.build();
    let problem = owned.problem();
    let d = problem.d().max(problem.d_v());
    let keys = fast_memory / 16 / d;
    if keys == 0 {
        prop_assert!(traffic(&problem, fast_memory).is_err(), "M = {fast_memory} bytes holds no row of {d} channels");
        return Ok(());
    }
    let wanted = line_by_line(&problem, Blocks { rows: keys.min(d), keys });
    let found = traffic(&problem, fast_memory)?;
    prop_assert!(
        found == wanted,
        "M = {fast_memory} bytes: predicted {found:?}, the listing moves {wanted:?}{}",
        bytes(&problem)
    );
    Ok(())
}

/// What a metered run counts is the listing's.
pub(crate) fn the_meter_counts_the_listing<'m, R: Attention + 'm>(
    rung: impl Fn(usize, &'m TrafficMeter) -> R,
    meter: &'m TrafficMeter,
    spec: &Spec,
    fast_memory: usize,
) -> Result<(), TestCaseError> {
    let owned = spec.build();
    let problem = owned.problem();
    rung(fast_memory, meter).forward(&problem)?;
    let d = problem.d().max(problem.d_v());
    let keys = fast_memory / 16 / d;
    let (found, wanted) = (meter.traffic(), line_by_line(&problem, Blocks { rows: keys.min(d), keys }));
    prop_assert!(
        found == wanted,
        "M = {fast_memory} bytes: the meter counts {found:?}, the listing moves {wanted:?}{}",
        bytes(&problem)
    );
    Ok(())
}
