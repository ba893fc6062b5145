//! Latent attention: its scale, its pairs, any number of heads, and what its rung must not depend on.

use crate::common::{Dims, Tensors, bits, dims, expect_definition, latent_rungs, o, run, run_all};
use attention::{AttentionError, Batch, Mask, Options, Problem, TensorView};
use mla::{Cache, Form, HalfSplit, Interleaved, Layer, Pairing, Rope, Weights, rotate};
use ndarray::{Array1, Array2, Array4, arr1, s};

/// DeepSeek's scale, for 128 channels without a position and 64 with one.
fn scale() -> f64 {
    1.0 / 192f64.sqrt()
}

fn latents<'a>(tensors: &'a Tensors, mask: Mask) -> Problem<'a> {
    tensors.latents(512, Batch::Dense, Options { scale: Some(scale()), mask, ..Options::default() })
}

/// ollama PR 13893, FlashMLA's default: the absorbed kernel scales by 1/sqrt(576).
#[test]
fn a59_two_keys_of_scores_0_and_10() {
    let mut tensors = Tensors::flat(Dims { d: 576, d_v: 512, ..dims(1, 2) });
    // The score comes from the rotated channels, the value from the latent's.
    tensors.q[[0, 0, 0, 575]] = 10.0;
    tensors.k[[0, 0, 1, 575]] = 1.0;
    tensors.k.slice_mut(s![0, 0, 1, ..512]).fill(1.0);
    for (name, output) in run_all(&latents(&tensors, Mask::Full)) {
        assert!(o(&output).iter().all(|o| (o - 0.672979).abs() < 1e-6), "{name}: {output:?}");
        assert!((output.lse[[0, 0, 0]] - (1.0 + (10.0 / 192f32.sqrt()).exp()).ln()).abs() < 1e-5, "{name}: {output:?}");
    }
}

/// The same through the layer, in each form: a cached token of score 10, and the token itself of score 0.
#[test]
fn a59_the_layer_scales_by_its_channels_before_absorption() {
    let dims = mla::Dims { d_model: 1, heads: 1, d_cq: 1, d_v: 1, ..mla::Dims::DEEPSEEK_V2 };
    let zeros = |rows: usize, columns: usize| Array2::<f32>::zeros((rows, columns));
    let unit = |rows: usize, columns: usize, x: f32| {
        let mut w = zeros(rows, columns);
        w[[0, 0]] = x;
        w
    };
    let all = [
        unit(1, 1, 1.0),
        unit(128, 1, 1.0),
        zeros(64, 1),
        zeros(512, 1),
        unit(128, 512, 1.0),
        unit(1, 512, 0.1),
        zeros(64, 1),
        unit(1, 1, 1.0),
    ];
    let [dq, uq, qr, dkv, uk, uv, kr, w_o] = all.each_ref().map(|w| TensorView::from(w.view()));
    let weights = Weights { dq, uq, qr, dkv, uk, uv, kr, o: w_o, norms: None };
    let layer = Layer::<Interleaved>::new(dims, &weights, Rope::new(64, 1e4).unwrap(), None).unwrap();
    let (c_kv, k_rope) = (unit(1, 512, 10.0), zeros(1, 64));
    for form in [Form::Naive, Form::Fused, Form::Absorbed] {
        let mut cache = Cache::from_parts(&c_kv.view().into(), &k_rope.view().into()).unwrap();
        let attended = layer.forward(form, &unit(1, 1, 1.0).view().into(), &mut cache).unwrap();
        let out = attended.out.view().to_f64()[[0, 0]];
        assert!((out - 0.672979).abs() < 1e-6, "{form:?}: {out}");
        let lse = attended.heads.lse[[0, 0]];
        assert!((f64::from(lse) - (1.0 + (10.0 * scale()).exp()).ln()).abs() < 1e-5, "{form:?}: {lse}");
    }
}

