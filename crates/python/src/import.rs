//! Tensors of other libraries, borrowed for one call.

use crate::dlpack::{self, Device, Element, Legacy, Managed, VERSION, Versioned};
use crate::exchange::Exchange;
use attention::TensorView;
use cuda_fa2::DeviceTensor;
use half::{bf16, f16};
use ndarray::{ArrayView, ArrayViewD, Axis, Dimension, IxDyn, ShapeBuilder};
use pyo3::exceptions::{PyAttributeError, PyException, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::slice;

/// What DLPack has a consumer say for whom the producer need not synchronise.
pub(crate) const UNSYNCHRONISED: i64 = -1;

/// A tensor taken out of its capsule. Its owner keeps it alive and in place until this is dropped.
pub(crate) struct Borrowed {
    /// The argument it was given as.
    name: &'static str,
    read_only: bool,
    tensor: NonNull<dlpack::Tensor>,
    managed: NonNull<c_void>,
    delete: unsafe fn(NonNull<c_void>),
}

impl Borrowed {
    /// Asks `object` for its tensor, which must lie on `device`. Nothing is copied. `stream` is what DLPack has the consumer
    /// say about its stream, on a GPU.
    pub(crate) fn take(
        name: &'static str,
        object: &Bound<'_, PyAny>,
        device: Device,
        stream: Option<i64>,
    ) -> PyResult<Self> {
        let taken = Borrowed::from_capsule(name, object, stream);
        // Whose tensor is elsewhere may not understand the stream.
        let found = match &taken {
            Ok(borrowed) => borrowed.tensor().device,
            Err(_) => device_of(object).ok().flatten().unwrap_or(device),
        };
        let same = if device.cuda().is_some() { found == device } else { found.kind == device.kind };
        if same { taken } else { Err(refuse(name, format!("a tensor on {found}"), format!("one on {device}"))) }
    }

    fn from_capsule(name: &'static str, object: &Bound<'_, PyAny>, stream: Option<i64>) -> PyResult<Self> {
        if stream == Some(UNSYNCHRONISED)
            && !records_gradient(object)
            && let Some(managed) = Exchange::of(object).and_then(|exchange| exchange.managed())
        {
            // SAFETY: it was handed over.
            return unsafe { Borrowed::own(name, managed) };
        }
        let capsule = capsule(object, stream).map_err(|error| explain(name, object, error))?;
        let Ok(capsule) = capsule.cast::<PyCapsule>() else {
            return Err(refuse(name, format!("a {} from __dlpack__", capsule.get_type()), "a capsule"));
        };
        if capsule.is_valid_checked(Some(Versioned::NAME)) {
            Borrowed::consume::<Versioned>(name, capsule)
        } else if capsule.is_valid_checked(Some(Legacy::NAME)) {
            Borrowed::consume::<Legacy>(name, capsule)
        } else {
            Err(refuse(name, "a capsule of another name", "one that holds an unused DLPack tensor"))
        }
    }

    fn consume<M: Managed>(name: &'static str, capsule: &Bound<'_, PyCapsule>) -> PyResult<Self> {
        let managed = capsule.pointer_checked(Some(M::NAME))?;
        // SAFETY: the capsule is alive, and the new name is static. From here on its destructor leaves the tensor to us.
        if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), M::USED.as_ptr()) } != 0 {
            return Err(PyErr::fetch(capsule.py()));
        }
        // SAFETY: a capsule of this name holds a managed tensor of this form.
        unsafe { Borrowed::own(name, managed.cast::<M>()) }
    }

    /// Checks the version of a managed tensor.
    ///
    /// # Safety
    /// It is alive until its deleter is called, and that is for us to do.
    unsafe fn own<M: Managed>(name: &'static str, managed: NonNull<M>) -> PyResult<Self> {
        // SAFETY: the caller's promise.
        let held = unsafe { managed.as_ref() };
        let managed = managed.cast();
        match held.tensor() {
            Ok(tensor) => {
                let (read_only, tensor) = (held.is_read_only(), tensor.into());
                Ok(Borrowed { name, read_only, tensor, managed, delete: delete::<M> })
            }
            Err(version) => {
                // SAFETY: we own it and have kept no reference into it.
                unsafe { delete::<M>(managed) };
                let (found, wanted) = (version.major, VERSION.major);
                Err(refuse(name, format!("DLPack version {found}"), format!("version {wanted}")))
            }
        }
    }

    /// Its elements where they lie, checked. Those on a GPU are out of reach: one zero stands for all of them, so that types and
    /// lengths can be checked like any other's.
    pub(crate) fn view(&self) -> PyResult<TensorView<'_>> {
        let dtype = self.tensor().dtype;
        Ok(match dtype {
            f32::TYPE => self.array::<f32>()?.into(),
            f64::TYPE => self.array::<f64>()?.into(),
            f16::TYPE => self.array::<f16>()?.into(),
            bf16::TYPE => self.array::<bf16>()?.into(),
            _ => return Err(refuse(self.name, dtype, "float32, float16, bfloat16 or float64")),
        })
    }

    /// Its elements, which must be float32 in `D` dimensions.
    pub(crate) fn view_f32<D: Dimension>(&self) -> PyResult<ArrayView<'_, f32, D>> {
        let dtype = self.tensor().dtype;
        if dtype != f32::TYPE {
            return Err(refuse(self.name, dtype, f32::TYPE));
        }
        let array = self.array()?;
        let rank = array.ndim();
        let wanted = || format!("{} dimensions", D::NDIM.expect("rank is fixed"));
        array.into_dimensionality().map_err(|_| refuse(self.name, format!("{rank} dimensions"), wanted()))
    }

    /// A copy of its elements, which must be int32 or int64 in one dimension.
    pub(crate) fn integers(&self) -> PyResult<Vec<i64>> {
        match self.tensor().dtype {
            i32::TYPE => self.list::<i32>(),
            i64::TYPE => self.list::<i64>(),
            other => Err(refuse(self.name, other, "int32 or int64")),
        }
    }

    fn list<T: Element + Copy + Into<i64>>(&self) -> PyResult<Vec<i64>> {
        let array = self.array::<T>()?;
        if array.ndim() != 1 {
            return Err(refuse(self.name, format!("{} dimensions", array.ndim()), "1 dimension"));
        }
        let mut list = Vec::new();
        // A broadcast array can be longer than memory.
        list.try_reserve_exact(array.len()).map_err(|_| self.too_long(array.shape()))?;
        list.extend(array.iter().map(|&element| element.into()));
        Ok(list)
    }

    /// Where it lies on its GPU, with the last of its axes at the last of four but `after`.
    pub(crate) fn on_device(&self, after: usize) -> PyResult<DeviceTensor> {
        let tensor = self.tensor();
        let size = tensor.dtype.size();
        let Layout { lengths, strides } = self.layout(size)?;
        let address = tensor.data.addr() as u64 + tensor.byte_offset;
        if !lengths.contains(&0) && (tensor.data.is_null() || !address.is_multiple_of(size as u64)) {
            return Err(refuse(
                self.name,
                format!("elements at address {address:#x}"),
                format!("a multiple of {size} that is not 0"),
            ));
        }
        let mut four = [0; 4];
        for (to, &stride) in four.iter_mut().rev().skip(after).zip(strides.iter().rev()) {
            *to = stride as i64;
        }
        Ok(DeviceTensor { address, strides: four })
    }

    /// [`on_device`](Borrowed::on_device) for a result, which must be of the type of `like`, have these lengths, and room for
    /// each of its elements.
    pub(crate) fn on_device_mut(&self, like: &Borrowed, wanted: &[usize]) -> PyResult<DeviceTensor> {
        let (dtype, wanted_type) = (self.tensor().dtype, like.tensor().dtype);
        if dtype != wanted_type {
            return Err(refuse(self.name, dtype, format!("{wanted_type} as in {}", like.name)));
        }
        if self.read_only {
            return Err(refuse(self.name, "a tensor that is read-only", "one to write to"));
        }
        let Layout { lengths, strides } = self.layout(dtype.size())?;
        if lengths != wanted {
            return Err(refuse(self.name, format!("shape {lengths:?}"), format!("{wanted:?}")));
        }
        let mut axes: Vec<_> = lengths.iter().zip(&strides).filter(|(n, _)| **n > 1).collect();
        axes.sort_by_key(|(_, stride)| stride.unsigned_abs());
        let mut span = 0;
        for (n, stride) in axes {
            if stride.unsigned_abs() <= span && !lengths.contains(&0) {
                return Err(refuse(self.name, format!("strides {strides:?}"), "elements that share no memory"));
            }
            span += stride.unsigned_abs() * (n - 1);
        }
        self.on_device(0)
    }

    fn tensor(&self) -> &dlpack::Tensor {
        // SAFETY: the managed tensor lives until `self` is dropped, and its owner leaves its description alone.
        unsafe { self.tensor.as_ref() }
    }

    fn array<T: Element>(&self) -> PyResult<ArrayViewD<'_, T>> {
        let tensor = self.tensor();
        debug_assert_eq!(tensor.dtype, T::TYPE);
        let Layout { lengths, strides } = self.layout(size_of::<T>())?;
        if tensor.device.cuda().is_some() {
            let nowhere = IxDyn(&vec![0; lengths.len()]);
            let shape = IxDyn(&lengths).strides(nowhere);
            let zeros = ArrayView::from_shape(shape, slice::from_ref(T::ZERO));
            return zeros.map_err(|_| self.too_long(&lengths));
        }
        if lengths.contains(&0) {
            return Ok(ArrayView::from_shape(lengths, &[]).expect("no elements are needed for none"));
        }
        let first = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize).cast::<T>();
        if tensor.data.is_null() || !first.is_aligned() {
            let found = format!("elements at address {:#x}", first.addr());
            return Err(refuse(self.name, found, format!("a multiple of {} that is not 0", align_of::<T>())));
        }
        // ndarray wants the lowest address and strides that are not negative; such axes are turned round afterwards.
        let below = |(&n, &stride): (&usize, &isize)| if stride < 0 { (n as isize - 1) * stride } else { 0 };
        let lowest = first.wrapping_offset(lengths.iter().zip(&strides).map(below).sum());
        let magnitudes: Vec<usize> = strides.iter().map(|stride| stride.unsigned_abs()).collect();
        // SAFETY: the producer vouches for the elements that lengths and strides reach from `first`, for as long as `self`
        // lives. They are aligned, and span no more than isize::MAX bytes (see `layout`). Every bit pattern is a number.
        // That nobody writes to them during the call is the caller's part of the contract.
        let mut array = unsafe { ArrayView::from_shape_ptr(IxDyn(&lengths).strides(IxDyn(&magnitudes)), lowest) };
        for (axis, _) in strides.iter().enumerate().filter(|(_, stride)| **stride < 0) {
            array.invert_axis(Axis(axis));
        }
        Ok(array)
    }

    /// Lengths and strides, once it is clear that no element of `size` bytes lies out of an address's reach.
    fn layout(&self, size: usize) -> PyResult<Layout> {
        let tensor = self.tensor();
        let rank = usize::try_from(tensor.ndim).unwrap_or(usize::MAX);
        if rank > 64 || (rank > 0 && tensor.shape.is_null()) {
            return Err(refuse(self.name, format!("{} dimensions", tensor.ndim), "0 to 64, with their lengths"));
        }
        // SAFETY: both lists hold `ndim` numbers as long as the managed tensor lives.
        let list = |list: *const i64| unsafe { slice::from_raw_parts(list, rank) };
        let lengths = if rank == 0 { &[] } else { list(tensor.shape) };
        let far = || self.too_long(lengths);
        let lengths: Vec<usize> =
            lengths.iter().map(|&n| usize::try_from(n)).collect::<Result<_, _>>().map_err(|_| far())?;
        let mut strides = vec![0; rank];
        if !lengths.contains(&0) {
            let (mut dense, mut span) = (1usize, 0usize);
            for axis in (0..rank).rev().filter(|&axis| lengths[axis] > 1) {
                let stride = if tensor.strides.is_null() { dense as i64 } else { list(tensor.strides)[axis] };
                strides[axis] = isize::try_from(stride).map_err(|_| far())?;
                let reach = strides[axis].unsigned_abs().checked_mul(lengths[axis] - 1).ok_or_else(far)?;
                span = span.checked_add(reach).ok_or_else(far)?;
                dense = dense.saturating_mul(lengths[axis]);
            }
            let bytes = span.checked_add(1).and_then(|elements| elements.checked_mul(size));
            bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(far)?;
        }
        Ok(Layout { lengths, strides })
    }

    fn too_long(&self, lengths: &[impl std::fmt::Debug]) -> PyErr {
        refuse(self.name, format!("lengths {lengths:?}"), "elements that memory can hold")
    }
}

