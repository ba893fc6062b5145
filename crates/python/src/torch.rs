//! What is asked of PyTorch, which owns streams and memory of a GPU.

use crate::import::refuse;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// PyTorch, for tensors on one of its GPUs.
pub(crate) struct Torch<'py> {
    torch: Bound<'py, PyModule>,
    cuda: Bound<'py, PyAny>,
    tensor: Bound<'py, PyAny>,
    /// The `torch.device` of the GPU.
    device: Bound<'py, PyAny>,
}

impl<'py> Torch<'py> {
    /// The PyTorch of `owner`, which must be a tensor of it: JAX, for one, has no memory that others may write to.
    pub(crate) fn of(name: &'static str, owner: &Bound<'py, PyAny>, wanted: &str) -> PyResult<Self> {
        let py = owner.py();
        let loaded = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
        let loaded = loaded.cast_into::<PyDict>()?.get_item(intern!(py, "torch"))?;
        let torch = loaded.and_then(|torch| torch.cast_into::<PyModule>().ok());
        let tensor = torch.as_ref().map(|torch| torch.getattr(intern!(py, "Tensor"))).transpose()?;
        match (torch, tensor) {
            (Some(torch), Some(tensor)) if owner.is_instance(&tensor)? => {
                let (cuda, device) = (torch.getattr(intern!(py, "cuda"))?, owner.getattr(intern!(py, "device"))?);
                Ok(Torch { torch, cuda, tensor, device })
            }
            _ => Err(refuse(name, owner.get_type(), wanted)),
        }
    }

    /// Whether an object is one of its tensors.
    pub(crate) fn owns(&self, object: &Bound<'py, PyAny>) -> PyResult<bool> {
        object.is_instance(&self.tensor)
    }

    /// The handle of the current stream of a GPU, on this thread.
    pub(crate) fn current_stream(&self, ordinal: usize) -> PyResult<u64> {
        let py = self.torch.py();
        let stream = self.cuda.call_method1(intern!(py, "current_stream"), (ordinal,))?;
        stream.getattr(intern!(py, "cuda_stream"))?.extract()
    }

    /// Does `work` while a GPU is PyTorch's current device: it hands out tensors of no other.
    pub(crate) fn on_device<T>(&self, ordinal: usize, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
        let py = self.torch.py();
        let current: usize = self.cuda.call_method0(intern!(py, "current_device"))?.extract()?;
        if current == ordinal {
            return work();
        }
        within(&self.cuda.call_method1(intern!(py, "device"), (ordinal,))?, work)
    }

    /// Does `work` while a stream is the current one.
    pub(crate) fn on_stream<T>(&self, stream: u64, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
        let stream = match stream {
            // ExternalStream takes 0 for no handle, and makes a stream of its own.
            0 => self.cuda.call_method1("default_stream", (&self.device,))?,
            _ => self.cuda.call_method1("ExternalStream", (stream, &self.device))?,
        };
        within(&self.cuda.call_method1("stream", (stream,))?, work)
    }

    /// A tensor of that shape and type in memory of the caching allocator, and its address, a multiple of 512.
    pub(crate) fn empty(&self, shape: &[usize], dtype: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, u64)> {
        let py = self.torch.py();
        let words = PyDict::new(py);
        words.set_item(intern!(py, "dtype"), dtype)?;
        words.set_item(intern!(py, "device"), &self.device)?;
        let tensor = self.torch.call_method(intern!(py, "empty"), (shape,), Some(&words))?;
        let address = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
        Ok((tensor, address))
    }

    /// One of its types.
    pub(crate) fn dtype(&self, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.torch.getattr(name)
    }
}

/// Does `work` within a context manager.
fn within<T>(manager: &Bound<'_, PyAny>, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    manager.call_method0("__enter__")?;
    let done = work();
    let none = manager.py().None();
    manager.call_method1("__exit__", (&none, &none, &none))?;
    done
}
