//! Tensor files: safetensors and .npy, in and out.
//!
//! What is read comes from outside, so every length is checked against the file's own before memory is asked for, and
//! every error names the file, the tensor, what was found and what was wanted. What is written goes to a new file that
//! takes the place of the old one in a single step, so that a failure leaves no half file.
//!
//! What it does not do: map files into memory, and read element types that attention has no use for.

mod npy;
mod safetensors;

pub use npy::{npy_from_bytes, read_npy, write_npy};
pub use safetensors::{read_safetensors, safetensors_from_bytes, write_safetensors};

use ::safetensors::Dtype;
use attention::{E4m3, Tensor, TensorView};
use half::{bf16, f16};
use ndarray::{Array, Array2, ArrayD, Dimension, IxDyn, ShapeBuilder};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// Why a file could not be read or written.
#[derive(Debug, Error)]
pub enum FileError {
    /// The operating system said no.
    #[error("{file}: {cause}")]
    Io {
        /// The file's name.
        file: String,
        /// What it said.
        cause: io::Error,
    },
    /// The file as a whole is not what it should be.
    #[error("{file}: found {found}, wanted {wanted}")]
    Format {
        /// The file's name.
        file: String,
        /// What it holds.
        found: String,
        /// What would do.
        wanted: String,
    },
    /// One tensor of the file is not what it should be.
    #[error("{file}, tensor {tensor:?}: found {found}, wanted {wanted}")]
    Tensor {
        /// The file's name.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// What is there.
        found: String,
        /// What would do.
        wanted: String,
    },
}

/// A tensor as a file can hold it.
#[derive(Clone, Debug, PartialEq)]
pub enum FileTensor {
    /// Numbers of a type that attention knows.
    Float(Tensor),
    /// Lengths, offsets or token ids.
    I32(ArrayD<i32>),
    /// The same, wider: what NumPy and PyTorch make of integers unasked.
    I64(ArrayD<i64>),
}

impl FileTensor {
    /// The length of each axis.
    pub fn shape(&self) -> &[usize] {
        match self {
            FileTensor::Float(tensor) => tensor.shape(),
            FileTensor::I32(array) => array.shape(),
            FileTensor::I64(array) => array.shape(),
        }
    }

    /// The element type by its name in safetensors: F32, F64, F16, BF16, F8_E4M3, I32 or I64.
    pub fn dtype(&self) -> String {
        match self {
            FileTensor::Float(tensor) => tensor.dtype().to_string(),
            FileTensor::I32(_) => "I32".into(),
            FileTensor::I64(_) => "I64".into(),
        }
    }

    fn describe(&self) -> String {
        format!("{} {:?}", self.dtype(), self.shape())
    }
}

impl From<Tensor> for FileTensor {
    fn from(tensor: Tensor) -> Self {
        FileTensor::Float(tensor)
    }
}

impl From<ArrayD<i32>> for FileTensor {
    fn from(array: ArrayD<i32>) -> Self {
        FileTensor::I32(array)
    }
}

/// The tensors of one file, or of several gathered under one name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorFile {
    /// The name that errors give.
    pub file: String,
    /// The tensors by name.
    pub tensors: BTreeMap<String, FileTensor>,
    /// Tensors of types that [`FileTensor`] has not, such as BOOL, by name: their type and shape. They are not read, and
    /// are an error only when asked for.
    pub unread: BTreeMap<String, String>,
    /// What safetensors keeps under `__metadata__`.
    pub metadata: HashMap<String, String>,
}

