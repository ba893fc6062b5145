//! lse and merging partial results, with the keys split in every way.

use crate::common::{Dims, Tensors, bits, dims, expect_definition, o, run, run_all, rungs};
use attention::{Attention, DType, Mask, NoMeter, Options, Output, OutputMut, Problem, oracle::truth};
use fa2::Fa2;
use half::bf16;
use ndarray::{Array2, Array3, Array4, ArrayView1, Axis, arr1, s};
use online_softmax::State;
use std::num::NonZeroUsize;

/// Merges two partial results of the same rows, as `[batch, heads, q_len]` or packed.
fn merged(left: &Output, right: &Output) -> Vec<(Vec<f32>, f32)> {
    let (left_o, right_o) = (o(left), o(right));
    let rows = |o: &ndarray::ArrayD<f32>| -> Vec<ndarray::Array1<f32>> {
        o.lanes(Axis(o.ndim() - 1)).into_iter().map(|row| row.to_owned()).collect()
    };
    let sides = rows(&left_o).into_iter().zip(&left.lse).zip(rows(&right_o).into_iter().zip(&right.lse));
    sides.map(|((a_o, a_lse), (b_o, b_lse))| merge((a_o.view(), *a_lse), (b_o.view(), *b_lse))).collect()
}

fn merge(left: (ArrayView1<f32>, f32), right: (ArrayView1<f32>, f32)) -> (Vec<f32>, f32) {
    let mut state = State::from_partial(left.0, left.1);
    state.merge(&State::from_partial(right.0, right.1));
    let (o, lse) = state.finish(f32::NEG_INFINITY);
    (o.to_vec(), lse)
}

/// flashinfer 2113, sglang 40903, vllm PR 47079, pytorch 181645: a base-2 lse goes into a natural-log merge.
#[test]
fn a26_prefix_and_suffix_merge_by_their_number_of_keys() {
    let (mut prefix, mut suffix) = (Tensors::flat(dims(1, 3072)), Tensors::flat(dims(1, 64)));
    prefix.v.fill(0.0);
    suffix.v.fill(1.0);
    let (prefix, suffix) = (run_all(&prefix.problem(Options::default())), run_all(&suffix.problem(Options::default())));
    for ((name, prefix), (_, suffix)) in prefix.iter().zip(&suffix) {
        let (o, lse) = merged(prefix, suffix).remove(0);
        assert!((o[0] - 0.020408).abs() < 1e-6, "{name}: {o:?}");
        assert!((lse - 3136f32.ln()).abs() < 1e-5, "{name}: {lse}");
    }
}

/// vllm PR 39148 and PR 28181, flashinfer 4051: merging two empty partials gives NaN.
#[test]
fn a27_empty_partials_merge_without_nan() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let cases = [
        ((0.0, -inf), (0.0, -inf), (0.0, -inf)),
        ((nan, -inf), (3.0, 0.5), (3.0, 0.5)),
        ((5.0, inf), (3.0, 0.5), (3.0, 0.5)),
        ((inf, -inf), (nan, inf), (0.0, -inf)),
    ];
    for (a, b, wanted) in cases {
        for (left, right) in [(a, b), (b, a)] {
            let (o, lse) = merge((arr1(&[left.0]).view(), left.1), (arr1(&[right.0]).view(), right.1));
            assert_eq!((o[0], lse), wanted, "{left:?} with {right:?}");
        }
    }
    // The empty state is the identity from either side, and finishing it gives an empty row.
    let mut state = State::empty(2);
    state.merge(&State::empty(2));
    assert_eq!(state.clone().finish(0.0), (arr1(&[0.0, 0.0]), -inf));
    let mut one = State::empty(2);
    one.push(-7.5, arr1(&[1.0, -2.0]).view());
    state.merge(&one);
    assert_eq!(state, one);
    one.merge(&State::empty(2));
    assert_eq!(state, one);
}

