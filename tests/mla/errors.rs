//! What does not fit is an error that names it, what was found and what was wanted, before anything is done.

use crate::definition::{Case, Owned, THETA};
use attention::{AttentionError, DType, E4m3, Tensor};
use mla::{Cache, Dims, Form, Interleaved, LatentCache, Layer, Norms, Rope, Weights, Yarn};
use ndarray::{Array1, Array2};

type Made = Result<Layer<Interleaved>, AttentionError>;

fn made(dims: Dims, weights: &Weights, yarn: Option<Yarn>) -> Made {
    Layer::new(dims, weights, Rope::new(Case::plain().dims.d_rope, THETA).unwrap(), yarn)
}

fn says(error: AttentionError, parts: &[&str]) {
    let message = error.to_string();
    assert!(parts.iter().all(|part| message.contains(part)), "{parts:?} in {message}");
}

fn zeros(rows: usize, columns: usize) -> Tensor {
    Array2::<f32>::zeros((rows, columns)).into()
}

#[test]
fn a_weight_of_another_shape_is_named() {
    let owned = Case::plain().build();
    let dims = Case::plain().dims;
    assert!(made(dims, &owned.weights(), None).is_ok());
    // Transposed, a head or a channel short, of another rank: each weight in turn.
    let names = ["w_dq", "w_uq", "w_qr", "w_dkv", "w_uk", "w_uv", "w_kr", "w_o"];
    for (place, name) in names.into_iter().enumerate() {
        let [out, from] = *owned.weights[place].shape() else { panic!("{name} is no matrix") };
        let flat = Array1::<f32>::zeros(out * from).into();
        for wrong in [zeros(from, out), zeros(out - 1, from), zeros(out, from + 1), zeros(0, 0), flat] {
            let found = format!("found shape {:?}", wrong.shape());
            let mut weights = owned.weights.clone();
            weights[place] = wrong;
            let owned = Owned { weights, ..Case::plain().build() };
            let wanted = format!("wanted [{out}, {from}]");
            says(made(dims, &owned.weights(), None).unwrap_err(), &[name, &found, &wanted]);
        }
    }
    for (place, name, d) in [(0, "g_q", 12), (1, "g_kv", 16)] {
        let mut gains = owned.gains.clone().unwrap();
        gains[place] = Array1::<f32>::zeros(d + 1).into();
        let owned = Owned { gains: Some(gains), ..Case::plain().build() };
        says(made(dims, &owned.weights(), None).unwrap_err(), &[name, &format!("[{}]", d + 1), &format!("[{d}]")]);
    }
}

#[test]
fn weights_of_two_types_or_of_a_type_that_no_layer_has_are_refused() {
    let (dims, owned) = (Case::plain().dims, Case::plain().build());
    let half = Case { dtype: DType::Bf16, ..Case::plain() }.build();
    for place in 1..8 {
        let mut weights = owned.weights.clone();
        weights[place] = half.weights[place].clone();
        let mixed = Owned { weights, ..Case::plain().build() };
        says(made(dims, &mixed.weights(), None).unwrap_err(), &["w_", "found dtype BF16", "wanted F32 as in w_dq"]);
    }
    for wrong in [Array2::<f64>::zeros((12, 24)).into(), Array2::from_elem((12, 24), E4m3(0)).into()] {
        let mut weights = owned.weights.clone();
        weights[0] = wrong;
        let wrong = Owned { weights, ..Case::plain().build() };
        says(made(dims, &wrong.weights(), None).unwrap_err(), &["w_dq", "found dtype F", "wanted F32, F16 or BF16"]);
    }
}

#[test]
fn sizes_and_settings_out_of_range_are_named() {
    let (plain, owned) = (Case::plain().dims, Case::plain().build());
    let weights = owned.weights();
    for (dims, parts) in [
        (Dims { d_model: 0, ..plain }, ["d_model: found 0", "wanted 1 to"]),
        (Dims { heads: 0, ..plain }, ["heads: found 0", "wanted 1 to"]),
        (Dims { d_nope: 0, ..plain }, ["d_nope: found 0", "wanted 1 to"]),
        (Dims { d_v: 0, ..plain }, ["d_v: found 0", "wanted 1 to"]),
        (Dims { d_c: 0, ..plain }, ["d_c: found 0", "wanted 1 to"]),
        (Dims { d_cq: 0, ..plain }, ["d_cq: found 0", "wanted 1 to"]),
        (Dims { d_rope: 0, ..plain }, ["d_rope: found 0", "wanted 1 to"]),
        (Dims { d_rope: 5, ..plain }, ["d_rope: found 5", "pairs"]),
        (Dims { d_rope: 8, ..plain }, ["frequencies: found shape [3]", "wanted [4]"]),
        (Dims { heads: usize::MAX, ..plain }, ["heads: found 18446744073709551615", "wanted 1 to"]),
        (Dims { heads: 4, ..plain }, ["w_uq: found shape [24, 12]", "wanted [32, 12]"]),
    ] {
        says(made(dims, &weights, None).unwrap_err(), &parts);
    }
    for (factor, mscale_all_dim, part) in [
        (0.5, 1.0, "yarn.factor: found 0.5"),
        (f64::NAN, 1.0, "yarn.factor: found NaN"),
        (2.0, f64::INFINITY, "found inf"),
    ] {
        says(made(plain, &weights, Some(Yarn { factor, mscale_all_dim })).unwrap_err(), &[part, "wanted"]);
    }
    for eps in [-1e-6, f64::NAN, f64::INFINITY] {
        let norms = weights.norms.clone().map(|norms| Norms { eps, ..norms });
        says(made(plain, &Weights { norms, ..weights.clone() }, None).unwrap_err(), &["eps: found"]);
    }
    for (d_rope, theta, part) in [(0, 1e4, "d_rope: found 0"), (3, 1e4, "d_rope: found 3"), (2, 0.0, "theta: found 0")]
    {
        says(Rope::<Interleaved>::new(d_rope, theta).unwrap_err(), &[part]);
    }
    for frequencies in [vec![], vec![1.0, f64::NAN]] {
        says(Rope::<Interleaved>::with_frequencies(frequencies).unwrap_err(), &["frequencies: found"]);
    }
}

