//! The rungs for Python. Tensors come and go over DLPack, so NumPy, PyTorch and JAX arrays are read where they lie, and
//! results are theirs without a copy.
//!
//! `dlpack.rs` is the layout of DLPack in memory, `import.rs` borrows tensors, by `exchange.rs` where it is for free,
//! `export.rs` gives results away. What is unsafe is in these four; the sum of their contracts is DLPack's: a producer keeps its tensor alive and in place until the
//! deleter is called, once. And it is in `cuda.rs`, which launches kernels on tensors in a GPU's memory; `torch.rs` asks
//! PyTorch for the stream and for memory. `ragged.rs` reads where the sequences of a packed batch lie.

mod cuda;
mod dlpack;
mod exchange;
mod export;
mod import;
mod ragged;
mod torch;

use ::attention::{Attention, AttentionError, Batch, DType, Kv, Mask, Options, OutputMut, Problem, TensorViewMut};
use dlpack::{CPU, Element};
use export::{Buffer, Export};
use half::{bf16, f16};
use import::{Borrowed, device_of, explain, refuse};
use ladder::registry::{self, DEVICE_RUNGS, DeviceRung, ORACLE, RUNGS, Settings};
use ndarray::{ArrayViewMutD, Ix1, Ix4, IxDyn};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};
use ragged::Offsets;

/// The rungs that are taken where none is named.
const ON_CPU: &str = "fa2-simd";
const ON_CUDA: &str = "cuda-fa2";

/// Attention, one rung at a time: the rungs of flash-ladder on arrays of any library that speaks DLPack.
#[pymodule(name = "flash_ladder")]
mod module {
    #[pymodule_export]
    use super::{attention, rungs};
}

/// The names of the rungs for arrays on that device, "cpu" or "cuda", from the lowest up.
#[pyfunction]
#[pyo3(signature = (device="cpu"))]
fn rungs(device: &str) -> PyResult<Vec<&'static str>> {
    match device {
        "cpu" => Ok(RUNGS.iter().map(|rung| rung.name).collect()),
        "cuda" => Ok(on_cuda().collect()),
        other => Err(refuse("device", format!("{other:?}"), "cpu or cuda")),
    }
}

/// The names of the rungs for a GPU.
fn on_cuda() -> impl Iterator<Item = &'static str> {
    DEVICE_RUNGS.iter().map(|rung| rung.name)
}

/// softmax(scale q k^T + ...) v, computed by one rung.
///
/// q is [batch, heads, q_len, d], k [batch, kv_heads, kv_len, d] and v [batch, kv_heads, kv_len, d_v], all on the CPU or all
/// on one GPU, of one type: float32, float16 or bfloat16 (or float64, with rung="oracle"). Query head h reads kv head
/// h // (heads // kv_heads). They are read where they lie, with any strides, while other Python threads run; as in
/// PyTorch, nobody may write to them during the call. Nothing is recorded for a gradient.
///
/// causal: row i sees key j if j <= i + kv_len - q_len: the last row sits on the last key.
/// scale: the factor of q k^T; None is 1/sqrt(d).
/// window: (left, right), the keys before and after its own that a row sees besides it; negative is no limit.
///     causal=True makes right 0.
/// softcap: scores become softcap * tanh(score / softcap); 0 is off.
/// sinks: float32 [heads], one more logit per head in the denominator, with no value; on a GPU without gaps.
/// alibi_slopes: float32 [heads] or [batch, heads]; a score loses slope * |i + kv_len - q_len - j|.
/// bias: float32 [batch or 1, heads or 1, q_len, kv_len], added to the scores.
/// cu_seqlens_q, cu_seqlens_k: of a packed batch, whose sequences lie one behind the other: where their rows begin, and the
///     last end. q is then [heads, total_q, d], k [kv_heads, total_kv, d] and v [kv_heads, total_kv, d_v], and sequence b is rows
///     cu_seqlens_q[b] to before cu_seqlens_q[b + 1] of q, and likewise of k and v. Lists or tuples of int, or arrays of int32
///     or int64 in main memory, both or neither, of length batch + 1, which begin with 0 and do not fall; equal neighbours are
///     an empty sequence. They are copied before the call returns. Rows behind the last sequence are 0, their lse -inf; of out
///     they stay what they were. A bias has the lengths of the longest sequences.
/// rung: one of rungs(), or "oracle"; on a GPU one of rungs("cuda"). None is "fa2-simd", on a GPU "cuda-fa2".
///     "mla-absorbed" wants one kv head, and v a view of the first channels of k.
/// return_lse: whether the result is (o, lse), lse being float32 [batch, heads, q_len], packed [heads, total_q]: the natural
///     logarithm of the sum of e^score, without the sink.
/// out: on a GPU, a PyTorch tensor for o, with any strides, which shares no memory with the inputs.
/// stream: on a GPU, the cuda_stream of the torch.cuda.Stream to work on, which is then what it would be within
///     torch.cuda.stream(...), but that it waits for the work that was put into the current stream before; None is the
///     current stream, 0 or 1 the default one; 2, CUDA's name for a default stream of each thread, is refused. A number that
///     is no stream's is not noticed, and may end the process.
///
/// On a GPU nothing is copied and nothing waited for: the call puts kernels into the stream and returns. It can be captured
/// in a CUDA graph, once a call like it has been made before, which loads the kernels; the graph keeps the lengths that the
/// call had. The call gives its inputs back when it returns, before the kernels have read them. PyTorch keeps order for its
/// tensors; those of other libraries (JAX, CuPy) must live, and nobody may write to them, until the stream is done.
///
/// Returns o, [batch, heads, q_len, d_v], packed [heads, total_q, d_v], of q's type and by the from_dlpack of q's library; on
/// a GPU by torch.empty, or out. A row that sees no key is 0, and its lse -inf. Raises TypeError for an argument that is no
/// array, ValueError for one that does not fit, and RuntimeError for a GPU that fails.
#[pyfunction]
#[pyo3(signature = (q, k, v, *, causal=false, scale=None, window=None, softcap=0.0, sinks=None, alibi_slopes=None,
    bias=None, cu_seqlens_q=None, cu_seqlens_k=None, rung=None, return_lse=false, out=None, stream=None))]
