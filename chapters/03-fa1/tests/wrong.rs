//! Wrong variants of chapter 3: slips that are easy to make. The checks must reject each of them.

use fa1 as subject;

mod laws;

use attention::{
    AttentionError, DEFAULT_FAST_MEMORY, Head, Meter, Problem, RowsMut, Traffic, TrafficMeter, sink_factor, weight,
};
use fa1::{Blocks, Fa1, Running, tiles};
use laws::*;
use ndarray::{Array1, Array2, ArrayViewMut1, ArrayViewMut2, s};
use online_softmax::OnlineSoftmax;
use std::ops::Range;
use testkit::problems::problems;
use testkit::{
    ByHand, Variant, assert_caught, assert_control_passes, assert_fault_caught, assert_guards_that_drop_nan_are_caught,
    by_hand, by_hand_with_nan, check_by_hand, must, rows,
};

/// Rows and keys of a tile: small, so that every problem has several.
const TILE: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The control: it must pass.
    None,
    /// `O_i = P~ V` instead of adding to what is there.
    OverwrittenAccumulator,
    /// One maximum for all rows of the tile.
    OneMaximumForAll,
    /// One sum for all rows of the tile.
    OneSumForAll,
    /// The old sum not brought to the new maximum.
    ForgottenSum,
    /// `diag(l)` left out of line 12: O divided at every step and never multiplied back.
    NotMultipliedBack,
    /// m not written back in line 13.
    MaximumNotStored,
    /// Keys past the end of the last tile taken for keys of zeros, with score 0 and value 0, as a padded tile has them.
    UnmaskedTail,
    /// The number of tiles rounded down.
    FlooredGrid,
    /// A tile taken for hidden by its maximum, which drops NaN.
    HiddenByMaximum,
    /// Line 12 as a plain product, in which a hidden NaN counts 0 * NaN.
    HiddenValueRead,
}

fn algorithm_1(head: &Head, fault: Fault) -> (Array2<f32>, Array1<f32>) {
    let mut o = Array2::<f32>::zeros((head.q_len, head.d_v()));
    let mut l = Array1::<f32>::zeros(head.q_len);
    let mut m = Array1::from_elem(head.q_len, f32::NEG_INFINITY);
    let key_end = if fault == Fault::FlooredGrid { head.k_len / TILE * TILE } else { head.k_len };
    for keys in (0..key_end).step_by(TILE).map(|j| j..key_end.min(j + TILE)) {
        let (k_j, v_j) = (head.k.load(keys.clone()), head.v.load(keys.clone()));
        for rows in (0..head.q_len).step_by(TILE).map(|i| i..head.q_len.min(i + TILE)) {
            let q_i = head.q.load(rows.clone());
            let width = if fault == Fault::UnmaskedTail { TILE } else { keys.len() };
            let mut p = Array2::zeros((rows.len(), width));
            let s = p.slice_mut(s![.., ..keys.len()]);
            head.scores((rows.clone(), q_i.view()), (keys.clone(), k_j.view()), s);
            let tile_max = p.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut tile_sum = 0.0;
            for (r, (i, mut p)) in rows.clone().zip(p.rows_mut()).enumerate() {
                let mut m_row = p.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                if fault == Fault::OneMaximumForAll {
                    m_row = tile_max;
                }
                p.mapv_inplace(|s| weight(s, m_row));
                let mut l_row = p.sum();
                tile_sum += l_row;
                if fault == Fault::OneSumForAll && r > 0 {
                    l_row = tile_sum;
                }
                if fault == Fault::HiddenByMaximum && m_row == f32::NEG_INFINITY {
                    p.fill(0.0);
                    l_row = 0.0;
                }
                if l_row == 0.0 {
                    continue;
                }
                let m_new = m[i].max(m_row);
                let (old, new) = (weight(m[i], m_new), weight(m_row, m_new));
                let l_new = new * l_row + if fault == Fault::ForgottenSum { l[i] } else { old * l[i] };
                let kept = match fault {
                    Fault::NotMultipliedBack => old / l_new,
                    Fault::OverwrittenAccumulator => 0.0,
                    _ => l[i] * old / l_new,
                };
                o.row_mut(i).mapv_inplace(|o| kept * o);
                p.mapv_inplace(|p| new / l_new * p);
                l[i] = l_new;
                if fault != Fault::MaximumNotStored || m[i] == f32::NEG_INFINITY {
                    m[i] = m_new;
                }
            }
            let p = p.slice(s![.., ..keys.len()]);
            if fault == Fault::HiddenValueRead {
                o.slice_mut(s![rows, ..]).scaled_add(1.0, &p.dot(&v_j));
                continue;
            }
            head.accumulate((rows.clone(), p), (keys.clone(), v_j.view()), o.slice_mut(s![rows, ..]));
        }
    }
    for (i, mut o) in o.rows_mut().into_iter().enumerate().filter(|(i, _)| l[*i] != 0.0) {
        o *= sink_factor(head.sink, m[i], l[i]);
    }
    (o, m + l.mapv(f32::ln))
}