/// flash-attention PR 978, FlashMLA PR 77: an lse of +inf for empty rows breaks whoever merges.
#[test]
fn a28_empty_rows_leave_the_other_side_unchanged() {
    let causal = Options { mask: Mask::Causal, ..Options::default() };
    let (top, keyless) = (Tensors::flat(dims(5, 2)), Tensors::flat(dims(5, 0)));
    let (top, keyless) = (run_all(&top.problem(causal)), run_all(&keyless.problem(Options::default())));
    let other = Tensors::random(28, dims(5, 7));
    let other = run_all(&other.problem(Options::default()));
    for (((name, top), (_, keyless)), (_, other)) in top.iter().zip(&keyless).zip(&other) {
        let (others_o, top_rows) = (o(other), merged(top, other));
        let from_right = merged(other, top);
        for (i, keyless) in merged(keyless, other).iter().enumerate() {
            let wanted = (vec![others_o[[0, 0, i, 0]]], other.lse[[0, 0, i]]);
            assert_eq!(keyless, &wanted, "{name}, row {i}");
            if i < 3 {
                assert_eq!(top_rows[i], wanted, "{name}, row {i} of the empty top");
                assert_eq!(from_right[i], wanted, "{name}, row {i} of the empty top, from the right");
            }
        }
    }
}

/// Merging is stable for lse of any distance, and cares for no order.
#[test]
fn merging_is_stable_at_any_distance() {
    for (l_a, l_b, share_a) in [
        (0.0f32, 0.0, 0.5f64),
        (1e30, -1e30, 1.0),
        (-3e38, 3e38, 0.0),
        (-1000.0, -1000.0 + std::f32::consts::LN_2, 1.0 / 3.0),
        (88.0, 89.0, 1.0 / (1.0 + 1f64.exp())),
    ] {
        let (a, b) = (arr1(&[2.0f32]), arr1(&[-4.0f32]));
        let wanted = (2.0 * share_a - 4.0 * (1.0 - share_a)) as f32;
        let ((ab, lse_ab), (ba, lse_ba)) =
            (merge((a.view(), l_a), (b.view(), l_b)), merge((b.view(), l_b), (a.view(), l_a)));
        for (o, lse) in [(ab[0], lse_ab), (ba[0], lse_ba)] {
            assert!((o - wanted).abs() < 1e-5, "{l_a} with {l_b}: {o}, wanted {wanted}");
            assert!(lse.is_finite() && lse >= l_a.max(l_b), "{l_a} with {l_b}: {lse}");
        }
    }
}

/// flash-attention 725 and 876, vllm-xpu-kernels PR 479, pytorch PR 187899: the packed lse is padded or transposed.
#[test]
fn a29_packed_lse_is_heads_by_tokens() {
    let mut tensors = Tensors::flat(Dims { heads: 4, ..dims(8, 8) });
    tensors.k.fill(1.0);
    for h in 0..4 {
        tensors.q.slice_mut(s![.., h, .., ..]).fill(h as f32);
    }
    let cu = [0, 2, 7, 8];
    let options = Options { scale: Some(1.0), mask: Mask::Causal, ..Options::default() };
    for (name, output) in run_all(&tensors.packed(&cu, &cu, options)) {
        assert_eq!(output.lse.shape(), [4, 8]);
        for (t, visible) in [1, 2, 1, 2, 3, 4, 5, 1].into_iter().enumerate() {
            for h in 0..4 {
                let (found, wanted) = (output.lse[[h, t]], h as f32 + (visible as f32).ln());
                assert!((found - wanted).abs() < 1e-5, "{name}, head {h}, token {t}: {found}, wanted {wanted}");
            }
        }
    }
}

