//! Empty, short, odd and ragged lengths, head sizes, packed sequences.

use crate::common::{
    CANARY_O, Dims, Tensors, assert_same_bits, bits, dims, expect_definition, expect_rows, expect_rows_within, o,
    run_all, rungs,
};
use attention::{Attention, AttentionError, Batch, DType, Kv, Mask, Options, Output, Problem};
use ndarray::{Array4, Axis, s};

fn masked<'a>(mask: Mask) -> Options<'a> {
    Options { mask, ..Options::default() }
}

/// flash-attention PR 2470: no key at all is an illegal instruction or a division by zero on the host.
#[test]
fn a12_no_keys_at_all_writes_empty_rows() {
    let tensors = Tensors::flat(Dims { batch: 2, d: 8, d_v: 3, ..dims(4, 0) });
    for mask in [Mask::Full, Mask::Causal, Mask::window(3, 2)] {
        expect_rows(&tensors.problem(masked(mask)), &[(0.0, f64::NEG_INFINITY); 4]);
    }
}

/// Neither queries, nor sequences, nor keys: nothing is written and nothing fails.
#[test]
fn no_work_is_no_error() {
    for (batch, q_len, k_len) in [(0, 3, 3), (2, 0, 3), (2, 0, 0), (0, 0, 0)] {
        let tensors = Tensors::flat(Dims { batch, heads: 2, d: 4, d_v: 4, ..dims(q_len, k_len) });
        for (name, output) in run_all(&tensors.problem(masked(Mask::Causal))) {
            assert!(o(&output).is_empty() && output.lse.is_empty(), "{name}");
        }
    }
    let tensors = Tensors::flat(Dims { heads: 2, ..dims(3, 3) });
    for (name, output) in run_all(&tensors.packed(&[0], &[0], Options::default())) {
        assert!(o(&output).iter().all(|x| x.to_bits() == CANARY_O), "{name}: a batch of no sequence was written");
    }
}

/// flash-attention 1537 and 1619: packed decode with empty sequences is reshaped wrongly or refused.
#[test]
fn a13_packed_decode_with_empty_sequences() {
    let cases: [(&[i32], &[i32], Dims); 2] = [
        (&[0, 0, 1, 1, 2], &[0, 0, 3, 3, 8], Dims { heads: 9, kv_heads: 3, d: 64, d_v: 64, ..dims(2, 8) }),
        (&[0, 0, 0, 0, 1], &[0, 0, 0, 0, 1], Dims { heads: 21, kv_heads: 7, d: 120, d_v: 120, ..dims(1, 1) }),
    ];
    for (cu_q, cu_k, dims) in cases {
        let tensors = Tensors::random(13, dims);
        for mask in [Mask::Full, Mask::Causal] {
            let problem = tensors.packed(cu_q, cu_k, masked(mask));
            // At most one query a sequence: the causal mask hides nothing.
            expect_definition(&problem, |_, dot| Some(dot / (dims.d as f64).sqrt()));
        }
    }
}

/// pytorch 81077: NaN as soon as some sequences of a batch have length 0.
#[test]
fn a14_empty_sequences_in_a_batch() {
    let lens = [96, 0, 0, 128, 0, 32];
    let cu = [0, 96, 96, 96, 224, 224, 256];
    let padded = Tensors::random(14, Dims { batch: 6, d: 8, d_v: 8, ..dims(128, 128) });
    let scale = |dot: f64| dot / 8f64.sqrt();
    expect_definition(&padded.with_lens(&lens, Options::default()), |_, dot| Some(scale(dot)));
    let packed = Tensors::random(15, Dims { d: 8, d_v: 8, ..dims(256, 256) });
    let causal = packed.packed(&cu, &cu, masked(Mask::Causal));
    expect_definition(&causal, |at, dot| (at.j <= at.i + at.off).then_some(scale(dot)));
}

/// thu-ml/SageAttention 19 and PR 377: lengths that are no multiple of the tile read stale shared memory, NaN.
#[test]
fn a15_odd_lengths_give_the_same_bits_each_time() {
    for (q_len, k_len) in [(9, 9), (1001, 503)] {
        let tensors = Tensors::random(15, Dims { d: 4, d_v: 4, ..dims(q_len, k_len) });
        let problem = tensors.problem(Options::default());
        expect_definition(&problem, |_, dot| Some(dot / 2.0));
        let first: Vec<_> = run_all(&problem).iter().map(|(_, output)| bits(output)).collect();
        for _ in 0..20 / (1 + q_len / 100) + 1 {
            // Memory given back full of NaN, for the next allocation to find.
            let stale: Vec<_> = (6..22).map(|size| vec![f32::NAN; 1 << size]).collect();
            drop(std::hint::black_box(stale));
            for ((name, output), first) in run_all(&problem).iter().zip(&first) {
                assert!(bits(output) == *first, "{name}");
            }
        }
    }
}