/// Lengths and strides, both in elements.
struct Layout {
    lengths: Vec<usize>,
    strides: Vec<isize>,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // SAFETY: `managed` is of the form that `delete` was made for, and no view outlives `self`.
        unsafe { (self.delete)(self.managed) }
    }
}

/// Gives a managed tensor back to its owner.
///
/// # Safety
/// `managed` points to an `M` that is ours to give back, and is not used afterwards.
unsafe fn delete<M: Managed>(managed: NonNull<c_void>) {
    let managed = managed.cast::<M>();
    // SAFETY: by the contract above; a producer may have nothing to free, and then no deleter.
    unsafe {
        if let Some(deleter) = managed.as_ref().deleter() {
            deleter(managed.as_ptr());
        }
    }
}

/// Whether what is done with a tensor should be recorded, for which libraries refuse to hand it out.
fn records_gradient(object: &Bound<'_, PyAny>) -> bool {
    let flag = object.getattr_opt(intern!(object.py(), "requires_grad"));
    flag.is_ok_and(|flag| flag.is_some_and(|flag| flag.is_truthy().unwrap_or(true)))
}

/// Where an array lies, if it says so.
pub(crate) fn device_of(object: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    if let Some(device) = Exchange::of(object).and_then(|exchange| exchange.device()) {
        return Ok(Some(device));
    }
    let Some(ask) = object.getattr_opt(intern!(object.py(), "__dlpack_device__"))? else { return Ok(None) };
    let (kind, id) = ask.call0()?.extract()?;
    Ok(Some(Device { kind, id }))
}