#[test]
fn wrong_block_sizes() {
    type Fit = fn(usize, usize) -> Result<Blocks, AttentionError>;
    let bytes_as_elements: Fit = |memory, d| Blocks::fit(4 * memory, d);
    let rounded_up: Fit = |memory, d| {
        let keys = (memory / 4).div_ceil(4 * d);
        Ok(Blocks { rows: keys.min(d), keys })
    };
    let rows_like_keys: Fit = |memory, d| Blocks::fit(memory, d).map(|Blocks { keys, .. }| Blocks { rows: keys, keys });
    let at_least_one: Fit = |memory, d| Blocks::fit(memory.max(16 * d), d);
    let three_tiles: Fit = |memory, d| Blocks::fit(memory / 3 * 4, d);
    for (name, fit) in [
        ("bytes as elements", bytes_as_elements),
        ("rounded up", rounded_up),
        ("as many rows as keys", rows_like_keys),
        ("at least one key", at_least_one),
        ("room for three tiles", three_tiles),
    ] {
        assert_caught(name, 200, (0usize..5000, 1usize..20), |(memory, d)| blocks_are_line_1(fit, memory, d));
    }
}

type Update = fn(ArrayViewMut2<f32>, ArrayViewMut2<f32>, ArrayViewMut1<f32>, ArrayViewMut1<f32>);

#[test]
fn wrong_updates() {
    let not_multiplied_back: Update = |s, mut o, mut l, m| {
        let old = l.to_owned();
        fa1::update(s, o.view_mut(), l.view_mut(), m);
        o.rows_mut().into_iter().zip(&old).for_each(|(mut o, &l)| o.mapv_inplace(|o| if l > 0.0 { o / l } else { o }));
    };
    let m_not_stored: Update = |s, o, l, mut m| {
        let old = m.to_owned();
        fa1::update(s, o, l, m.view_mut());
        m.assign(&old);
    };
    let l_not_rescaled: Update = |s, o, mut l, mut m| {
        let (l_old, m_old) = (l.to_owned(), m.to_owned());
        fa1::update(s, o, l.view_mut(), m.view_mut());
        for r in 0..l.len() {
            l[r] += l_old[r] * (1.0 - weight(m_old[r], m[r]));
        }
    };
    let weights_not_divided: Update = |mut s, o, mut l, m| {
        fa1::update(s.view_mut(), o, l.view_mut(), m);
        s.rows_mut().into_iter().zip(&l).for_each(|(mut s, l)| s *= *l);
    };
    let one_maximum: Update = |s, o, l, mut m| {
        fa1::update(s, o, l, m.view_mut());
        let top = m.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        m.fill(top);
    };
    let nan_when_hidden: Update = |mut s, o, l, m| {
        let hidden: Vec<bool> = s.rows().into_iter().map(|s| s.iter().all(|s| *s == f32::NEG_INFINITY)).collect();
        fa1::update(s.view_mut(), o, l, m);
        s.rows_mut().into_iter().zip(hidden).filter(|(_, hidden)| *hidden).for_each(|(mut s, _)| s.fill(f32::NAN));
    };
    let channel_0: Update = |s, mut o, l, m| {
        let before = o.to_owned();
        fa1::update(s, o.view_mut(), l, m);
        o.slice_mut(s![.., 1..]).assign(&before.slice(s![.., 1..]));
    };
    for (name, update) in [
        ("channel 0 only", channel_0),
        ("o not multiplied back", not_multiplied_back),
        ("m not stored", m_not_stored),
        ("l not rescaled", l_not_rescaled),
        ("weights not divided", weights_not_divided),
        ("one maximum", one_maximum),
        ("NaN when hidden", nan_when_hidden),
    ] {
        assert_caught(name, 200, rows(), |rows| update_is_lines_10_to_13(update, &rows));
    }
}