impl TensorFile {
    /// The tensor of floating-point numbers called `name`.
    ///
    /// # Errors
    /// [`FileError::Tensor`] if there is none, or it holds integers.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, FileError> {
        match self.get(name)? {
            FileTensor::Float(tensor) => Ok(tensor),
            other => self.error(name, other.describe(), "floating-point numbers"),
        }
    }

    /// The list of lengths or offsets called `name`, from an I32 or I64 tensor of rank 1.
    ///
    /// # Errors
    /// [`FileError::Tensor`] if there is none, or it is something else, or a number does not fit i32.
    pub fn lengths(&self, name: &str) -> Result<Vec<i32>, FileError> {
        let wanted = "a list of I32 or I64";
        match self.get(name)? {
            tensor if tensor.shape().len() != 1 => self.error(name, tensor.describe(), wanted),
            FileTensor::I32(array) => Ok(array.iter().copied().collect()),
            FileTensor::I64(array) => {
                let narrow = |&x: &i64| i32::try_from(x).or_else(|_| self.error(name, x, "lengths that fit I32"));
                array.iter().map(narrow).collect()
            }
            tensor => self.error(name, tensor.describe(), wanted),
        }
    }

    /// The table of page numbers called `name`, from an I32 tensor of rank 2.
    ///
    /// # Errors
    /// [`FileError::Tensor`] if there is none, or it is something else.
    pub fn table(&self, name: &str) -> Result<Array2<i32>, FileError> {
        match self.get(name)? {
            FileTensor::I32(array) if array.ndim() == 2 => {
                Ok(array.clone().into_dimensionality().expect("the rank has been checked"))
            }
            tensor => self.error(name, tensor.describe(), "I32 of rank 2"),
        }
    }

    /// The F32, F16 or BF16 tensor called `name`, widened to f32.
    ///
    /// # Errors
    /// [`FileError::Tensor`] if there is none, or it is of another type.
    pub fn f32s(&self, name: &str) -> Result<ArrayD<f32>, FileError> {
        match self.tensor(name)? {
            Tensor::F32(array) => Ok(array.clone()),
            Tensor::F16(array) => Ok(array.mapv(f16::to_f32)),
            Tensor::Bf16(array) => Ok(array.mapv(bf16::to_f32)),
            other => self.error(name, other.dtype(), "F32, F16 or BF16"),
        }
    }

    /// As [`TensorFile::f32s`], with as many axes as `D` has.
    ///
    /// # Errors
    /// As [`TensorFile::f32s`], and if it has more axes or fewer.
    pub fn f32s_of_rank<D: Dimension>(&self, name: &str) -> Result<Array<f32, D>, FileError> {
        let array = self.f32s(name)?;
        let found = format!("shape {:?}", array.shape());
        let wanted = || D::NDIM.map_or("any rank".into(), |rank| format!("rank {rank}"));
        array.into_dimensionality().or_else(|_| self.error(name, found, wanted()))
    }

    /// Whether there is a tensor called `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn get(&self, name: &str) -> Result<&FileTensor, FileError> {
        match (self.tensors.get(name), self.unread.get(name)) {
            (Some(tensor), _) => Ok(tensor),
            (None, Some(unread)) => self.error(name, unread, "a type that attention knows"),
            (None, None) => {
                let names = format!("only {:?}", self.tensors.keys().collect::<Vec<_>>());
                self.error(name, names, "a tensor so called")
            }
        }
    }

    /// An error about the tensor `name` of this file.
    pub(crate) fn error<T>(&self, name: &str, found: impl ToString, wanted: impl ToString) -> Result<T, FileError> {
        tensor_error(&self.file, name, found, wanted)
    }
}

fn tensor_error<T>(file: &str, tensor: &str, found: impl ToString, wanted: impl ToString) -> Result<T, FileError> {
    let (found, wanted) = (found.to_string(), wanted.to_string());
    Err(FileError::Tensor { file: file.into(), tensor: tensor.into(), found, wanted })
}

pub(crate) fn format_error<T>(file: &str, found: impl ToString, wanted: impl ToString) -> Result<T, FileError> {
    Err(FileError::Format { file: file.into(), found: found.to_string(), wanted: wanted.to_string() })
}

/// A file or a slice of bytes that is read from front to back, never past the length known at the start.
pub(crate) struct Source<R> {
    file: String,
    from: R,
    left: u64,
}

impl Source<File> {
    /// Opens a regular file. Anything else is refused unopened: a FIFO would wait for ever, a device never ends.
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let file = path.display().to_string();
        let metadata = fs::metadata(path).map_err(|cause| FileError::Io { file: file.clone(), cause })?;
        if !metadata.is_file() {
            let found = if metadata.is_dir() { "a directory" } else { "no regular file" };
            return format_error(&file, found, "a regular file");
        }
        let from = File::open(path).map_err(|cause| FileError::Io { file: file.clone(), cause })?;
        Ok(Source { file, from, left: metadata.len() })
    }
}

impl<'a> Source<&'a [u8]> {
    fn bytes(name: &str, bytes: &'a [u8]) -> Self {
        Source { file: name.into(), from: bytes, left: bytes.len() as u64 }
    }
}

impl<R: Read> Source<R> {
    /// The next `len` bytes, which are called `what` in errors.
    fn take(&mut self, what: &str, len: u64) -> Result<Vec<u8>, FileError> {
        if len > self.left {
            return format_error(&self.file, format!("{} bytes left", self.left), format!("{len} bytes of {what}"));
        }
        let io_error = |cause| FileError::Io { file: self.file.clone(), cause };
        let mut bytes = Vec::new();
        let reserved = usize::try_from(len).ok().filter(|&len| bytes.try_reserve_exact(len).is_ok());
        if reserved.is_none() {
            return Err(io_error(io::Error::new(io::ErrorKind::OutOfMemory, format!("no memory for {len} bytes"))));
        }
        self.from.by_ref().take(len).read_to_end(&mut bytes).map_err(io_error)?;
        if (bytes.len() as u64) < len {
            return Err(io_error(io::ErrorKind::UnexpectedEof.into()));
        }
        self.left -= len;
        Ok(bytes)
    }

