//! What a pack's manifest says about its cases. Fields that are not used are not read.

use super::LayerSettings;
use crate::files::{FileError, TensorFile};
use attention::Mask;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Component, Path};

/// How sequences can lie in a case's tensors.
const FAMILIES: [&str; 5] = ["dense", "kvlen", "varlen", "paged", "mla"];

/// The element types that q, k and v of a case can have.
const DTYPES: [&str; 5] = ["F16", "BF16", "F32", "F64", "FP8"];

/// One case of a pack, as the manifest describes it.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    /// The case's name.
    pub name: String,
    /// How sequences lie in the tensors: `dense`, `kvlen`, `varlen`, `paged` or `mla`.
    pub family: String,
    /// The element type of q, k and v: F16, BF16, F32, F64 or FP8.
    pub dtype: String,
    /// The case's file, relative to the pack.
    pub file: String,
    /// The largest |error| that a correct rung should show.
    pub tol: Tolerance,
    /// Which keys a query sees.
    #[serde(default)]
    pub mask: CaseMask,
    /// Factor of q . k; none is `1/sqrt(d)`.
    pub scale: Option<f64>,
    /// Soft cap of the scaled score; none or 0 is off.
    pub softcap: Option<f64>,
    /// Whether there are ALiBi slopes; none leaves it to the file.
    pub alibi: Option<bool>,
    /// Whether there is a bias; none leaves it to the file.
    pub bias: Option<bool>,
    /// Whether there are sinks; none leaves it to the file.
    pub sinks: Option<bool>,
    /// What the case is there to catch.
    pub catches: Option<String>,
    /// Type, as PyTorch names it, and shape of each tensor in the file.
    #[serde(default)]
    pub tensors: BTreeMap<String, (String, Vec<usize>)>,
    /// Whether v is no tensor of its own but the first channels of the keys, as many as o has; none is no.
    pub v_is_k_prefix: Option<bool>,
    /// What only a case of the family `mla` has.
    #[serde(flatten)]
    pub layer: Option<LayerSettings>,
}

/// The largest |error| allowed in each expected tensor.
#[derive(Clone, Debug, Deserialize)]
pub struct Tolerance {
    /// Of any element of o.
    pub o: f64,
    /// Of any element of lse.
    pub lse: f64,
    /// Of any element of the other tensors, by name.
    #[serde(flatten)]
    pub others: BTreeMap<String, f64>,
}

impl Tolerance {
    /// That of the tensor `name`; 0 if it has none.
    pub fn of(&self, name: &str) -> f64 {
        match name {
            "o" => self.o,
            "lse" => self.lse,
            _ => self.others.get(name).copied().unwrap_or(0.0),
        }
    }
}

/// The mask as FlashAttention's callers give it.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct CaseMask {
    /// Forces the right side of the window to 0.
    #[serde(default)]
    pub causal: bool,
    /// Keys to the left and to the right; negative or none is no limit.
    #[serde(default)]
    pub window: Option<(Option<i64>, Option<i64>)>,
}

impl CaseMask {
    /// Causal is a right side of 0 and leaves the left as it is.
    pub(super) fn mask(self) -> Mask {
        let (left, right) = self.window.unwrap_or((None, None));
        let right = if self.causal { Some(0) } else { right };
        match Mask::window(left.unwrap_or(-1), right.unwrap_or(-1)) {
            Mask::Window { left: None, right: None } => Mask::Full,
            Mask::Window { left: None, .. } if self.causal => Mask::Causal,
            window => window,
        }
    }
}

impl Case {
    /// What of the entry no pack can have, and what was wanted, if something is.
    pub(super) fn fault(&self) -> Option<(String, String)> {
        let stays = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if !Path::new(&self.file).components().all(stays) {
            return Some((format!("file {:?}", self.file), "a path inside the pack".into()));
        }
        let known: [(_, _, &[&str]); 2] = [("family", &self.family, &FAMILIES), ("dtype", &self.dtype, &DTYPES)];
        if let Some((what, found, known)) = known.into_iter().find(|(_, found, known)| !known.contains(&found.as_str()))
        {
            return Some((format!("{what} {found:?}"), format!("one of {}", known.join(", "))));
        }
        let bare = self.family == "mla" && self.layer.is_none();
        bare.then(|| ("family mla without the settings".into(), "d_model, hq, d_nope and what else a layer has".into()))
    }

    /// Why nothing can run this case yet, if so.
    pub fn unsupported(&self) -> Option<String> {
        match (self.family.as_str(), self.dtype.as_str()) {
            ("dense" | "kvlen" | "varlen" | "paged", "F16" | "BF16" | "F32" | "F64") => None,
            ("dense" | "kvlen" | "varlen" | "paged", dtype) => Some(format!("no rung takes dtype {dtype}")),
            (family, _) => Some(format!("no rung takes the {family} family")),
        }
    }

    /// Checks that the file has the tensors that the manifest lists, and that the inputs are of the case's dtype.
    pub(super) fn check_tensors(&self, file: &TensorFile) -> Result<(), FileError> {
        for (name, (dtype, shape)) in &self.tensors {
            let wanted = format!("{} {shape:?}, by the manifest", safetensors_dtype(dtype));
            match file.tensors.get(name) {
                None => return file.error(name, "no such tensor", wanted),
                Some(tensor) if tensor.dtype() != safetensors_dtype(dtype) || tensor.shape() != shape => {
                    return file.error(name, format!("{} {:?}", tensor.dtype(), tensor.shape()), wanted);
                }
                Some(_) => {}
            }
        }
        let inputs: &[&str] = match self.family.as_str() {
            "mla" => &["h", "w_uk"],
            "paged" if self.v_is_k_prefix == Some(true) => &["q", "k_pool"],
            "paged" => &["q", "k_pool", "v_pool"],
            _ => &["q", "k", "v"],
        };
        for name in inputs {
            let found = file.tensor(name)?.dtype().to_string();
            if found != self.dtype {
                return file.error(name, found, format!("{}, the case's dtype", self.dtype));
            }
        }
        Ok(())
    }
}

/// The name that safetensors has for a type of PyTorch; one that it has no name for stays as it is.
fn safetensors_dtype(torch: &str) -> &str {
    match torch {
        "float32" => "F32",
        "float64" => "F64",
        "float16" => "F16",
        "bfloat16" => "BF16",
        "float8_e4m3fn" => "F8_E4M3",
        "int32" => "I32",
        "int64" => "I64",
        other => other,
    }
}

/// The cases of a manifest.
pub(super) fn parse(text: &str) -> Result<Vec<Case>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Manifest {
        cases: Vec<Case>,
    }
    serde_json::from_str::<Manifest>(&without_constants(text)).map(|manifest| manifest.cases)
}

/// JSON has no infinities and no NaN, but Python writes them all the same, as for a sink of -inf. No field that is read
/// here may hold one (sinks come from the case's file): as a string, one there is an error, and elsewhere it is none.
fn without_constants(text: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    // Every other part between quotes is a string; a quote behind an odd number of backslashes belongs to it.
    let mut in_string = false;
    for part in text.split_inclusive('"') {
        if in_string {
            let inside = part.strip_suffix('"').unwrap_or(part);
            let backslashes = inside.len() - inside.trim_end_matches('\\').len();
            in_string = backslashes % 2 == 1;
            parts.push(part.into());
        } else {
            in_string = true;
            let quoted = part.replace("-Infinity", "\"-inf\"").replace("Infinity", "\"inf\"").replace("NaN", "\"nan\"");
            parts.push(quoted);
        }
    }
    parts.concat()
}