/// flash-attention PR 2573: the early exit of the split path writes lse at a padded offset, over others or outside.
#[test]
fn a30_a_split_call_writes_only_its_own_lse() {
    let tensors = Tensors::random(30, Dims { heads: 3, d: 8, d_v: 8, ..dims(20, 60) });
    let (cu_q, cu_k) = ([0, 4, 5, 12, 12, 20], [0, 0, 40, 43, 50, 60]);
    let problem = tensors.packed(&cu_q, &cu_k, Options { mask: Mask::Causal, ..Options::default() });
    expect_definition(&problem, |at, dot| (at.j <= at.i + at.off).then_some(dot / 8f64.sqrt()));
    for (name, rung) in rungs(8, 8) {
        let (mut o_guarded, mut lse_guarded) = (Array3::from_elem((5, 24, 10), 9e9f32), Array2::from_elem((5, 24), 9e9f32));
        let o = o_guarded.slice_mut(s![1..4, 2..22, 1..9]).into();
        let lse = lse_guarded.slice_mut(s![1..4, 2..22]).into_dyn();
        rung.forward_into(&problem, &mut OutputMut { o, lse }).unwrap();
        let plain = run(&*rung, &problem);
        assert_eq!(o_guarded.slice(s![1..4, 2..22, 1..9]).into_dyn(), crate::common::o(&plain), "{name}");
        assert_eq!(lse_guarded.slice(s![1..4, 2..22]).into_dyn(), plain.lse, "{name}");
        o_guarded.slice_mut(s![1..4, 2..22, 1..9]).fill(9e9);
        lse_guarded.slice_mut(s![1..4, 2..22]).fill(9e9);
        assert!(o_guarded.iter().chain(&lse_guarded).all(|&guard| guard == 9e9), "{name} wrote outside");
    }
}

/// flash-attention 1647: different numbers of splits give different answers for some heads.
#[test]
fn a33_any_number_of_splits_is_right() {
    let tensors = Tensors::random(33, Dims { heads: 16, kv_heads: 8, d: 128, d_v: 128, ..dims(1, 4096) });
    let [q, k, v] = [&tensors.q, &tensors.k, &tensors.v].map(|a| a.mapv(bf16::from_f32));
    let one_key = |a: &Array4<bf16>| a.slice(s![.., .., ..1, ..]).to_owned();
    let (k_1, v_1) = (one_key(&k), one_key(&v));
    for (k, v) in [(&k, &v), (&k_1, &v_1)] {
        let problem = Problem::dense(q.view(), k.view(), v.view(), Options::default()).unwrap();
        expect_definition(&problem, |_, dot| Some(dot / 128f64.sqrt()));
        let truth = truth(&problem);
        for splits in [1, 2, 3, 16, 32, 64, 128] {
            let rung = Fa2::default().with_splits(NonZeroUsize::new(splits).unwrap());
            let verdict = testkit::judge(&problem, &truth, &run(&rung, &problem), DType::F32);
            assert!(verdict.passes(), "{splits} splits of {} keys: {verdict}", k.dim().2);
        }
    }
}

/// flashinfer PR 4401: the first of several causal rows has no key in the last chunk, and its merge breaks.
#[test]
fn a34_a_row_without_keys_in_the_last_chunk() {
    let tensors = Tensors::random(34, Dims { heads: 8, kv_heads: 2, d: 16, d_v: 16, ..dims(2, 129) });
    let causal = Options { mask: Mask::Causal, ..Options::default() };
    let problem = tensors.problem(causal.clone());
    expect_definition(&problem, |at, dot| (at.j <= at.i + 127).then_some(dot / 4.0));
    // By hand: keys 0 to 127, all of which both rows see, and key 128, which only the second one sees.
    let cut = |range: std::ops::Range<usize>| Tensors {
        q: tensors.q.clone(),
        k: tensors.k.slice(s![.., .., range.clone(), ..]).to_owned(),
        v: tensors.v.slice(s![.., .., range, ..]).to_owned(),
    };
    let (first, last) = (cut(0..128), cut(128..129));
    let whole = truth(&problem);
    let parts = run_all(&first.problem(Options::default())).into_iter().zip(run_all(&last.problem(causal)));
    for ((name, first), (_, last)) in parts {
        assert!(last.lse.iter().step_by(2).all(|&lse| lse == f32::NEG_INFINITY), "{name}: {}", last.lse);
        let rows = merged(&first, &last);
        let wanted = whole.o.lanes(Axis(3)).into_iter().zip(&whole.lse);
        for ((o, lse), (wanted_o, wanted_lse)) in rows.into_iter().zip(wanted) {
            assert!(lse.is_finite() && (f64::from(lse) - wanted_lse).abs() < 1e-5, "{name}: {lse}");
            assert!(o.iter().zip(wanted_o).all(|(o, wanted)| (f64::from(*o) - wanted).abs() < 5e-6), "{name}");
        }
    }
}

