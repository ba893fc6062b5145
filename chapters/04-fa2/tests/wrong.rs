//! Wrong variants of chapter 4. Each is what someone has shipped; the check must reject it.

use attention::{Head, sink_factor, weight};
use ndarray::{Array1, Array2, s};
use testkit::{Variant, assert_caught, check, problems::problems};

/// Rows and keys of a tile: small, so that every problem has several.
const TILE: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The control: it must pass.
    None,
    /// O not rescaled when the maximum rises, since "FA2 rescales once at the end".
    ForgottenRescale,
    /// The slip of the printed listing: O times `diag(e^(m_old - m_new))^-1`.
    InverseRescale,
    /// The maximum of the current tile alone in place of the running one.
    TileMaximum,
    /// Key tiles skipped by what the first row of the tile sees: the diagonal goes missing.
    SkippedDiagonal,
    /// Tiles that touch the mask treated as wholly visible.
    UnmaskedDiagonal,
    /// Two halves of the keys merged by their plain average.
    AveragedSplits,
    /// Two halves merged in the wrong base: weights 2^lse.
    MergedInBaseTwo,
    /// lse from the last tile's maximum.
    LastMaximum,
}

/// o, m and l of one row tile over `keys`.
fn stream(head: &Head, rows: std::ops::Range<usize>, keys: std::ops::Range<usize>, fault: Fault) -> [Array2<f32>; 3] {
    let q_i = head.q.load(rows.clone());
    let mut o = Array2::<f32>::zeros((rows.len(), head.d_v()));
    let mut l = Array2::<f32>::zeros((rows.len(), 1));
    let mut m = Array2::from_elem((rows.len(), 1), f32::NEG_INFINITY);
    let mut last = m.clone();
    let end = match fault {
        Fault::SkippedDiagonal => keys.end.min(head.visible(rows.start).end),
        _ => keys.end,
    };
    for keys in (keys.start..end).step_by(TILE).map(|j| j..end.min(j + TILE)) {
        let (k_j, v_j) = (head.k.load(keys.clone()), head.v.load(keys.clone()));
        let mut p = Array2::zeros((rows.len(), keys.len()));
        let seen = match fault {
            Fault::UnmaskedDiagonal => &Head { mask: attention::Mask::Full, ..head.clone() },
            _ => head,
        };
        if !head.visible_to_any(rows.clone()).any(|j| keys.contains(&j)) {
            continue;
        }
        seen.scores((rows.clone(), q_i.view()), (keys.clone(), k_j.view()), p.view_mut());
        for (r, mut p) in p.rows_mut().into_iter().enumerate() {
            last[[r, 0]] = p.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let m_new = if fault == Fault::TileMaximum { last[[r, 0]] } else { last[[r, 0]].max(m[[r, 0]]) };
            let rescale = weight(m[[r, 0]], m_new);
            p.mapv_inplace(|s| weight(s, m_new));
            l[[r, 0]] = rescale * l[[r, 0]] + p.sum();
            m[[r, 0]] = m_new;
            match fault {
                Fault::ForgottenRescale => {}
                Fault::InverseRescale if rescale > 0.0 => o.row_mut(r).mapv_inplace(|o| o / rescale),
                _ => o.row_mut(r).mapv_inplace(|o| o * rescale),
            }
        }
        seen.accumulate((rows.clone(), p.view()), (keys.clone(), v_j.view()), o.view_mut());
    }
    [o, if fault == Fault::LastMaximum { last } else { m }, l]
}

fn algorithm_1(head: &Head, fault: Fault) -> (Array2<f32>, Array1<f32>) {
    let mut all = Array2::zeros((head.q_len, head.d_v()));
    let mut lse = Array1::zeros(head.q_len);
    for rows in (0..head.q_len).step_by(TILE).map(|i| i..head.q_len.min(i + TILE)) {
        let half = head.k_len / 2;
        let [mut o, m, l] = stream(head, rows.clone(), 0..half, fault);
        let [o_right, m_right, l_right] = stream(head, rows.clone(), half..head.k_len, fault);
        for (r, (i, mut o)) in rows.clone().zip(o.rows_mut()).enumerate() {
            let ([m, l], [m_right, l_right]) = ([m[[r, 0]], l[[r, 0]]], [m_right[[r, 0]], l_right[[r, 0]]]);
            let top = m.max(m_right);
            let (mut left, mut right) = (weight(m, top), weight(m_right, top));
            if fault == Fault::MergedInBaseTwo {
                (left, right) = (left.powf(2f32.ln()), right.powf(2f32.ln()));
            }
            if fault == Fault::AveragedSplits {
                (left, right) = (1.0 / (2.0 * l).max(1.0), 1.0 / (2.0 * l_right).max(1.0));
            }
            let sum = left * l + right * l_right;
            lse[i] = if sum == 0.0 { f32::NEG_INFINITY } else { top + sum.ln() };
            o *= left;
            o.scaled_add(right, &o_right.row(r));
            if sum != 0.0 {
                o *= sink_factor(head.sink, top, sum) / sum;
            }
        }
        all.slice_mut(s![rows, ..]).assign(&o);
    }
    (all, lse)
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
fn o_not_rescaled() {
    caught("o not rescaled", Fault::ForgottenRescale);
}

#[test]
fn rescaled_as_printed() {
    caught("inverse rescale", Fault::InverseRescale);
}

#[test]
fn maximum_of_the_tile_alone() {
    caught("tile maximum", Fault::TileMaximum);
}

#[test]
fn diagonal_tile_skipped() {
    caught("skipped diagonal", Fault::SkippedDiagonal);
}

#[test]
fn diagonal_tile_unmasked() {
    caught("unmasked diagonal", Fault::UnmaskedDiagonal);
}

#[test]
fn splits_averaged() {
    caught("averaged splits", Fault::AveragedSplits);
}

#[test]
fn splits_merged_in_base_two() {
    caught("base two", Fault::MergedInBaseTwo);
}

#[test]
fn lse_from_the_last_tile() {
    caught("last maximum", Fault::LastMaximum);
}
