//! The form in which results are kept: one JSON file for each machine and occasion, the same for CPU and GPU.

use super::{Case, Ceiling, Machine, Times, flops};
use attention::{Problem, Traffic};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The most bytes of a file, far more than every case takes.
const LARGEST: u64 = 64 << 20;

/// Times and speeds that can be true of a machine, in any unit of a row. Charts end long before f64 does.
const SPEEDS: RangeInclusive<f64> = 1e-12..=1e12;

/// What was measured on one machine on one occasion.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// Where.
    pub machine: Machine,
    /// When: ISO 8601, in UTC.
    pub date: String,
    /// The commit of the sources, with `-dirty` behind it if they had changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// How, in one sentence.
    pub method: String,
    /// What the machine could reach at best, once for each number of threads and once for a device; none where it was not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ceilings: Vec<Ceiling>,
    /// What came out.
    pub rows: Vec<Row>,
}

/// The speed of one contestant on one shape. What does not apply is left out.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// A rung, or a peer.
    pub who: String,
    /// Element type, as [`attention::DType`] prints it.
    pub dtype: String,
    /// Channels of a head.
    pub head_dim: usize,
    /// Which keys a query sees, as [`attention::Mask`] prints it.
    pub mask: String,
    /// Sequences.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Queries of a sequence.
    pub q_len: usize,
    /// Keys of a sequence.
    pub kv_len: usize,
    /// Threads of a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Milliseconds a run, sustained.
    pub ms: f64,
    /// Milliseconds of the best run after a pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms_burst: Option<f64>,
    /// 10^12 floating-point operations a second, sustained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tflops: Option<f64>,
    /// The same of the best run after a pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tflops_burst: Option<f64>,
    /// 10^9 bytes of inputs and outputs a second, sustained, where bytes are what counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gbps: Option<f64>,
    /// Bytes that a call on a GPU reads from its memory, by ncu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ncu_read_bytes: Option<u64>,
    /// Bytes that it writes there, by ncu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ncu_written_bytes: Option<u64>,
    /// Bytes that the same algorithm reads from slow memory by the meter of the CPU, with as much fast memory as a block of
    /// threads has shared memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_read_bytes: Option<u64>,
    /// Bytes that it writes there, by the meter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_written_bytes: Option<u64>,
    /// Bytes that it moves by the closed formula.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formula_bytes: Option<f64>,
}

/// What two rows must share for their speeds to be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape<'a> {
    dtype: &'a str,
    head_dim: usize,
    mask: &'a str,
    heads: [usize; 3],
    lengths: [usize; 2],
    threads: Option<usize>,
}

/// Why results cannot be read or written.
#[derive(Debug, Error)]
pub enum ResultsError {
    /// The system refuses.
    #[error("{}: {error}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It is no results file.
    #[error("{}: found no results: {why}", path.display())]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// What gives it away.
        why: String,
    },
    /// Something stands where results were to go.
    #[error("{}: found a file that is no results file, wanted a new name or earlier results to replace", path.display())]
    Occupied {
        /// Which file.
        path: PathBuf,
    },
}

impl Row {
    /// The row of one contestant with its times on `problem`, which was built from `case`, in so many threads of a CPU.
    pub fn new(who: &str, case: &Case, problem: &Problem, threads: Option<usize>, times: Times) -> Self {
        let tflops = |ms: f64| Some(rounded(flops(problem) / ms / 1e9));
        let bytes = Traffic::compulsory(problem).total() as f64;
        Row {
            who: who.into(),
            dtype: case.dtype.to_string(),
            head_dim: case.d,
            mask: case.mask.to_string(),
            batch: case.batch,
            heads: case.heads,
            kv_heads: case.kv_heads,
            q_len: case.q_len,
            kv_len: case.kv_len,
            threads,
            ms: rounded(times.ms),
            ms_burst: Some(rounded(times.ms_burst)),
            tflops: tflops(times.ms),
            tflops_burst: tflops(times.ms_burst),
            gbps: case.is_decode().then(|| rounded(bytes / times.ms / 1e6)),
            ncu_read_bytes: None,
            ncu_written_bytes: None,
            counted_read_bytes: None,
            counted_written_bytes: None,
            formula_bytes: None,
        }
    }

