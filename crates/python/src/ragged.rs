//! Where the sequences of a packed batch lie, as a caller says it.

use crate::dlpack::{CPU, Device};
use crate::import::{Borrowed, device_of, explain, refuse};
use attention::Batch;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyTuple};

/// Offsets of the sequences' rows in q, and in k and v. Whether they fit the tensors and each other, the problem says.
pub(crate) struct Offsets {
    q: Vec<i32>,
    k: Vec<i32>,
}

impl Offsets {
    /// Both lists, or none: those of k are not taken from q, as a wrong guess would be a wrong result.
    pub(crate) fn read(q: Option<&Bound<'_, PyAny>>, k: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Self>> {
        match (q, k) {
            (None, None) => Ok(None),
            (Some(q), Some(k)) => Ok(Some(Offsets { q: list("cu_seqlens_q", q)?, k: list("cu_seqlens_k", k)? })),
            (Some(_), None) => Err(refuse("cu_seqlens_k", "None", "the offsets of k's sequences beside those of q's")),
            (None, Some(_)) => Err(refuse("cu_seqlens_q", "None", "the offsets of q's sequences beside those of k's")),
        }
    }

    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch::Packed { cu_seqlens_q: &self.q, cu_seqlens_k: &self.k }
    }
}

/// A copy of a list, a tuple or an array of integers, which nobody can change while it is checked and used.
fn list(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Vec<i32>> {
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return object.try_iter()?.map(|item| offset(name, integer(name, &item?)?)).collect();
    }
    match device_of(object).map_err(|error| explain(name, object, error))? {
        None => {
            let wanted = "a list, a tuple or an array of integers";
            Err(PyTypeError::new_err(format!("{name}: found {}, wanted {wanted}", object.get_type())))
        }
        Some(device) if device.cuda().is_some() => Err(on_gpu(name, device)),
        Some(_) => {
            let integers = Borrowed::take(name, object, CPU, None)?.integers()?;
            integers.into_iter().map(|integer| offset(name, integer)).collect()
        }
    }
}

/// An item of a list.
fn integer(name: &'static str, item: &Bound<'_, PyAny>) -> PyResult<i64> {
    let py = item.py();
    // The item of a tensor on a GPU would turn into a number, too, and wait for it.
    if !item.is_instance_of::<PyInt>()
        && let Some(device) = device_of(item).ok().flatten().filter(|device| device.cuda().is_some())
    {
        return Err(on_gpu(name, device));
    }
    item.extract().map_err(|error: PyErr| match error {
        error if error.is_instance_of::<PyTypeError>(py) => {
            PyTypeError::new_err(format!("{name}: found {} among its items, wanted integers", item.get_type()))
        }
        error if error.is_instance_of::<PyOverflowError>(py) => refuse(name, item, IN_32_BITS),
        error => error,
    })
}

const IN_32_BITS: &str = "offsets below 2^31";

fn offset(name: &'static str, integer: i64) -> PyResult<i32> {
    i32::try_from(integer).map_err(|_| refuse(name, integer, IN_32_BITS))
}

/// Kernels and grids are chosen by the lengths, before anything is put into a stream.
fn on_gpu(name: &'static str, device: Device) -> PyErr {
    let wanted = "integers in main memory: the call is planned there, and to read them would wait for the GPU";
    refuse(name, format!("a tensor on {device}"), wanted)
}
