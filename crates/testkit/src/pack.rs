//! Conformance packs: attention problems in files, each with its expected result and its tolerance.
//!
//! A pack is a folder with a `manifest.json` that lists the cases and one safetensors file for each. What a field means
//! is written in the pack's README. What runs a case is handed in as a [`Runner`], so that this crate knows no rung.
//!
//! ```no_run
//! use attention::{Attention, oracle::Oracle};
//! use testkit::pack::{Pack, Status, run_on_canaries};
//!
//! let pack = Pack::open("tests/data/conformance".as_ref())?;
//! for case in pack.cases() {
//!     let report = pack.run(case, &|problem| run_on_canaries(&Oracle, problem))?;
//!     println!("{}: {:?}, o at {:.2} of its tolerance", case.name, report.status, report.worst_o);
//! }
//! # Ok::<(), testkit::pack::PackError>(())
//! ```
//!
//! What it does not do: gradients, and the families and types that [`Case::unsupported`] names.

mod judge;
mod manifest;

pub use judge::{CaseReport, Outcome, Runner, Status, run_on_canaries};
pub use manifest::{Case, CaseMask, Tolerance};

use crate::files::{FileError, Source, TensorFile, format_error, read_safetensors};
use attention::{AttentionError, Batch, Kv, Mask, Options, Problem};
use ndarray::{Array1, Array4, ArrayD, Dimension};
use std::path::{Component, Path, PathBuf};
use thiserror::Error;

/// The largest manifest that is read.
const MAX_MANIFEST: u64 = 64 << 20;

/// Why a pack, or a case of it, cannot be used. A rung's failure is no error but a [`Status`].
#[derive(Debug, Error)]
pub enum PackError {
    /// A file cannot be read, the manifest is none, or a tensor is not what the manifest says.
    #[error(transparent)]
    File(#[from] FileError),
    /// The tensors of a case make no sound problem together.
    #[error("{file}: {cause}")]
    Problem {
        /// The name of the case's file.
        file: String,
        /// What is wrong with them.
        cause: AttentionError,
    },
}

/// An open pack.
#[derive(Clone, Debug)]
pub struct Pack {
    dir: PathBuf,
    cases: Vec<Case>,
}

impl Pack {
    /// Reads the manifest of the pack in `dir`; the cases' files are read when they are run.
    ///
    /// # Errors
    /// [`PackError`] if there is no manifest, it is no such JSON, or it names a file outside `dir`.
    pub fn open(dir: &Path) -> Result<Self, PackError> {
        let path = dir.join("manifest.json");
        let text = Source::open(&path)?.text(MAX_MANIFEST)?;
        let file = path.display().to_string();
        let cases = manifest::parse(&text).or_else(|json| format_error(&file, json, "the manifest of a pack"))?;
        if let Some(case) = cases.iter().find(|case| !is_inside(&case.file)) {
            let found = format!("file {:?} of case {:?}", case.file, case.name);
            format_error(&file, found, "a path inside the pack")?;
        }
        Ok(Pack { dir: dir.to_path_buf(), cases })
    }

    /// The cases, in the manifest's order.
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }

    /// Runs one case and judges the result.
    ///
    /// # Errors
    /// [`PackError`] if the case's file is not what the manifest says. Whatever the runner does is in the report.
    pub fn run(&self, case: &Case, runner: Runner) -> Result<CaseReport, PackError> {
        match case.unsupported() {
            Some(reason) => Ok(CaseReport::without_result(case, Status::Unsupported(reason))),
            None => self.load(case)?.run(runner),
        }
    }

    /// Reads the tensors of a case and checks them against the manifest.
    ///
    /// # Errors
    /// [`PackError`] names the file, the tensor, what was found and what was wanted.
    pub fn load<'a>(&self, case: &'a Case) -> Result<LoadedCase<'a>, PackError> {
        let file = read_safetensors(&self.dir.join(&case.file))?;
        case.check_tensors(&file)?;
        let lengths =
            |family: &str, name: &str| if case.family == family { file.lengths(name) } else { Ok(Vec::new()) };
        let (k_lens, cu_seqlens_q, cu_seqlens_k) =
            (lengths("kvlen", "k_lens")?, lengths("varlen", "cu_seqlens_q")?, lengths("varlen", "cu_seqlens_k")?);
        // A flag in the manifest asks for its tensor; without one, the tensor itself is the flag.
        let asked = |flag: Option<bool>, name: &str| {
            let asked = flag.unwrap_or(file.tensors.contains_key(name));
            if asked { file.f32s(name).map(Some) } else { Ok(None) }
        };
        Ok(LoadedCase {
            case,
            k_lens,
            cu_seqlens_q,
            cu_seqlens_k,
            alibi_slopes: asked(case.alibi, "alibi_slopes")?,
            bias: asked(case.bias, "bias")?.map(|bias| of_rank(&file, "bias", bias)).transpose()?,
            sinks: asked(case.sinks, "sinks")?.map(|sinks| of_rank(&file, "sinks", sinks)).transpose()?,
            file,
        })
    }
}

