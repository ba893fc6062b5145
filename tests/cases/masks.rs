//! Which keys a row sees: causal masks, windows, explicit masks, heads.

use crate::common::{Dims, Tensors, bits, dims, expect_definition, expect_rows, o, run_all};
use attention::{Mask, Options, Problem};
use ndarray::{Array4, Axis, s};
use std::f64::consts::LN_2;

/// An empty row.
const EMPTY: (f64, f64) = (0.0, f64::NEG_INFINITY);

fn masked<'a>(mask: Mask) -> Options<'a> {
    Options { mask, ..Options::default() }
}

/// Dao-AILab/flash-attention 1778: top rows come out zero when q_len > k_len under a causal mask. It is the contract.
#[test]
fn a01_top_rows_are_empty_when_queries_outnumber_keys() {
    let mut tensors = Tensors::flat(dims(5, 2));
    tensors.v *= 10.0;
    let rows = [EMPTY, EMPTY, EMPTY, (10.0, 0.0), (15.0, LN_2)];
    expect_rows(&tensors.problem(masked(Mask::Causal)), &rows);
}

/// flash-attention 282 and 402, pytorch 103082, 144858, 108108: a top-left mask lets decode see only the oldest keys.
#[test]
fn a02_causal_is_aligned_to_the_bottom_right() {
    let tensors = Tensors::flat(dims(2, 5));
    expect_rows(&tensors.problem(masked(Mask::Causal)), &[(2.5, 1.386294), (3.0, 1.609438)]);
}

/// NVIDIA/cutlass 2336: a kernel and its verifier share one wrong causal mask, so the fault passes.
#[test]
fn a03_causal_agrees_with_a_mask_written_independently() {
    let dims = Dims { d: 16, d_v: 16, ..dims(3, 128) };
    let tensors = Tensors::random(3, dims);
    expect_definition(&tensors.problem(masked(Mask::Causal)), |at, dot| (at.j <= at.i + 125).then_some(dot / 4.0));
}

/// huggingface/candle 2153, meta-llama/llama 899, candle-vllm 12: several new tokens on a cache get an n x n mask.
#[test]
fn a04_new_tokens_on_a_cache_equal_the_last_rows_of_a_prefill() {
    let all = Tensors::random(4, Dims { heads: 32, kv_heads: 32, d: 8, d_v: 8, ..dims(5, 5) });
    let new = Tensors { q: all.q.slice(s![.., .., 2.., ..]).to_owned(), ..all.clone() };
    let prefill = run_all(&all.problem(masked(Mask::Causal)));
    let step = run_all(&new.problem(masked(Mask::Causal)));
    for ((name, prefill), (_, step)) in prefill.iter().zip(&step) {
        // On vectors, few rows take another order of sums than many.
        let near = if name.starts_with("fa2-simd") { 1e-6 } else { 0.0 };
        let (o_prefill, o_step) = (o(prefill), o(step));
        let far = |(a, b): (&f32, &f32)| (a - b).abs() > near;
        assert!(!o_prefill.slice(s![.., .., 2.., ..]).iter().zip(&o_step).any(far), "{name}: o");
        assert!(!prefill.lse.slice(s![.., .., 2..]).iter().zip(&step.lse).any(far), "{name}: lse");
    }
}

/// huggingface/transformers 39408 and 29623, vllm 3385: a window of W keys is passed as left = W, one key too many.
#[test]
fn a05_a_window_counts_the_keys_before_the_own_one() {
    let tensors = Tensors::flat(dims(6, 6));
    let rows = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0].into_iter().zip([1.0, 2.0, 3.0, 3.0, 3.0, 3.0]);
    let rows: Vec<_> = rows.map(|(o, keys): (f64, f64)| (o, keys.ln())).collect();
    expect_rows(&tensors.problem(masked(Mask::window(2, 0))), &rows);
    let three = std::num::NonZeroUsize::new(3).unwrap();
    expect_rows(&tensors.problem(masked(Mask::sliding_window(three))), &rows);
}

/// karpathy/nanochat 452, goombalab/hnet 20: the window is forgotten when one token is decoded.
#[test]
fn a06_the_window_holds_in_decode() {
    let tensors = Tensors::flat(dims(1, 6));
    for right in [0, -1] {
        expect_rows(&tensors.problem(masked(Mask::window(2, right))), &[(5.0, 3f64.ln())]);
    }
}

