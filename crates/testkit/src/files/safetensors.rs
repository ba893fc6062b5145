//! The safetensors format: a JSON header that gives each tensor its type, shape and place, then their bytes.
//!
//! The header is checked here rather than by the crate that writes it, because its errors do not say which tensor is
//! wrong, and here nothing is read before the header fits the file's length.

use super::{FileError, FileTensor, Source, TensorFile, byte_len, decode, encode, format_error, tensor_error};
use safetensors::tensor::{Dtype, View};
use serde::de::value::StrDeserializer;
use serde::de::{IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io::Read;
use std::path::Path;

/// The largest header that the format allows.
const MAX_HEADER: u64 = 100_000_000;

/// The types that [`FileTensor`] has.
const DTYPES: [Dtype; 7] = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::BF16, Dtype::F8_E4M3, Dtype::I32, Dtype::I64];

#[derive(Deserialize)]
struct Header {
    #[serde(rename = "__metadata__", default)]
    metadata: HashMap<String, String>,
    #[serde(flatten, deserialize_with = "entries")]
    tensors: Vec<(String, Entry)>,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// The entries of a JSON object, with no second one of a name lost, as a map would lose it.
fn entries<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, Entry)>, D::Error> {
    struct Entries;
    impl<'de> Visitor<'de> for Entries {
        type Value = Vec<(String, Entry)>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("tensors by name")
        }
        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
            std::iter::from_fn(|| map.next_entry().transpose()).collect()
        }
    }
    from.deserialize_map(Entries)
}

/// Reads all tensors of a safetensors file.
///
/// # Errors
/// [`FileError`] if it is no regular file or breaks the format.
pub fn read_safetensors(path: &Path) -> Result<TensorFile, FileError> {
    read(Source::open(path)?)
}

/// As [`read_safetensors`], from bytes; errors call them `name`.
///
/// # Errors
/// As [`read_safetensors`].
pub fn safetensors_from_bytes(name: &str, bytes: &[u8]) -> Result<TensorFile, FileError> {
    read(Source::bytes(name, bytes))
}

fn read(mut source: Source<impl Read>) -> Result<TensorFile, FileError> {
    let header_len = u64::from_le_bytes(source.take_array("header length")?);
    if header_len > MAX_HEADER {
        let found = format!("first bytes that give a header of {header_len} bytes");
        return format_error(&source.file, found, format!("a safetensors file, with at most {MAX_HEADER}"));
    }
    let header = source.take("header", header_len)?;
    let header: Header = serde_json::from_slice(&header)
        .or_else(|error| format_error(&source.file, error, "a safetensors header in JSON"))?;

    let mut names = BTreeSet::new();
    if let Some((name, _)) = header.tensors.iter().find(|(name, _)| !names.insert(name)) {
        return tensor_error(&source.file, name, "two tensors of that name", "one");
    }
    let mut entries = header.tensors;
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut places = Vec::new();
    let mut end = 0;
    for (name, entry) in &entries {
        let place = check(&source.file, name, entry, end)?;
        end = place.1;
        places.push(place);
    }
    if end != source.left {
        return format_error(&source.file, format!("{} bytes of data", source.left), format!("{end}, by the header"));
    }

    let (mut tensors, mut unread) = (BTreeMap::new(), BTreeMap::new());
    for ((name, entry), (dtype, _)) in entries.into_iter().zip(places) {
        let (start, end) = entry.data_offsets;
        let bytes = source.take(&name, end - start)?;
        if !DTYPES.contains(&dtype) {
            unread.insert(name, format!("{dtype} {:?}", entry.shape));
            continue;
        }
        let tensor = decode(dtype, &entry.shape, false, &bytes)
            .or_else(|error| tensor_error(&source.file, &name, format!("shape {:?}", entry.shape), error))?;
        tensors.insert(name, tensor);
    }
    Ok(TensorFile { file: source.file, tensors, unread, metadata: header.metadata })
}

/// The type of a tensor and where it ends, if it starts at `start`, where the one before it ends: the format leaves no
/// gaps, and no two tensors share bytes.
fn check(file: &str, name: &str, entry: &Entry, start: u64) -> Result<(Dtype, u64), FileError> {
    let from: StrDeserializer<serde::de::value::Error> = entry.dtype.as_str().into_deserializer();
    let Ok(dtype) = Dtype::deserialize(from) else {
        return tensor_error(file, name, format!("dtype {:?}", entry.dtype), "a type of safetensors");
    };
    let Some(end) = byte_len(dtype, &entry.shape).and_then(|len| start.checked_add(len)) else {
        return tensor_error(file, name, format!("shape {:?}", entry.shape), "fewer elements");
    };
    if entry.data_offsets != (start, end) {
        let found = format!("offsets {:?}", entry.data_offsets);
        return tensor_error(file, name, found, format!("{:?} for {dtype} {:?}", (start, end), entry.shape));
    }
    Ok((dtype, end))
}

struct Bytes<'a> {
    dtype: Dtype,
    shape: &'a [usize],
    data: Vec<u8>,
}

impl View for Bytes<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.data)
    }
    fn data_len(&self) -> usize {
        self.data.len()
    }
}

/// Writes a safetensors file in the place of whatever file was there.
///
/// # Errors
/// [`FileError`] if it cannot be written; what was there is still there then.
pub fn write_safetensors(
    path: &Path,
    tensors: &BTreeMap<String, FileTensor>,
    metadata: &HashMap<String, String>,
) -> Result<(), FileError> {
    let views = tensors.iter().map(|(name, tensor)| {
        let (dtype, data) = encode(tensor);
        (name, Bytes { dtype, shape: tensor.shape(), data })
    });
    let metadata = (!metadata.is_empty()).then(|| metadata.clone());
    let bytes = safetensors::serialize(views, metadata)
        .or_else(|error| format_error(&path.display().to_string(), error, "tensors that safetensors can hold"))?;
    super::replace_file(path, &bytes)
}