    /// Whether it is that of this contestant on this case, on whatever machine.
    pub fn is_of(&self, who: &str, case: &Case) -> bool {
        let lengths = [self.head_dim, self.batch, self.heads, self.kv_heads, self.q_len, self.kv_len];
        self.who == who
            && self.dtype == case.dtype.to_string()
            && self.mask == case.mask.to_string()
            && lengths == [case.d, case.batch, case.heads, case.kv_heads, case.q_len, case.kv_len]
    }

    /// Everything but who and how fast.
    pub fn shape(&self) -> Shape<'_> {
        Shape {
            dtype: &self.dtype,
            head_dim: self.head_dim,
            mask: &self.mask,
            heads: [self.batch, self.heads, self.kv_heads],
            lengths: [self.q_len, self.kv_len],
            threads: self.threads,
        }
    }

    /// What is wrong with the numbers, if something is.
    fn fault(&self) -> Option<String> {
        if let Some(bytes) = self.formula_bytes.filter(|bytes| !(0.0..=1e24).contains(bytes)) {
            return Some(format!("formula_bytes: found {bytes}, wanted a number from 0 to 1e24"));
        }
        let speeds = [("ms_burst", self.ms_burst), ("tflops", self.tflops), ("tflops_burst", self.tflops_burst)];
        let speeds = [("ms", Some(self.ms)), ("gbps", self.gbps)].into_iter().chain(speeds);
        if let Some(text) = [&self.who, &self.dtype, &self.mask].into_iter().find(|text| !is_plain(text)) {
            return Some(format!("found {text:?}, wanted a text of one line"));
        }
        let [batch, heads, kv_heads] = [self.batch, self.heads, self.kv_heads];
        if [batch, heads, kv_heads, self.head_dim, self.q_len, self.kv_len, self.threads.unwrap_or(1)].contains(&0) {
            return Some("found a length of 0, wanted at least 1".into());
        }
        bad_speed(speeds)
    }
}