/// Calls `__dlpack__`, in the old way where a producer does not know the new.
fn capsule<'py>(object: &Bound<'py, PyAny>, stream: Option<i64>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let (method, words) = (intern!(py, "__dlpack__"), PyDict::new(py));
    if let Some(stream) = stream {
        words.set_item(intern!(py, "stream"), stream)?;
    }
    words.set_item(intern!(py, "max_version"), (VERSION.major, VERSION.minor))?;
    match object.call_method(method, (), Some(&words)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            words.del_item(intern!(py, "max_version"))?;
            object.call_method(method, (), Some(&words))
        }
        answer => answer,
    }
}

/// Puts the argument's name before a producer's refusal.
pub(crate) fn explain(name: &'static str, object: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = object.py();
    let kind = object.get_type();
    if error.is_instance_of::<PyAttributeError>(py) {
        return PyTypeError::new_err(format!("{name}: found {kind}, wanted an array with __dlpack__"));
    }
    if !error.is_instance_of::<PyException>(py) {
        return error;
    }
    let refusal = refuse(name, format!("{kind} that refuses ({})", error.value(py)), "an array that DLPack can carry");
    refusal.set_cause(py, Some(error));
    refusal
}

pub(crate) fn refuse(name: &str, found: impl ToString, wanted: impl ToString) -> PyErr {
    PyValueError::new_err(format!("{name}: found {}, wanted {}", found.to_string(), wanted.to_string()))
}