#[expect(clippy::too_many_arguments, reason = "they are keywords")]
fn attention<'py>(
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    v: &Bound<'py, PyAny>,
    causal: bool,
    scale: Option<f64>,
    window: Option<(i64, i64)>,
    softcap: f64,
    sinks: Option<&Bound<'py, PyAny>>,
    alibi_slopes: Option<&Bound<'py, PyAny>>,
    bias: Option<&Bound<'py, PyAny>>,
    cu_seqlens_q: Option<&Bound<'py, PyAny>>,
    cu_seqlens_k: Option<&Bound<'py, PyAny>>,
    rung: Option<&str>,
    return_lse: bool,
    out: Option<&Bound<'py, PyAny>>,
    stream: Option<u64>,
) -> PyResult<Bound<'py, PyAny>> {
    let mask = match (window, causal) {
        (None, false) => Mask::Full,
        (None, true) => Mask::Causal,
        (Some((left, right)), _) => Mask::window(left, if causal { 0 } else { right }),
    };
    let offsets = Offsets::read(cu_seqlens_q, cu_seqlens_k)?;
    let call =
        Call { q, k, v, mask, scale, softcap, sinks, alibi_slopes, bias, offsets, rung, return_lse, out, stream };
    let device = device_of(q).map_err(|error| explain("q", q, error))?;
    match device.and_then(dlpack::Device::cuda) {
        Some(ordinal) => cuda::attention(&call, ordinal),
        None => call.on_cpu(),
    }
}

/// The arguments of a call.
struct Call<'a, 'py> {
    q: &'a Bound<'py, PyAny>,
    k: &'a Bound<'py, PyAny>,
    v: &'a Bound<'py, PyAny>,
    mask: Mask,
    scale: Option<f64>,
    softcap: f64,
    sinks: Option<&'a Bound<'py, PyAny>>,
    alibi_slopes: Option<&'a Bound<'py, PyAny>>,
    bias: Option<&'a Bound<'py, PyAny>>,
    /// Of a packed batch.
    offsets: Option<Offsets>,
    rung: Option<&'a str>,
    return_lse: bool,
    out: Option<&'a Bound<'py, PyAny>>,
    stream: Option<u64>,
}

/// Its tensors, borrowed.
struct Tensors {
    q: Borrowed,
    k: Borrowed,
    v: Borrowed,
    sinks: Option<Borrowed>,
    alibi_slopes: Option<Borrowed>,
    bias: Option<Borrowed>,
}

