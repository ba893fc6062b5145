//! NaN and infinities: from keys that no row sees nothing, from keys that some rows see exactly those rows. And scores
//! as large as f32 holds.

use crate::common::{Dims, Tensors, assert_same_bits, bits, causal, dims, expect_rows, o, run_all};
use attention::{Mask, Options};
use ndarray::{Array4, s};
use std::f32::consts::LN_2;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

/// flash-attention 1745 and 1395: NaN in cache slots past the length reaches the output.
#[test]
fn a19_slots_past_the_length_hold_anything() {
    for shape in [
        Dims { batch: 2, d: 4, d_v: 4, ..dims(1, 3) },
        Dims { batch: 2, heads: 4, kv_heads: 2, d: 8, d_v: 8, ..dims(3, 60) },
    ] {
        let lens = [1, 3];
        let mut clean = Tensors::random(19, shape);
        for (b, &len) in lens.iter().enumerate() {
            clean.k.slice_mut(s![b, .., len.., ..]).fill(0.0);
            clean.v.slice_mut(s![b, .., len.., ..]).fill(0.0);
        }
        for poison in [NAN, INF, 1e10] {
            for (in_k, in_v) in [(true, false), (false, true), (true, true)] {
                let mut dirty = clean.clone();
                for (b, &len) in lens.iter().enumerate() {
                    if in_k {
                        dirty.k.slice_mut(s![b, .., len.., ..]).fill(poison);
                    }
                    if in_v {
                        dirty.v.slice_mut(s![b, .., len.., ..]).fill(poison);
                    }
                }
                assert_same_bits(&clean.with_lens(&lens, causal()), &dirty.with_lens(&lens, causal()));
            }
        }
    }
}

/// pytorch 101967: NaN or 1e10 in a key that the mask removes for all queries changes the result.
#[test]
fn a22_a_key_hidden_from_all_queries_holds_anything() {
    let bias = Array4::from_shape_fn((1, 1, 2, 2), |at| if at.3 == 1 { -INF } else { 0.0 });
    for (k_1, v_1) in [(NAN, 0.0), (NAN, INF), (1e10, NAN), (-INF, -INF), (INF, 1e10)] {
        let mut tensors = Tensors::random(22, Dims { d: 4, d_v: 4, ..dims(2, 2) });
        tensors.k.slice_mut(s![.., .., 1, ..]).fill(k_1);
        tensors.v.slice_mut(s![.., .., 1, ..]).fill(v_1);
        for (name, output) in run_all(&tensors.problem(Options { bias: Some(bias.view()), ..Options::default() })) {
            for i in 0..2 {
                let (found, v_0) = (o(&output), tensors.v.slice(s![0, 0, 0, ..]));
                assert_eq!(found.slice(s![0, 0, i, ..]), v_0, "{name}, row {i} with k {k_1} and v {v_1}");
                assert!(output.lse[[0, 0, i]].is_finite(), "{name}, row {i}");
            }
        }
    }
}

/// Rows of each head that have NaN in o (any channel) and in lse.
type NanRows = Vec<(bool, bool)>;

/// Runs `dirty` and asserts that its NaN stand where `wanted(head, row)` says, (o, lse), and that every other row has
/// the bits of `clean`.
fn spreads<'a>(
    what: &str,
    clean: &'a Tensors,
    dirty: &'a Tensors,
    options: Options<'a>,
    wanted: impl Fn(usize, usize) -> (bool, bool),
) {
    let (clean, dirty) = (clean.problem(options.clone()), dirty.problem(options));
    for ((name, clean), (_, dirty)) in run_all(&clean).iter().zip(&run_all(&dirty)) {
        let (clean_o, dirty_o) = (o(clean), o(dirty));
        let (heads, rows) = (dirty_o.shape()[1], dirty_o.shape()[2]);
        for h in 0..heads {
            let nan_rows = |wanted: &dyn Fn(usize) -> (bool, bool)| -> NanRows { (0..rows).map(wanted).collect() };
            let found = nan_rows(&|i| {
                let in_o = dirty_o.slice(s![0, h, i, ..]).iter().any(|x| x.is_nan());
                (in_o, dirty.lse[[0, h, i]].is_nan())
            });
            assert_eq!(found, nan_rows(&|i| wanted(h, i)), "{name}, {what}: NaN of head {h} in (o, lse)");
            for i in (0..rows).filter(|&i| wanted(h, i) == (false, false)) {
                assert_eq!(dirty_o.slice(s![0, h, i, ..]), clean_o.slice(s![0, h, i, ..]), "{name}, {what}: row {i}");
                assert_eq!(dirty.lse[[0, h, i]], clean.lse[[0, h, i]], "{name}, {what}: row {i}");
            }
        }
    }
}

