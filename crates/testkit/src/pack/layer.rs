//! Cases of the family `mla`: no attention problem but a whole layer of multi-head latent attention.

use super::judge::{CaseReport, Status};
use super::{Case, Pack, PackError, inside};
use crate::files::{FileError, TensorFile, read_safetensors};
use crate::worst_element;
use attention::{AttentionError, TensorView};
use ndarray::ArrayD;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The expected tensors of a case, in the order in which a layer computes them.
const EXPECTED: [&str; 7] = ["c_kv", "k_rope", "q_lat", "lse", "o_lat", "o", "out"];

/// Those that a layer may keep to itself: not every way of computing it has them.
const OPTIONAL: [&str; 2] = ["q_lat", "o_lat"];

/// The sizes and settings of a case's layer.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct LayerSettings {
    /// Channels of a token.
    pub d_model: usize,
    /// Query heads.
    #[serde(rename = "hq")]
    pub heads: usize,
    /// Channels of a query or key that carry no position.
    pub d_nope: usize,
    /// Channels that RoPE turns.
    pub d_rope: usize,
    /// Channels of a value.
    #[serde(rename = "dv")]
    pub d_v: usize,
    /// Channels of the latent of keys and values.
    pub d_c: usize,
    /// Channels of the latent of queries.
    pub d_cq: usize,
    /// What RoPE's frequencies are powers of.
    pub rope_theta: f64,
    /// Added to the mean square of a latent, where there are norms.
    pub norm_eps: f64,
    /// Whether the tokens come one by one, more than 1, or all at once.
    pub steps: usize,
}

/// What a case asks of a layer. RoPE's pairs are channels 2i and 2i + 1. Weights are `[out, in]`, heads outermost in `out`.
#[derive(Clone, Debug)]
pub struct LayerProblem<'a> {
    /// Sizes and settings.
    pub settings: LayerSettings,
    /// Tokens, `[batch, tokens, d_model]`.
    pub h: TensorView<'a>,
    /// c_kv `[batch, tokens, d_c]` and rotated k_rope `[batch, tokens, d_rope]` of the tokens that came before.
    pub cached: Option<[TensorView<'a>; 2]>,
    /// w_dq, w_uq, w_qr, w_dkv, w_uk, w_uv, w_kr and w_o.
    pub weights: [TensorView<'a>; 8],
    /// g_q and g_kv.
    pub gains: Option<[TensorView<'a>; 2]>,
}

/// A layer's results, widened exactly, by their names in the pack: c_kv and k_rope of the whole cache, q_lat, lse, o_lat, o
/// and out.
pub type LayerOutcome = BTreeMap<&'static str, ArrayD<f64>>;

/// What runs a case of the family `mla`.
pub type LayerRunner<'a> = &'a dyn Fn(&LayerProblem) -> Result<LayerOutcome, AttentionError>;

impl Pack {
    /// As [`Pack::run`], for a layer: cases of other families are unsupported. `worst_o` is the worst of every expected
    /// tensor but lse.
    ///
    /// # Errors
    /// [`PackError`] if the case's file is not what the manifest says. Whatever the runner does is in the report.
    pub fn run_layer(&self, case: &Case, runner: LayerRunner) -> Result<CaseReport, PackError> {
        let (true, Some(settings)) = (case.family == "mla", case.layer) else {
            let what = format!("no layer takes the {} family", case.family);
            return Ok(CaseReport::without_result(case, Status::Unsupported(what)));
        };
        let file = read_safetensors(&inside(&self.dir, &case.file)?)?;
        case.check_tensors(&file)?;
        let answer = runner(&problem(&file, settings)?);
        match answer {
            Ok(outcome) => Ok(judge(case, &file, &outcome)?),
            Err(error @ AttentionError::Unsupported { .. }) => {
                Ok(CaseReport::without_result(case, Status::Unsupported(error.to_string())))
            }
            Err(error) => Ok(CaseReport::without_result(case, Status::Fail(error.to_string()))),
        }
    }
}

fn problem(file: &TensorFile, settings: LayerSettings) -> Result<LayerProblem<'_>, FileError> {
    let tensor = |name: &str| Ok(file.tensor(name)?.view());
    // The tensors' presence is the flag.
    let both = |[a, b]: [&str; 2]| file.contains(a).then(|| Ok([tensor(a)?, tensor(b)?])).transpose();
    let [dq, uq, qr, dkv, uk, uv, kr, o] = ["w_dq", "w_uq", "w_qr", "w_dkv", "w_uk", "w_uv", "w_kr", "w_o"];
    let weights =
        [tensor(dq)?, tensor(uq)?, tensor(qr)?, tensor(dkv)?, tensor(uk)?, tensor(uv)?, tensor(kr)?, tensor(o)?];
    let h = tensor("h")?;
    if h.shape().len() != 3 {
        return file.error("h", format!("shape {:?}", h.shape()), "[batch, tokens, d_model]");
    }
    let cached = both(["cache_c_kv", "cache_k_rope"])?;
    for (name, tensor) in ["cache_c_kv", "cache_k_rope"].into_iter().zip(cached.iter().flatten()) {
        if tensor.shape().len() != 3 || tensor.shape()[0] != h.shape()[0] {
            let wanted = format!("[{}, tokens, channels]", h.shape()[0]);
            return file.error(name, format!("shape {:?}", tensor.shape()), wanted);
        }
    }
    Ok(LayerProblem { settings, h, cached, weights, gains: both(["g_q", "g_kv"])? })
}

/// Every expected tensor by its own tolerance.
fn judge(case: &Case, file: &TensorFile, outcome: &LayerOutcome) -> Result<CaseReport, FileError> {
    let mut report = CaseReport { worst_o: 0.0, worst_lse: 0.0, ..CaseReport::without_result(case, Status::Pass) };
    for name in EXPECTED {
        let (wanted, tolerance) = (file.tensor(name)?.view().to_f64(), case.tol.of(name));
        let fail = |why: String| Ok(CaseReport::without_result(case, Status::Fail(why)));
        let found = match outcome.get(name) {
            Some(found) => found,
            None if OPTIONAL.contains(&name) => continue,
            None => return fail(format!("{name}: found no result")),
        };
        if found.shape() != wanted.shape() {
            return fail(format!("{name}: found shape {:?}, wanted {:?}", found.shape(), wanted.shape()));
        }
        let worst = worst_element(found.view(), wanted.view(), |_| tolerance);
        if worst.ratio > 1.0 && report.status == Status::Pass {
            report.status = Status::Fail(worst.told(name));
        }
        let ratio = if name == "lse" { &mut report.worst_lse } else { &mut report.worst_o };
        *ratio = ratio.max(worst.ratio);
    }
    Ok(report)
}
