//! What each step of chapter 8 must do, as laws that take the step as an argument: the checks apply them to the code
//! under test, and `wrong.rs` proves that each rejects a wrong step.

use attention::{AttentionError, TensorView};
use mla::{Cache, Dims, Form, Heads, LatentCache, Layer, Norms, Pairing, Queries, Rope, Weights, Yarn};
use ndarray::{Array1, Array2, Array3, ArrayView2, ArrayView3, ArrayViewMut2, s};
use proptest::prelude::*;
use testkit::{all_close, all_shown, close, shown};

/// Two to four heads of some tokens, and a W `[heads d, d_c]`, in small whole numbers: `x` is `[heads, tokens, d]` for step
/// 1 and `[heads, tokens, d_c]` for step 3.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub(crate) x: Array3<f32>,
    pub(crate) w: Array2<f32>,
}

/// The same small whole numbers from the same seed, -3 to 3.
fn whole(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
    ((*seed >> 33) % 7) as f32 - 3.0
}

/// Products for step 1, or with `latent` for step 3.
pub(crate) fn products(latent: bool) -> impl Strategy<Value = Product> {
    (2usize..=4, 1usize..=3, 1usize..=3, 1usize..=4, any::<u64>()).prop_map(move |(heads, tokens, d, d_c, mut seed)| {
        Product {
            x: Array3::from_shape_simple_fn((heads, tokens, if latent { d_c } else { d }), || whole(&mut seed)),
            w: Array2::from_shape_simple_fn((heads * d, d_c), || whole(&mut seed)),
        }
    })
}

/// Head `head` of W.
fn of_head(w: &Array2<f32>, head: usize, heads: usize) -> ArrayView2<'_, f32> {
    let d = w.nrows() / heads;
    w.slice(s![head * d..(head + 1) * d, ..])
}

/// Fails unless `found` is `[heads, tokens, wanted(head, x).len()]` and holds what `wanted` gives for each head and token.
fn same_rows(
    found: &Array3<f32>,
    Product { x, w }: &Product,
    names: [&str; 2],
    wanted: impl Fn(usize, &[f32]) -> Vec<f64>,
) -> Result<(), TestCaseError> {
    let (heads, tokens, channels) = (x.dim().0, x.dim().1, wanted(0, &x.slice(s![0, 0, ..]).to_vec()).len());
    prop_assert!(
        found.dim() == (heads, tokens, channels),
        "{heads} heads, {tokens} tokens: the result is {:?}, wanted {:?}",
        found.dim(),
        (heads, tokens, channels)
    );
    for head in 0..heads {
        for token in 0..tokens {
            let (x, found) = (x.slice(s![head, token, ..]).to_vec(), found.slice(s![head, token, ..]).to_vec());
            let wanted = wanted(head, &x);
            prop_assert!(
                all_close(&found, &wanted),
                "head {head} of {heads}, token {token}: {} {x:?}, its {} {:?}: found {:?}, wanted {:?}",
                names[0],
                names[1],
                of_head(w, head, heads).rows().into_iter().map(|row| row.to_vec()).collect::<Vec<_>>(),
                all_shown(&found),
                all_shown(&wanted)
            );
        }
    }
    Ok(())
}

/// For each head `W^UK^T q`, written out.
pub(crate) fn absorb_takes_w_uk_to_the_query(
    absorb: impl Fn(ArrayView3<f32>, ArrayView2<f32>) -> Array3<f32>,
    product: &Product,
) -> Result<(), TestCaseError> {
    let (heads, d_c) = (product.x.dim().0, product.w.ncols());
    same_rows(&absorb(product.x.view(), product.w.view()), product, ["q^C", "W^UK"], |head, q| {
        let w = of_head(&product.w, head, heads);
        (0..d_c).map(|c| (0..q.len()).map(|i| f64::from(w[[i, c]]) * f64::from(q[i])).sum()).collect()
    })
}

/// For each head `W^UV o`, written out.
pub(crate) fn expand_takes_w_uv_behind_the_sum(
    expand: impl Fn(ArrayView3<f32>, ArrayView2<f32>) -> Array3<f32>,
    product: &Product,
) -> Result<(), TestCaseError> {
    let heads = product.x.dim().0;
    same_rows(&expand(product.x.view(), product.w.view()), product, ["latent", "W^UV"], |head, o| {
        let w = of_head(&product.w, head, heads);
        (0..w.nrows()).map(|i| (0..o.len()).map(|c| f64::from(w[[i, c]]) * f64::from(o[c])).sum()).collect()
    })
}

