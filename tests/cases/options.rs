//! Scores: soft cap, ALiBi, bias, sinks, scale.

use crate::common::{
    Dims, Tensors, assert_same_bits, bits, canaries, dims, expect_definition, expect_rows, o, run_all, rungs,
};
use attention::{Attention, Mask, Options, Problem};
use ndarray::{Array1, Array2, Array4, arr1};

/// A problem with a given cap.
type Make<'a> = Box<dyn Fn(f64) -> Problem<'a> + 'a>;

fn capped<'a>(softcap: f64, mask: Mask) -> Options<'a> {
    Options { softcap, mask, ..Options::default() }
}

/// sglang 33915, sgl-kernel-xpu PR 491: a soft cap (on one path a window) is accepted and dropped.
#[test]
fn a10_a_soft_cap_counts_on_every_path() {
    // Prefill, decode, window, short keys, packed: each is a path of its own somewhere.
    let score = |cap: f64| move |dot: f64| if cap > 0.0 { cap * (dot / 4.0 / cap).tanh() } else { dot / 4.0 };
    let shape = |q_len| Dims { d: 16, d_v: 16, ..dims(q_len, 33) };
    let (mut prefill, mut decode) = (Tensors::random(10, shape(33)), Tensors::random(11, shape(1)));
    prefill.q *= 12.0;
    decode.q *= 12.0;
    let (prefill, decode) = (&prefill, &decode);
    let paths: [(Make, bool); 5] = [
        (Box::new(move |cap| prefill.problem(capped(cap, Mask::Causal))), true),
        (Box::new(move |cap| decode.problem(capped(cap, Mask::Full))), false),
        (Box::new(move |cap| prefill.problem(capped(cap, Mask::window(5, 0)))), true),
        (Box::new(move |cap| decode.with_lens(&[20], capped(cap, Mask::Full))), false),
        (Box::new(move |cap| prefill.packed(&[0, 9, 33], &[0, 20, 33], capped(cap, Mask::Full))), false),
    ];
    for (path, (make, causal)) in paths.iter().enumerate() {
        let results: Vec<_> = [0.0, 5.0, 50.0]
            .into_iter()
            .map(|cap| {
                let problem = make(cap);
                let left = if path == 2 { 5 } else { i64::MAX };
                expect_definition(&problem, |at, dot| {
                    let distance = at.j - at.i - at.off;
                    ((!causal || distance <= 0) && distance >= -left).then(|| score(cap)(dot))
                });
                run_all(&problem)
            })
            .collect();
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            for ((name, a), (_, b)) in results[a].iter().zip(&results[b]) {
                let difference = (o(a) - o(b)).iter().fold(0f32, |max, x| max.max(x.abs()));
                assert!(difference > 1e-2, "{name}, path {path}: the cap changes the result by {difference} only");
            }
        }
    }
}

/// flash-attention 907 and 1585: ALiBi in packed training and in decode disagree. The bias is -slope * distance.
#[test]
fn a11_alibi_is_slope_times_distance() {
    let slopes = arr1(&[0.5f32]).into_dyn();
    let alibi = |mask| Options { mask, alibi_slopes: Some(slopes.view()), ..Options::default() };
    let decode = Tensors::flat(dims(1, 4));
    expect_rows(&decode.problem(alibi(Mask::Causal)), &[(3.084576, 0.787339)]);
    let two = Tensors::flat(dims(2, 4));
    // Row 0 sits on key 2: its weights are e^-1, e^-0.5, 1, e^-0.5.
    let lse_0 = ((-1f64).exp() + 2.0 * (-0.5f64).exp() + 1.0).ln();
    expect_rows(&two.problem(alibi(Mask::Full)), &[(2.714926, lse_0), (3.084576, 0.787339)]);
    expect_rows(&two.packed(&[0, 1, 2], &[0, 4, 4], alibi(Mask::Full)), &[(3.084576, 0.787339), (0.0, f64::NEG_INFINITY)]);
}

/// Slopes for each head and for each sequence and head, negative ones too, with q_len above and below k_len.
#[test]
fn alibi_slopes_of_both_shapes_agree_with_the_definition() {
    let (per_head, per_sequence) = (arr1(&[0.25f32, -0.125]), ndarray::arr2(&[[0.5f32, 0.25], [0.0, 0.125]]));
    for (q_len, k_len) in [(3, 17), (17, 3), (8, 8)] {
        let tensors = Tensors::random(12, Dims { batch: 2, heads: 2, d: 4, d_v: 4, ..dims(q_len, k_len) });
        let check = |slopes: ndarray::ArrayViewD<f32>, of: &dyn Fn(usize, usize) -> f32| {
            let options = Options { alibi_slopes: Some(slopes), ..Options::default() };
            expect_definition(&tensors.problem(options), |at, dot| {
                Some(dot / 2.0 - f64::from(of(at.b, at.h)) * (at.j - at.i - at.off).abs() as f64)
            });
        };
        check(per_head.view().into_dyn(), &|_, h| per_head[h]);
        check(per_sequence.view().into_dyn(), &|b, h| per_sequence[[b, h]]);
    }
}

