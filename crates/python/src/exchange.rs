//! DLPack 1.3's table of C functions, by which a library hands out tensors in a tenth of the time of its Python methods. Not
//! every library has one; PyTorch does from 2.10 on.

use crate::dlpack::{Device, Tensor, VERSION, Version, Versioned};
use pyo3::ffi::PyObject;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// The table, up to what is used of it.
#[repr(C)]
struct Table {
    version: Version,
    previous: *const Table,
    allocate: *const c_void,
    managed: unsafe extern "C" fn(*mut PyObject, *mut *mut Versioned) -> c_int,
    give: *const c_void,
    /// May be missing.
    tensor: Option<unsafe extern "C" fn(*mut PyObject, *mut Tensor) -> c_int>,
}

/// An array whose library has such a table.
pub(crate) struct Exchange<'a, 'py> {
    object: &'a Bound<'py, PyAny>,
    table: NonNull<Table>,
}

impl<'a, 'py> Exchange<'a, 'py> {
    /// The array, if its library has a table that can be read.
    pub(crate) fn of(object: &'a Bound<'py, PyAny>) -> Option<Self> {
        let py = object.py();
        let table = object.get_type().getattr_opt(intern!(py, "__dlpack_c_exchange_api__")).ok()??;
        let table = table.cast_into::<PyCapsule>().ok()?.pointer_checked(Some(c"dlpack_exchange_api")).ok()?.cast();
        let exchange = Exchange { object, table };
        // SAFETY: a capsule of this name on a type holds a table, which lives as long as the process. Every version begins with
        // its version.
        let version = unsafe { table.cast::<Version>().read() };
        (version.major == VERSION.major).then_some(exchange)
    }

    /// Where it lies.
    pub(crate) fn device(&self) -> Option<Device> {
        let mut tensor = MaybeUninit::<Tensor>::uninit();
        // SAFETY: the array is of the type that has the table, and Python's lock is held.
        let answer = unsafe { self.table().tensor?(self.object.as_ptr(), tensor.as_mut_ptr()) };
        // SAFETY: an answer of 0 says that it is written.
        self.done(answer).then(|| unsafe { tensor.assume_init() }.device)
    }

    /// The tensor, for the caller to give back. Nothing is synchronised.
    pub(crate) fn managed(&self) -> Option<NonNull<Versioned>> {
        let mut managed = std::ptr::null_mut();
        // SAFETY: as above.
        let answer = unsafe { (self.table().managed)(self.object.as_ptr(), &mut managed) };
        self.done(answer).then(|| NonNull::new(managed)).flatten()
    }

    fn table(&self) -> &Table {
        // SAFETY: see `of`, which has checked the version.
        unsafe { self.table.as_ref() }
    }

    /// Whether a function has done it. If not, Python's methods tell why in words.
    fn done(&self, answer: c_int) -> bool {
        if answer != 0 {
            drop(PyErr::take(self.object.py()));
        }
        answer == 0
    }
}