/// flashinfer 4452: rows with no key get a finite lse of about -5e4, though their output is 0.
#[test]
fn a07_rows_without_keys_have_lse_of_minus_infinity() {
    let tensors = Tensors::flat(Dims { heads: 32, kv_heads: 8, d: 128, d_v: 128, ..dims(34, 1) });
    let problem = tensors.problem(masked(Mask::Causal));
    let mut rows = vec![EMPTY; 33];
    rows.push((1.0, 0.0));
    expect_rows(&problem, &rows);
    for (name, output) in run_all(&problem) {
        let o = o(&output);
        assert!(o.index_axis(Axis(2), 33).iter().all(|&x| x == 1.0), "{name}");
        assert!(output.lse.index_axis(Axis(2), 33).iter().all(|&x| x == 0.0), "{name}");
    }
}

/// flashinfer 4267, 4450 and 4451, ohdearquant/lattice 373: a finite stand-in for a masked score beats very negative
/// real scores.
#[test]
fn a08_no_real_score_is_as_low_as_a_masked_one() {
    let mut tensors = Tensors::flat(dims(2, 2));
    tensors.q.fill(-20000.0);
    tensors.k[[0, 0, 0, 0]] = 1.0;
    tensors.v[[0, 0, 1, 0]] = 100.0;
    let scale = Some(1.0);
    for (name, output) in run_all(&tensors.problem(Options { scale, mask: Mask::Causal, ..Options::default() })) {
        assert_eq!((o(&output)[[0, 0, 0, 0]], output.lse[[0, 0, 0]]), (1.0, -20000.0), "{name}: hidden by the mask");
    }
    let bias = Array4::from_shape_fn((1, 1, 2, 2), |at| if at.3 == 1 { f32::NEG_INFINITY } else { 0.0 });
    for (name, output) in run_all(&tensors.problem(Options { scale, bias: Some(bias.view()), ..Options::default() })) {
        assert_eq!((o(&output)[[0, 0, 0, 0]], output.lse[[0, 0, 0]]), (1.0, -20000.0), "{name}: hidden by the bias");
    }

    let mut tensors = Tensors::flat(Dims { d: 128, ..dims(1, 2) });
    tensors.q.fill(64.0);
    tensors.k.fill(-64.0);
    tensors.v.fill(1.0);
    for (name, output) in run_all(&tensors.problem(Options::default())) {
        assert_eq!(o(&output)[[0, 0, 0, 0]], 1.0, "{name}");
        assert!((f64::from(output.lse[[0, 0, 0]]) + 46340.2569).abs() <= 0.01, "{name}: {}", output.lse);
    }
}

/// flash-attention PR 1025 and 1181: a soft cap applied after the mask lets future tokens leak when the cap is small.
#[test]
fn a09_a_soft_cap_does_not_lift_the_mask() {
    let mut tensors = Tensors::flat(dims(2, 2));
    tensors.q.fill(100.0);
    tensors.k.fill(1.0);
    tensors.v[[0, 0, 1, 0]] = 1000.0;
    let options = Options { scale: Some(1.0), softcap: 1.0, ..masked(Mask::Causal) };
    expect_rows(&tensors.problem(options.clone()), &[(1.0, 1.0), (500.5, 1.0 + LN_2)]);
    for (name, output) in run_all(&tensors.problem(options)) {
        assert_eq!(o(&output)[[0, 0, 0, 0]], 1.0, "{name}");
    }
}

/// ikawrakow/ik_llama.cpp 2344: fully masked rows are fine in mid batch but NaN as the leading block, at d = 512.
#[test]
fn a24_blocks_of_masked_rows_are_empty_wherever_they_stand() {
    let tensors = Tensors::random(24, Dims { d: 512, d_v: 512, ..dims(64, 256) });
    for hidden in [0..14, 25..39, 50..64] {
        let mut bias = Array4::zeros((1, 1, 64, 256));
        bias.slice_mut(s![.., .., hidden.clone(), ..]).fill(f32::NEG_INFINITY);
        let problem = tensors.problem(Options { bias: Some(bias.view()), ..Options::default() });
        let sees = |i: i64| !hidden.contains(&(i as usize));
        expect_definition(&problem, |at, dot| sees(at.i).then_some(dot / 512f64.sqrt()));
    }
}