impl<'py> Call<'_, 'py> {
    fn on_cpu(&self) -> PyResult<Bound<'py, PyAny>> {
        let name = self.rung.unwrap_or(ON_CPU);
        let Some(rung) = registry::attention(name, Settings::default()) else {
            let found =
                registry::device_rung(name).map_or_else(|| format!("{name:?}"), |_| elsewhere(name, "on a GPU"));
            let names: Vec<_> = RUNGS.iter().map(|rung| rung.name).collect();
            return Err(refuse("rung", found, format!("one of {} or {ORACLE}", names.join(", "))));
        };
        let gpus = [("out", self.out.is_some()), ("stream", self.stream.is_some())];
        if let Some((name, _)) = gpus.into_iter().find(|(_, given)| *given) {
            return Err(refuse(name, "one for tensors on the CPU", "None, but for those on a GPU"));
        }
        let tensors = self.borrow(|name, object| Borrowed::take(name, object, CPU, None))?;
        let problem = tensors.problem(self)?;
        let compute = match problem.dtype() {
            DType::F32 => compute::<f32>,
            DType::F64 => compute::<f64>,
            DType::F16 => compute::<f16>,
            DType::Bf16 => compute::<bf16>,
            DType::E4m3 => unreachable!("no tensor is taken in as E4m3"),
        };
        let (o, lse) = self.q.py().detach(|| compute(rung.as_ref(), &problem)).map_err(refused)?;
        let o = hand_over(self.q, o)?;
        self.results(o, || hand_over(self.q, lse))
    }

    /// The rung for a GPU.
    fn device_rung(&self) -> PyResult<&'static DeviceRung> {
        let name = self.rung.unwrap_or(ON_CUDA);
        registry::device_rung(name).ok_or_else(|| {
            let on_cpu = name == ORACLE || registry::rung(name).is_some();
            let found = if on_cpu { elsewhere(name, "on the CPU") } else { format!("{name:?}") };
            refuse("rung", found, format!("one of {}", on_cuda().collect::<Vec<_>>().join(", ")))
        })
    }

    fn borrow(&self, take: impl Fn(&'static str, &Bound<'py, PyAny>) -> PyResult<Borrowed>) -> PyResult<Tensors> {
        let optional = |name, object: Option<&Bound<'py, PyAny>>| object.map(|object| take(name, object)).transpose();
        Ok(Tensors {
            q: take("q", self.q)?,
            k: take("k", self.k)?,
            v: take("v", self.v)?,
            sinks: optional("sinks", self.sinks)?,
            alibi_slopes: optional("alibi_slopes", self.alibi_slopes)?,
            bias: optional("bias", self.bias)?,
        })
    }

    /// What is returned.
    fn results(
        &self,
        o: Bound<'py, PyAny>,
        lse: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Ok(if self.return_lse { PyTuple::new(o.py(), [o.clone(), lse()?])?.into_any() } else { o })
    }
}

impl Tensors {
    fn problem(&self, call: &Call) -> PyResult<Problem<'_>> {
        let options = Options {
            scale: call.scale,
            mask: call.mask,
            softcap: call.softcap,
            sinks: self.sinks.as_ref().map(Borrowed::view_f32::<Ix1>).transpose()?,
            alibi_slopes: self.alibi_slopes.as_ref().map(Borrowed::view_f32::<IxDyn>).transpose()?,
            bias: self.bias.as_ref().map(Borrowed::view_f32::<Ix4>).transpose()?,
        };
        let batch = call.offsets.as_ref().map_or(Batch::Dense, Offsets::batch);
        let kv = Kv::Contiguous { k: self.k.view()?, v: self.v.view()? };
        Problem::new(self.q.view()?, kv, batch, options).map_err(refused)
    }
}

fn compute<T: Element>(rung: &dyn Attention, problem: &Problem) -> Result<(Export, Export), AttentionError>
where
    for<'a> TensorViewMut<'a>: From<ArrayViewMutD<'a, T>>,
{
    rung.supports(problem)?;
    // As it stays for packed rows of no sequence.
    let mut o = Buffer::filled("o", problem.o_shape(), T::default())?;
    let mut lse = Buffer::filled("lse", problem.lse_shape(), f32::NEG_INFINITY)?;
    rung.forward_into(problem, &mut OutputMut { o: o.view_mut().into(), lse: lse.view_mut() })?;
    Ok((o.export(), lse.export()))
}

/// The result as an array of the library that `like` comes from. It stays what it is, for any from_dlpack, where `like`
/// does not tell.
fn hand_over<'py>(like: &Bound<'py, PyAny>, result: Export) -> PyResult<Bound<'py, PyAny>> {
    let py = like.py();
    let result = Bound::new(py, result)?.into_any();
    let library = match like.getattr_opt("__array_namespace__")? {
        Some(namespace) => Some(namespace.call0()?),
        None => library_of(&like.get_type())?,
    };
    match library {
        Some(library) => library.call_method1("from_dlpack", (result,)),
        None => Ok(result),
    }
}

/// The first top-level module with a from_dlpack among those that define a type and its bases: PyTorch and old NumPy
/// do not name their array namespace.
fn library_of<'py>(kind: &Bound<'py, PyType>) -> PyResult<Option<Bound<'py, PyAny>>> {
    for base in kind.mro() {
        let module: String = base.getattr("__module__")?.extract()?;
        let library = kind.py().import(module.split('.').next().unwrap_or_default())?;
        if library.hasattr("from_dlpack")? {
            return Ok(Some(library.into_any()));
        }
    }
    Ok(None)
}

/// A rung that is there, but not for these tensors.
fn elsewhere(rung: &str, place: &str) -> String {
    format!("{rung:?}, whose tensors lie {place}")
}

fn refused(error: AttentionError) -> PyErr {
    match error {
        AttentionError::Device { .. } => PyRuntimeError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}
