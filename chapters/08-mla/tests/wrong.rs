//! Wrong variants of chapter 8: slips that are easy to make. The checks must reject each of them.

mod laws;

use attention::{Attention, AttentionError, Batch, Mask, Options, Problem};
use laws::*;
use mla::{
    Cache, Dims, HalfSplit, Heads, Interleaved, LatentCache, Layer, MlaAbsorbed, Queries, Rope, Yarn, absorb, absorbed,
    compress, expand, project, queries, rotate, scale, split,
};
use ndarray::{Array2, Array3, ArrayView2, ArrayView3, ArrayViewMut2, Axis, concatenate, s};
use proptest::prelude::*;
use testkit::{assert_caught, must};

type Here = Layer<Interleaved>;

/// Frequencies of another pairing's rotation.
fn half_split(rope: &Rope<Interleaved>) -> Rope<HalfSplit> {
    Rope::with_frequencies(rope.frequencies().to_vec()).expect("frequencies of a rope")
}

#[test]
fn wrong_absorptions() {
    type Absorb = fn(ArrayView3<f32>, ArrayView2<f32>) -> Array3<f32>;
    let head_0_for_all: Absorb = |q, w| {
        let (heads, d) = (q.dim().0, q.dim().2);
        let w = concatenate(Axis(0), &vec![w.slice(s![..d, ..]); heads]).expect("equal widths");
        absorb(q, w.view())
    };
    let heads_innermost: Absorb = |q, w| {
        let (heads, d) = (q.dim().0, q.dim().2);
        absorb(q, Array2::from_shape_fn(w.dim(), |(row, c)| w[[row % d * heads + row / d, c]]).view())
    };
    let not_transposed: Absorb = |q, w| {
        let (heads, d_c) = (q.dim().0, w.ncols());
        let mut latent = Array3::zeros((heads, q.dim().1, d_c));
        for ((head, token, c), x) in latent.indexed_iter_mut() {
            *x = (0..q.dim().2.min(d_c)).map(|i| w[[head * q.dim().2 + c % q.dim().2, i]] * q[[head, token, i]]).sum();
        }
        latent
    };
    let first_token: Absorb = |q, w| {
        let latent = absorb(q, w);
        let first = latent.slice(s![.., ..1, ..]);
        first.broadcast(latent.dim()).expect("one token for all").to_owned()
    };
    let added_up: Absorb = |q, w| {
        let latent = absorb(q, w);
        let sum = latent.sum_axis(Axis(0)).insert_axis(Axis(0));
        sum.broadcast(latent.dim()).expect("one head for all").to_owned()
    };
    for (name, absorb) in [
        ("head 0's W^UK for all", head_0_for_all),
        ("heads innermost", heads_innermost),
        ("not transposed", not_transposed),
        ("the first token for all", first_token),
        ("heads added up", added_up),
    ] {
        assert_caught(name, 200, products(false), |product| absorb_takes_w_uk_to_the_query(absorb, &product));
    }
}

type Scale = fn(&Dims, Option<Yarn>) -> f64;

/// The scales that public code has had, and other slips.
const WRONG_SCALES: [(&str, Scale); 6] = [
    ("1/sqrt(d_c + d_rope), 1/sqrt(576)", |dims, yarn| {
        scale(dims, yarn) * (dims.d_qk() as f64 / dims.latent() as f64).sqrt()
    }),
    ("1/sqrt(d_nope)", |dims, yarn| scale(dims, yarn) * (dims.d_qk() as f64 / dims.d_nope as f64).sqrt()),
    ("1/(d_nope + d_rope)", |dims, yarn| scale(dims, yarn) / (dims.d_qk() as f64).sqrt()),
    ("YaRN left out", |dims, _| scale(dims, None)),
    ("mscale once", |dims, yarn| scale(dims, yarn) / yarn.map_or(1.0, |yarn| yarn.mscale())),
    ("divided by mscale^2", |dims, yarn| scale(dims, None).powi(2) / scale(dims, yarn)),
];

#[test]
fn wrong_scales() {
    for (name, scale) in WRONG_SCALES {
        assert_caught(name, 200, small(), |case| scale_is_that_of_the_heads(scale, case.dims, case.yarn));
    }
}