/// NaN in q, k or v gives NaN in the rows that attend it, all of them, and nowhere else, also inside one tile.
#[test]
fn nan_reaches_the_rows_that_attend_it_and_no_other() {
    for (q_len, k_len) in [(8, 8), (40, 150), (12, 7)] {
        let clean = Tensors::random(50, Dims { heads: 4, kv_heads: 2, d: 4, d_v: 3, ..dims(q_len, k_len) });
        for mask in [Mask::Full, Mask::Causal, Mask::window(2, 1)] {
            let sees = |i: usize, j: usize| {
                let distance = j as i64 - (i + k_len) as i64 + q_len as i64;
                match mask {
                    Mask::Full => true,
                    Mask::Causal => distance <= 0,
                    Mask::Window { .. } => (-2..=1).contains(&distance),
                }
            };
            for j in [0, 3, k_len - 1] {
                let mut dirty = clean.clone();
                dirty.k[[0, 1, j, 2]] = NAN;
                let reached = |h: usize, i: usize| h >= 2 && sees(i, j);
                spreads("NaN in k", &clean, &dirty, Options { mask, ..Options::default() }, |h, i| {
                    (reached(h, i), reached(h, i))
                });
                let mut dirty = clean.clone();
                dirty.v[[0, 1, j, 2]] = NAN;
                spreads("NaN in v", &clean, &dirty, Options { mask, ..Options::default() }, |h, i| {
                    (reached(h, i), false)
                });
            }
            for row in [0, q_len - 1] {
                let mut dirty = clean.clone();
                dirty.q[[0, 1, row, 0]] = NAN;
                let reached = |h: usize, i: usize| h == 1 && i == row && (0..k_len).any(|j| sees(i, j));
                spreads("NaN in q", &clean, &dirty, Options { mask, ..Options::default() }, |h, i| {
                    (reached(h, i), reached(h, i))
                });
            }
        }
    }
}

/// NaN in one channel of v stays in that channel.
#[test]
fn nan_in_v_stays_in_its_channel() {
    let clean = Tensors::random(51, Dims { d: 4, d_v: 5, ..dims(6, 30) });
    let mut dirty = clean.clone();
    dirty.v[[0, 0, 11, 3]] = NAN;
    let both = run_all(&clean.problem(Options::default())).into_iter().zip(run_all(&dirty.problem(Options::default())));
    for ((name, clean), (_, dirty)) in both {
        for ((at, found), clean) in o(&dirty).indexed_iter().zip(&o(&clean)) {
            if at[3] == 3 {
                assert!(found.is_nan(), "{name} {at:?}: {found}");
            } else {
                assert!((found - clean).abs() <= 1e-6, "{name} {at:?}: {found}, wanted {clean}");
            }
        }
    }
}