/// pytorch 133717: decode treats a growing k_len as a multiple of the tile and reads out of range.
#[test]
fn a16_decode_at_every_length_past_a_tile() {
    let tensors = Tensors::random(16, Dims { heads: 16, kv_heads: 16, d: 64, d_v: 64, ..dims(1, 228) });
    // k and v lie as [batch, length, heads, channels].
    let stored = |a: &Array4<f32>| a.view().permuted_axes([0, 2, 1, 3]).as_standard_layout().to_owned();
    let (k, v) = (stored(&tensors.k), stored(&tensors.v));
    for k_len in 128..=228 {
        let (k, v) = (k.slice(s![.., ..k_len, .., ..]), v.slice(s![.., ..k_len, .., ..]));
        let (k, v) = (k.permuted_axes([0, 2, 1, 3]), v.permuted_axes([0, 2, 1, 3]));
        let problem = Problem::dense(tensors.q.view(), k, v, Options::default()).unwrap();
        expect_definition(&problem, |_, dot| Some(dot / 8.0));
    }
}

/// triton 621, 66RING/tiny-flash-attention 12, flash-attention-npu 135: the head size is hard-coded or its tail unmasked.
#[test]
fn a17_any_head_size() {
    for (d, d_v) in [
        (1, 1),
        (8, 8),
        (40, 40),
        (63, 63),
        (80, 80),
        (111, 111),
        (128, 128),
        (200, 200),
        (256, 256),
        (192, 128),
        (3, 100),
        (100, 3),
        (576, 512),
    ] {
        let mut tensors = Tensors::random(17, Dims { d, d_v, ..dims(65, 65) });
        // The last channels weigh most, so that whoever forgets them is far off.
        tensors.q.slice_mut(s![.., .., .., 64.min(d - 1)..]).mapv_inplace(|x| 3.0 * x);
        tensors.v.slice_mut(s![.., .., .., 64.min(d_v - 1)..]).mapv_inplace(|x| 10.0 * x);
        expect_definition(&tensors.problem(Options::default()), |_, dot| Some(dot / (d as f64).sqrt()));
    }
}

/// fla-org/flash-linear-attention 1029: query heads that kv heads do not divide are accepted: heads stay unwritten.
#[test]
fn a18_heads_that_do_not_divide_are_a_typed_error() {
    for (heads, kv_heads) in [(3, 2), (33, 2), (16, 5), (2, 4)] {
        let Tensors { q, k, v } = Tensors::flat(Dims { heads, kv_heads, ..dims(1, 1) });
        let error = Problem::dense(q.view(), k.view(), v.view(), Options::default()).unwrap_err();
        assert!(matches!(error, AttentionError::Shape { tensor: "k", .. }), "{heads}:{kv_heads} {error}");
    }
}

/// vllm PR 47305: tile bounds overshoot the length for non-causal attention.
#[test]
fn a21_a_last_tile_that_is_not_full_in_cross_attention() {
    let mut tensors = Tensors::random(21, Dims { d: 16, d_v: 16, ..dims(3, 64) });
    for tensor in [&mut tensors.k, &mut tensors.v] {
        tensor.slice_mut(s![.., .., 18.., ..]).fill(f32::NAN);
    }
    expect_definition(&tensors.with_lens(&[18], Options::default()), |_, dot| Some(dot / 4.0));
}

/// vllm PR 37442, sglang PR 1779: rows of sequences of length 0 are skipped, and what the buffer held survives.
#[test]
fn a23_rows_of_empty_sequences_are_written() {
    let tensors = Tensors::random(23, Dims { batch: 8, heads: 2, d: 8, d_v: 8, ..dims(1, 5) });
    let lens = [5, 0, 0, 0, 0, 0, 0, 0];
    let problem = tensors.with_lens(&lens, Options::default());
    expect_definition(&problem, |_, dot| Some(dot / 8f64.sqrt()));
    for (name, output) in run_all(&problem) {
        for b in 1..8 {
            assert!(o(&output).index_axis(Axis(0), b).iter().all(|&x| x == 0.0), "{name}, sequence {b}");
            let lse = output.lse.index_axis(Axis(0), b);
            assert!(lse.iter().all(|&x| x == f32::NEG_INFINITY), "{name}, sequence {b}: {lse}");
        }
    }
}