/// `mscale^2 / sqrt(d_nope + d_rope)`.
pub(crate) fn scale_is_that_of_the_heads(
    scale: impl Fn(&Dims, Option<Yarn>) -> f64,
    dims: Dims,
    yarn: Option<Yarn>,
) -> Result<(), TestCaseError> {
    let mscale = yarn.map_or(1.0, |yarn| 1.0 + yarn.mscale_all_dim / 10.0 * yarn.factor.ln());
    let (found, wanted) = (scale(&dims, yarn), mscale.powi(2) * ((dims.d_nope + dims.d_rope) as f64).powf(-0.5));
    let Dims { d_nope, d_rope, d_c, .. } = dims;
    prop_assert!(
        close(found as f32, wanted),
        "d_nope {d_nope}, d_rope {d_rope}, d_c {d_c}, {}: the scale is {}, wanted {}",
        yarn.map_or("no YaRN".into(), |yarn| format!("{yarn:?} with mscale {}", shown(yarn.mscale()))),
        shown(found),
        shown(wanted)
    );
    Ok(())
}

/// Which channels pair i is, by the pairing's own definition.
fn pair<P: Pairing>(i: usize, d: usize) -> (usize, usize) {
    P::pair(i, d)
}

/// One vector after RoPE, in f64.
fn turned<P: Pairing>(rope: &Rope<P>, vector: &[f64], position: usize) -> Vec<f64> {
    let mut turned = vector.to_vec();
    for (i, frequency) in rope.frequencies().iter().enumerate() {
        let (x, y) = pair::<P>(i, vector.len());
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        (turned[x], turned[y]) = (vector[x] * cos - vector[y] * sin, vector[x] * sin + vector[y] * cos);
    }
    turned
}

/// Each pair of each vector turns by its own angle, and a second vector by the same.
pub(crate) fn rotate_turns_each_pair<P: Pairing>(
    rotate: impl Fn(&Rope<P>, ArrayViewMut2<f32>, usize),
    rope: &Rope<P>,
    vectors: &[Vec<f32>],
    position: usize,
) -> Result<(), TestCaseError> {
    let mut found = Array2::from_shape_fn((vectors.len(), rope.d_rope()), |(row, c)| vectors[row][c]);
    rotate(rope, found.view_mut(), position);
    for (row, before) in vectors.iter().enumerate() {
        let wide: Vec<f64> = before.iter().map(|&x| x.into()).collect();
        let (found, wanted) = (found.row(row).to_vec(), turned(rope, &wide, position));
        let pairs: Vec<_> = (0..rope.frequencies().len()).map(|i| pair::<P>(i, rope.d_rope())).collect();
        prop_assert!(
            all_close(&found, &wanted),
            "vector {row} {before:?} at position {position}, pairs {pairs:?} of frequencies {:?}: found {:?}, wanted {:?}",
            all_shown(rope.frequencies()),
            all_shown(&found),
            all_shown(&wanted)
        );
    }
    Ok(())
}

/// A small layer and its tokens. The first token is at `position`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Small {
    pub(crate) dims: Dims,
    pub(crate) norms: bool,
    pub(crate) yarn: Option<Yarn>,
    pub(crate) tokens: usize,
    pub(crate) position: usize,
    pub(crate) seed: u64,
}

/// Layers with channel counts of which no two need agree.
pub(crate) fn small() -> impl Strategy<Value = Small> {
    let dims = (1usize..=4, 1usize..=3, 1usize..=3, 1usize..=2, 1usize..=3, 1usize..=4, 1usize..=4);
    let yarn = prop::option::weighted(0.3, (1.0f64..=40.0, 0.0f64..=1.0));
    (dims, any::<bool>(), yarn, 1usize..=6, 0usize..=5, any::<u64>()).prop_map(
        |((d_model, heads, d_nope, pairs, d_v, d_c, d_cq), norms, yarn, tokens, position, seed)| Small {
            dims: Dims { d_model, heads, d_nope, d_rope: 2 * pairs, d_v, d_c, d_cq },
            norms,
            yarn: yarn.map(|(factor, mscale_all_dim)| Yarn { factor, mscale_all_dim }),
            tokens,
            position,
            seed,
        },
    )
}

