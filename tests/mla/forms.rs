//! The three forms, in any chunks, against the definition and against each other.

use crate::definition::{Case, Owned, Pairs, THETA, Truth, truth};
use attention::{DType, Tensor};
use mla::{Attended, Cache, Dims, Form, HalfSplit, Interleaved, LatentCache, Layer, PagedCache, Pairing, Rope, Yarn};
use ndarray::{Array, Array2, Array3, ArrayD, ArrayViewD, Axis, Dimension, concatenate, s};
use paged::{KvPool, PoolShape, Table};
use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use proptest::sample::select;
use testkit::{alone, worst_element};

fn layer<P: Pairing>(case: &Case, owned: &Owned) -> Layer<P> {
    let rope = Rope::new(case.dims.d_rope, THETA).unwrap();
    Layer::new(case.dims, &owned.weights(), rope, case.yarn).unwrap()
}

/// What a layer gives for all tokens of a sequence, and its cache afterwards.
struct Found<C> {
    o: Array3<f32>,
    lse: Array2<f32>,
    out: Array2<f64>,
    cache: C,
}

/// The tokens in chunks of the given lengths, round and round, each in the next of `forms`.
fn run<P: Pairing>(layer: &Layer<P>, h: &Tensor, forms: &[Form], chunks: &[usize]) -> Found<Cache<P>> {
    run_on(layer.cache(h.shape()[0]).unwrap(), layer, h, forms, chunks)
}

/// The same on a cache that is given.
fn run_on<P: Pairing, C: LatentCache<P>>(
    mut cache: C,
    layer: &Layer<P>,
    h: &Tensor,
    forms: &[Form],
    chunks: &[usize],
) -> Found<C> {
    let (h, tokens) = (h.view(), h.shape()[0]);
    let mut parts: Vec<Attended> = Vec::new();
    let (mut forms, mut chunks) = (forms.iter().cycle(), chunks.iter().cycle());
    while let (start, Some(&form), Some(&chunk)) = (cache.len(), forms.next(), chunks.next())
        && start < tokens
    {
        let end = tokens.min(start + chunk);
        parts.push(layer.forward(form, &h.rows(start..end), &mut cache).unwrap());
    }
    let o: Vec<_> = parts.iter().map(|part| part.heads.o.view()).collect();
    let lse: Vec<_> = parts.iter().map(|part| part.heads.lse.view()).collect();
    let out: Vec<_> = parts.iter().map(|part| part.out.view().to_f64()).collect();
    let out: Vec<_> = out.iter().map(|out| out.view()).collect();
    Found {
        o: concatenate(Axis(1), &o).unwrap(),
        lse: concatenate(Axis(1), &lse).unwrap(),
        out: concatenate(Axis(0), &out).unwrap().into_dimensionality().unwrap(),
        cache,
    }
}

impl<P: Pairing> Found<Cache<P>> {
    /// Checks everything in F32 by the tolerances of the definition.
    fn check(&self, truth: &Truth) -> Result<(), TestCaseError> {
        let (o, lse) = (self.o.mapv(f64::from).into_dyn(), self.lse.mapv(f64::from).into_dyn());
        let (c_kv, k_rope) = (self.cache.c_kv().to_f64(), self.cache.k_rope().to_f64());
        let largest = |x: &Array2<f64>| x.iter().fold(0f64, |max, x| max.max(x.abs()));
        let [c_tolerance, k_tolerance] = [&truth.c_kv, &truth.k_rope].map(|x| f64::powi(2.0, -21) * largest(x));
        for (name, worst) in [
            ("c_kv", worst_element(c_kv.view(), truth.c_kv.view().into_dyn(), |_| c_tolerance)),
            ("k_rope", worst_element(k_rope.view(), truth.k_rope.view().into_dyn(), |_| k_tolerance)),
            ("lse", worst_element(lse.view(), truth.lse.view().into_dyn(), |at| truth.lse_tolerance(at))),
            ("o", worst_element(o.view(), truth.o.view().into_dyn(), |at| truth.o_tolerance(at))),
            (
                "out",
                worst_element(self.out.view().into_dyn(), truth.out.view().into_dyn(), |at| truth.out_tolerance(at)),
            ),
        ] {
            prop_assert!(worst.ratio <= 1.0, "{}", worst.told(name));
        }
        Ok(())
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let dims =
        (1usize..=40, select(vec![1usize, 2, 3, 5, 9]), 1usize..=20, 1usize..=8, 1usize..=20, 1usize..=48, 1usize..=30);
    let dims = dims.prop_map(|(d_model, heads, d_nope, pairs, d_v, d_c, d_cq)| Dims {
        d_model,
        heads,
        d_nope,
        d_rope: 2 * pairs,
        d_v,
        d_c,
        d_cq,
    });
    let yarn = prop::option::weighted(0.3, (1.0f64..=40.0, 0.0f64..=1.0));
    (dims, any::<bool>(), yarn, 1usize..=150, any::<u64>()).prop_map(|(dims, norms, yarn, tokens, seed)| {
        let yarn = yarn.map(|(factor, mscale_all_dim)| Yarn { factor, mscale_all_dim });
        Case { dims, dtype: DType::F32, norms, yarn, tokens, first: 0, seed }
    })
}

/// One token at a time, a few, or all.
fn chunks() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![1 => Just(vec![1]), 1 => Just(vec![200]), 3 => prop::collection::vec(1usize..=60, 1..=3)]
}