/// Whether a path given by a manifest stays in the manifest's folder.
fn is_inside(path: &str) -> bool {
    Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// `array` with as many axes as `D`.
fn of_rank<D: Dimension>(
    file: &TensorFile,
    name: &str,
    array: ArrayD<f32>,
) -> Result<ndarray::Array<f32, D>, FileError> {
    let found = format!("shape {:?}", array.shape());
    let wanted = D::NDIM.map_or("any rank".into(), |rank| format!("rank {rank}"));
    array.into_dimensionality().or_else(|_| file.error(name, found, wanted))
}

/// A case with its tensors in memory.
#[derive(Clone, Debug)]
pub struct LoadedCase<'a> {
    case: &'a Case,
    file: TensorFile,
    k_lens: Vec<i32>,
    cu_seqlens_q: Vec<i32>,
    cu_seqlens_k: Vec<i32>,
    alibi_slopes: Option<ArrayD<f32>>,
    bias: Option<Array4<f32>>,
    sinks: Option<Array1<f32>>,
}

impl LoadedCase<'_> {
    /// The attention problem that the case poses.
    ///
    /// # Errors
    /// [`PackError`] if a tensor is missing or they do not fit together.
    pub fn problem(&self) -> Result<Problem<'_>, PackError> {
        let case = self.case;
        let options = Options {
            scale: case.scale,
            mask: self.mask(),
            softcap: case.softcap.unwrap_or(0.0),
            alibi_slopes: self.alibi_slopes.as_ref().map(|slopes| slopes.view()),
            bias: self.bias.as_ref().map(|bias| bias.view()),
            sinks: self.sinks.as_ref().map(|sinks| sinks.view()),
        };
        let (q, k, v) = (self.file.tensor("q")?, self.file.tensor("k")?, self.file.tensor("v")?);
        let batch = match case.family.as_str() {
            "kvlen" => Batch::KeyLens(&self.k_lens),
            "varlen" => Batch::Packed { cu_seqlens_q: &self.cu_seqlens_q, cu_seqlens_k: &self.cu_seqlens_k },
            _ => Batch::Dense,
        };
        Problem::new(q.view(), Kv::Contiguous { k: k.view(), v: v.view() }, batch, options)
            .map_err(|cause| PackError::Problem { file: self.file.file.clone(), cause })
    }

    /// Causal is a right side of 0 and leaves the left as it is.
    fn mask(&self) -> Mask {
        let CaseMask { causal, window } = self.case.mask;
        match (causal, window.unwrap_or((None, None))) {
            (true, (left, _)) => match Mask::window(left.unwrap_or(-1), 0) {
                Mask::Window { left: None, .. } => Mask::Causal,
                window => window,
            },
            (false, (left, right)) => match Mask::window(left.unwrap_or(-1), right.unwrap_or(-1)) {
                Mask::Window { left: None, right: None } => Mask::Full,
                window => window,
            },
        }
    }

    /// Runs the case and judges the result.
    ///
    /// # Errors
    /// As [`Pack::run`].
    pub fn run(&self, runner: Runner) -> Result<CaseReport, PackError> {
        let problem = self.problem()?;
        let expected =
            Outcome { o: self.expected("o", problem.o_shape())?, lse: self.expected("lse", problem.lse_shape())? };
        Ok(judge::judge(self.case, &problem, &expected, runner(&problem)))
    }

    fn expected(&self, name: &str, wanted: Vec<usize>) -> Result<ArrayD<f64>, FileError> {
        let tensor = self.file.tensor(name)?;
        if tensor.shape() != wanted {
            return self.file.error(name, format!("shape {:?}", tensor.shape()), format!("{wanted:?}, to fit q and v"));
        }
        Ok(tensor.view().to_f64())
    }
}

#[cfg(test)]
mod tests;
