//! What a rung is run on: the embedded layer of a real model, seeded random data, or a file.

use crate::cli::{ProblemArgs, ScoreArgs, ShapeArgs};
use crate::{format, memory};
use anyhow::{Result, bail, ensure};
use attention::{DType, Mask, Problem, Tensor};
use ndarray::{Axis, Ix3};
use std::path::Path;
use testkit::files::{TensorFile, read_safetensors, safetensors_from_bytes};
use testkit::problems::Spec;
use testkit::{OwnedBatch, OwnedProblem, Values};

static LAYER: &[u8] = include_bytes!("../../../tests/data/real/smollm2-layer14.safetensors");

/// The seed of all random data, so that two people who climb the same shape climb the same numbers.
const SEED: u64 = 14;

/// Tokens of the embedded layer that a simulated device takes: seconds of its work, and no multiple of a tile.
const SIMULATED_TOKENS: usize = 100;

/// The names of a file's tensors that a call can use.
const USED: [&str; 10] =
    ["q", "k", "v", "k_lens", "cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "bias", "sinks", "alibi_slopes"];

/// A problem and where it came from.
#[derive(Debug)]
pub(crate) struct Input {
    /// What it is, for people.
    pub(crate) label: String,
    /// Tensors of the file that a call has no use for.
    pub(crate) ignored: Vec<String>,
    /// Whether the file's q, k and v are one sequence without a batch axis.
    pub(crate) unbatched: bool,
    pub(crate) owned: OwnedProblem,
}

/// The shape of random data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) n: usize,
    pub(crate) d: usize,
}

impl Input {
    /// What the command line asks for, by default what fits the device; random data in this type.
    pub(crate) fn from_args(args: &ProblemArgs, simulated: bool, dtype: DType) -> Result<Self> {
        if let Some(path) = &args.input {
            return Input::read(path, args.mask.unwrap_or_default(), args.score);
        }
        match Shape::from_args(args.shape, simulated)? {
            None if simulated => Ok(Input::layer(args.mask, args.score)?.shortened(SIMULATED_TOKENS)),
            None => Input::layer(args.mask, args.score),
            Some(shape) => {
                shape.check_memory()?;
                Ok(Input::random(shape, dtype, args.mask.unwrap_or(Mask::Full), args.score))
            }
        }
    }

    /// The embedded layer, causal unless asked otherwise.
    fn layer(mask: Option<Mask>, score: ScoreArgs) -> Result<Self> {
        let file = safetensors_from_bytes("smollm2-layer14.safetensors", LAYER)?;
        let label = "SmolLM2-135M-Instruct, layer 14, on a short story".into();
        Ok(Input { label, ..Input::from_tensors(&file, mask.unwrap_or(Mask::Causal), score)? })
    }

    /// The first so many tokens of a layer, of which it has more.
    fn shortened(mut self, tokens: usize) -> Self {
        let first = |tensor: &Tensor| tensor.view().rows(0..tokens).to_tensor();
        let OwnedProblem { q, k, v, .. } = &mut self.owned;
        (*q, *k) = (first(q), first(k));
        if let Values::Own(v) = v {
            *v = first(v);
        }
        self.label = format!("{}, its first {tokens} tokens", self.label);
        self
    }

    /// q, k and v of a safetensors file, with whatever else it holds that a call can use.
    pub(crate) fn read(path: &Path, mask: Mask, score: ScoreArgs) -> Result<Self> {
        Input::from_tensors(&read_safetensors(path)?, mask, score)
    }

    fn from_tensors(file: &TensorFile, mask: Mask, score: ScoreArgs) -> Result<Self> {
        let [q, k, v] = [file.tensor("q")?, file.tensor("k")?, file.tensor("v")?].map(Tensor::clone);
        let rank = q.shape().len();
        for (name, tensor) in [("k", &k), ("v", &v)] {
            let found = tensor.shape();
            ensure!(found.len() == rank, "{}: {name}: found shape {found:?}, wanted rank {rank} as q", file.file);
        }
        let batch = batch(file)?;
        let unbatched = rank == 3 && !matches!(batch, OwnedBatch::Packed { .. });
        let [q, k, v] = [q, k, v].map(|tensor| if unbatched { tensor.insert_batch_axis() } else { tensor });
        // Beside a q of rank 3 the bias may lack the batch axis too.
        let bias = match file.tensors.get("bias") {
            None => None,
            Some(bias) if rank == 3 && bias.shape().len() == 3 => {
                Some(file.f32s_of_rank::<Ix3>("bias")?.insert_axis(Axis(0)))
            }
            Some(_) => Some(file.f32s_of_rank("bias")?),
        };
        let alibi_slopes = file.contains("alibi_slopes").then(|| file.f32s("alibi_slopes")).transpose()?;
        let sinks = file.contains("sinks").then(|| file.f32s_of_rank("sinks")).transpose()?;
        let ScoreArgs { scale, softcap } = score;
        let names = file.tensors.keys().chain(file.unread.keys());
        Ok(Input {
            label: file.file.clone(),
            ignored: names.filter(|name| !USED.contains(&name.as_str())).cloned().collect(),
            unbatched,
            owned: OwnedProblem {
                v: Values::new(v, &k),
                q,
                k,
                pages: None,
                batch,
                scale,
                mask,
                softcap,
                alibi_slopes,
                bias,
                sinks,
            },
        })
    }