/// flagos-ai/FlagGems 5235: the combine step advances o by the head size, not by its stride.
#[test]
fn a35_output_is_written_through_its_strides() {
    let tensors = Tensors::random(35, Dims { batch: 2, heads: 8, kv_heads: 4, d: 8, d_v: 8, ..dims(3, 50) });
    let problem = tensors.problem(Options::default());
    for (name, rung) in rungs(8, 8) {
        let plain = run(&*rung, &problem);
        // [batch, length, heads, channels] inside a larger buffer, seen as [batch, heads, length, channels].
        let (mut o_guarded, mut lse_guarded) = (Array4::from_elem((4, 5, 10, 12), 9e9f32), Array3::from_elem((4, 5, 10), 9e9f32));
        let o = o_guarded.slice_mut(s![1..3, 1..4, 1..9, 2..10]).permuted_axes([0, 2, 1, 3]);
        let lse = lse_guarded.slice_mut(s![1..3, 1..4, 1..9]).permuted_axes([0, 2, 1]).into_dyn();
        rung.forward_into(&problem, &mut OutputMut { o: o.into(), lse }).unwrap();
        let o = o_guarded.slice(s![1..3, 1..4, 1..9, 2..10]).permuted_axes([0, 2, 1, 3]).to_owned();
        let lse = lse_guarded.slice(s![1..3, 1..4, 1..9]).permuted_axes([0, 2, 1]).to_owned().into_dyn();
        assert!(bits(&Output { o: o.into(), lse }) == bits(&plain), "{name}");
        o_guarded.slice_mut(s![1..3, 1..4, 1..9, 2..10]).fill(9e9);
        lse_guarded.slice_mut(s![1..3, 1..4, 1..9]).fill(9e9);
        assert!(o_guarded.iter().chain(&lse_guarded).all(|&guard| guard == 9e9), "{name} wrote outside");
    }
}

/// Splits that see no key, more splits than tiles, and split keys under every kind of mask change nothing but rounding.
#[test]
fn splits_without_keys_contribute_nothing() {
    let sinks = arr1(&[0.5f32, -2.0]);
    for (q_len, k_len) in [(1, 1), (1, 100), (5, 3), (30, 100), (4, 0)] {
        let tensors = Tensors::random(90, Dims { heads: 2, d: 8, d_v: 4, ..dims(q_len, k_len) });
        for mask in [Mask::Full, Mask::Causal, Mask::window(2, 0), Mask::window(0, 3)] {
            let problem = tensors.problem(Options { mask, sinks: Some(sinks.view()), ..Options::default() });
            let truth = truth(&problem);
            for splits in [1, 2, 7, 33, 250] {
                for memory in [32 * 12, 100 * 1024] {
                    let rung = Fa2::new(memory, NoMeter).with_splits(NonZeroUsize::new(splits).unwrap());
                    let verdict = testkit::judge(&problem, &truth, &run(&rung, &problem), DType::F32);
                    assert!(verdict.passes(), "{} {q_len}x{k_len} {mask:?} {splits}: {verdict}", rung.name());
                }
            }
        }
    }
}
