//! Calls on tensors in a GPU's memory: kernels are put into PyTorch's stream, and nothing is waited for.
//!
//! **Order.** Inputs are ready for whatever comes behind them in PyTorch's current stream. Kernels go there, so its tensors are
//! asked for without synchronisation (DLPack's stream -1). Other libraries' tensors, and all where the caller names another
//! stream, are asked for with the stream as DLPack has it: the producer then lets that stream wait for its own, by an event.
//!
//! **Memory.** o, lse and the workspace are PyTorch's, allocated while the stream is its current one. It gives memory that is
//! freed again only to work of the same stream, which comes later, so that the workspace can be freed when the call returns,
//! before the kernels run. In a capture it comes out of the graph's own pool, and stays with it. Inputs are given back when the
//! call returns, too: those of PyTorch may go by the same rule; those of other libraries the caller keeps until the stream is
//! done.
//!
//! **Lengths.** The plan is made of the sequences' lengths, on the host. Kernels that read a table of them have it as another
//! kernel's argument, which writes it into the workspace: no memory of the host is read after the call, and nobody waits.
//!
//! **Contexts.** PyTorch and the rungs share each GPU's primary context. What was the thread's current one is so afterwards.

use crate::dlpack::Device as Place;
use crate::import::{Borrowed, UNSYNCHRONISED, refuse};
use crate::torch::Torch;
use crate::{Call, Tensors, refused};
use attention::Problem;
use cuda_fa2::{CudaRung, DeviceTensor, Plan, Shape};
use device::{Device, DeviceError, keeping_context};
use ladder::registry::DeviceRung;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Alignment of what shares the scratch memory.
const ALIGNMENT: usize = 256;

/// `flash_ladder.attention` on a GPU.
pub(crate) fn attention<'py>(call: &Call<'_, 'py>, ordinal: usize) -> PyResult<Bound<'py, PyAny>> {
    let entry = call.device_rung()?;
    let torch = match call.out {
        Some(out) => Torch::of("out", out, "a tensor of PyTorch")?,
        None => Torch::of("q", call.q, "a tensor of PyTorch on a GPU, or one as out")?,
    };
    torch.on_device(ordinal, || {
        let current = torch.current_stream(ordinal)?;
        let stream = match call.stream {
            None => current,
            // DLPack and CUDA call the default stream 1, PyTorch 0.
            Some(1) => 0,
            // Memory of PyTorch's that one thread has freed would be another's, whose stream of that name runs beside it.
            Some(2) => {
                let wanted = "one that is the same in all threads, as those of torch.cuda.Stream are";
                return Err(refuse("stream", "2, the default stream of each thread", wanted));
            }
            Some(stream) => stream,
        };
        let place = Place::of_cuda(ordinal);
        let take = |name, object: &Bound<'py, PyAny>| {
            let ordered = stream == current && torch.owns(object)?;
            Borrowed::take(name, object, place, Some(if ordered { UNSYNCHRONISED } else { stream.max(1) as i64 }))
        };
        let tensors = call.borrow(take)?;
        let problem = tensors.problem(call)?;
        let rung = rung(entry, ordinal, stream).map_err(failed)?;
        let plan = rung.plan(&Shape::from(&problem), problem.options()).map_err(refused)?;
        let out = call.out.map(|out| take("out", out)).transpose()?;
        let prepare = || Prepared::new(call, &torch, &tensors, &problem, &plan, out.as_ref());
        let prepared = if stream == current { prepare() } else { torch.on_stream(stream, prepare) }?;
        plan.check(&prepared.tensors).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let launched = call.q.py().detach(|| launch(&rung, &plan, &prepared.tensors, stream));
        launched.map_err(failed)?;
        call.results(prepared.o, || Ok(prepared.lse.expect("it was asked for")))
    })
}

/// Where everything lies, and what keeps it.
struct Prepared<'py> {
    tensors: cuda_fa2::Tensors,
    o: Bound<'py, PyAny>,
    lse: Option<Bound<'py, PyAny>>,
    /// The workspace, the table of sequences, and the lse if nobody asks for it.
    _scratch: Option<Bound<'py, PyAny>>,
}

