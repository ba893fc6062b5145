//! Decoding, packed batches and odd sizes in F16 and BF16, which rungs on tensor cores take.

use crate::common::run_all_with_weights;
use attention::{DType, Mask, oracle};
use testkit::judge;
use testkit::problems::{BatchKind, Spec};

/// Asserts that every rung agrees with the oracle by the error rule, o and lse.
fn agree(spec: &Spec) {
    for dtype in [DType::F16, DType::Bf16] {
        let owned = Spec { dtype, ..spec.clone() }.build();
        let (problem, truth) = (owned.problem(), oracle::truth(&owned.problem()));
        for (name, output, weights) in run_all_with_weights(&problem) {
            let verdict = judge(&problem, &truth, &output, weights);
            assert!(verdict.passes(), "{name}, {spec:?}: {verdict}");
        }
    }
}

/// Sequences of these lengths, query heads in groups on kv heads.
fn spec(batch: BatchKind, lengths: &[(usize, usize)], kv_heads: usize, group: usize, d: usize) -> Spec {
    Spec { lengths: lengths.to_vec(), batch, kv_heads, group, mask: Mask::Causal, ..Spec::plain(1, 1, d) }
}

#[test]
fn a01_a12_more_queries_than_keys_and_no_keys() {
    for mask in [Mask::Full, Mask::Causal] {
        for lengths in [(5, 2), (4, 0), (34, 1), (1, 0)] {
            agree(&Spec { mask, ..spec(BatchKind::Dense, &[lengths, lengths], 2, 2, 64) });
        }
    }
}

#[test]
fn a13_packed_decode_with_empty_sequences() {
    agree(&spec(BatchKind::Packed, &[(0, 0), (1, 3), (0, 0), (1, 5)], 3, 3, 64));
    agree(&spec(BatchKind::Packed, &[(0, 0), (0, 0), (0, 0), (1, 1)], 7, 3, 120));
}

#[test]
fn a14_a23_empty_sequences_among_others() {
    let lengths = [(96, 96), (0, 0), (0, 0), (128, 128), (0, 0), (32, 32)];
    agree(&spec(BatchKind::Packed, &lengths, 1, 2, 64));
    let mut lengths = [(1, 0); 8];
    lengths[0].1 = 5;
    agree(&spec(BatchKind::KeyLens, &lengths, 2, 4, 64));
}

#[test]
fn a17_any_head_size() {
    for d in [1, 8, 40, 63, 80, 111, 128, 200, 256] {
        agree(&spec(BatchKind::Dense, &[(65, 65)], 1, 1, d));
        agree(&Spec { d_v: 257 - d, ..spec(BatchKind::Dense, &[(2, 65)], 1, 3, d) });
    }
}

#[test]
fn a30_packed_splits_some_without_keys() {
    agree(&spec(BatchKind::Packed, &[(3, 70), (2, 0), (4, 1), (1, 129), (9, 5)], 2, 2, 64));
}

#[test]
fn a32_kv_heads_are_shared_in_groups() {
    agree(&spec(BatchKind::Dense, &[(1, 40)], 8, 8, 128));
}

#[test]
fn a33_decode_with_its_keys_split() {
    agree(&spec(BatchKind::Dense, &[(1, 4096)], 8, 2, 128));
    agree(&spec(BatchKind::Dense, &[(1, 1)], 8, 2, 128));
}

#[test]
fn a34_a_first_row_without_keys_in_the_last_part() {
    agree(&spec(BatchKind::Dense, &[(2, 129)], 2, 4, 64));
    agree(&Spec { mask: Mask::window(3, 0), ..spec(BatchKind::Dense, &[(2, 257)], 2, 4, 64) });
}
