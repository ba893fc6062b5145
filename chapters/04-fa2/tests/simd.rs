//! The rung at the machine's limit computes what the plain one does, with each kind of vectors that this CPU has.

use attention::{Attention, DType, Mask, Output, Problem};
use fa2::{Fa2, Fa2Simd, Simd};
use proptest::prelude::*;
use proptest::sample::select;
use testkit::problems::{Spec, problems};
use testkit::{check, check_against};

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
    fn threads_and_neighbours_change_no_bit(spec in large(), threads in 2usize..=7) {
        let owned = spec.build();
        let problem = owned.problem();
        for rung in rungs() {
            let alone = with_threads(1, &rung, &problem);
            prop_assert!(bits(&alone) == bits(&with_threads(threads, &rung, &problem)), "{rung:?}");
        }
    }
}