/// pytorch 153799, cudnn-frontend 160 (forward part): NaN once a bias is added and the length is no multiple of 128.
#[test]
fn a58_a_bias_at_an_odd_length_stays_finite() {
    let tensors = Tensors::random(58, Dims { d: 8, d_v: 8, ..dims(1025, 1025) });
    let bias = Array4::from_shape_fn((1, 1, 1025, 1025), |(_, _, i, j)| i as f32 - j as f32);
    let problem = tensors.problem(Options { bias: Some(bias.view()), mask: Mask::Causal, ..Options::default() });
    expect_definition(&problem, |at, dot| (at.j <= at.i).then_some(dot / 8f64.sqrt() + (at.i - at.j) as f64));
}

/// A bias of every shape that broadcasts, after the cap, finds its sequence and head.
#[test]
fn a_bias_broadcasts_over_sequences_and_heads() {
    let tensors = Tensors::random(14, Dims { batch: 2, heads: 2, d: 4, d_v: 4, ..dims(5, 7) });
    for (b, h) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let value = |(b, h, i, j): (usize, usize, usize, usize)| ((b * 7 + h * 5 + i * 3 + j) % 11) as f32 - 5.0;
        let bias = Array4::from_shape_fn((b, h, 5, 7), value);
        let problem = tensors.problem(Options { bias: Some(bias.view()), softcap: 2.0, ..Options::default() });
        expect_definition(&problem, |at, dot| {
            let bias = value((at.b.min(b - 1), at.h.min(h - 1), at.i as usize, at.j as usize));
            Some(2.0 * (dot / 2.0 / 2.0).tanh() + f64::from(bias))
        });
    }
}

/// Scales given are used as given: zero, negative, tiny, one. Only an absent one is 1/sqrt(d).
#[test]
fn a_given_scale_is_used_as_given() {
    let tensors = Tensors::random(15, Dims { d: 9, d_v: 4, ..dims(4, 20) });
    for scale in [0.0, -0.0, -0.7, 1e-30, 1.0] {
        let problem = tensors.problem(Options { scale: Some(scale), ..Options::default() });
        expect_definition(&problem, |_, dot| Some(scale * dot));
    }
    expect_definition(&tensors.problem(Options::default()), |_, dot| Some(dot / 3.0));
}

/// o * e^lse / (e^lse + e^sink), lse as without the sink, for a sink of each query head; neither scaled nor capped.
#[test]
fn a_sink_takes_its_share_of_the_denominator_and_stays_out_of_lse() {
    let tensors = Tensors::random(16, Dims { batch: 2, heads: 6, kv_heads: 2, d: 4, d_v: 3, ..dims(5, 9) });
    let sinks = arr1(&[0.0f32, 2.5, -3.0, 1.0, 12.0, -80.0]);
    let plain = Options { softcap: 1.5, scale: Some(0.1), mask: Mask::Causal, ..Options::default() };
    let with_sinks = Options { sinks: Some(sinks.view()), ..plain.clone() };
    let both = run_all(&tensors.problem(plain)).into_iter().zip(run_all(&tensors.problem(with_sinks)));
    for ((name, plain), (_, found)) in both {
        assert_eq!(plain.lse, found.lse, "{name}");
        let (plain_o, found_o) = (o(&plain), o(&found));
        for ((at, found), plain_o) in found_o.indexed_iter().zip(&plain_o) {
            let lse = f64::from(plain.lse[[at[0], at[1], at[2]]]);
            let wanted = f64::from(*plain_o) * lse.exp() / (lse.exp() + f64::from(sinks[at[1]]).exp());
            assert!((f64::from(*found) - wanted).abs() <= 1e-6, "{name} {at:?}: {found}, wanted {wanted}");
        }
    }
}