impl Small {
    /// Runs `f` on the layer and the tokens. Weights and tokens are small whole numbers, gains halves.
    pub(crate) fn with<P: Pairing, R>(&self, f: impl FnOnce(&Layer<P>, ArrayView2<f32>) -> R) -> R {
        let Dims { d_model, heads, d_nope, d_rope, d_v, d_c, d_cq } = self.dims;
        let mut seed = self.seed;
        let mut w = |out: usize, from: usize| Array2::from_shape_simple_fn((out, from), || whole(&mut seed));
        let (dq, uq, qr, dkv) = (w(d_cq, d_model), w(heads * d_nope, d_cq), w(heads * d_rope, d_cq), w(d_c, d_model));
        let (uk, uv, kr, o) =
            (w(heads * d_nope, d_c), w(heads * d_v, d_c), w(d_rope, d_model), w(d_model, heads * d_v));
        let h = w(self.tokens, d_model);
        let gain = |d: usize| Array1::from_shape_fn(d, |c| 0.5 + c as f32);
        let (g_q, g_kv) = (gain(d_cq), gain(d_c));
        let [dq, uq, qr, dkv, uk, uv, kr, o] =
            [&dq, &uq, &qr, &dkv, &uk, &uv, &kr, &o].map(|w| TensorView::from(w.view()));
        let norms = self.norms.then(|| Norms { q: g_q.view().into(), kv: g_kv.view().into(), eps: 1e-6 });
        let weights = Weights { dq, uq, qr, dkv, uk, uv, kr, o, norms };
        let rope = Rope::new(d_rope, 4.0).expect("pairs");
        f(&Layer::new(self.dims, &weights, rope, self.yarn).expect("weights that fit"), h.view())
    }

    /// The layer in words.
    fn told(&self, token: usize, h: ArrayView2<f32>) -> String {
        let (norms, at) = (if self.norms { "with norms" } else { "without norms" }, self.position + token);
        format!("{:?} {norms}, token {token} {:?} at position {at}", self.dims, h.row(token).to_vec())
    }
}

/// `W x` in f64.
fn times(w: &Array2<f32>, x: &[f64]) -> Vec<f64> {
    w.rows().into_iter().map(|w| w.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect()
}

/// A latent after its norm, if it has one: its gains are 1/2, 3/2, ..
fn normed(x: Vec<f64>, norms: bool) -> Vec<f64> {
    let root = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + 1e-6).sqrt();
    x.iter().enumerate().map(|(c, x)| if norms { x / root * (0.5 + c as f64) } else { *x }).collect()
}

fn wide(h: ArrayView2<f32>, token: usize) -> Vec<f64> {
    h.row(token).iter().map(|&x| x.into()).collect()
}

/// The cache's rows are `[W^DKV h, normalised | RoPE(W^KR h)]`, each at its position, and no wider.
pub(crate) fn compress_is_equations_9_and_15<P: Pairing>(
    compress: impl Fn(&Layer<P>, ArrayView2<f32>, usize) -> Array2<f32>,
    case: &Small,
) -> Result<(), TestCaseError> {
    case.with::<P, _>(|layer, h| {
        let (w, Dims { d_c, d_rope, .. }) = (layer.weights(), case.dims);
        let found = compress(layer, h, case.position);
        let wanted = (case.tokens, d_c + d_rope);
        prop_assert!(
            found.dim() == wanted,
            "{:?}: the cache's rows are {:?}, wanted {wanted:?}: d_c + d_rope numbers a token",
            case.dims,
            found.dim()
        );
        for token in 0..case.tokens {
            let (h_t, found) = (wide(h, token), found.row(token).to_vec());
            let c_kv = normed(times(&w.dkv, &h_t), case.norms);
            let k_rope = turned(layer.rope(), &times(&w.kr, &h_t), case.position + token);
            let at = case.told(token, h);
            for (name, found, wanted) in [("c^KV", &found[..d_c], c_kv), ("k^R", &found[d_c..], k_rope)] {
                let (found_shown, wanted_shown) = (all_shown(found), all_shown(&wanted));
                prop_assert!(all_close(found, &wanted), "{at}: {name} is {found_shown:?}, wanted {wanted_shown:?}");
            }
        }
        Ok(())
    })
}