impl<'py> Prepared<'py> {
    fn new(
        call: &Call<'_, 'py>,
        torch: &Torch<'py>,
        tensors: &Tensors,
        problem: &Problem,
        plan: &Plan,
        out: Option<&Borrowed>,
    ) -> PyResult<Self> {
        let py = call.q.py();
        let (o_shape, lse_shape) = (problem.o_shape(), problem.lse_shape());
        let (o, o_at) = match (call.out, out) {
            (Some(out), Some(borrowed)) => (out.clone(), borrowed.on_device_mut(&tensors.q, &o_shape)?),
            _ => {
                let (o, address) = torch.empty(&o_shape, &call.q.getattr(intern!(py, "dtype"))?)?;
                (o, row_major(address, &o_shape))
            }
        };
        let own_lse = if call.return_lse { Some(torch.empty(&lse_shape, &torch.dtype("float32")?)?) } else { None };
        fill_rows_of_no_sequence(problem, call.out.is_none().then_some(&o), own_lse.as_ref().map(|(lse, _)| lse))?;
        let table_at = plan.workspace_bytes().next_multiple_of(ALIGNMENT);
        let lse_at = (table_at + plan.sequences().len()).next_multiple_of(ALIGNMENT);
        let lse_bytes = if own_lse.is_some() { 0 } else { lse_shape.iter().product::<usize>() * size_of::<f32>() };
        let scratch = lse_at + lse_bytes;
        let scratch = if scratch > 0 { Some(torch.empty(&[scratch], &torch.dtype("uint8")?)?) } else { None };
        let workspace = scratch.as_ref().map_or(0, |(_, address)| *address);
        let lse_address = own_lse.as_ref().map_or(workspace + lse_at as u64, |(_, address)| *address);
        let optional =
            |tensor: &Option<Borrowed>, after| tensor.as_ref().map(|tensor| tensor.on_device(after)).transpose();
        let tensors = cuda_fa2::Tensors {
            q: tensors.q.on_device(0)?,
            k: tensors.k.on_device(0)?,
            v: tensors.v.on_device(0)?,
            o: o_at,
            lse: row_major(lse_address, &[lse_shape, vec![1]].concat()),
            alibi_slopes: optional(&tensors.alibi_slopes, 2)?,
            bias: optional(&tensors.bias, 0)?,
            sinks: optional(&tensors.sinks, 0)?.map(|sinks| without_gaps(sinks, problem.heads())).transpose()?,
            workspace,
            sequences: workspace + table_at as u64,
        };
        Ok(Prepared { tensors, o, lse: own_lse.map(|(lse, _)| lse), _scratch: scratch.map(|(scratch, _)| scratch) })
    }
}

/// Makes packed rows behind the last sequence what they are on the CPU: 0, and the lse -inf. Kernels leave them alone, and so
/// does a call whose result goes to memory of the caller's.
fn fill_rows_of_no_sequence(problem: &Problem, o: Option<&Bound<PyAny>>, lse: Option<&Bound<PyAny>>) -> PyResult<()> {
    let (rows, end) = (problem.q().shape()[1], problem.sequences().last().map_or(0, |sequence| sequence.q.end));
    if problem.is_packed() && end < rows {
        for (tensor, value) in [(o, 0.0), (lse, f32::NEG_INFINITY)] {
            if let Some(tensor) = tensor {
                tensor.call_method1("narrow", (1, end, rows - end))?.call_method1("fill_", (value,))?;
            }
        }
    }
    Ok(())
}

/// A tensor of rank 4 without gaps; or of rank 3, with a batch stride of 0.
fn row_major(address: u64, shape: &[usize]) -> DeviceTensor {
    let (mut strides, first) = ([0, 0, 0, 1], 4 - shape.len());
    for axis in (first..3).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1 - first] as i64;
    }
    DeviceTensor { address, strides }
}

/// The address of sinks, of which kernels know no stride.
fn without_gaps(sinks: DeviceTensor, heads: usize) -> PyResult<u64> {
    match sinks.strides[3] {
        stride if stride != 1 && heads > 1 => Err(refuse("sinks", format!("stride {stride}"), "1, on a GPU")),
        _ => Ok(sinks.address),
    }
}

/// Puts a planned call into a stream of PyTorch's, and before it what writes the table of sequences, if there is one.
fn launch(rung: &CudaRung, plan: &Plan, tensors: &cuda_fa2::Tensors, stream: u64) -> Result<(), DeviceError> {
    keeping_context(|| {
        // SAFETY: it is PyTorch's current stream, or what the caller says is a stream, for the length of this call.
        let stream = unsafe { rung.device().foreign_stream(stream) }?;
        // SAFETY: the plan is that of these tensors' lengths and options. Inputs are alive, by DLPack, until this call returns;
        // then PyTorch's, with results and scratch, by its rules for as long as the stream needs them. Those of other libraries,
        // whose memory may be anyone's once it is freed, the caller keeps until the stream is done. Nobody writes to the inputs
        // before the kernels have read them, and `out` shares nothing with them: that too is the caller's part of the contract.
        // The table's place is scratch, too, and comes before the call that reads it.
        unsafe {
            rung.put_sequences(plan, tensors.sequences, &stream)?;
            rung.launch(plan, tensors, &stream)
        }
    })
}

/// The rung on a GPU, made when it is first asked for and kept as long as the process lives, with the kernels that it loads.
fn rung(entry: &'static DeviceRung, ordinal: usize, stream: u64) -> Result<Arc<CudaRung>, DeviceError> {
    type Kept = (Device, HashMap<&'static str, Arc<CudaRung>>);
    static GPUS: Mutex<Option<HashMap<usize, Kept>>> = Mutex::new(None);
    let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    let gpus = gpus.get_or_insert_default();
    if let Some(rung) = gpus.get(&ordinal).and_then(|(_, rungs)| rungs.get(entry.name)) {
        return Ok(rung.clone());
    }
    keeping_context(|| {
        let device = gpus.get(&ordinal).map_or_else(|| Device::cuda(ordinal), |(device, _)| Ok(device.clone()))?;
        // SAFETY: as in `launch`.
        if unsafe { device.foreign_stream(stream) }?.is_captured()? {
            return Err(DeviceError::Value {
                name: "stream".into(),
                found: format!("one that is captured, and {} not loaded", entry.name),
                wanted: "a call like it before the capture".into(),
            });
        }
        let rung = Arc::new(entry.build(&device)?);
        gpus.entry(ordinal).or_insert((device, HashMap::new())).1.insert(entry.name, rung.clone());
        Ok(rung)
    })
}

fn failed(error: DeviceError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}