    /// What is run, for people.
    pub(crate) fn describe(&self, problem: &Problem) -> String {
        format!(
            "{}: {}, q {:?}, k {:?}, v {:?}, mask {}",
            self.label,
            problem.dtype(),
            problem.q().shape(),
            problem.k().shape(),
            problem.v().shape(),
            problem.options().mask,
        )
    }

    /// Standard normal data.
    pub(crate) fn random(shape: Shape, dtype: DType, mask: Mask, score: ScoreArgs) -> Self {
        let Shape { batch, heads, kv_heads, n, d } = shape;
        let (lengths, group, ScoreArgs { scale, softcap }) = (vec![(n, n); batch], heads / kv_heads, score);
        let spec = Spec { lengths, kv_heads, group, dtype, mask, scale, softcap, seed: SEED, ..Spec::plain(n, n, d) };
        Input {
            label: format!("random N(0, 1), seed {SEED}"),
            ignored: Vec::new(),
            unbatched: false,
            owned: spec.build(),
        }
    }
}

impl Shape {
    /// The shape that the command line asks for, if it asks for one; what it leaves open is smaller on a simulated device.
    fn from_args(args: ShapeArgs, simulated: bool) -> Result<Option<Self>> {
        let ShapeArgs { n, d, heads, kv_heads, batch } = args;
        if [n, d, heads, kv_heads, batch].iter().all(Option::is_none) {
            return Ok(None);
        }
        let (some_n, some_heads) = if simulated { (128, 1) } else { (1024, 4) };
        let heads = heads.unwrap_or(kv_heads.unwrap_or(some_heads));
        let kv_heads = kv_heads.unwrap_or(heads);
        ensure!(heads % kv_heads == 0, "--kv-heads: found {kv_heads}, wanted a divisor of --heads {heads}");
        Ok(Some(Shape { batch: batch.unwrap_or(1), heads, kv_heads, n: n.unwrap_or(some_n), d: d.unwrap_or(64) }))
    }

    /// Whether the machine can climb it.
    pub(crate) fn check_memory(self) -> Result<()> {
        let [batch, heads, kv_heads, n, d] = [self.batch, self.heads, self.kv_heads, self.n, self.d].map(|x| x as f64);
        check_memory(batch * heads, batch * heads * n * n, batch * 2.0 * (heads + kv_heads) * n * d)
    }
}

/// Whether the machine has the memory to climb `problem`.
pub(crate) fn check_problem_memory(problem: &Problem) -> Result<()> {
    let (heads, kv_heads) = (problem.heads() as f64, problem.kv_heads() as f64);
    let channels = (problem.d() + problem.d_v()) as f64;
    let (mut pairs, mut elements) = (0.0, 0.0);
    for sequence in problem.sequences() {
        let (q_len, k_len) = (sequence.q.len() as f64, sequence.k.len() as f64);
        pairs += heads * q_len * k_len;
        elements += (heads * q_len + kv_heads * k_len) * channels;
    }
    check_memory(problem.sequences().len() as f64 * heads, pairs, elements)
}

/// Refuses what would not fit, before anything large is allocated: the tensors, and two f32 for each of `pairs`, which are
/// 0 without naive. Counted in floating point, which cannot overflow.
pub(crate) fn check_memory(heads: f64, pairs: f64, elements: f64) -> Result<()> {
    let scores = 2.0 * size_of::<f32>() as f64 * pairs;
    // Of each element of q, k, v and o: the tensor, the oracle's f64 copies, the results that are compared.
    let tensors = 40.0 * elements + 512.0 * heads;
    let available = memory::available();
    if scores + tensors > available as f64 {
        let naive = format!("naive needs {} for S and P, and ", format::bytes(scores));
        bail!(
            "{}the tensors need {}, but {} of memory are available: choose a smaller shape",
            if pairs > 0.0 { naive } else { String::new() },
            format::bytes(tensors),
            format::bytes(available as f64),
        );
    }
    Ok(())
}

/// How the file says that its sequences lie in the tensors.
fn batch(file: &TensorFile) -> Result<OwnedBatch> {
    let has = |name: &str| file.contains(name);
    let packed = ["cu_seqlens", "cu_seqlens_q", "cu_seqlens_k"].into_iter().find(|&name| has(name));
    Ok(match packed {
        Some(packed) if has("k_lens") => bail!("{}: found both k_lens and {packed}, wanted one of them", file.file),
        Some("cu_seqlens") if has("cu_seqlens_q") || has("cu_seqlens_k") => {
            bail!(
                "{}: found both cu_seqlens and cu_seqlens_q or _k, wanted one list for both or one for each",
                file.file
            )
        }
        Some("cu_seqlens") => {
            let both = file.lengths("cu_seqlens")?;
            OwnedBatch::Packed { cu_seqlens_q: both.clone(), cu_seqlens_k: both }
        }
        Some(_) => OwnedBatch::Packed {
            cu_seqlens_q: file.lengths("cu_seqlens_q")?,
            cu_seqlens_k: file.lengths("cu_seqlens_k")?,
        },
        None if has("k_lens") => OwnedBatch::KeyLens(file.lengths("k_lens")?),
        None => OwnedBatch::Dense,
    })
}