/// pytorch 163997, transformers 38690: one back end gives NaN and another 0 for the same masked rows.
#[test]
fn a25_every_rung_has_its_zeros_and_infinities_in_the_same_places() {
    for (q_len, k_len) in [(5, 2), (7, 1), (130, 65), (3, 0), (1, 1), (9, 40)] {
        for mask in [Mask::Causal, Mask::window(0, 0), Mask::window(2, -1), Mask::window(-1, 1)] {
            let tensors = Tensors::flat(Dims { heads: 2, d: 4, ..dims(q_len, k_len) });
            for (name, output) in run_all(&tensors.problem(masked(mask))) {
                for i in 0..q_len as i64 {
                    let own = i + k_len as i64 - q_len as i64;
                    let any = (0..k_len as i64).any(|j| match mask {
                        Mask::Window { left, right } => {
                            left.is_none_or(|left| j >= own - left as i64)
                                && right.is_none_or(|right| j <= own + right as i64)
                        }
                        _ => j <= own,
                    });
                    for h in 0..2 {
                        let at = [0, h, i as usize];
                        assert_eq!(output.lse[at] == f32::NEG_INFINITY, !any, "{name} {q_len}x{k_len} {mask:?} {at:?}");
                        // Every value is positive, so only an empty row can be 0.
                        assert_eq!(o(&output)[[0, h, at[2], 0]] == 0.0, !any, "{name} {q_len}x{k_len} {mask:?} {at:?}");
                    }
                }
            }
        }
    }
}

/// flash-attention 648, onnx PR 7274, jax-js PR 180: kv heads are tiled over the query heads instead of repeated.
#[test]
fn a32_query_head_h_reads_kv_head_h_over_g() {
    for (heads, kv_heads) in [(64, 8), (15, 5), (6, 1), (9, 3)] {
        let mut tensors = Tensors::flat(Dims { heads, kv_heads, d: 128, d_v: 2, ..dims(1, 1) });
        tensors.q.slice_mut(s![.., .., .., 0]).fill(1.0);
        for n in 0..kv_heads {
            tensors.k[[0, n, 0, 0]] = n as f32;
            tensors.v.slice_mut(s![.., n, .., ..]).fill(n as f32 + 0.5);
        }
        for (name, output) in run_all(&tensors.problem(Options::default())) {
            for h in 0..heads {
                let n = (h / (heads / kv_heads)) as f32;
                assert_eq!(o(&output)[[0, h, 0, 1]], n + 0.5, "{name}, head {h}");
                let lse = output.lse[[0, h, 0]];
                assert!((lse - n / 128f32.sqrt()).abs() < 1e-6, "{name}, head {h}: {lse}");
            }
        }
    }
}

/// Windows by their definition, both sides, with more and with fewer queries than keys; some rows see nothing.
#[test]
fn windows_agree_with_their_definition() {
    for (q_len, k_len) in [(1, 9), (6, 6), (5, 17), (17, 5), (70, 33)] {
        let tensors = Tensors::random(23, Dims { heads: 2, d: 4, d_v: 3, ..dims(q_len, k_len) });
        for (left, right) in [(0, 0), (3, 0), (0, 2), (1, 4), (-1, 1), (2, -1)] {
            let problem = tensors.problem(masked(Mask::window(left, right)));
            expect_definition(&problem, |at, dot| {
                let distance = at.j - at.i - at.off;
                let hidden = (left >= 0 && distance < -left) || (right >= 0 && distance > right);
                (!hidden).then_some(dot / 2.0)
            });
        }
    }
}

/// A window wider than the sequence is none, and left without limit beside right = 0 is the causal mask, bit by bit.
#[test]
fn masks_that_hide_the_same_keys_give_the_same_bits() {
    let tensors = Tensors::random(24, Dims { heads: 2, d: 8, d_v: 8, ..dims(9, 20) });
    let pairs = [
        (Mask::Full, Mask::window(-1, -1)),
        (Mask::Full, Mask::window(20, 9)),
        (Mask::Full, Mask::Window { left: Some(usize::MAX), right: Some(usize::MAX) }),
        (Mask::Causal, Mask::window(-1, 0)),
        (Mask::Causal, Mask::window(20, 0)),
    ];
    for (left, right) in pairs {
        let results = run_all(&tensors.problem(masked(left))).into_iter().zip(run_all(&tensors.problem(masked(right))));
        for ((name, a), (_, b)) in results {
            assert!(bits(&a) == bits(&b), "{name}: {left:?} and {right:?}");
        }
    }
}

/// One more query shifts nothing: the row of the last query is the same whether others come before it or not.
#[test]
fn decode_equals_the_last_row_of_a_prefill() {
    let all = Tensors::random(25, Dims { heads: 3, d: 8, d_v: 8, ..dims(40, 40) });
    for mask in [Mask::Causal, Mask::window(7, 0)] {
        let prefill: Problem = all.problem(masked(mask));
        let last = Tensors { q: all.q.slice(s![.., .., 39.., ..]).to_owned(), ..all.clone() };
        for ((name, prefill), (_, step)) in run_all(&prefill).iter().zip(&run_all(&last.problem(masked(mask)))) {
            let difference = &o(prefill).slice_move(s![.., .., 39.., ..]) - &o(step).slice_move(s![.., .., .., ..]);
            assert!(difference.iter().all(|x| x.abs() <= 2e-6), "{name} {mask:?}: {difference}");
        }
    }
}