/// q^C and q^R of each head and token, by the equations.
pub(crate) fn queries_are_equations_12_to_14<P: Pairing>(
    queries: impl Fn(&Layer<P>, ArrayView2<f32>, usize) -> Queries<P>,
    case: &Small,
) -> Result<(), TestCaseError> {
    case.with::<P, _>(|layer, h| {
        let (w, Dims { heads, d_nope, d_rope, .. }) = (layer.weights(), case.dims);
        let found = queries(layer, h, case.position);
        for (name, found, d) in [("q^C", &found.nope, d_nope), ("q^R", &found.rope, d_rope)] {
            let wanted = (heads, case.tokens, d);
            prop_assert!(found.dim() == wanted, "{:?}: {name} is {:?}, wanted {wanted:?}", case.dims, found.dim());
        }
        for token in 0..case.tokens {
            let c_q = normed(times(&w.dq, &wide(h, token)), case.norms);
            let (q_c, q_r) = (times(&w.uq, &c_q), times(&w.qr, &c_q));
            for head in 0..heads {
                let q_c = q_c[head * d_nope..(head + 1) * d_nope].to_vec();
                let q_r = &q_r[head * d_rope..(head + 1) * d_rope];
                let q_r = turned(layer.rope(), q_r, case.position + token);
                let at = format!("{}, head {head}", case.told(token, h));
                let parts = [("q^C", &found.nope, q_c), ("q^R", &found.rope, q_r)];
                for (name, found, wanted) in parts {
                    let found = found.slice(s![head, token, ..]).to_vec();
                    let (found_shown, wanted_shown) = (all_shown(&found), all_shown(&wanted));
                    prop_assert!(
                        all_close(&found, &wanted),
                        "{at}: {name} is {found_shown:?}, wanted {wanted_shown:?}"
                    );
                }
            }
        }
        Ok(())
    })
}

/// What turns queries and a cache into a result.
pub(crate) type Attend<P> = fn(&Layer<P>, &Queries<P>, &Cache<P>) -> Result<Heads, AttentionError>;

/// The steps of a layer that attends in the absorbed form.
pub(crate) struct Steps<P> {
    pub(crate) compress: fn(&Layer<P>, ArrayView2<f32>, usize) -> Array2<f32>,
    pub(crate) queries: fn(&Layer<P>, ArrayView2<f32>, usize) -> Queries<P>,
    pub(crate) absorbed: Attend<P>,
}

/// A sequence in chunks of `chunk` tokens comes to the same, step by step, as the naive form does at once: keys and values
/// of all tokens decompressed, then FlashAttention-2. Tolerance: 1e-4 of what is large, o and lse alike.
pub(crate) fn absorbed_is_naive<P: Pairing>(
    Steps { compress, queries, absorbed }: &Steps<P>,
    case: &Small,
    chunk: usize,
) -> Result<(), TestCaseError> {
    case.with::<P, _>(|layer, h| {
        let whole = layer.forward(Form::Naive, &TensorView::from(h), &mut layer.cache(0)?)?.heads;
        let largest = whole.o.iter().fold(1f32, |max, o| max.max(o.abs()));
        let mut cache = layer.cache(0)?;
        for start in (0..case.tokens).step_by(chunk) {
            let tokens = start..case.tokens.min(start + chunk);
            let h = h.slice(s![tokens.clone(), ..]);
            cache.append(compress(layer, h, start).view())?;
            let found = absorbed(layer, &queries(layer, h, start), &cache)?;
            for (head, token) in (0..case.dims.heads).flat_map(|head| tokens.clone().map(move |token| (head, token))) {
                let at = format!(
                    "{:?}, yarn {:?}, {} tokens in chunks of {chunk}: head {head}, token {token}",
                    case.dims, case.yarn, case.tokens
                );
                let (lse, wanted) = (found.lse[[head, token - start]], whole.lse[[head, token]]);
                let near = (lse - wanted).abs() <= 1e-4 * (1.0 + wanted.abs());
                prop_assert!(near, "{at}: lse is {lse}, the naive form's {wanted}");
                let (o, wanted) = (found.o.slice(s![head, token - start, ..]), whole.o.slice(s![head, token, ..]));
                let near = o.iter().zip(wanted).all(|(o, wanted)| (o - wanted).abs() <= 1e-4 * largest);
                prop_assert!(near, "{at}: o is {:?}, the naive form's {:?}", o.to_vec(), wanted.to_vec());
            }
        }
        Ok(())
    })
}

/// Frequencies of one to three pairs, vectors of as many channels, and a position.
pub(crate) fn rotations() -> impl Strategy<Value = (Rope<mla::Interleaved>, Vec<Vec<f32>>, usize)> {
    let frequency = || prop::sample::select(vec![0.0f64, 0.5, 1.0, 2.0, 0.01]);
    let vectors = |pairs: usize| {
        let vector = prop::collection::vec((-3i8..=3).prop_map(f32::from), 2 * pairs..=2 * pairs);
        prop::collection::vec(vector, 1..=3)
    };
    (1usize..=3, 0usize..=9).prop_flat_map(move |(pairs, position)| {
        let rope = prop::collection::vec(frequency(), pairs..=pairs)
            .prop_map(|frequencies| Rope::with_frequencies(frequencies).expect("finite frequencies"));
        (rope, vectors(pairs), Just(position))
    })
}