/// The products of q at one position with k at another, each rotated by its own pairing.
fn rotated_product<Q: Pairing, K: Pairing>(position_q: usize, position_k: usize) -> f64 {
    let turned = |x: f32, step: f32, turn: &dyn Fn(&mut Array2<f32>)| {
        let mut x = Array2::from_shape_fn((1, 64), |(_, c)| (x + step * c as f32).sin());
        turn(&mut x);
        x.mapv(f64::from).row(0).to_owned()
    };
    let q = turned(0.3, 1.7, &|x| rotate(&Rope::<Q>::new(64, 1e4).unwrap(), x.view_mut(), position_q));
    let k = turned(0.9, 2.3, &|x| rotate(&Rope::<K>::new(64, 1e4).unwrap(), x.view_mut(), position_k));
    q.dot(&k)
}

/// transformers 39687, Megatron-LM 1547, xllm PR 853: interleaved weights with a half-split rotation on one side.
#[test]
fn a60_scores_depend_on_the_distance_alone_unless_pairings_are_mixed() {
    fn spread(product: fn(usize, usize) -> f64) -> f64 {
        let mut spread = 0f64;
        for (one, other) in [(0, 1), (0, 7), (1, 7)] {
            let all: Vec<f64> = (0..9).map(|shift| product(one + shift, other + shift)).collect();
            let (least, most) = all.iter().fold((f64::MAX, f64::MIN), |(a, b), &x| (a.min(x), b.max(x)));
            spread = spread.max(most - least);
        }
        spread
    }
    assert!(spread(rotated_product::<Interleaved, Interleaved>) < 1e-5);
    assert!(spread(rotated_product::<HalfSplit, HalfSplit>) < 1e-5);
    assert!(spread(rotated_product::<Interleaved, HalfSplit>) > 0.5);
    assert!(spread(rotated_product::<HalfSplit, Interleaved>) > 0.5);
    // At position 0 nothing turns, and no mixture shows.
    let at_0 = rotated_product::<Interleaved, HalfSplit>(0, 0);
    assert_eq!(at_0, rotated_product::<HalfSplit, HalfSplit>(0, 0));
}

/// aliyun/SimAI PR 268, ROCm/aiter 1468: head counts that are left after a tensor-parallel split are refused or wrong.
/// pengcuo/FlashMLA-ETAP 2: NaN with two query tokens.
#[test]
fn a62_any_number_of_heads() {
    for heads in [1, 3, 9, 16, 32, 63, 64, 126, 128] {
        for (q_len, mask) in [(1, Mask::Full), (2, Mask::Causal)] {
            let tensors = Tensors::random(heads as u64, Dims { heads, d: 576, d_v: 512, ..dims(q_len, 13) });
            expect_definition(&latents(&tensors, mask), |at, dot| (at.j <= at.i + at.off).then_some(scale() * dot));
        }
    }
}

/// Every option of a score, ragged keys, and rows that see nothing.
#[test]
fn latents_take_every_option() {
    let dims = Dims { batch: 3, heads: 5, d: 9, d_v: 4, ..dims(7, 13) };
    let tensors = Tensors::random(1, dims);
    let (slopes, sinks) = (arr1(&[0.5f32, 0.0, 0.25, 1.0, 0.125]).into_dyn(), Array1::from_elem(5, f32::NEG_INFINITY));
    let bias = Array4::from_shape_fn((1, 5, 7, 13), |(_, h, i, j)| ((h + 3 * i + 5 * j) % 7) as f32 - 3.0);
    let options = Options {
        mask: Mask::window(5, 1),
        softcap: 2.0,
        alibi_slopes: Some(slopes.view()),
        bias: Some(bias.view()),
        sinks: Some(sinks.view()),
        ..Options::default()
    };
    let lens = [13, 4, 0];
    expect_definition(&tensors.latents(4, Batch::KeyLens(&lens), options), |at, dot| {
        let distance = at.j - at.i - at.off;
        let s = 2.0 * (dot / 3.0 / 2.0).tanh() - f64::from(slopes[[at.h]]) * distance.abs() as f64;
        (-5..=1).contains(&distance).then(|| s + f64::from(bias[[0, at.h, at.i as usize, at.j as usize]]))
    });
}