/// A bias of -inf hides NaN in k and in v from its row, whatever the other rows of the tile see. +inf and NaN poison.
#[test]
fn a_bias_of_minus_infinity_hides_nan() {
    let clean = Tensors::random(52, Dims { d: 4, d_v: 3, ..dims(10, 13) });
    // Key 5 is hidden from the odd rows, and all keys from row 8.
    let hides = |i: usize, j: usize| (i % 2 == 1 && j == 5) || i == 8;
    let bias = Array4::from_shape_fn((1, 1, 10, 13), |(_, _, i, j)| if hides(i, j) { -INF } else { 0.25 });
    for poison in [NAN, INF] {
        let mut dirty = clean.clone();
        dirty.k.slice_mut(s![.., .., 5, ..]).fill(NAN);
        dirty.v.slice_mut(s![.., .., 5, ..]).fill(poison);
        let options = Options { bias: Some(bias.view()), ..Options::default() };
        spreads("a key hidden from odd rows", &clean, &dirty, options, |_, i| (!hides(i, 5), !hides(i, 5)));
    }
    for wild in [NAN, INF] {
        let mut wild_bias = bias.clone();
        wild_bias[[0, 0, 2, 7]] = wild;
        for (name, output) in run_all(&clean.problem(Options { bias: Some(wild_bias.view()), ..Options::default() })) {
            for i in 0..10 {
                let row_o = o(&output);
                let nan = row_o.slice(s![0, 0, i, ..]).iter().all(|x| x.is_nan());
                assert_eq!((nan, output.lse[[0, 0, i]].is_nan()), (i == 2, i == 2), "{name}: bias {wild}, row {i}");
            }
        }
    }
}

/// A score of +inf makes its row NaN, o and lse, as softmax does; the row beside it is untouched.
#[test]
fn a_score_of_plus_infinity_is_a_nan_row() {
    for at in [0, 4, 9] {
        let mut tensors = Tensors::flat(dims(2, 10));
        tensors.q[[0, 0, 1, 0]] = 1.0;
        tensors.q[[0, 0, 0, 0]] = -1.0;
        tensors.k[[0, 0, at, 0]] = INF;
        let options = Options { scale: Some(1.0), ..Options::default() };
        for (name, output) in run_all(&tensors.problem(options)) {
            let found = o(&output);
            assert!(found[[0, 0, 1, 0]].is_nan() && output.lse[[0, 0, 1]].is_nan(), "{name}: {found} {}", output.lse);
            // The other row has a score of -inf there: the mean of the nine others.
            let wanted = (55.0 - (at + 1) as f32) / 9.0;
            assert!((found[[0, 0, 0, 0]] - wanted).abs() < 1e-5, "{name}: {found}, wanted {wanted}");
            assert!((output.lse[[0, 0, 0]] - 9f32.ln()).abs() < 1e-5, "{name}: {}", output.lse);
        }
    }
}

/// Scores of -inf from the data weigh nothing, not even with NaN in v; a row of nothing else is empty.
#[test]
fn scores_of_minus_infinity_weigh_nothing() {
    let mut tensors = Tensors::flat(dims(1, 6));
    tensors.q.fill(1.0);
    for j in [0, 2, 3] {
        tensors.k[[0, 0, j, 0]] = -INF;
    }
    expect_rows(&tensors.problem(Options::default()), &[((2.0 + 5.0 + 6.0) / 3.0, 3f64.ln())]);
    tensors.v[[0, 0, 2, 0]] = NAN;
    expect_rows(&tensors.problem(Options::default()), &[((2.0 + 5.0 + 6.0) / 3.0, 3f64.ln())]);
    tensors.k.fill(-INF);
    expect_rows(&tensors.problem(Options::default()), &[(0.0, f64::NEG_INFINITY)]);
}

/// Infinite values that are attended give infinities of their sign, and opposite ones NaN.
#[test]
fn infinite_values_come_through() {
    let mut tensors = Tensors::flat(Dims { d_v: 4, ..dims(2, 5) });
    tensors.v[[0, 0, 1, 0]] = INF;
    tensors.v[[0, 0, 2, 1]] = -INF;
    tensors.v[[0, 0, 1, 2]] = INF;
    tensors.v[[0, 0, 2, 2]] = -INF;
    for (name, output) in run_all(&tensors.problem(Options::default())) {
        for i in 0..2 {
            let found = o(&output);
            let channel = |c| found[[0, 0, i, c]];
            assert_eq!((channel(0), channel(1)), (INF, -INF), "{name}: {found}");
            assert!(channel(2).is_nan() && (channel(3) - 3.0).abs() < 1e-6, "{name}: {found}");
            assert!((output.lse[[0, 0, i]] - 5f32.ln()).abs() < 1e-6, "{name}");
        }
    }
}

