//! Conformance packs: attention problems in files, each with its expected result and its tolerance.
//!
//! A pack is a folder with a `manifest.json` that lists the cases and one safetensors file for each. What a field means
//! is written in the pack's README. What runs a case is handed in as a [`Runner`], so that this crate knows no rung; cases of
//! the family `mla` pose a whole layer, to a [`LayerRunner`].
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
mod layer;
mod manifest;

pub use judge::{CaseReport, Outcome, Runner, Status, run_on_canaries};
pub use layer::{LayerOutcome, LayerProblem, LayerRunner, LayerSettings};
pub use manifest::{Case, CaseMask, Tolerance};

use crate::files::{FileError, Source, TensorFile, format_error, read_safetensors};
use crate::{OwnedBatch, OwnedPages, OwnedProblem, Values};
use attention::{AttentionError, Problem};
use ndarray::ArrayD;
use std::fs;
use std::path::{Path, PathBuf};
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
    /// [`PackError`] if there is no manifest, it is no such JSON, or a case of it has a file outside `dir`, or a family
    /// or type that no pack has.
    pub fn open(dir: &Path) -> Result<Self, PackError> {
        let path = inside(dir, "manifest.json")?;
        let text = Source::open(&path)?.text(MAX_MANIFEST)?;
        let file = path.display().to_string();
        let cases = manifest::parse(&text).or_else(|json| format_error(&file, json, "the manifest of a pack"))?;
        if let Some((case, (found, wanted))) = cases.iter().find_map(|case| Some((case, case.fault()?))) {
            format_error(&file, format!("{found} of case {:?}", case.name), wanted)?;
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
    /// [`PackError`] names the file, the tensor, what was found and what was wanted. A file to which a symbolic link
    /// leads out of the pack is refused unread.
    pub fn load<'a>(&self, case: &'a Case) -> Result<LoadedCase<'a>, PackError> {
        let file = read_safetensors(&inside(&self.dir, &case.file)?)?;
        case.check_tensors(&file)?;
        let batch = match case.family.as_str() {
            "kvlen" => OwnedBatch::KeyLens(file.lengths("k_lens")?),
            "varlen" => OwnedBatch::Packed {
                cu_seqlens_q: file.lengths("cu_seqlens_q")?,
                cu_seqlens_k: file.lengths("cu_seqlens_k")?,
            },
            "paged" if file.contains("cu_seqlens_q") => {
                OwnedBatch::PackedQueries { cu_seqlens_q: file.lengths("cu_seqlens_q")? }
            }
            _ => OwnedBatch::Dense,
        };
        // A flag in the manifest asks for its tensor; without one, the tensor itself is the flag.
        let asked = |flag: Option<bool>, name: &str| flag.unwrap_or(file.contains(name));
        let paged = case.family == "paged";
        let k = file.tensor(if paged { "k_pool" } else { "k" })?;
        let owned = OwnedProblem {
            q: file.tensor("q")?.clone(),
            k: k.clone(),
            v: match file.tensor("o")?.shape() {
                [.., d_v] if case.v_is_k_prefix == Some(true) && k.shape().last() >= Some(d_v) => Values::OfKeys(*d_v),
                _ => Values::new(file.tensor(if paged { "v_pool" } else { "v" })?.clone(), k),
            },
            pages: paged.then(|| pages(&file)).transpose()?,
            batch,
            scale: case.scale,
            mask: case.mask.mask(),
            softcap: case.softcap.unwrap_or(0.0),
            alibi_slopes: asked(case.alibi, "alibi_slopes").then(|| file.f32s("alibi_slopes")).transpose()?,
            bias: asked(case.bias, "bias").then(|| file.f32s_of_rank("bias")).transpose()?,
            sinks: asked(case.sinks, "sinks").then(|| file.f32s_of_rank("sinks")).transpose()?,
        };
        Ok(LoadedCase { case, file, owned })
    }
}

fn pages(file: &TensorFile) -> Result<OwnedPages, FileError> {
    Ok(OwnedPages { block_table: file.table("block_table")?, seq_lens: file.lengths("seq_lens")? })
}

/// The path of a pack's file, which no symbolic link may lead out of the pack.
fn inside(dir: &Path, name: &str) -> Result<PathBuf, FileError> {
    let path = dir.join(name);
    let followed =
        |path: &Path| fs::canonicalize(path).map_err(|cause| FileError::Io { file: path.display().to_string(), cause });
    let target = followed(&path)?;
    if target.starts_with(followed(dir)?) {
        return Ok(path);
    }
    let found = format!("a symbolic link to {}", target.display());
    format_error(&path.display().to_string(), found, "a file inside the pack")
}

/// A case with its tensors in memory.
#[derive(Clone, Debug)]
pub struct LoadedCase<'a> {
    case: &'a Case,
    file: TensorFile,
    owned: OwnedProblem,
}

impl LoadedCase<'_> {
    /// The attention problem that the case poses.
    ///
    /// # Errors
    /// [`PackError`] if the tensors do not fit together.
    pub fn problem(&self) -> Result<Problem<'_>, PackError> {
        self.owned.try_problem().map_err(|cause| PackError::Problem { file: self.file.file.clone(), cause })
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
