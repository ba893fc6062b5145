//! Results, in memory that other libraries take over.

use crate::dlpack::{self, CPU, DataType, Deleter, Element, Legacy, Managed, Versioned};
use attention::{AttentionError, filled};
use ndarray::{ArrayD, ArrayViewMut, ArrayViewMutD};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// JAX takes only memory that starts on such a boundary without a copy.
const ALIGNMENT: usize = 64;

/// Memory for a result: row-major, on a boundary of [`ALIGNMENT`] bytes.
pub(crate) struct Buffer<T> {
    memory: ArrayD<T>,
    start: usize,
    shape: Vec<usize>,
}

impl<T: Element> Buffer<T> {
    pub(crate) fn filled(what: &'static str, shape: Vec<usize>, fill: T) -> Result<Self, AttentionError> {
        let len = shape.iter().fold(1, |product: usize, &n| product.saturating_mul(n));
        let memory = filled(what, &[len.saturating_add(ALIGNMENT / size_of::<T>())], fill)?;
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Ok(Buffer { memory, start, shape })
    }

    pub(crate) fn view_mut(&mut self) -> ArrayViewMutD<'_, T> {
        let memory = self.memory.as_slice_mut().expect("it was made in one piece");
        let len: usize = self.shape.iter().product();
        let place = &mut memory[self.start..self.start + len];
        ArrayViewMut::from_shape(self.shape.clone(), place).expect("the lengths agree")
    }

    pub(crate) fn export(mut self) -> Export {
        let data = self.view_mut().as_mut_ptr().cast();
        let shape: Vec<i64> = self.shape.iter().map(|&n| n as i64).collect();
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis].max(1);
        }
        let parts = Parts { data, dtype: T::TYPE, shape, strides, _memory: Box::new(self.memory) };
        Export(Mutex::new(Some(parts)))
    }
}

/// A result of flash_ladder, for the from_dlpack of an array library, which takes its memory over. It can be taken once.
#[pyclass(frozen, name = "Result", module = "flash_ladder")]
pub(crate) struct Export(Mutex<Option<Parts>>);

/// A tensor and its memory.
struct Parts {
    data: *mut c_void,
    dtype: DataType,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _memory: Box<dyn Any + Send>,
}

// SAFETY: `data` points into the memory that goes with it, which may itself change threads.
unsafe impl Send for Parts {}

#[pymethods]
impl Export {
    /// The tensor in a capsule. There is no stream to wait for on a CPU, and memory that is given away needs no copy.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = (stream, copy);
        if let Some((kind, _)) = dl_device.filter(|&(kind, _)| kind != CPU.kind) {
            return Err(PyBufferError::new_err(format!(
                "dl_device: found device type {kind}, wanted the CPU's, {}",
                CPU.kind
            )));
        }
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let parts = parts.ok_or_else(|| PyBufferError::new_err("a result of flash_ladder can be taken only once"))?;
        match max_version {
            Some((1.., _)) => capsule::<Versioned>(py, parts),
            _ => capsule::<Legacy>(py, parts),
        }
    }

    /// The CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (CPU.kind, CPU.id)
    }
}

/// What a capsule of ours points to. The managed tensor comes first, so that a pointer to one is a pointer to both.
#[repr(C)]
struct Exported<M> {
    managed: M,
    parts: Parts,
}

fn capsule<M: Managed>(py: Python<'_>, mut parts: Parts) -> PyResult<Bound<'_, PyCapsule>> {
    // The lists stay where they are when `parts` moves.
    let tensor = dlpack::Tensor {
        data: parts.data,
        device: CPU,
        ndim: parts.shape.len() as i32,
        dtype: parts.dtype,
        shape: parts.shape.as_mut_ptr(),
        strides: parts.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let deleter: Deleter<M> = Some(delete::<M>);
    let exported = NonNull::from(Box::leak(Box::new(Exported { managed: M::new(tensor, deleter), parts })));
    // SAFETY: the pointer is what a capsule of this name must hold, and valid until its deleter is called: by the consumer,
    // who renames the capsule, or else by `unused`.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, exported.cast(), M::NAME, Some(unused::<M>)) }
}

/// Frees an exported tensor. It needs nothing of Python, so that a consumer may call it from any thread.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    // SAFETY: `managed` is the head of an `Exported<M>` that `capsule` leaked, and deleters are called once.
    drop(unsafe { Box::from_raw(managed.cast::<Exported<M>>()) });
}

/// Frees what is in a capsule that nobody took.
unsafe extern "C" fn unused<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this once, with a capsule of ours; while it has its first name, the tensor is still in it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) != 0 {
            delete(ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast::<M>());
        }
    }
}
