//! The .npy format of NumPy: a short header that is a Python dict, then the elements of one array.
//!
//! The header is read here rather than by the crate that writes it: that one multiplies the lengths of the axes
//! unchecked, and a header with huge ones makes it panic.

use super::{FileError, FileTensor, Source, byte_len, decode, format_error, replace_file, tensor_error};
use attention::Tensor;
use ndarray::ArrayD;
use npyz::{AutoSerialize, WriteOptions, WriterBuilder};
use safetensors::Dtype;
use std::io::{self, Read};
use std::path::Path;

/// The largest header that is read. NumPy itself stops at 10,000.
const MAX_HEADER: u64 = 1 << 16;

struct Header<'a> {
    descr: &'a str,
    fortran_order: bool,
    shape: Vec<usize>,
}

/// Reads the array of a .npy file: f2, f4, f8, i4 or i8, in either byte order and either order of axes.
///
/// # Errors
/// [`FileError`] if it is no regular file, breaks the format, or holds another type. There is no bfloat16 among
/// NumPy's types, so no .npy file holds one.
pub fn read_npy(path: &Path) -> Result<FileTensor, FileError> {
    read(Source::open(path)?)
}

/// As [`read_npy`], from bytes; errors call them `name`.
///
/// # Errors
/// As [`read_npy`].
pub fn npy_from_bytes(name: &str, bytes: &[u8]) -> Result<FileTensor, FileError> {
    read(Source::bytes(name, bytes))
}

fn read(mut source: Source<impl Read>) -> Result<FileTensor, FileError> {
    let magic = source.take_array::<8>("magic")?;
    let header_len = match magic {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, 0] => u16::from_le_bytes(source.take_array("header length")?).into(),
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, 0] => u32::from_le_bytes(source.take_array("header length")?),
        _ => return format_error(&source.file, format!("first bytes {magic:?}"), "the magic of .npy 1.0, 2.0 or 3.0"),
    };
    if u64::from(header_len) > MAX_HEADER {
        return format_error(&source.file, format!("a header of {header_len} bytes"), format!("at most {MAX_HEADER}"));
    }
    let text = source.take("header", header_len.into())?;
    let text = String::from_utf8_lossy(&text);
    let Some(Header { descr, fortran_order, shape }) = parse_header(&text) else {
        let start: String = text.chars().take(80).collect();
        return format_error(&source.file, format!("header {start:?}"), "descr, fortran_order and shape of one array");
    };

    let dtype = match descr.split_at_checked(1) {
        Some(("<" | ">", "f4")) => Dtype::F32,
        Some(("<" | ">", "f8")) => Dtype::F64,
        Some(("<" | ">", "f2")) => Dtype::F16,
        Some(("<" | ">", "i4")) => Dtype::I32,
        Some(("<" | ">", "i8")) => Dtype::I64,
        _ => {
            let wanted = "f2, f4, f8, i4 or i8 (.npy has no bfloat16: use safetensors)";
            return tensor_error(&source.file, "array", format!("dtype {descr:?}"), wanted);
        }
    };
    let len = byte_len(dtype, &shape);
    if len != Some(source.left) {
        let wanted = len.map_or("fewer elements".into(), |len| format!("{len} bytes"));
        let found = format!("{} bytes for {descr:?} {shape:?}", source.left);
        return tensor_error(&source.file, "array", found, wanted);
    }
    let mut bytes = source.take("array", source.left)?;
    if descr.starts_with('>') {
        bytes.chunks_exact_mut(dtype.bitsize() / 8).for_each(<[u8]>::reverse);
    }
    decode(dtype, &shape, fortran_order, &bytes)
        .or_else(|error| tensor_error(&source.file, "array", format!("shape {shape:?}"), error))
}

/// The three entries of the dict, in any order.
fn parse_header(text: &str) -> Option<Header<'_>> {
    let mut rest = text.trim_end().strip_prefix('{')?.strip_suffix('}')?.trim();
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    while !rest.is_empty() {
        let (key, after) = quoted(rest)?;
        let value = after.trim_start().strip_prefix(':')?.trim_start();
        rest = match key {
            "descr" => {
                let (value, rest) = quoted(value)?;
                descr = Some(value);
                rest
            }
            "fortran_order" => {
                let word = value.find(|c: char| !c.is_alphabetic()).unwrap_or(value.len());
                fortran_order = Some(match &value[..word] {
                    "True" => true,
                    "False" => false,
                    _ => return None,
                });
                &value[word..]
            }
            "shape" => {
                let (axes, rest) = value.strip_prefix('(')?.split_once(')')?;
                let axes = axes.split(',').map(str::trim).filter(|axis| !axis.is_empty());
                shape = Some(axes.map(|axis| axis.parse().ok()).collect::<Option<Vec<usize>>>()?);
                rest
            }
            _ => return None,
        };
        rest = rest.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    Some(Header { descr: descr?, fortran_order: fortran_order?, shape: shape? })
}

/// The contents of the string literal that `text` begins with, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|&c| c == '\'' || c == '"')?;
    text[1..].split_once(quote)
}

/// Writes one array as a .npy file, the last axis fastest, in the place of whatever file was there.
///
/// # Errors
/// [`FileError`] if it cannot be written, and for BF16 and E4M3, which .npy has no name for.
pub fn write_npy(path: &Path, tensor: &FileTensor) -> Result<(), FileError> {
    let mut bytes = Vec::new();
    let written = match tensor {
        FileTensor::Float(Tensor::F32(array)) => write(&mut bytes, array),
        FileTensor::Float(Tensor::F64(array)) => write(&mut bytes, array),
        FileTensor::Float(Tensor::F16(array)) => write(&mut bytes, array),
        FileTensor::I32(array) => write(&mut bytes, array),
        FileTensor::I64(array) => write(&mut bytes, array),
        FileTensor::Float(Tensor::Bf16(_) | Tensor::E4m3(_)) => {
            let file = path.display().to_string();
            let wanted = "F32, F64, F16, I32 or I64 (.npy has no other type for it: use safetensors)";
            return tensor_error(&file, "array", format!("dtype {}", tensor.dtype()), wanted);
        }
    };
    written.map_err(|cause| FileError::Io { file: path.display().to_string(), cause })?;
    replace_file(path, &bytes)
}

fn write<T: AutoSerialize + Copy>(to: &mut Vec<u8>, array: &ArrayD<T>) -> io::Result<()> {
    let shape: Vec<u64> = array.shape().iter().map(|&n| n as u64).collect();
    let mut writer = WriteOptions::new().default_dtype().shape(&shape).writer(to).begin_nd()?;
    writer.extend(array.iter().copied())?;
    writer.finish()
}