/// A row that sees one key returns its v exactly, and its score as lse, at any size of the score.
#[test]
fn a_single_key_returns_its_value_exactly() {
    for (q, k) in [(0.0, 0.0), (1.0, -88.8), (1e18, 1e18), (-1e19, 3e19), (1e-30, 1e-30), (1.5, f32::MAX / 2.0)] {
        for v in [0.1f32, -3e38, 1e-40, 65504.0] {
            let mut tensors = Tensors::flat(Dims { d: 1, ..dims(1, 1) });
            tensors.q.fill(q);
            tensors.k.fill(k);
            tensors.v.fill(v);
            for (name, output) in run_all(&tensors.problem(Options::default())) {
                assert_eq!(o(&output)[[0, 0, 0, 0]], v, "{name}: score {q} * {k}");
                assert_eq!(output.lse[[0, 0, 0]], q * k, "{name}: score {q} * {k}");
            }
        }
    }
}

/// Adding a constant to all scores of a row moves its lse by it and its output by no bit, where the sums are exact.
#[test]
fn a_constant_added_to_all_scores_moves_lse_only() {
    let mut tensors = Tensors::random(53, Dims { d_v: 4, ..dims(3, 120) });
    tensors.q.fill(1.0);
    // Multiples of 2^-8: plus 1e4, they still fit 24 bits.
    tensors.k.mapv_inplace(|x| (256.0 * x).round() / 256.0);
    let plain = run_all(&tensors.problem(Options::default()));
    for constant in [1.0, -1.0, 100.0, 1e4, -1e4] {
        let bias = Array4::from_elem((1, 1, 3, 120), constant);
        let moved = run_all(&tensors.problem(Options { bias: Some(bias.view()), ..Options::default() }));
        for ((name, plain), (_, moved)) in plain.iter().zip(moved) {
            assert!(bits(plain).0 == bits(&moved).0, "{name}: {constant} moves the output");
            for (plain, moved) in plain.lse.iter().zip(&moved.lse) {
                let wanted = plain + constant;
                assert!((moved - wanted).abs() <= 1e-5 * (1.0 + wanted.abs()), "{name}: {moved}, wanted {wanted}");
            }
        }
    }
}

/// q . k overflows f32, or its terms do and cancel, while the scaled score fits: the result is finite and right.
#[test]
fn a_product_beyond_f32_whose_scaled_score_fits_is_finite() {
    let mut tensors = Tensors::flat(Dims { d: 4, ..dims(1, 2) });
    tensors.q.fill(2e19);
    tensors.k.fill(2e19);
    tensors.k.slice_mut(s![.., .., 1, ..]).fill(1e19);
    let options = Options { scale: Some(1e-39), ..Options::default() };
    // Scores 1.6 and 0.8; f32 holds 2e19 and 1e-39 (a subnormal) with small errors of their own.
    let wanted = 1.0 + 1.0 / (1.0 + 0.8f64.exp());
    for (name, output) in run_all(&tensors.problem(options)) {
        let (o, lse) = (o(&output)[[0, 0, 0, 0]], output.lse[[0, 0, 0]]);
        assert!((f64::from(o) - wanted).abs() < 1e-5, "{name}: {o}, wanted {wanted}");
        assert!((lse - (1.6f32.exp() + 0.8f32.exp()).ln()).abs() < 1e-5, "{name}: {lse}");
    }
    // 1e40 - 1e40: exactly 0 in both rows of keys.
    for cap in [0.0, 5.0] {
        let mut tensors = Tensors::flat(Dims { d: 2, ..dims(1, 2) });
        tensors.q.fill(1e20);
        tensors.k.slice_mut(s![.., .., .., 0]).fill(1e20);
        tensors.k.slice_mut(s![.., .., .., 1]).fill(-1e20);
        expect_rows(&tensors.problem(Options { softcap: cap, ..Options::default() }), &[(1.5, f64::from(LN_2))]);
    }
}