/// NaN in a latent is NaN for the rows that see it, and for no other of the tile.
#[test]
fn a_hidden_latent_of_nan_is_not_noticed() {
    for place in [0, 575] {
        let mut tensors = Tensors::random(2, Dims { heads: 3, d: 576, d_v: 512, ..dims(6, 6) });
        tensors.k[[0, 0, 4, place]] = f32::NAN;
        let problem = latents(&tensors, Mask::Causal);
        for (name, rung) in latent_rungs() {
            let output = run(&*rung, &problem);
            for ((.., i), lse) in output.lse.view().into_dimensionality::<ndarray::Ix3>().unwrap().indexed_iter() {
                assert_eq!(lse.is_nan(), i >= 4, "{name}: row {i}, NaN in channel {place}");
            }
            let seen = o(&output).slice(s![.., .., 4.., ..]).iter().all(|o| o.is_nan());
            let unseen = o(&output).slice(s![.., .., ..4, ..]).iter().all(|o| o.is_finite());
            assert!(seen && unseen, "{name}: NaN in channel {place}");
        }
    }
}

#[test]
fn latent_results_do_not_depend_on_threads_or_neighbours() {
    for (q_len, k_len) in [(1, 5000), (3, 700), (90, 90)] {
        let shape = Dims { batch: 3, heads: 16, d: 40, d_v: 32, ..dims(q_len, k_len) };
        let tensors = Tensors::random(3, shape);
        let problem = tensors.latents(32, Batch::Dense, Options { mask: Mask::Causal, ..Options::default() });
        let alone = Tensors {
            q: tensors.q.slice(s![1..2, .., .., ..]).to_owned(),
            k: tensors.k.slice(s![1..2, .., .., ..]).to_owned(),
            ..tensors.clone()
        };
        let one = alone.latents(32, Batch::Dense, Options { mask: Mask::Causal, ..Options::default() });
        for (name, rung) in latent_rungs() {
            let in_threads = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| run(&*rung, &problem))
            };
            let whole = in_threads(1);
            assert!(bits(&whole) == bits(&in_threads(3)), "{name}: threads change a bit");
            let one = run(&*rung, &one);
            let same = o(&one).slice(s![0, .., .., ..]) == o(&whole).slice(s![1, .., .., ..]);
            assert!(same && one.lse.slice(s![0, .., ..]) == whole.lse.slice(s![1, .., ..]), "{name}: neighbours do");
        }
    }
}

/// Values in other memory, from another channel on, or in other steps are no latents, and neither are two kv heads.
#[test]
fn what_is_no_latent_is_refused() {
    let tensors = Tensors::random(4, Dims { heads: 2, kv_heads: 2, d: 8, d_v: 8, ..dims(2, 5) });
    let (q, k) = (tensors.q.view(), tensors.k.slice(s![.., ..1, .., ..]));
    let options = Options::default;
    let dense = |k, v| Problem::dense(q, k, v, options()).unwrap();
    let copy = k.to_owned();
    let (few, later, second) =
        (k.slice(s![.., .., .., ..3]), k.slice(s![.., .., .., 1..4]), k.slice(s![.., .., .., ..;2]));
    let back = k.slice(s![.., .., ..;-1, ..]);
    for (problem, why) in [
        (tensors.latents(4, Batch::Dense, options()), Some("more than one kv head")),
        (dense(k, copy.view()), Some("values that are not the first channels")),
        (dense(k, later), Some("values that are not the first channels")),
        (dense(k, second), Some("values that are not the first channels")),
        (dense(k, back), Some("values that are not the first channels")),
        (dense(k, k), None),
        (dense(k, few), None),
        (dense(back, back.slice(s![.., .., .., ..5])), None),
    ] {
        for (name, rung) in latent_rungs() {
            match (rung.supports(&problem), why) {
                (Ok(()), None) => drop(run(&*rung, &problem)),
                (Err(AttentionError::Unsupported { rung: "mla-absorbed", what }), Some(why)) if what.contains(why) => {}
                (other, _) => panic!("{name}: {other:?}, wanted {why:?}"),
            }
        }
    }
}