impl Results {
    /// Reads a results file and checks that it says where, when, how, and each thing once.
    ///
    /// # Errors
    /// [`ResultsError::File`] or [`ResultsError::Foreign`].
    pub fn read(path: &Path) -> Result<Self, ResultsError> {
        let failed = |error| ResultsError::File { path: path.into(), error };
        let foreign = |why: String| ResultsError::Foreign { path: path.into(), why };
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(foreign("it is no regular file".into()));
        }
        let mut bytes = Vec::new();
        File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes)).map_err(failed)?;
        if bytes.len() as u64 > LARGEST {
            return Err(foreign(format!("found more than {LARGEST} bytes, wanted results")));
        }
        let results: Results = serde_json::from_slice(&bytes).map_err(|error| foreign(error.to_string()))?;
        results.fault().map_or(Ok(results), |why| Err(foreign(why)))
    }

    fn fault(&self) -> Option<String> {
        let Machine { cpu, gpu, driver, cuda, nvrtc, clocks, .. } = &self.machine;
        if cpu.is_none() && gpu.is_none() {
            return Some("machine: found neither cpu nor gpu, wanted one of them".into());
        }
        let texts = [cpu, gpu, driver, cuda, nvrtc, clocks, &self.commit];
        let mut texts = texts.into_iter().flatten().chain([&self.method]);
        if let Some(text) = texts.find(|text| !is_plain(text)) {
            return Some(format!("found {text:?} as method, commit or machine, wanted a text of one line"));
        }
        if humantime::parse_rfc3339(&self.date).is_err() {
            return Some(format!("date: found {:?}, wanted ISO 8601 in UTC", self.date));
        }
        if let Some(why) = self.ceiling_fault() {
            return Some(format!("ceilings: {why}"));
        }
        if self.rows.is_empty() {
            return Some("rows: found none, wanted at least one".into());
        }
        let mut seen = HashMap::new();
        for (number, row) in (1..).zip(&self.rows) {
            if let Some(why) = row.fault() {
                return Some(format!("row {number}: {why}"));
            }
            if let Some(earlier) = seen.insert((&row.who, row.shape()), number) {
                return Some(format!("row {number}: found {} on the shape of row {earlier} again", row.who));
            }
        }
        None
    }

    /// What is wrong with the ceilings, if something is.
    fn ceiling_fault(&self) -> Option<String> {
        let mut seen = HashSet::new();
        self.ceilings.iter().find_map(|ceiling| {
            let Ceiling { threads, fma_gflops, bf16_gflops, read_gbps, copy_gbps } = *ceiling;
            if threads == Some(0) || !seen.insert(threads) {
                let threads = threads.map_or("a device".into(), |threads| format!("{threads} threads"));
                return Some(format!("found {threads}, wanted at least 1 thread, and each number once"));
            }
            if read_gbps.is_none() && copy_gbps.is_none() {
                return Some("found neither read_gbps nor copy_gbps, wanted one of them".into());
            }
            let memory = [("read_gbps", read_gbps), ("copy_gbps", copy_gbps)];
            let speeds = [("fma_gflops", Some(fma_gflops)), ("bf16_gflops", bf16_gflops)].into_iter().chain(memory);
            bad_speed(speeds)
        })
    }

    /// The share of its ceiling that a row reaches, 1 for all of it: of memory for a row in bytes a second, else of
    /// arithmetic in its type. `None` if either has not been measured.
    pub fn share(&self, row: &Row) -> Option<f64> {
        let ceiling = self.ceilings.iter().find(|ceiling| ceiling.threads == row.threads)?;
        match row.gbps {
            Some(gbps) => Some(gbps / ceiling.gbps()?),
            None => Some(1e3 * row.tflops? / ceiling.gflops(&row.dtype)),
        }
    }

    /// Writes the results beside `path` and moves them there in one step, so that no one ever reads half of them.
    ///
    /// # Errors
    /// As [`Results::check_target`].
    pub fn write(&self, path: &Path) -> Result<(), ResultsError> {
        Results::check_target(path)?;
        let part = part(path);
        let written = fs::write(&part, self.to_string()).and_then(|()| fs::rename(&part, path));
        written.map_err(|error| {
            // It may never have come to be; what counts is the first error.
            let _ = fs::remove_file(&part);
            ResultsError::File { path: path.into(), error }
        })
    }

    /// Whether results may be written to `path`: only to a new file, or over earlier results.
    ///
    /// # Errors
    /// [`ResultsError::Occupied`] if something else is there, [`ResultsError::File`] if nothing can be written there.
    pub fn check_target(path: &Path) -> Result<(), ResultsError> {
        let failed = |error| ResultsError::File { path: path.into(), error };
        match fs::symlink_metadata(path) {
            Ok(_) => drop(Results::read(path).map_err(|_| ResultsError::Occupied { path: path.into() })?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let part = part(path);
        OpenOptions::new().write(true).create_new(true).open(&part).map_err(failed)?;
        fs::remove_file(&part).map_err(failed)
    }
}

/// The JSON of a results file: a row a line, so that a difference between two files can be read.
impl std::fmt::Display for Results {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let line = |row: &Row| serde_json::to_string(row).map_err(|_| std::fmt::Error);
        let rows = self.rows.iter().map(line).collect::<Result<Vec<_>, _>>()?;
        let head = Results { rows: Vec::new(), ..self.clone() };
        let head = serde_json::to_string_pretty(&head).map_err(|_| std::fmt::Error)?;
        let head = head.strip_suffix("[]\n}").ok_or(std::fmt::Error)?;
        writeln!(f, "{head}[\n    {}\n  ]\n}}", rows.join(",\n    "))
    }
}

/// Where a file grows before it is moved to `path`.
fn part(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.part", std::process::id()))
}

/// The first of some named speeds that cannot be true.
fn bad_speed<'a>(speeds: impl IntoIterator<Item = (&'a str, Option<f64>)>) -> Option<String> {
    speeds.into_iter().find_map(|(name, value)| {
        let value = value.filter(|value| !SPEEDS.contains(value))?;
        Some(format!("{name}: found {value:?}, wanted a number from {:e} to {:e}", SPEEDS.start(), SPEEDS.end()))
    })
}

/// Whether a text says something and cannot upset a terminal.
fn is_plain(text: &str) -> bool {
    !text.trim().is_empty() && !text.chars().any(char::is_control)
}

/// Five digits that count: more than any clock here is good for.
pub(super) fn rounded(x: f64) -> f64 {
    format!("{x:.4e}").parse().unwrap_or(x)
}