#[test]
fn tokens_and_caches_of_another_layer_are_refused_and_leave_the_cache_alone() {
    let (dims, owned) = (Case::plain().dims, Case::plain().build());
    let layer = made(dims, &owned.weights(), None).unwrap();
    let (two, half): (Tensor, Tensor) = (zeros(2, 24), Array2::from_elem((2, 24), half::bf16::ONE).into());
    let rank_3 = two.clone().insert_batch_axis();
    let cache = |d_c, d_rope| {
        let mut cache = Cache::new(DType::F32, d_c, d_rope, 0).unwrap();
        cache.append(Array2::zeros((3, d_c + d_rope)).view()).unwrap();
        cache
    };
    for (h, mut cache, parts) in [
        (zeros(2, 23), cache(16, 6), ["h: found shape [2, 23]", "wanted [tokens, 24]"]),
        (rank_3, cache(16, 6), ["h: found shape [1, 2, 24]", "wanted [tokens, 24]"]),
        (half, cache(16, 6), ["h: found dtype BF16", "wanted F32"]),
        (two.clone(), cache(15, 6), ["cache: found shape [15, 6]", "wanted d_c and d_rope [16, 6]"]),
        (two.clone(), cache(6, 16), ["cache: found shape [6, 16]", "wanted d_c and d_rope [16, 6]"]),
        (two, Cache::new(DType::F16, 16, 6, 9).unwrap(), ["cache: found dtype F16", "wanted F32"]),
    ] {
        let before = cache.clone();
        for form in [Form::Naive, Form::Fused, Form::Absorbed] {
            says(layer.forward(form, &h.view(), &mut cache).unwrap_err(), &parts);
            assert_eq!(cache, before);
        }
    }
}

/// Rows of K and V that no fast memory of FlashAttention-2 holds are refused after the tokens were added, which must not
/// show.
#[test]
fn a_form_that_fails_takes_its_tokens_back() {
    let dims = Dims { d_model: 1, heads: 1, d_nope: 1, d_rope: 2, d_v: 20_000, d_c: 1, d_cq: 1 };
    let case = Case { dims, norms: false, tokens: 2, ..Case::plain() };
    let owned = case.build();
    let layer = Layer::<Interleaved>::new(dims, &owned.weights(), Rope::new(2, THETA).unwrap(), None).unwrap();
    let mut cache = layer.cache(0).unwrap();
    for form in [Form::Naive, Form::Fused] {
        says(layer.forward(form, &owned.h.view(), &mut cache).unwrap_err(), &["fast_memory: found"]);
        assert!(cache.is_empty());
    }
    layer.forward(Form::Absorbed, &owned.h.view(), &mut cache).unwrap();
    assert_eq!(cache.len(), 2);
}

#[test]
fn no_tokens_are_no_error() {
    let owned = Case::plain().build();
    let layer = made(Case::plain().dims, &owned.weights(), None).unwrap();
    let mut cache = layer.cache(0).unwrap();
    for held in [0, 4] {
        for form in [Form::Naive, Form::Fused, Form::Absorbed] {
            let nothing = layer.forward(form, &owned.h.view().rows(0..0), &mut cache).unwrap();
            assert_eq!((nothing.out.shape(), nothing.heads.lse.dim(), cache.len()), (&[0, 24][..], (3, 0), held));
        }
        layer.forward(Form::Fused, &owned.h.view().rows(0..4), &mut cache).unwrap();
    }
}

#[test]
fn a_cache_from_elsewhere_is_checked() {
    let from = |c_kv: &Tensor, k_rope: &Tensor| Cache::<Interleaved>::from_parts(&c_kv.view(), &k_rope.view());
    let (c_kv, half): (Tensor, Tensor) = (zeros(3, 4), Array2::from_elem((3, 2), half::f16::ONE).into());
    for (c_kv, k_rope, parts) in [
        (zeros(3, 4).insert_batch_axis(), zeros(3, 2), ["c_kv: found shape [1, 3, 4]", "[tokens, d_c]"]),
        (c_kv.clone(), zeros(4, 2), ["k_rope: found shape [4, 2]", "wanted [3, d_rope]"]),
        (c_kv.clone(), zeros(3, 3), ["d_rope: found 3", "pairs"]),
        (c_kv.clone(), zeros(3, 0), ["d_rope: found 0", "pairs"]),
        (zeros(3, 0), zeros(3, 2), ["d_c: found 0", "at least 1"]),
        (c_kv.clone(), half, ["k_rope: found dtype F16", "wanted F32 as in c_kv"]),
    ] {
        says(from(&c_kv, &k_rope).unwrap_err(), &parts);
    }
    let mut cache = from(&c_kv, &zeros(3, 2)).unwrap();
    says(cache.append(Array2::zeros((1, 5)).view()).unwrap_err(), &["cache rows: found shape [1, 5]", "[tokens, 6]"]);
    assert_eq!(cache.len(), 3);
    says(Cache::<Interleaved>::new(DType::F64, 4, 2, 0).unwrap_err(), &["cache: found dtype F64"]);
    says(Cache::<Interleaved>::new(DType::F16, 4, 2, usize::MAX).unwrap_err(), &["the cache: found no memory"]);
}