#[test]
fn wrong_guards_that_drop_nan() {
    assert_guards_that_drop_nan_are_caught(fa1::update);
    type Finish = fn(&Head, Running, &mut RowsMut, &TrafficMeter);
    let empty_by_maximum: Finish = |one, mut running, out, meter| {
        for i in 0..running.l.len() {
            if running.m[i] == f32::NEG_INFINITY {
                running.l[i] = 0.0;
            }
        }
        fa1::finish(one, running, out, meter);
    };
    assert_caught("empty by the maximum", 1, rows(), |_| finish_keeps_nan(empty_by_maximum));
}

/// What a wrong pair of loops does otherwise.
#[derive(Clone, Copy, Default)]
struct Loops {
    overwritten: bool,
    floored: bool,
    hidden_tiles_skipped: bool,
    keys_read_every_step: bool,
    state_not_read: bool,
    never_allocated: bool,
    channel_0: bool,
    scale_twice: bool,
    no_cap: bool,
    no_alibi: bool,
    no_bias: bool,
}

/// Lines 2 to 15 with one thing otherwise.
fn loops(one: &Head, blocks: Blocks, meter: &TrafficMeter, fault: Loops) -> Running {
    let mut one = one.clone();
    if fault.scale_twice {
        one.scale *= one.scale;
    }
    if fault.no_cap {
        one.softcap = 0.0;
    }
    one.slope = one.slope.filter(|_| !fault.no_alibi);
    one.bias = one.bias.filter(|_| !fault.no_bias);
    let (n, d, d_v, e) = (one.q_len, one.d(), one.d_v(), one.q.dtype().size());
    let state = |rows: &Range<usize>| 4 * rows.len() * (d_v + 2);
    let mut running = Running::new(n, d_v);
    if !fault.never_allocated {
        meter.allocate(state(&(0..n)));
    }
    meter.write(state(&(0..n)));
    let k_len = if fault.floored { one.k_len / blocks.keys * blocks.keys } else { one.k_len };
    for keys in tiles(k_len, blocks.keys) {
        let (k_j, v_j) = (one.k.load(keys.clone()), one.v.load(keys.clone()));
        meter.read(e * keys.len() * (d + d_v));
        for rows in tiles(n, blocks.rows) {
            let seen = one.visible_to_any(rows.clone());
            if fault.hidden_tiles_skipped && (seen.end <= keys.start || seen.start >= keys.end) {
                continue;
            }
            let q_i = one.q.load(rows.clone());
            let again = if fault.keys_read_every_step { e * keys.len() * (d + d_v) } else { 0 };
            meter.read(again + e * rows.len() * d + if fault.state_not_read { 0 } else { state(&rows) });
            let mut o_i = running.o.slice_mut(s![rows.clone(), ..]);
            let mut p = Array2::zeros((rows.len(), keys.len()));
            one.scores((rows.clone(), q_i.view()), (keys.clone(), k_j.view()), p.view_mut());
            let (l_i, m_i) = (running.l.slice_mut(s![rows.clone()]), running.m.slice_mut(s![rows.clone()]));
            fa1::update(p.view_mut(), o_i.view_mut(), l_i, m_i);
            if fault.overwritten {
                o_i.fill(0.0);
            }
            one.accumulate((rows.clone(), p.view()), (keys.clone(), v_j.view()), o_i);
            meter.write(state(&rows));
        }
    }
    if fault.channel_0 {
        running.o.slice_mut(s![.., 1..]).fill(0.0);
    }
    running
}

fn loops_caught(name: &str, fault: Loops) {
    let head = |one: &Head, blocks: Blocks, meter: &TrafficMeter| loops(one, blocks, meter, fault);
    let blocks = (1usize..=3, 1usize..=3);
    assert_caught(name, 200, (by_hand(), blocks), |(case, (rows, keys))| {
        head_is_lines_2_to_15(head, &case, Blocks { rows, keys })
    });
}