#[test]
fn wrong_expansions() {
    type Expand = fn(ArrayView3<f32>, ArrayView2<f32>) -> Array3<f32>;
    let head_0_for_all: Expand = |latent, w| {
        let heads = latent.dim().0;
        let w = concatenate(Axis(0), &vec![w.slice(s![..w.nrows() / heads, ..]); heads]).expect("equal widths");
        expand(latent, w.view())
    };
    let heads_innermost: Expand = |latent, w| {
        let (heads, d) = (latent.dim().0, w.nrows() / latent.dim().0);
        expand(latent, Array2::from_shape_fn(w.dim(), |(row, c)| w[[row % d * heads + row / d, c]]).view())
    };
    let left_in_the_latent: Expand = |latent, _| latent.to_owned();
    let last_channel_lost: Expand = |latent, w| {
        let mut latent = latent.to_owned();
        latent.slice_mut(s![.., .., -1]).fill(0.0);
        expand(latent.view(), w)
    };
    let heads_reversed: Expand = |latent, w| expand(latent.slice(s![..;-1, .., ..]), w);
    for (name, expand) in [
        ("head 0's W^UV for all", head_0_for_all),
        ("heads innermost", heads_innermost),
        ("not expanded", left_in_the_latent),
        ("the last channel lost", last_channel_lost),
        ("heads reversed", heads_reversed),
    ] {
        assert_caught(name, 200, products(true), |product| expand_takes_w_uv_behind_the_sum(expand, &product));
    }
}

#[test]
fn wrong_rotations() {
    type Rotate = fn(&Rope<Interleaved>, ArrayViewMut2<f32>, usize);
    let other_pairing: Rotate = |rope, vectors, position| rotate(&half_split(rope), vectors, position);
    let not_at_all: Rotate = |_, _, _| {};
    let backwards: Rotate = |rope, vectors, position| {
        let back = rope.frequencies().iter().map(|frequency| -frequency).collect();
        rotate(&Rope::<Interleaved>::with_frequencies(back).expect("finite"), vectors, position);
    };
    let one_further: Rotate = |rope, vectors, position| rotate(rope, vectors, position + 1);
    let first_frequency: Rotate = |rope, vectors, position| {
        let same = vec![rope.frequencies()[0]; rope.frequencies().len()];
        rotate(&Rope::<Interleaved>::with_frequencies(same).expect("finite"), vectors, position);
    };
    let first_vector: Rotate = |rope, mut vectors, position| rotate(rope, vectors.slice_mut(s![..1, ..]), position);
    let row_as_position: Rotate = |rope, mut vectors, position| {
        for row in 0..vectors.nrows() {
            rotate(rope, vectors.slice_mut(s![row..row + 1, ..]), position + row);
        }
    };
    let overwritten: Rotate = |rope, mut vectors, position| {
        for (i, frequency) in rope.frequencies().iter().enumerate() {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            for mut v in vectors.rows_mut() {
                v[2 * i] = v[2 * i] * cos as f32 - v[2 * i + 1] * sin as f32;
                v[2 * i + 1] = v[2 * i] * sin as f32 + v[2 * i + 1] * cos as f32;
            }
        }
    };
    for (name, rotate) in [
        ("the other pairing", other_pairing),
        ("not at all", not_at_all),
        ("backwards", backwards),
        ("one position further", one_further),
        ("the first frequency for all", first_frequency),
        ("the first vector alone", first_vector),
        ("each vector a position", row_as_position),
        ("x overwritten before y is made", overwritten),
    ] {
        assert_caught(name, 200, rotations(), |(rope, vectors, position)| {
            rotate_turns_each_pair(rotate, &rope, &vectors, position)
        });
    }
    let in_f32: Rotate = |rope, vectors, position| {
        let turns: Vec<f64> = rope.frequencies().iter().map(|&f| f64::from(position as f32 * f as f32)).collect();
        rotate(&Rope::<Interleaved>::with_frequencies(turns).expect("finite"), vectors, 1);
    };
    let far = Rope::<Interleaved>::new(4, 3.0).expect("pairs");
    must(rotate_turns_each_pair(rotate, &far, &[vec![1.0, 2.0, 3.0, -1.0]], 123_457));
    assert!(rotate_turns_each_pair(in_f32, &far, &[vec![1.0, 2.0, 3.0, -1.0]], 123_457).is_err(), "angles in f32");
}

type Compress = fn(&Here, ArrayView2<f32>, usize) -> Array2<f32>;

