//! The checks of chapter 8, in the order of its steps. Each step's checks use that step alone, and steps 5 and 6 also step 4.

use crate::laws::*;
use crate::subject::{absorb, absorbed, compress, expand, queries, rotate, scale};
use mla::{Dims, HalfSplit, Interleaved, Pairing, Rope, Yarn};
use ndarray::{Array3, arr2};
use proptest::prelude::*;
use testkit::must;

fn steps<P: Pairing>() -> Steps<P> {
    Steps { compress: compress::<P>, queries: queries::<P>, absorbed: absorbed::<P> }
}

/// Two heads, two tokens from position 3 on, no norms.
const BY_HAND: Small = Small {
    dims: Dims { d_model: 2, heads: 2, d_nope: 1, d_rope: 2, d_v: 1, d_c: 2, d_cq: 2 },
    norms: false,
    yarn: None,
    tokens: 2,
    position: 3,
    seed: 8,
};

#[test]
fn step_1_absorb_by_hand() {
    // Two heads with one channel each: head 0's W^UK is (1, 2), head 1's (3, 4).
    let x = Array3::from_shape_fn((2, 1, 1), |(head, ..)| [10.0, 1.0][head]);
    must(absorb_takes_w_uk_to_the_query(absorb, &Product { x, w: arr2(&[[1.0, 2.0], [3.0, 4.0]]) }));
}

#[test]
fn step_2_scale_by_hand() {
    // DeepSeek-V2: 1 / sqrt(128 + 64), and at 40 times the trained length 1.26 squared times that.
    must(scale_is_that_of_the_heads(scale, Dims::DEEPSEEK_V2, None));
    let yarn = Yarn { factor: 40.0, mscale_all_dim: 0.707 };
    must(scale_is_that_of_the_heads(scale, Dims::DEEPSEEK_V2, Some(yarn)));
}

#[test]
fn step_3_expand_by_hand() {
    // Two heads with one value channel each, of latents of two.
    let x = Array3::from_shape_fn((2, 1, 2), |(head, _, c)| [[10.0, 1.0], [1.0, 0.0]][head][c]);
    must(expand_takes_w_uv_behind_the_sum(expand, &Product { x, w: arr2(&[[1.0, 2.0], [3.0, 4.0]]) }));
}

#[test]
fn step_4_rotate_by_hand() {
    // A quarter turn of one pair, and none of the other.
    let rope = Rope::<Interleaved>::with_frequencies(vec![std::f64::consts::FRAC_PI_2, 0.0]).unwrap();
    must(rotate_turns_each_pair(rotate, &rope, &[vec![1.0, 2.0, 3.0, 4.0], vec![0.0, 1.0, 0.0, 1.0]], 1));
    let rope = Rope::<HalfSplit>::with_frequencies(vec![std::f64::consts::FRAC_PI_2, 0.0]).unwrap();
    must(rotate_turns_each_pair(rotate, &rope, &[vec![1.0, 2.0, 3.0, 4.0]], 1));
}

#[test]
fn step_4_rotate_at_a_far_position() {
    let rope = Rope::<Interleaved>::new(4, 10_000.0).unwrap();
    must(rotate_turns_each_pair(rotate, &rope, &[vec![1.0, 2.0, 3.0, -1.0]], 123_457));
}

#[test]
fn step_5_compress_by_hand() {
    must(compress_is_equations_9_and_15::<Interleaved>(compress, &BY_HAND));
    must(compress_is_equations_9_and_15::<Interleaved>(compress, &Small { norms: true, ..BY_HAND }));
}

#[test]
fn step_6_queries_by_hand() {
    must(queries_are_equations_12_to_14::<Interleaved>(queries, &BY_HAND));
    must(queries_are_equations_12_to_14::<Interleaved>(queries, &Small { norms: true, ..BY_HAND }));
}

proptest! {
    #![proptest_config(testkit::config())]

    #[test]
    fn step_1_absorb_of_any_heads(product in products(false)) {
        absorb_takes_w_uk_to_the_query(absorb, &product)?;
    }

    #[test]
    fn step_2_scale_of_any_sizes(case in small()) {
        scale_is_that_of_the_heads(scale, case.dims, case.yarn)?;
    }

    #[test]
    fn step_3_expand_of_any_heads(product in products(true)) {
        expand_takes_w_uv_behind_the_sum(expand, &product)?;
    }

    #[test]
    fn step_4_rotate_of_any_pairs((rope, vectors, position) in rotations()) {
        rotate_turns_each_pair(rotate, &rope, &vectors, position)?;
        let rope = Rope::<HalfSplit>::with_frequencies(rope.frequencies().to_vec()).unwrap();
        rotate_turns_each_pair(rotate, &rope, &vectors, position)?;
    }

    #[test]
    fn step_5_compress_of_any_layer(case in small()) {
        compress_is_equations_9_and_15::<Interleaved>(compress, &case)?;
        compress_is_equations_9_and_15::<HalfSplit>(compress, &case)?;
    }

    #[test]
    fn step_6_queries_of_any_layer(case in small()) {
        queries_are_equations_12_to_14::<Interleaved>(queries, &case)?;
        queries_are_equations_12_to_14::<HalfSplit>(queries, &case)?;
    }

    #[test]
    fn step_7_layer_is_the_naive_form_in_any_chunks(case in small(), chunk in 1usize..=6) {
        absorbed_is_naive(&steps::<Interleaved>(), &case, chunk)?;
        absorbed_is_naive(&steps::<HalfSplit>(), &case, chunk)?;
    }
}

#[test]
fn step_7_layer_decodes_by_hand() {
    must(absorbed_is_naive(&steps::<Interleaved>(), &Small { tokens: 3, ..BY_HAND }, 1));
}