/// Each of the three, or a mixture on one cache.
fn any_forms() -> impl Strategy<Value = Vec<Form>> {
    prop_oneof![3 => select(Form::ALL.to_vec()).prop_map(|form| vec![form]), 1 => Just(Form::ALL.to_vec())]
}

proptest! {
    #[test]
    fn every_form_in_any_chunks_is_the_definition(case in cases(), chunks in chunks(), forms in any_forms()) {
        let owned = case.build();
        let found = run(&layer::<Interleaved>(&case, &owned), &owned.h, &forms, &chunks);
        found.check(&truth(&case, &owned, Pairs::Neighbours))?;
    }

    #[test]
    fn half_split_pairs_are_a_definition_of_their_own(case in cases(), chunks in chunks(), forms in any_forms()) {
        let owned = case.build();
        let found = run(&layer::<HalfSplit>(&case, &owned), &owned.h, &forms, &chunks);
        found.check(&truth(&case, &owned, Pairs::Halves))?;
    }

    /// They differ in when keys and values are decompressed alone.
    #[test]
    fn fused_is_naive_bit_for_bit(case in cases(), dtype in dtype(), chunks in chunks()) {
        let case = Case { dtype, ..case };
        let owned = case.build();
        let layer = layer::<Interleaved>(&case, &owned);
        let [naive, fused] = [Form::Naive, Form::Fused].map(|form| run(&layer, &owned.h, &[form], &chunks));
        prop_assert_eq!(bits(&naive.o), bits(&fused.o));
        prop_assert_eq!(bits(&naive.lse), bits(&fused.lse));
        prop_assert_eq!(naive.out, fused.out);
    }

    #[test]
    fn pages_change_no_bit(case in cases(), dtype in dtype(), chunks in chunks(), forms in any_forms(), page in 1usize..=20) {
        let case = Case { dtype, ..case };
        let owned = case.build();
        let layer = layer::<Interleaved>(&case, &owned);
        // Every second block, the last one first; the others hold what other sequences left there.
        let blocks = case.tokens.div_ceil(page);
        let table = Table::listing(page, (1..=blocks as i32).rev().map(|block| 2 * block).collect(), case.tokens);
        let shape = PoolShape { blocks: 2 * blocks + 2, page, kv_heads: 1, d: case.dims.latent(), d_v: case.dims.d_c };
        let mut pool = KvPool::latents(dtype, shape).unwrap();
        let others = Table::listing(page, (0..=blocks as i32).map(|block| 2 * block + 1).collect(), (blocks + 1) * page);
        let rubbish = Array2::from_elem((others.len, case.dims.latent()), f32::NAN);
        PagedCache::<Interleaved>::new(&mut pool, &others, 0).unwrap().append(rubbish.view()).unwrap();
        let paged = PagedCache::<Interleaved>::new(&mut pool, &table, 0).unwrap();
        let (paged, plain) =
            (run_on(paged, &layer, &owned.h, &forms, &chunks), run(&layer, &owned.h, &forms, &chunks));
        prop_assert_eq!(bits(&paged.o), bits(&plain.o));
        prop_assert_eq!(bits(&paged.lse), bits(&plain.lse));
        prop_assert_eq!(paged.out, plain.out);
        prop_assert_eq!(bits(&paged.cache.load(0..case.tokens)), bits(&plain.cache.load(0..case.tokens)));
    }

    /// With its weights permuted for half-split pairs a layer stays what it was, and only its cached keys are permuted.
    #[test]
    fn a_permuted_layer_gives_the_same(case in cases(), forms in any_forms()) {
        let owned = case.build();
        let truth = truth(&case, &owned, Pairs::Neighbours);
        let mut found = run(&layer::<Interleaved>(&case, &owned).into_half_split(), &owned.h, &forms, &[7]);
        let (pairs, k_rope) = (case.dims.d_rope / 2, found.cache.k_rope().to_f64().mapv(|x| x as f32));
        let back = Array2::from_shape_fn((case.tokens, 2 * pairs), |(t, c)| k_rope[[t, c % 2 * pairs + c / 2]]);
        let c_kv = found.cache.c_kv().to_f64().mapv(|x| x as f32);
        found.cache = Cache::from_parts(&c_kv.view().into(), &back.view().into()).unwrap();
        found.check(&truth)?;
    }
}

fn dtype() -> impl Strategy<Value = DType> {
    select(vec![DType::F32, DType::F16, DType::Bf16])
}