#[test]
fn wrong_loops() {
    let right = |one: &Head, blocks: Blocks, meter: &TrafficMeter| loops(one, blocks, meter, Loops::default());
    let case =
        ByHand { q: vec![1.0, 2.0], keys: vec![(1.0, 2.0), (2.0, 3.0), (0.0, 1.0)], causal: true, ..ByHand::default() };
    head_is_lines_2_to_15(right, &case, Blocks { rows: 1, keys: 2 }).unwrap();
    loops_caught("accumulator overwritten", Loops { overwritten: true, ..Loops::default() });
    loops_caught("grid rounded down", Loops { floored: true, ..Loops::default() });
    loops_caught("hidden tiles skipped", Loops { hidden_tiles_skipped: true, ..Loops::default() });
    loops_caught("keys read at every step", Loops { keys_read_every_step: true, ..Loops::default() });
    loops_caught("o, l and m not read", Loops { state_not_read: true, ..Loops::default() });
    loops_caught("never allocated", Loops { never_allocated: true, ..Loops::default() });
    loops_caught("channel 0 only", Loops { channel_0: true, ..Loops::default() });
    for (name, fault) in [
        ("scale twice", Loops { scale_twice: true, ..Loops::default() }),
        ("no cap", Loops { no_cap: true, ..Loops::default() }),
        ("no ALiBi", Loops { no_alibi: true, ..Loops::default() }),
        ("no bias", Loops { no_bias: true, ..Loops::default() }),
    ] {
        let head = |one: &Head, blocks: Blocks, meter: &TrafficMeter| loops(one, blocks, meter, fault);
        let blocks = Blocks { rows: 1, keys: 2 };
        let by_hand = ByHand::scores_with_more().iter().try_for_each(|case| head_is_lines_2_to_15(head, case, blocks));
        assert!(by_hand.is_err(), "{name} passes by hand");
        loops_caught(name, fault);
    }
}

#[test]
fn wrong_finishes() {
    type Finish = fn(&Head, Running, &mut RowsMut, &TrafficMeter);
    let no_sink: Finish = |one, running, out, meter| {
        fa1::finish(&Head { sink: f32::NEG_INFINITY, ..one.clone() }, running, out, meter);
    };
    let divided_again: Finish = |one, mut running, out, meter| {
        running.o.rows_mut().into_iter().zip(&running.l).for_each(|(mut o, l)| o /= l.max(1e-9));
        fa1::finish(one, running, out, meter);
    };
    let no_maximum: Finish = |one, mut running, out, meter| {
        running.m.fill(0.0);
        fa1::finish(&Head { sink: f32::NEG_INFINITY, ..one.clone() }, running, out, meter);
    };
    let pass_not_read: Finish = |one, running, out, meter| {
        let unread = TrafficMeter::default();
        unread.allocate(4 * running.l.len() * (one.d_v() + 2));
        meter.write(8 * running.l.len());
        meter.release(4 * running.l.len() * (one.d_v() + 2));
        fa1::finish(one, running, out, &unread);
    };
    let not_released: Finish = |one, running, out, meter| {
        meter.allocate(4 * running.l.len() * (one.d_v() + 2));
        fa1::finish(one, running, out, meter);
    };
    let channel_0: Finish = |one, mut running, out, meter| {
        running.o.slice_mut(s![.., 1..]).fill(0.0);
        fa1::finish(one, running, out, meter);
    };
    for (name, finish) in [
        ("channel 0 only", channel_0),
        ("no sink", no_sink),
        ("divided again", divided_again),
        ("lse without m", no_maximum),
        ("the pass is not read", pass_not_read),
        ("not released", not_released),
    ] {
        assert_caught(name, 200, (rows(), 0u8..3), |(rows, sink)| {
            let keys: Vec<_> = rows.into_iter().map(|row| row.before).collect();
            finish_is_one_more_pass(finish, &keys, sink.into())
        });
    }
}

