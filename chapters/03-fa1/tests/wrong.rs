//! Wrong variants of chapter 3. Each is what someone has shipped; the check must reject it.

use attention::{Head, sink_factor, weight};
use ndarray::{Array1, Array2, s};
use testkit::{Variant, assert_caught, check, problems::problems};

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
    /// Keys past the end of the last tile taken as zeros with score 0, as a padded tile gives.
    UnmaskedTail,
    /// The number of tiles rounded down.
    FlooredGrid,
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
            let mut p = Array2::zeros((rows.len(), keys.len()));
            head.scores((rows.clone(), q_i.view()), (keys.clone(), k_j.view()), p.view_mut());
            let tile_max = p.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut tile_sum = 0.0;
            for (r, (i, mut p)) in rows.clone().zip(p.rows_mut()).enumerate() {
                let mut m_row = p.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                if fault == Fault::OneMaximumForAll {
                    m_row = tile_max;
                }
                p.mapv_inplace(|s| weight(s, m_row));
                let mut l_row = p.sum();
                if fault == Fault::UnmaskedTail {
                    l_row += (TILE - keys.len()) as f32 * weight(0.0, m_row.max(0.0));
                }
                tile_sum += l_row;
                if fault == Fault::OneSumForAll && r > 0 {
                    l_row = tile_sum;
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
            head.accumulate((rows.clone(), p.view()), (keys.clone(), v_j.view()), o.slice_mut(s![rows, ..]));
        }
    }
    for (i, mut o) in o.rows_mut().into_iter().enumerate().filter(|(i, _)| l[*i] != 0.0) {
        o *= sink_factor(head.sink, m[i], l[i]);
    }
    (o, m + l.mapv(f32::ln))
}

fn caught(name: &'static str, fault: Fault) {
    let variant = Variant::new(name, move |head: &Head| algorithm_1(head, fault));
    assert_caught(name, 200, problems(), |spec| check(&variant, &spec));
}

#[test]
fn the_control_passes() {
    proptest::proptest!(|(spec in problems())| {
        check(&Variant::new("control", |head: &Head| algorithm_1(head, Fault::None)), &spec)?;
    });
}

#[test]
fn accumulator_overwritten() {
    caught("accumulator overwritten", Fault::OverwrittenAccumulator);
}

#[test]
fn one_maximum_for_all_rows() {
    caught("one maximum", Fault::OneMaximumForAll);
}

#[test]
fn one_sum_for_all_rows() {
    caught("one sum", Fault::OneSumForAll);
}

#[test]
fn l_not_rescaled() {
    caught("l not rescaled", Fault::ForgottenSum);
}

#[test]
fn o_not_multiplied_back() {
    caught("o not multiplied back", Fault::NotMultipliedBack);
}

#[test]
fn m_not_stored() {
    caught("m not stored", Fault::MaximumNotStored);
}

#[test]
fn tail_keys_unmasked() {
    caught("unmasked tail", Fault::UnmaskedTail);
}

#[test]
fn grid_rounded_down() {
    caught("floored grid", Fault::FlooredGrid);
}
