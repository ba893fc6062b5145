//! The forms of the layer of multi-head latent attention, under names like those of rungs, and how one runs a pack's case.

use attention::{AttentionError, TensorView};
use mla::{Cache, Dims, Form, Interleaved, Latent, Layer, Norms, Rope, Weights};
use ndarray::{Array, ArrayD, ArrayViewD, Axis, Dimension, concatenate, stack};
use testkit::pack::{LayerOutcome, LayerProblem};

/// Runs a layer's case sequence by sequence, its tokens all at once or, if it has steps, one by one.
///
/// # Errors
/// Those of [`Layer::new`] and [`Layer::forward`].
pub fn run(form: Form, problem: &LayerProblem) -> Result<LayerOutcome, AttentionError> {
    let layer = layer(problem)?;
    let (batch, mut sequences) = (problem.h.shape()[0], Vec::new());
    // A tensor without elements can have any number of sequences.
    let bytes = batch as u128 * size_of::<LayerOutcome>() as u128;
    let no_memory = |_| AttentionError::Memory { what: "the sequences of the batch", bytes };
    sequences.try_reserve_exact(batch).map_err(no_memory)?;
    for sequence in 0..batch {
        let mut cache = match problem.cached.clone() {
            Some(parts) => {
                let [c_kv, k_rope] = parts.map(|part| part.index_first(sequence));
                Cache::from_parts(&c_kv, &k_rope)?
            }
            None => layer.cache(0)?,
        };
        let h = problem.h.clone().index_first(sequence);
        sequences.push(attend(&layer, form, &h, problem.settings.steps, &mut cache)?);
    }
    let mut outcome = LayerOutcome::new();
    for name in ["c_kv", "k_rope", "q_lat", "lse", "o_lat", "o", "out"] {
        let parts: Vec<ArrayViewD<f64>> = sequences.iter().filter_map(|one| Some(one.get(name)?.view())).collect();
        if !parts.is_empty() {
            outcome.insert(name, stack(Axis(0), &parts).expect("sequences of one shape"));
        }
    }
    Ok(outcome)
}

/// The layer that a case poses.
///
/// # Errors
/// Those of [`Layer::new`].
fn layer(problem: &LayerProblem) -> Result<Layer<Interleaved>, AttentionError> {
    let settings = problem.settings;
    let dims = Dims {
        d_model: settings.d_model,
        heads: settings.heads,
        d_nope: settings.d_nope,
        d_rope: settings.d_rope,
        d_v: settings.d_v,
        d_c: settings.d_c,
        d_cq: settings.d_cq,
    };
    let [dq, uq, qr, dkv, uk, uv, kr, o] = problem.weights.clone();
    let norms = problem.gains.clone().map(|[q, kv]| Norms { q, kv, eps: settings.norm_eps });
    let weights = Weights { dq, uq, qr, dkv, uk, uv, kr, o, norms };
    Layer::new(dims, &weights, Rope::new(settings.d_rope, settings.rope_theta)?, None)
}

/// One sequence: the outcome of its tokens and its cache afterwards, without a batch axis.
fn attend(
    layer: &Layer<Interleaved>,
    form: Form,
    h: &TensorView,
    steps: usize,
    cache: &mut Cache<Interleaved>,
) -> Result<LayerOutcome, AttentionError> {
    let tokens = h.shape()[0];
    let at_once = if steps > 1 { 1 } else { tokens.max(1) };
    let mut parts: Vec<LayerOutcome> = Vec::new();
    for start in (0..tokens).step_by(at_once) {
        let attended = layer.forward(form, &h.rows(start..start + at_once), cache)?;
        let mut part = LayerOutcome::from([
            ("out", attended.out.view().to_f64()),
            ("o", widened(attended.heads.o)),
            ("lse", widened(attended.heads.lse)),
        ]);
        if let Some(Latent { q, o }) = attended.heads.latent {
            part.extend([("q_lat", widened(q)), ("o_lat", widened(o))]);
        }
        parts.push(part);
    }
    let mut outcome = LayerOutcome::from([("c_kv", cache.c_kv().to_f64()), ("k_rope", cache.k_rope().to_f64())]);
    for name in ["out", "o", "lse", "q_lat", "o_lat"] {
        let parts: Vec<ArrayViewD<f64>> = parts.iter().filter_map(|part| Some(part.get(name)?.view())).collect();
        // Tokens are the first axis of out, and the second of what has heads.
        if !parts.is_empty() {
            let whole = concatenate(Axis(usize::from(name != "out")), &parts);
            outcome.insert(name, whole.expect("tokens of one layer"));
        }
    }
    Ok(outcome)
}

fn widened<D: Dimension>(values: Array<f32, D>) -> ArrayD<f64> {
    values.mapv(f64::from).into_dyn()
}