#[test]
fn wrong_predictions_of_traffic() {
    type Predict = fn(&Problem, usize) -> Result<Traffic, AttentionError>;
    let state = |problem: &Problem, rows: usize| (problem.heads() * 4 * rows * (problem.d_v() + 2)) as u64;
    fn rows(problem: &Problem) -> usize {
        problem.sequences().iter().map(|s| s.q.len()).sum()
    }
    let no_first_write = move |problem: &Problem, memory: usize| {
        let traffic = fa1::traffic(problem, memory)?;
        Ok(Traffic { written: traffic.written - state(problem, rows(problem)), ..traffic })
    };
    let no_last_pass = move |problem: &Problem, memory: usize| {
        let traffic = fa1::traffic(problem, memory)?;
        Ok(Traffic { read: traffic.read - state(problem, rows(problem)), ..traffic })
    };
    let q_once: Predict = |problem, memory| {
        let blocks = Blocks::fit(memory, problem.d().max(problem.d_v()))?;
        let mut traffic = fa1::traffic(problem, memory)?;
        for s in problem.sequences() {
            let passes = s.k.len().div_ceil(blocks.keys).saturating_sub(1);
            traffic.read -= (problem.heads() * passes * s.q.len() * problem.d() * problem.dtype().size()) as u64;
        }
        Ok(traffic)
    };
    let as_standard: Predict = |problem, _| Ok(naive::traffic(problem));
    let always_four_bytes: Predict = |problem, memory| {
        let traffic = fa1::traffic(problem, memory)?;
        let extra = (4 - problem.dtype().size()) * problem.d_v() * rows(problem) * problem.heads();
        Ok(Traffic { written: traffic.written + extra as u64, ..traffic })
    };
    let caught = |name: &str, predict: &dyn Fn(&Problem, usize) -> Result<Traffic, AttentionError>| {
        assert_caught(name, 200, problems(), |spec| traffic_is_the_listings(predict, &spec, 5000));
    };
    caught("no first write", &no_first_write);
    caught("no last pass", &no_last_pass);
    caught("q once", &q_once);
    caught("standard attention's", &as_standard);
    caught("four bytes an element", &always_four_bytes);
}

#[test]
fn wrong_rungs_by_their_traffic() {
    assert_caught("the rung below", 200, problems(), |spec| {
        let meter = TrafficMeter::default();
        the_meter_counts_the_listing(|_, meter| OnlineSoftmax::with_meter(meter), &meter, &spec, DEFAULT_FAST_MEMORY)
    });
    assert_caught("half the memory", 200, problems(), |spec| {
        let meter = TrafficMeter::default();
        the_meter_counts_the_listing(|memory, meter| Fa1::new(memory / 2, meter), &meter, &spec, DEFAULT_FAST_MEMORY)
    });
}

#[test]
fn the_control_passes() {
    assert_control_passes(algorithm_1, Fault::None);
}

#[test]
fn accumulator_overwritten() {
    assert_fault_caught(algorithm_1, Fault::OverwrittenAccumulator);
}

#[test]
fn one_maximum_for_all_rows() {
    assert_fault_caught(algorithm_1, Fault::OneMaximumForAll);
}

#[test]
fn one_sum_for_all_rows() {
    assert_fault_caught(algorithm_1, Fault::OneSumForAll);
}

#[test]
fn l_not_rescaled() {
    assert_fault_caught(algorithm_1, Fault::ForgottenSum);
}

#[test]
fn o_not_multiplied_back() {
    assert_fault_caught(algorithm_1, Fault::NotMultipliedBack);
}

#[test]
fn m_not_stored() {
    assert_fault_caught(algorithm_1, Fault::MaximumNotStored);
}

#[test]
fn tail_keys_unmasked() {
    assert_fault_caught(algorithm_1, Fault::UnmaskedTail);
}

#[test]
fn grid_rounded_down() {
    assert_fault_caught(algorithm_1, Fault::FlooredGrid);
}

#[test]
fn nan_dropped_and_hidden_nan_read() {
    let control = Variant::new("control", |head: &Head| algorithm_1(head, Fault::None));
    for fault in [Fault::HiddenByMaximum, Fault::HiddenValueRead] {
        let variant = Variant::new("variant", move |head: &Head| algorithm_1(head, fault));
        assert_caught(&format!("{fault:?}"), 200, by_hand_with_nan(), |case| {
            must(check_by_hand(&control, &case));
            check_by_hand(&variant, &case)
        });
    }
}