fn bits<D: Dimension>(x: &Array<f32, D>) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// One query on more keys than a split holds.
#[test]
fn long_decoding_is_split_alike() {
    let case = Case { tokens: 5001, first: 5000, ..Case::plain() };
    let owned = case.build();
    let layer = layer::<Interleaved>(&case, &owned);
    let truth = truth(&case, &owned, Pairs::Neighbours);
    let f32 = |x: &Array2<f64>| Tensor::from(x.slice(s![..5000, ..]).mapv(|x| x as f32));
    let all = Cache::from_parts(&f32(&truth.c_kv).view(), &f32(&truth.k_rope).view()).unwrap();
    let h = owned.h.view();
    let [naive, fused, absorbed] =
        Form::ALL.map(|form| layer.forward(form, &h.rows(5000..5001), &mut all.clone()).unwrap().heads);
    assert_eq!((bits(&naive.o), bits(&naive.lse)), (bits(&fused.o), bits(&fused.lse)));
    for heads in [naive, absorbed] {
        for ((head, _, channel), &o) in heads.o.indexed_iter() {
            let at = [head, 5000, channel];
            assert!((f64::from(o) - truth.o[at]).abs() <= truth.o_tolerance(&at), "{at:?}: {o}");
        }
    }
}

/// In F16 and BF16 each form rounds other things, and none may be off twice as far as the naive one, or it is by less than
/// the type's own rounding of the largest value.
#[test]
fn no_form_loses_more_digits_of_a_small_type() {
    for (dtype, half_ulp) in [(DType::F16, f64::powi(2.0, -11)), (DType::Bf16, f64::powi(2.0, -8))] {
        for seed in 0..8 {
            let dims = Dims { d_model: 96, heads: 4, d_nope: 32, d_rope: 16, d_v: 32, d_c: 64, d_cq: 48 };
            let case = Case { dims, dtype, seed, tokens: 40, ..Case::plain() };
            let owned = case.build();
            let (layer, truth) = (layer::<Interleaved>(&case, &owned), truth(&case, &owned, Pairs::Neighbours));
            let errors = Form::ALL.map(|form| {
                let found = run(&layer, &owned.h, &[form], &[40]);
                let worst = |found: ArrayD<f64>, truth: ArrayViewD<f64>| {
                    found.iter().zip(truth).fold(0f64, |max, (a, b)| max.max((a - b).abs()))
                };
                let (o, lse) = (found.o.mapv(f64::from).into_dyn(), found.lse.mapv(f64::from).into_dyn());
                [worst(o, truth.o.view().into_dyn()), worst(lse, truth.lse.view().into_dyn())]
            });
            let largest = truth.o.iter().fold(0f64, |max, o| max.max(o.abs()));
            for [o, lse] in errors {
                let [naive_o, naive_lse] = errors[0];
                assert!(o <= 2.0 * naive_o + half_ulp * largest, "{dtype}, seed {seed}: {errors:?}");
                assert!(lse <= 2.0 * naive_lse + half_ulp, "{dtype}, seed {seed}: {errors:?}");
                assert!(o > 0.0, "a small type that loses nothing was not used");
            }
        }
    }
}

/// The scale of DeepSeek-V2 and V3 at 40 times their trained length, as serving software prints it.
#[test]
fn yarn_scales_by_the_square_of_mscale() {
    for (mscale_all_dim, wanted) in [(0.707, 0.114_721_386_8), (1.0, 0.135_233_778_9)] {
        let found = mla::scale(&Dims::DEEPSEEK_V2, Some(Yarn { factor: 40.0, mscale_all_dim }));
        assert!((found - wanted).abs() < 1e-9, "{found}");
    }
    let found = mla::scale(&Dims::DEEPSEEK_V2, None);
    assert!((found - 0.072_168_783_65).abs() < 1e-11, "{found}");
}

/// Counts the heap of this program.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// d_c + d_rope numbers for each token and not one more, counted from what is really allocated.
#[test]
fn the_cache_holds_a_latent_and_one_rotated_key_for_each_token() {
    let case = Case { tokens: 64, ..Case::plain() };
    let held = |dtype: DType| {
        let case = Case { dtype, ..case.clone() };
        let owned = case.build();
        let layer = layer::<Interleaved>(&case, &owned);
        // What starts with the first call, such as threads, is not the cache's.
        layer.forward(Form::Absorbed, &owned.h.view(), &mut layer.cache(0).unwrap()).unwrap();
        let before = HEAP.current_usage();
        let mut cache = layer.cache(case.tokens).unwrap();
        for token in 0..case.tokens {
            layer.forward(Form::Absorbed, &owned.h.view().rows(token..token + 1), &mut cache).unwrap();
        }
        assert_eq!(cache.len(), case.tokens);
        let held = HEAP.current_usage() - before;
        assert_eq!(held, cache.allocated());
        held
    };
    let test = "forms::the_cache_holds_a_latent_and_one_rotated_key_for_each_token";
    let bytes = alone(test, || held(DType::F32) + held(DType::Bf16));
    assert_eq!(bytes, 64 * (16 + 6) * (4 + 2));
}
