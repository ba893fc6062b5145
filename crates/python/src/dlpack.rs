//! DLPack 1.0 as it lies in memory: the C structures that array libraries hand each other, in capsules.

use half::{bf16, f16};
use std::ffi::{CStr, c_void};
use std::fmt;

/// Main memory.
pub(crate) const CPU: Device = Device { kind: 1, id: 0 };

/// Device type of a GPU's memory.
const CUDA: i32 = 2;

/// Flag of a tensor that may not be written to.
const READ_ONLY: u64 = 1;

/// The version spoken here. Minor versions only add; a capsule of another major version must not be read.
pub(crate) const VERSION: Version = Version { major: 1, minor: 0 };

/// Where a tensor lies.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Device {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

impl Device {
    /// A GPU.
    pub(crate) fn of_cuda(ordinal: usize) -> Self {
        Device { kind: CUDA, id: ordinal as i32 }
    }

    /// The number of a GPU as CUDA counts them, if it is one.
    pub(crate) fn cuda(self) -> Option<usize> {
        usize::try_from(self.id).ok().filter(|_| self.kind == CUDA)
    }
}

/// What a tensor holds.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

/// A borrowed tensor. Strides count elements, and null strides are those of a row-major tensor.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) data: *mut c_void,
    pub(crate) device: Device,
    pub(crate) ndim: i32,
    pub(crate) dtype: DataType,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

/// What frees a managed tensor; it is called once.
pub(crate) type Deleter<M> = Option<unsafe extern "C" fn(*mut M)>;

/// A tensor with what frees it, in the form from before version 1.
#[repr(C)]
pub(crate) struct Legacy {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Deleter<Legacy>,
}

/// The version of DLPack that a structure follows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

/// A tensor with what frees it. Version, context and deleter stay where they are in every later version.
#[repr(C)]
pub(crate) struct Versioned {
    version: Version,
    context: *mut c_void,
    deleter: Deleter<Versioned>,
    flags: u64,
    tensor: Tensor,
}

/// Either form of a managed tensor.
pub(crate) trait Managed: Sized + 'static {
    /// The name of a capsule that holds one.
    const NAME: &'static CStr;
    /// Its name once a consumer has taken the tensor out.
    const USED: &'static CStr;

    fn new(tensor: Tensor, deleter: Deleter<Self>) -> Self;
    /// The tensor, or the foreign version whose tensor must not be read.
    fn tensor(&self) -> Result<&Tensor, Version>;
    fn deleter(&self) -> Deleter<Self>;
    /// Whether the tensor may not be written to.
    fn is_read_only(&self) -> bool;
}

impl Managed for Legacy {
    const NAME: &'static CStr = c"dltensor";
    const USED: &'static CStr = c"used_dltensor";

    fn new(tensor: Tensor, deleter: Deleter<Self>) -> Self {
        Legacy { tensor, context: std::ptr::null_mut(), deleter }
    }
    fn tensor(&self) -> Result<&Tensor, Version> {
        Ok(&self.tensor)
    }
    fn deleter(&self) -> Deleter<Self> {
        self.deleter
    }
    fn is_read_only(&self) -> bool {
        false
    }
}

impl Managed for Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";
    const USED: &'static CStr = c"used_dltensor_versioned";

    fn new(tensor: Tensor, deleter: Deleter<Self>) -> Self {
        Versioned { version: VERSION, context: std::ptr::null_mut(), deleter, flags: 0, tensor }
    }
    fn tensor(&self) -> Result<&Tensor, Version> {
        if self.version.major == VERSION.major { Ok(&self.tensor) } else { Err(self.version) }
    }
    fn deleter(&self) -> Deleter<Self> {
        self.deleter
    }
    fn is_read_only(&self) -> bool {
        self.flags & READ_ONLY != 0
    }
}

/// An element type that is known here, and DLPack's code of it.
pub(crate) trait Element: Clone + Default + Send + 'static {
    const TYPE: DataType;
    const ZERO: &'static Self;
}

const fn data_type(code: u8, bits: u8) -> DataType {
    DataType { code, bits, lanes: 1 }
}

impl Element for f32 {
    const TYPE: DataType = data_type(2, 32);
    const ZERO: &'static Self = &0.0;
}
impl Element for f64 {
    const TYPE: DataType = data_type(2, 64);
    const ZERO: &'static Self = &0.0;
}
impl Element for f16 {
    const TYPE: DataType = data_type(2, 16);
    const ZERO: &'static Self = &f16::ZERO;
}
impl Element for bf16 {
    const TYPE: DataType = data_type(4, 16);
    const ZERO: &'static Self = &bf16::ZERO;
}

impl Element for i32 {
    const TYPE: DataType = data_type(0, 32);
    const ZERO: &'static Self = &0;
}
impl Element for i64 {
    const TYPE: DataType = data_type(0, 64);
    const ZERO: &'static Self = &0;
}

impl DataType {
    /// Bytes of an element.
    pub(crate) fn size(self) -> usize {
        usize::from(self.bits) * usize::from(self.lanes) / 8
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CPU => f.write_str("the CPU"),
            Device { kind: CUDA, id } => write!(f, "CUDA device {id}"),
            Device { kind, .. } => write!(f, "device type {kind}"),
        }
    }
}

/// As array libraries name it: `int64`, `bfloat16`.
impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DataType { code, bits, lanes } = self;
        match code {
            0 => write!(f, "int{bits}"),
            1 => write!(f, "uint{bits}"),
            2 => write!(f, "float{bits}"),
            4 => write!(f, "bfloat{bits}"),
            5 => write!(f, "complex{bits}"),
            6 => write!(f, "bool"),
            _ => write!(f, "type {code} of {bits} bits"),
        }?;
        if *lanes == 1 { Ok(()) } else { write!(f, " in {lanes} lanes") }
    }
}