    fn take_array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], FileError> {
        let bytes = self.take(what, N as u64)?;
        Ok(std::array::from_fn(|i| bytes[i]))
    }

    /// All that is left, as text of at most `limit` bytes.
    pub(crate) fn text(mut self, limit: u64) -> Result<String, FileError> {
        if self.left > limit {
            return format_error(&self.file, format!("{} bytes", self.left), format!("at most {limit}"));
        }
        let bytes = self.take("text", self.left)?;
        String::from_utf8(bytes).or_else(|error| format_error(&self.file, error, "UTF-8"))
    }
}

/// The bytes of a tensor of `shape`, or `None` if their number overflows.
fn byte_len(dtype: Dtype, shape: &[usize]) -> Option<u64> {
    let elements = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n))?;
    Some((elements as u64).checked_mul(dtype.bitsize() as u64)?.div_ceil(8))
}

/// A tensor from its little-endian bytes, which are as many as [`byte_len`] says. An order of axes that is
/// `fortran` becomes strides. The dtype is one of those that [`FileTensor`] has.
fn decode(dtype: Dtype, shape: &[usize], fortran: bool, bytes: &[u8]) -> Result<FileTensor, ndarray::ShapeError> {
    fn array<T, const N: usize>(
        (shape, fortran, bytes): (&[usize], bool, &[u8]),
        element: impl Fn([u8; N]) -> T,
    ) -> Result<ArrayD<T>, ndarray::ShapeError> {
        let elements = bytes.as_chunks().0.iter().map(|&bytes| element(bytes)).collect();
        ArrayD::from_shape_vec(IxDyn(shape).set_f(fortran), elements)
    }
    let from = (shape, fortran, bytes);
    Ok(match dtype {
        Dtype::F32 => Tensor::from(array(from, f32::from_le_bytes)?).into(),
        Dtype::F64 => Tensor::from(array(from, f64::from_le_bytes)?).into(),
        Dtype::F16 => Tensor::from(array(from, f16::from_le_bytes)?).into(),
        Dtype::BF16 => Tensor::from(array(from, bf16::from_le_bytes)?).into(),
        Dtype::F8_E4M3 => Tensor::from(array(from, |[bits]| E4m3(bits))?).into(),
        Dtype::I32 => FileTensor::I32(array(from, i32::from_le_bytes)?),
        Dtype::I64 => FileTensor::I64(array(from, i64::from_le_bytes)?),
        _ => unreachable!("the readers look up no other type"),
    })
}

/// The type and the little-endian bytes of a tensor, the last axis fastest.
fn encode(tensor: &FileTensor) -> (Dtype, Vec<u8>) {
    match tensor {
        FileTensor::Float(tensor) => match tensor.view() {
            TensorView::F32(array) => (Dtype::F32, array.iter().flat_map(|x| x.to_le_bytes()).collect()),
            TensorView::F64(array) => (Dtype::F64, array.iter().flat_map(|x| x.to_le_bytes()).collect()),
            TensorView::F16(array) => (Dtype::F16, array.iter().flat_map(|x| x.to_le_bytes()).collect()),
            TensorView::Bf16(array) => (Dtype::BF16, array.iter().flat_map(|x| x.to_le_bytes()).collect()),
            TensorView::E4m3(array) => (Dtype::F8_E4M3, array.iter().map(|x| x.0).collect()),
        },
        FileTensor::I32(array) => (Dtype::I32, array.iter().flat_map(|x| x.to_le_bytes()).collect()),
        FileTensor::I64(array) => (Dtype::I64, array.iter().flat_map(|x| x.to_le_bytes()).collect()),
    }
}

/// Writes a new file beside `path` and renames it to `path`.
fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let file = path.display().to_string();
    // A rename would put a regular file where a device or a symbolic link was.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file()) {
        return format_error(&file, "no regular file", "a regular file or none");
    }
    let sibling =
        path.with_file_name(format!(".flash-ladder-{}-{}.tmp", process::id(), FILES.fetch_add(1, Ordering::Relaxed)));
    fs::write(&sibling, bytes).and_then(|()| fs::rename(&sibling, &path)).map_err(|cause| {
        // The first error is the one to report; that the sibling may never have come to be is no second one.
        let _ = fs::remove_file(&sibling);
        FileError::Io { file, cause }
    })
}

#[cfg(test)]
pub(crate) mod tests;