/// FlashMLA 212, flash-attention 1897: a row changes in its last bits with its neighbours in the batch.
#[test]
fn a36_batch_neighbours_change_no_bit() {
    for (k_len, longest, batches) in [(7, 60, [2, 33, 128]), (2600, 3000, [2, 3, 5])] {
        let shape = |batch, k_len| Dims { batch, heads: 4, kv_heads: 2, d: 16, d_v: 16, ..dims(1, k_len) };
        let row = Tensors::random(36, shape(1, k_len));
        let alone = run_all(&row.problem(Options::default()));
        for batch in batches {
            let mut neighbours = Tensors::random(37, shape(batch, longest));
            neighbours.q.slice_mut(s![batch - 1.., .., .., ..]).assign(&row.q);
            neighbours.k.slice_mut(s![batch - 1.., .., ..k_len, ..]).assign(&row.k);
            neighbours.v.slice_mut(s![batch - 1.., .., ..k_len, ..]).assign(&row.v);
            let mut lens = vec![longest as i32; batch];
            lens[batch - 1] = k_len as i32;
            let together = run_all(&neighbours.with_lens(&lens, Options::default()));
            for ((name, alone), (_, together)) in alone.iter().zip(&together) {
                let (alone_o, together_o) = (o(alone), o(together));
                assert_eq!(alone_o.index_axis(Axis(0), 0), together_o.index_axis(Axis(0), batch - 1), "{name} {batch}");
                let (alone, together) = (alone.lse.index_axis(Axis(0), 0), together.lse.index_axis(Axis(0), batch - 1));
                assert_eq!(alone, together, "{name}, batch {batch}");
            }
        }
    }
}

/// facebookresearch/xformers 719: a length kept in 16 bits gives NaN above 32768 keys.
#[test]
fn a40_more_keys_than_sixteen_bits_count() {
    let mut tensors = Tensors::flat(dims(1, 33728));
    tensors.v.fill(1.0);
    // Rung 1 adds 33728 weights that are each rounded the same way, which drifts by 4e-6.
    expect_rows_within(1e-5, &tensors.problem(Options::default()), &[(1.0, 10.4261)]);
    let tensors = Tensors { k: Array4::zeros((1, 1, 70000, 1)), v: Array4::ones((1, 1, 70000, 1)), ..tensors };
    expect_rows_within(2e-5, &tensors.problem(masked(Mask::Causal)), &[(1.0, 70000f64.ln())]);
}

/// Packed sequences come out with the bits they have alone, whatever stands around them.
#[test]
fn packed_sequences_equal_themselves_alone() {
    let (cu_q, cu_k) = ([0, 5, 5, 25, 26, 30], [0, 9, 12, 12, 80, 83]);
    let all = Tensors::random(70, Dims { heads: 4, kv_heads: 2, d: 8, d_v: 6, ..dims(33, 90) });
    for mask in [Mask::Full, Mask::Causal, Mask::window(3, 1)] {
        let together = run_all(&all.packed(&cu_q, &cu_k, masked(mask)));
        for b in 0..5 {
            let cut =
                |a: &Array4<f32>, cu: &[i32]| a.slice(s![.., .., cu[b] as usize..cu[b + 1] as usize, ..]).to_owned();
            let alone = Tensors { q: cut(&all.q, &cu_q), k: cut(&all.k, &cu_k), v: cut(&all.v, &cu_k) };
            let rows = cu_q[b] as usize..cu_q[b + 1] as usize;
            for ((name, together), (_, alone)) in together.iter().zip(run_all(&alone.problem(masked(mask)))) {
                let packed = Output {
                    o: o(together).slice(s![.., rows.clone(), ..]).to_owned().into(),
                    lse: together.lse.slice(s![.., rows.clone()]).to_owned().into_dyn(),
                };
                assert!(bits(&packed) == bits(&alone), "{name}, sequence {b} under {mask:?}");
            }
        }
    }
}

/// Rows behind the last sequence stay as they were, in o and in lse, and nothing else does.
#[test]
fn packed_rows_of_no_sequence_are_left_alone() {
    let tensors = Tensors::random(71, Dims { heads: 2, d: 4, d_v: 4, ..dims(9, 11) });
    let problem = tensors.packed(&[0, 2, 2, 6], &[0, 0, 3, 8], masked(Mask::Causal));
    expect_definition(&problem, |at, dot| (at.j <= at.i + at.off).then_some(dot / 2.0));
    for (name, output) in run_all(&problem) {
        assert!(o(&output).slice(s![.., 6.., ..]).iter().all(|x| x.to_bits() == CANARY_O), "{name}");
        assert!(o(&output).slice(s![.., ..6, ..]).iter().all(|x| !x.is_nan()), "{name}");
    }
    // What forward allocates is 0 and -inf there.
    let output = naive::Naive::default().forward(&problem).unwrap();
    assert!(o(&output).slice(s![.., 6.., ..]).iter().all(|&x| x == 0.0));
    assert!(output.lse.slice(s![.., 6..]).iter().all(|&x| x == f32::NEG_INFINITY));
}