/// Slips in what is cached.
const WRONG_CACHES: [(&str, Compress); 8] = [
    ("c^KV cached twice", |layer, h, position| {
        let rows = compress(layer, h, position);
        concatenate![Axis(1), rows.slice(s![.., ..layer.dims().d_c]), rows]
    }),
    ("a key for each head", |layer, h, position| {
        let rows = compress(layer, h, position);
        let keys = vec![rows.slice(s![.., layer.dims().d_c..]); layer.dims().heads + 1];
        let keys = concatenate(Axis(1), &keys).expect("as many tokens");
        concatenate![Axis(1), rows.slice(s![.., ..layer.dims().d_c]), keys]
    }),
    ("positions from 0 in every chunk", |layer, h, _| compress(layer, h, 0)),
    ("one position for all", |layer, h, position| {
        let rows: Vec<_> = h.axis_chunks_iter(Axis(0), 1).map(|h| compress(layer, h, position)).collect();
        concatenate(Axis(0), &rows.iter().map(|row| row.view()).collect::<Vec<_>>()).expect("equal rows")
    }),
    ("k^R not rotated", |layer, h, position| {
        let mut rows = compress(layer, h, position);
        rows.slice_mut(s![.., layer.dims().d_c..]).assign(&project(h, &layer.weights().kr));
        rows
    }),
    ("mixed pairings", |layer, h, position| {
        let mut rows = compress(layer, h, position);
        let mut k_rope = rows.slice_mut(s![.., layer.dims().d_c..]);
        k_rope.assign(&project(h, &layer.weights().kr));
        for (token, k_rope) in k_rope.axis_chunks_iter_mut(Axis(0), 1).enumerate() {
            rotate(&half_split(layer.rope()), k_rope, position + token);
        }
        rows
    }),
    ("the norm left out", |layer, h, position| {
        let mut rows = compress(layer, h, position);
        rows.slice_mut(s![.., ..layer.dims().d_c]).assign(&project(h, &layer.weights().dkv));
        rows
    }),
    ("the key before the latent", |layer, h, position| {
        let rows = compress(layer, h, position);
        let d_c = layer.dims().d_c;
        concatenate![Axis(1), rows.slice(s![.., d_c..]), rows.slice(s![.., ..d_c])]
    }),
];

#[test]
fn wrong_caches() {
    for (name, compress) in WRONG_CACHES {
        assert_caught(name, 200, small(), |case| compress_is_equations_9_and_15::<Interleaved>(compress, &case));
    }
}

type MakeQueries = fn(&Here, ArrayView2<f32>, usize) -> Queries<Interleaved>;

/// The queries' latent, as step 6 makes it.
fn latent(layer: &Here, h: ArrayView2<f32>) -> Array2<f32> {
    let mut c_q = project(h, &layer.weights().dq);
    if let Some(norm) = &layer.weights().norm_q {
        norm.apply(c_q.view_mut());
    }
    c_q
}

/// q^R of a latent, not rotated.
fn straight(layer: &Here, c_q: &Array2<f32>) -> Array3<f32> {
    split(project(c_q.view(), &layer.weights().qr), layer.dims().heads)
}

/// Slips in the queries.
const WRONG_QUERIES: [(&str, MakeQueries); 7] = [
    ("RoPE before the up-projection", |layer, h, position| {
        let mut c_q = latent(layer, h);
        let turned = layer.dims().d_cq / 2 * 2;
        if turned > 0 {
            let rope = Rope::<Interleaved>::new(turned, 4.0).expect("pairs");
            for token in 0..h.nrows() {
                rotate(&rope, c_q.slice_mut(s![token..token + 1, ..turned]), position + token);
            }
        }
        Queries { rope: straight(layer, &c_q), ..queries(layer, h, position) }
    }),
    ("positions from 0 in every chunk", |layer, h, _| queries(layer, h, 0)),
    ("q^R not rotated", |layer, h, position| Queries {
        rope: straight(layer, &latent(layer, h)),
        ..queries(layer, h, position)
    }),
    ("mixed pairings", |layer, h, position| {
        let mut rope = straight(layer, &latent(layer, h));
        for token in 0..h.nrows() {
            rotate(&half_split(layer.rope()), rope.slice_mut(s![.., token, ..]), position + token);
        }
        Queries { rope, ..queries(layer, h, position) }
    }),
    ("heads as positions", |layer, h, position| {
        let mut rope = straight(layer, &latent(layer, h));
        for head in 0..layer.dims().heads {
            rotate(layer.rope(), rope.slice_mut(s![head, .., ..]), position + head);
        }
        Queries { rope, ..queries(layer, h, position) }
    }),
    ("the norm left out", |layer, h, position| {
        let c_q = project(h, &layer.weights().dq);
        let nope = split(project(c_q.view(), &layer.weights().uq), layer.dims().heads);
        Queries { nope, ..queries(layer, h, position) }
    }),
    ("heads innermost", |layer, h, position| {
        let right = queries(layer, h, position);
        let c_q = latent(layer, h);
        let (heads, d) = (layer.dims().heads, layer.dims().d_nope);
        let flat = project(c_q.view(), &layer.weights().uq);
        let nope = Array3::from_shape_fn((heads, h.nrows(), d), |(head, token, c)| flat[[token, c * heads + head]]);
        Queries { nope, ..right }
    }),
];