/// One key of score 0: a sink s leaves 1 / (1 + e^s) of it, whatever its size. No sink, a huge one and an infinite one.
#[test]
fn sinks_of_any_size_do_not_overflow() {
    let tensors = Tensors::flat(dims(1, 1));
    let cases = [
        (f32::NEG_INFINITY, 1.0),
        (f32::MIN, 1.0),
        (-1e4, 1.0),
        (0.0, 0.5),
        (5.0, 1.0 / (1.0 + 5f64.exp())),
        (1e4, 0.0),
        (f32::MAX, 0.0),
        (f32::INFINITY, 0.0),
    ];
    for (sink, wanted) in cases {
        let sinks = arr1(&[sink]);
        let problem = tensors.problem(Options { sinks: Some(sinks.view()), ..Options::default() });
        expect_rows(&problem, &[(wanted, 0.0)]);
    }
    // Against scores as large, the difference counts: keys at 9990 and -9990.
    for (score, sink) in [(9990.0, 1e4), (-9990.0, -9980.0)] {
        let bias = Array4::from_elem((1, 1, 1, 1), score);
        let sinks = arr1(&[sink]);
        let options = Options { bias: Some(bias.view()), sinks: Some(sinks.view()), ..Options::default() };
        expect_rows(&tensors.problem(options), &[(1.0 / (1.0 + 10f64.exp()), f64::from(score))]);
    }
}

/// A sink of -inf changes no bit; one of +inf gives 0 beside an untouched lse; rows without keys stay empty beside any.
#[test]
fn sinks_at_their_limits() {
    let tensors = Tensors::random(18, Dims { heads: 2, d: 4, d_v: 4, ..dims(6, 3) });
    let with = |sinks: &'static [f32; 2]| Options {
        sinks: Some(ndarray::ArrayView1::from(sinks)),
        mask: Mask::Causal,
        ..Options::default()
    };
    let plain = tensors.problem(Options { mask: Mask::Causal, ..Options::default() });
    assert_same_bits(&plain, &tensors.problem(with(&[f32::NEG_INFINITY; 2])));
    let all_gone = run_all(&tensors.problem(with(&[f32::INFINITY; 2])));
    for ((name, plain), (_, gone)) in run_all(&plain).into_iter().zip(all_gone) {
        assert_eq!(plain.lse, gone.lse, "{name}");
        assert!(o(&gone).iter().all(|&x| x == 0.0), "{name}: {}", o(&gone));
    }
    let keyless = Tensors::flat(Dims { heads: 2, ..dims(2, 0) });
    for sinks in [&[0.0, 3e38], &[f32::INFINITY, f32::NEG_INFINITY]] {
        expect_rows(&keyless.problem(with(sinks)), &[(0.0, f64::NEG_INFINITY); 2]);
    }
}

/// flash-attention's race tests: forward is repeatable bit by bit; here also for any number of threads.
#[test]
fn threads_change_no_bit() {
    let tensors = Tensors::random(13, Dims { batch: 2, heads: 6, kv_heads: 2, d: 16, d_v: 8, ..dims(70, 3000) });
    let one_query = Tensors { q: tensors.q.slice(ndarray::s![.., .., ..1, ..]).to_owned(), ..tensors.clone() };
    for tensors in [one_query, tensors] {
        let problem = tensors.problem(Options { mask: Mask::Causal, ..Options::default() });
        for (name, rung) in rungs(16, 8).into_iter().filter(|(name, _)| *name != "oracle") {
            let results: Vec<_> = [1, 2, 5]
                .into_iter()
                .map(|threads| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    let mut output = canaries(&problem);
                    pool.install(|| rung.forward_into(&problem, &mut output.view_mut())).unwrap();
                    bits(&output)
                })
                .collect();
            assert!(results.iter().all(|result| *result == results[0]), "{name}");
        }
    }
}

/// The types of these arrays are the ones that options take; kept here so that a change of either shows.
#[test]
fn options_accept_strided_views() {
    let tensors = Tensors::random(19, Dims { batch: 2, heads: 2, d: 4, d_v: 4, ..dims(3, 4) });
    let slopes = Array2::from_shape_fn((2, 2), |(h, b)| (1 + 2 * b + h) as f32 / 8.0);
    let sinks = Array1::from_iter([0.5f32, 9.0, -1.0, 9.0]);
    let bias = Array4::from_shape_fn((4, 3, 2, 2), |(j, i, h, b)| (j + 2 * i + 3 * h + b) as f32 / 4.0);
    let strided = Options {
        alibi_slopes: Some(slopes.t().into_dyn()),
        sinks: Some(sinks.slice(ndarray::s![..;2])),
        bias: Some(bias.view().permuted_axes([3, 2, 1, 0])),
        ..Options::default()
    };
    let (slopes, sinks, bias) = (
        slopes.t().as_standard_layout().to_owned().into_dyn(),
        arr1(&[0.5f32, -1.0]),
        bias.view().permuted_axes([3, 2, 1, 0]).as_standard_layout().to_owned(),
    );
    let contiguous = Options {
        alibi_slopes: Some(slopes.view()),
        sinks: Some(sinks.view()),
        bias: Some(bias.view()),
        ..Options::default()
    };
    assert_same_bits(&tensors.problem(strided), &tensors.problem(contiguous));
}