/// Lengths of keys, and keys of full length cut off by hand, are the same bits; so are packed and dense batches.
#[test]
fn the_ways_to_batch_agree_bit_by_bit() {
    let tensors = Tensors::random(72, Dims { heads: 2, d: 8, d_v: 8, ..dims(7, 40) });
    let cut = |a: &Array4<f32>| a.slice(s![.., .., ..29, ..]).to_owned();
    let short = Tensors { k: cut(&tensors.k), v: cut(&tensors.v), ..tensors.clone() };
    assert_same_bits(&tensors.with_lens(&[29], masked(Mask::Causal)), &short.problem(masked(Mask::Causal)));
    assert_same_bits(&tensors.packed(&[0, 7], &[0, 29], masked(Mask::Causal)), &short.problem(masked(Mask::Causal)));
}

/// A kv cache that two sequences share through a stride of 0 is read as if each had its own.
#[test]
fn broadcast_keys_and_values_work() {
    let tensors = Tensors::random(73, Dims { batch: 3, heads: 2, d: 8, d_v: 8, ..dims(4, 10) });
    let one = |a: &Array4<f32>| a.slice(s![..1, .., .., ..]).to_owned();
    let (k, v) = (one(&tensors.k), one(&tensors.v));
    let shape = |a: &Array4<f32>| (3, a.dim().1, a.dim().2, a.dim().3);
    let (k_view, v_view) = (k.broadcast(shape(&k)).unwrap(), v.broadcast(shape(&v)).unwrap());
    let owned = Tensors { k: k_view.to_owned(), v: v_view.to_owned(), ..tensors.clone() };
    let kv = Kv::Contiguous { k: k_view.into(), v: v_view.into() };
    let broadcast = Problem::new(tensors.q.view(), kv, Batch::Dense, masked(Mask::Causal)).unwrap();
    assert_same_bits(&broadcast, &owned.problem(masked(Mask::Causal)));
}

/// Among many equal weights the roundings of one long f32 sum all go the same way: naive's o was off by 8 tolerances at
/// 4096 keys, and online-softmax's lse by 5 at 131072. Tiles of two keys are left out: FlashAttention-1 divides o at every
/// tile and multiplies back at the next, and that many roundings do add up.
#[test]
fn long_rows_of_equal_scores_do_not_drift() {
    for n in [4096, 131_072] {
        let q = Array4::<f32>::ones((1, 1, 1, 1));
        let (mut k, mut v) = (Array4::from_elem((1, 1, n, 1), 0.7f32.ln()), Array4::ones((1, 1, n, 1)));
        (k[[0, 0, 0, 0]], v[[0, 0, 0, 0]]) = (0.0, -1.0f32);
        let problem = Problem::dense(q.view(), k.view(), v.view(), Options::default()).unwrap();
        let truth = attention::oracle::truth(&problem);
        for (name, rung) in rungs(1, 1).into_iter().filter(|(name, _)| !name.contains("two keys")) {
            let verdict = testkit::judge(&problem, &truth, &rung.forward(&problem).unwrap(), DType::F32);
            assert!(verdict.passes(), "{name} at {n} keys: {verdict}");
        }
    }
}

/// A batch or a number of heads that costs no memory, since the tensors are empty, costs no time either.
#[test]
fn empty_tensors_may_have_many_heads() {
    let q = Array4::<f32>::zeros((1, 1 << 40, 0, 1));
    let kv = Array4::<f32>::zeros((1, 1, 0, 1));
    let problem = Problem::dense(q.view(), kv.view(), kv.view(), Options::default()).unwrap();
    for (name, rung) in rungs(1, 1) {
        assert_eq!(rung.forward(&problem).unwrap().o.shape(), [1, 1 << 40, 0, 1], "{name}");
    }
    let q = Array4::<f32>::zeros((1 << 50, 1, 0, 1));
    let result = Problem::dense(q.view(), q.view(), q.view(), Options::default());
    assert!(matches!(result, Err(AttentionError::Memory { .. })), "{result:?}");
}