#[test]
fn wrong_queries() {
    for (name, queries) in WRONG_QUERIES {
        assert_caught(name, 200, small(), |case| queries_are_equations_12_to_14::<Interleaved>(queries, &case));
    }
}

/// The absorbed form with a scale of its own.
fn scaled(
    layer: &Here,
    queries: &Queries<Interleaved>,
    cache: &Cache<Interleaved>,
    scale: f64,
) -> Result<Heads, AttentionError> {
    let q = concatenate![Axis(2), absorb(queries.nope.view(), layer.weights().uk.view()), queries.rope];
    let q = q.insert_axis(Axis(0));
    let options = Options { scale: Some(scale), mask: Mask::Causal, ..Options::default() };
    let problem = Problem::new(q.view(), cache.kv(), Batch::Dense, options)?;
    let heads = Heads::of(MlaAbsorbed::default().forward(&problem)?);
    Ok(Heads { o: expand(heads.o.view(), layer.weights().uv.view()), ..heads })
}

const RIGHT: Steps<Interleaved> = Steps { compress, queries, absorbed };

fn assert_layer_caught(name: &str, steps: Steps<Interleaved>) {
    assert_caught(name, 200, (small(), 1usize..=6), |(case, chunk)| absorbed_is_naive(&steps, &case, chunk));
}

#[test]
fn wrong_layers() {
    assert_layer_caught(
        "1/sqrt(576)",
        Steps {
            absorbed: |layer, queries, cache| {
                scaled(layer, queries, cache, WRONG_SCALES[0].1(layer.dims(), layer.yarn()))
            },
            ..RIGHT
        },
    );
    assert_layer_caught(
        "YaRN left out",
        Steps { absorbed: |layer, queries, cache| scaled(layer, queries, cache, scale(layer.dims(), None)), ..RIGHT },
    );
    assert_layer_caught(
        "the queries' pairs in the other pairing, the cache's as they are",
        Steps { queries: WRONG_QUERIES[3].1, ..RIGHT },
    );
    assert_layer_caught("RoPE before the up-projection", Steps { queries: WRONG_QUERIES[0].1, ..RIGHT });
    assert_layer_caught("c^KV cached twice", Steps { compress: WRONG_CACHES[0].1, ..RIGHT });
    assert_layer_caught("keys from position 0 in every chunk", Steps { compress: WRONG_CACHES[2].1, ..RIGHT });
    assert_layer_caught("queries from position 0 in every chunk", Steps { queries: WRONG_QUERIES[1].1, ..RIGHT });
    assert_layer_caught(
        "rotated latents: RoPE between W^UK and the query",
        Steps {
            queries: |layer, h, position| {
                let mut right = queries(layer, h, position);
                let rope = Rope::<Interleaved>::new(2, 4.0).expect("a pair");
                for token in 0..h.nrows() {
                    if layer.dims().d_nope > 1 {
                        rotate(&rope, right.nope.slice_mut(s![.., token, ..2]), position + token);
                    }
                }
                right
            },
            ..RIGHT
        },
    );
}

proptest! {
    /// What the variants are made of is right: without a slip they pass.
    #[test]
    fn the_control_passes(case in small(), chunk in 1usize..=6) {
        let control = Steps {
            absorbed: |layer, queries, cache| scaled(layer, queries, cache, scale(layer.dims(), layer.yarn())),
            queries: |layer, h, position| {
                let mut rope = straight(layer, &latent(layer, h));
                for token in 0..h.nrows() {
                    rotate(layer.rope(), rope.slice_mut(s![.., token, ..]), position + token);
                }
                Queries { rope, ..queries(layer, h, position) }
            },
            ..RIGHT
        };
        absorbed_is_naive(&control, &case, chunk)?;
    }
}
