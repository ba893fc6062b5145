//! The rung at the machine's limit computes what the plain one does, with each kind of vectors that this CPU has.

use attention::{Attention, DType, Mask, Options, Output, Problem, TensorView, oracle};
use fa2::{Fa2, Fa2Simd, Simd};
use half::bf16;
use ndarray::{Array4, Axis, Ix4};
use proptest::prelude::*;
use proptest::sample::select;
use testkit::problems::{Spec, problems};
use testkit::{check, check_against, forward_on_canaries, judge, must};

fn rungs() -> Vec<Fa2Simd> {
    Simd::available().into_iter().map(|simd| Fa2Simd::new(simd).unwrap()).collect()
}

/// Plain problems of sizes at which tiles, panels and splits are full: drawn ones seldom reach them.
fn large() -> impl Strategy<Value = Spec> {
    let lengths = select(vec![(1, 5000), (4, 2100), (33, 300), (64, 64), (129, 127), (300, 260), (257, 1100)]);
    let channels = select(vec![(128, 128), (64, 64), (24, 7), (33, 65)]);
    let masks = select(vec![Mask::Full, Mask::Causal, Mask::window(100, 0), Mask::window(-1, 3)]);
    let types = select(vec![DType::F32, DType::Bf16, DType::F16]);
    (lengths, channels, masks, types, select(vec![1, 3, 5])).prop_map(
        |((q_len, k_len), (d, d_v), mask, dtype, group)| Spec {
            d_v,
            mask,
            dtype,
            group,
            ..Spec::plain(q_len, k_len, d)
        },
    )
}

fn bits(output: &Output) -> (Vec<u64>, Vec<u32>) {
    let o = output.o.view().to_f64();
    (o.iter().map(|x| x.to_bits()).collect(), output.lse.iter().map(|x| x.to_bits()).collect())
}

fn with_threads(threads: usize, rung: &dyn Attention, problem: &Problem) -> Output {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| rung.forward(problem).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..testkit::config() })]

    #[test]
    fn fast_equals_plain(spec in prop_oneof![problems(), large()]) {
        for rung in rungs() {
            check(&rung, &spec)?;
            check_against(&rung, &Fa2::default(), &spec)?;
        }
    }

    #[test]
    fn threads_change_no_bit(spec in large(), threads in 2usize..=7) {
        let owned = spec.build();
        let problem = owned.problem();
        for rung in rungs() {
            let alone = with_threads(1, &rung, &problem);
            prop_assert!(bits(&alone) == bits(&with_threads(threads, &rung, &problem)), "{rung:?}");
        }
    }
}

#[test]
fn a_sequence_does_not_feel_its_neighbours() {
    for (q_len, k_len) in [(1, 3000), (70, 70), (300, 260)] {
        let owned =
            Spec { lengths: vec![(q_len, k_len); 3], group: 2, mask: Mask::Causal, ..Spec::plain(0, 0, 32) }.build();
        let batch = owned.problem();
        let (TensorView::F32(q), TensorView::F32(k), TensorView::F32(v)) = (batch.q(), batch.k(), batch.v()) else {
            panic!("the problem is F32");
        };
        let [q, k, v] = [q, k, v].map(|a| a.slice_axis(Axis(0), (1..2).into()).into_dimensionality::<Ix4>().unwrap());
        let alone = Problem::dense(q, k, v, batch.options().clone()).unwrap();
        for rung in rungs() {
            let (batch, alone) = (rung.forward(&batch).unwrap(), rung.forward(&alone).unwrap());
            let middle = batch.lse.index_axis(Axis(0), 1);
            assert!(middle == alone.lse.index_axis(Axis(0), 0), "{rung:?}");
            let middle = batch.o.view().to_f64().index_axis(Axis(0), 1).to_owned();
            assert!(middle == alone.o.view().to_f64().index_axis(Axis(0), 0), "{rung:?}");
        }
    }
}

/// Numbers with which vectors alone would go wrong: overflow on the way, subnormals, infinities. All of them reach a rung
/// in few rows, where channels are in the lanes, and in many, where rows are.
#[test]
fn unusual_numbers_are_right() {
    let mut specs = Vec::new();
    for q_len in [1, 40] {
        for dtype in [DType::F32, DType::Bf16] {
            let plain = Spec { dtype, ..Spec::plain(q_len, 150, 32) };
            specs.extend([1e20, -1e35, 1e-30].map(|scale| Spec { scale: Some(scale), ..plain.clone() }));
            specs.push(Spec { softcap: 30.0, scale: Some(1e30), ..plain });
        }
    }
    for spec in specs {
        for rung in rungs() {
            must(check(&rung, &spec));
        }
    }
    for magnitude in [1e-39f32, 1e-30, 1e15, 5e18] {
        for q_len in [1, 40] {
            let numbers = |rows, at: usize| {
                Array4::from_shape_fn((1, 1, rows, 32), |(_, _, i, c)| {
                    let unit = ((7 * i + 3 * c + at) % 11) as f32 / 11.0 - 0.4;
                    bf16::from_f32(unit * magnitude)
                })
            };
            let (q, k, v) = (numbers(q_len, 1), numbers(150, 2), numbers(150, 3));
            let problem = Problem::dense(q.view(), k.view(), v.view(), Options::default()).unwrap();
            let truth = oracle::truth(&problem);
            for rung in rungs() {
                let output = forward_on_canaries(&rung, &problem).unwrap();
                let verdict = judge(&problem, &truth, &output, rung.weights(&problem));
                assert!(verdict.passes(), "{rung:?}, {q_len} rows of {magnitude:e}: {verdict}");
            }
        }
    }
}

/// A key of such heads is more than what a split streams.
#[test]
fn wide_heads_are_right() {
    for dtype in [DType::F32, DType::Bf16] {
        let spec = Spec { dtype, ..Spec::plain(1, 2, 300_000) };
        for rung in rungs() {
            must(check(&rung, &spec));
        }
    }
}

#[test]
fn a_level_that_the_cpu_lacks_is_refused() {
    let available = Simd::available();
    for simd in [Simd::Portable, Simd::Avx2, Simd::Avx512, Simd::Avx512Bf16] {
        assert_eq!(Fa2Simd::new(simd).is_ok(), available.contains(&simd), "{simd:?}");
    }
    assert!(available.contains(&Fa2Simd::default().simd()));
}
