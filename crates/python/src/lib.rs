//! The rungs for Python. Tensors come and go over DLPack, so NumPy, PyTorch and JAX arrays are read where they lie, and
//! results are theirs without a copy.
//!
//! `dlpack.rs` is the layout of DLPack in memory, `import.rs` borrows tensors, `export.rs` gives results away. All that is
//! unsafe is in these three; the sum of their contracts is DLPack's: a producer keeps its tensor alive and in place until
//! the deleter is called, once.

mod dlpack;
mod export;
mod import;

use ::attention::{Attention, AttentionError, DType, Mask, Options, OutputMut, Problem, TensorViewMut};
use dlpack::Float;
use export::{Buffer, Export};
use half::{bf16, f16};
use import::Borrowed;
use ladder::registry::{self, RUNGS, Settings};
use ndarray::{ArrayViewMutD, Ix1, Ix4, IxDyn};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

/// Attention, one rung at a time: the rungs of flash-ladder on arrays of any library that speaks DLPack.
#[pymodule(name = "flash_ladder")]
mod module {
    #[pymodule_export]
    use super::{attention, rungs};
}

/// The names of the rungs, from the lowest up.
#[pyfunction]
fn rungs() -> Vec<&'static str> {
    RUNGS.iter().map(|rung| rung.name).collect()
}

/// softmax(scale q k^T + ...) v, computed by one rung.
///
/// q is [batch, heads, q_len, d], k [batch, kv_heads, kv_len, d] and v [batch, kv_heads, kv_len, d_v], on the CPU, of one
/// type: float32, float16 or bfloat16 (or float64, with rung="oracle"). Query head h reads kv head
/// h // (heads // kv_heads). They are read where they lie, with any strides, while other Python threads run; as in
/// PyTorch, nobody may write to them during the call. Nothing is recorded for a gradient.
///
/// causal: row i sees key j if j <= i + kv_len - q_len: the last row sits on the last key.
/// scale: the factor of q k^T; None is 1/sqrt(d).
/// window: (left, right), the keys before and after its own that a row sees besides it; negative is no limit.
///     causal=True makes right 0.
/// softcap: scores become softcap * tanh(score / softcap); 0 is off.
/// sinks: float32 [heads], one more logit per head in the denominator, with no value.
/// alibi_slopes: float32 [heads] or [batch, heads]; a score loses slope * |i + kv_len - q_len - j|.
/// bias: float32 [batch or 1, heads or 1, q_len, kv_len], added to the scores.
/// rung: one of rungs(), or "oracle". "mla-absorbed" wants one kv head, and v a view of the first channels of k.
/// return_lse: whether the result is (o, lse), lse being float32 [batch, heads, q_len]: the natural logarithm of the sum
///     of e^score, without the sink.
///
/// Returns o, [batch, heads, q_len, d_v], of q's type and by the from_dlpack of q's library. A row that sees no key is 0,
/// and its lse -inf. Raises TypeError for an argument that is no array, and ValueError for one that does not fit.
#[pyfunction]
#[pyo3(signature = (q, k, v, *, causal=false, scale=None, window=None, softcap=0.0, sinks=None, alibi_slopes=None,
    bias=None, rung="fa2-simd", return_lse=false))]
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
    rung: &str,
    return_lse: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = q.py();
    let Some(rung) = registry::attention(rung, Settings::default()) else {
        let names = rungs().join(", ");
        return Err(PyValueError::new_err(format!(
            "rung: found {rung:?}, wanted one of {names} or {}",
            registry::ORACLE
        )));
    };
    let optional = |name, object: Option<&Bound<'py, PyAny>>| object.map(|o| Borrowed::take(name, o)).transpose();
    let [q_tensor, k, v] = [Borrowed::take("q", q)?, Borrowed::take("k", k)?, Borrowed::take("v", v)?];
    let sinks = optional("sinks", sinks)?;
    let alibi_slopes = optional("alibi_slopes", alibi_slopes)?;
    let bias = optional("bias", bias)?;
    let options = Options {
        scale,
        mask: match (window, causal) {
            (None, false) => Mask::Full,
            (None, true) => Mask::Causal,
            (Some((left, right)), _) => Mask::window(left, if causal { 0 } else { right }),
        },
        softcap,
        sinks: sinks.as_ref().map(Borrowed::view_f32::<Ix1>).transpose()?,
        alibi_slopes: alibi_slopes.as_ref().map(Borrowed::view_f32::<IxDyn>).transpose()?,
        bias: bias.as_ref().map(Borrowed::view_f32::<Ix4>).transpose()?,
    };
    let problem = Problem::dense(q_tensor.view()?, k.view()?, v.view()?, options).map_err(refused)?;
    let compute = match problem.dtype() {
        DType::F32 => compute::<f32>,
        DType::F64 => compute::<f64>,
        DType::F16 => compute::<f16>,
        DType::Bf16 => compute::<bf16>,
        DType::E4m3 => unreachable!("no tensor is taken in as E4m3"),
    };
    let (o, lse) = py.detach(|| compute(rung.as_ref(), &problem)).map_err(refused)?;
    let o = hand_over(q, o)?;
    Ok(if return_lse { PyTuple::new(py, [o, hand_over(q, lse)?])?.into_any() } else { o })
}

fn compute<T: Float>(rung: &dyn Attention, problem: &Problem) -> Result<(Export, Export), AttentionError>
where
    for<'a> TensorViewMut<'a>: From<ArrayViewMutD<'a, T>>,
{
    rung.supports(problem)?;
    let mut o = Buffer::<T>::zeros("o", problem.o_shape())?;
    let mut lse = Buffer::<f32>::zeros("lse", problem.lse_shape())?;
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

fn refused(error: AttentionError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
