use super::*;
use ndarray::{arr1, arr2};
use std::path::PathBuf;

/// A folder of its own for one test, gone afterwards.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("flash-ladder-{}-{test}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

fn every_type() -> BTreeMap<String, FileTensor> {
    let x = arr2(&[[1.5f32, -0.0], [f32::INFINITY, 1e-7], [65504.0, 0.1]]);
    BTreeMap::from([
        ("f32".into(), Tensor::from(x.clone()).into()),
        ("f64".into(), Tensor::from(x.mapv(f64::from)).into()),
        ("f16".into(), Tensor::from(x.mapv(f16::from_f32)).into()),
        ("bf16".into(), Tensor::from(x.mapv(bf16::from_f32).reversed_axes()).into()),
        ("e4m3".into(), Tensor::from(arr1(&[E4m3(0x38), E4m3(0xFF)])).into()),
        ("i32".into(), arr1(&[0, i32::MIN]).into_dyn().into()),
        ("i64".into(), FileTensor::I64(arr1(&[0, i64::MAX]).into_dyn())),
        ("empty".into(), Tensor::from(ndarray::Array3::<f32>::zeros((2, 0, 3))).into()),
        ("scalar".into(), Tensor::from(ndarray::arr0(2.0f32)).into()),
    ])
}

#[test]
fn safetensors_come_back_as_they_went() {
    let folder = Folder::new("safetensors");
    let path = folder.join("x.safetensors");
    let metadata = HashMap::from([("spec".to_string(), "{}".to_string())]);
    write_safetensors(&path, &BTreeMap::new(), &HashMap::new()).unwrap();
    write_safetensors(&path, &every_type(), &metadata).unwrap();
    let file = read_safetensors(&path).unwrap();
    assert_eq!(file.tensors, every_type());
    assert_eq!(file.metadata, metadata);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "no temporary file may stay");
    ::safetensors::SafeTensors::deserialize(&fs::read(&path).unwrap()).unwrap();
}

#[test]
fn npy_comes_back_as_it_went() {
    let folder = Folder::new("npy");
    let path = folder.join("x.npy");
    for (name, tensor) in every_type() {
        let written = write_npy(&path, &tensor);
        if name == "bf16" || name == "e4m3" {
            let message = written.unwrap_err().to_string();
            assert!(message.contains("use safetensors"), "{message}");
        } else {
            written.unwrap();
            assert_eq!(read_npy(&path).unwrap(), tensor, "{name}");
            npyz::NpyFile::new(&fs::read(&path).unwrap()[..]).unwrap();
        }
    }
}

#[test]
fn nan_keeps_its_bits() {
    let bits = 0x7FC1_2345u32;
    let bytes = safetensors(r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, &bits.to_le_bytes());
    let x = safetensors_from_bytes("x", &bytes).unwrap().f32s("x").unwrap();
    assert_eq!(x[[0]].to_bits(), bits);
}

#[test]
fn reads_bytes_made_by_hand() {
    let header = r#"{"__metadata__":{"a":"b"},"w":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},
        "n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#;
    let data = [7, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3F, 0x00, 0xC0];
    let file = safetensors_from_bytes("x", &safetensors(header, &data)).unwrap();
    assert_eq!(file.f32s("w").unwrap(), arr1(&[1.0, -2.0]).into_dyn());
    assert_eq!(file.lengths("n").unwrap(), [7]);
    assert_eq!(file.metadata["a"], "b");

    let i4 = |order: &str, fortran: &str| {
        let header = format!("{{'descr': '{order}i4', 'fortran_order': {fortran}, 'shape': (2, 3), }}   \n");
        let data: Vec<u8> =
            (1..=6i32).flat_map(|x| if order == ">" { x.to_be_bytes() } else { x.to_le_bytes() }).collect();
        npy_from_bytes("x", &npy(&header, &data)).unwrap()
    };
    let rows = FileTensor::I32(arr2(&[[1, 2, 3], [4, 5, 6]]).into_dyn());
    assert_eq!(i4("<", "False"), rows);
    assert_eq!(i4(">", "False"), rows);
    assert_eq!(i4("<", "True"), FileTensor::I32(arr2(&[[1, 3, 5], [2, 4, 6]]).into_dyn()));
    let half = npy("{'shape':(1,),\"descr\":\"<f2\",'fortran_order':False}", &[0x00, 0x3C]);
    assert_eq!(npy_from_bytes("x", &half).unwrap(), Tensor::from(arr1(&[f16::ONE])).into());
}

#[test]
fn fortran_order_is_written_in_c_order() {
    let folder = Folder::new("fortran");
    let path = folder.join("x.npy");
    let transposed = Tensor::from(arr2(&[[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]]).reversed_axes()).into();
    write_npy(&path, &transposed).unwrap();
    assert_eq!(read_npy(&path).unwrap(), transposed);
}

#[test]
fn errors_name_file_tensor_found_and_wanted() {
    let read = |header: &str, data: &[u8]| {
        safetensors_from_bytes("a.safetensors", &safetensors(header, data)).unwrap_err().to_string()
    };
    for (header, data, message) in [
        (r#"{"q":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}"#, &[0; 4][..], "tensor \"q\": found dtype \"F33\""),
        (r#"{"q":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, &[0; 4], "found offsets (0, 4), wanted (0, 8)"),
        (r#"{"q":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, &[0; 8], "found offsets (4, 8), wanted (0, 4)"),
        (r#"{"q":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, &[0; 4], "found offsets (4, 0)"),
        (r#"{"q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, &[0; 3], "found 3 bytes of data, wanted 4"),
        (
            r#"{"q":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#,
            &[],
            "tensor \"q\": found shape [4294967296, 4294967296]",
        ),
        (
            r#"{"q":{"dtype":"F32","shape":[0,9223372036854775807,9],"data_offsets":[0,0]}}"#,
            &[],
            "tensor \"q\": found shape [0,",
        ),
        // A JSON map would keep the last of two, and read the file as sound.
        (
            r#"{"q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"q":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}"#,
            &[0; 4],
            "tensor \"q\": found two tensors of that name, wanted one",
        ),
        (r#"{"q":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, &[0; 4], "wanted a safetensors header in JSON"),
        ("[]", &[], "wanted a safetensors header in JSON"),
    ] {
        let found = read(header, data);
        assert!(found.starts_with("a.safetensors") && found.contains(message), "{found}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
    let huge = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    assert!(safetensors_from_bytes("a", &huge).is_err());

    for (header, data, message) in [
        ("{'descr': '|V2', 'fortran_order': False, 'shape': (1,)}", &[0; 2][..], "no bfloat16"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", &[0; 4], "found 4 bytes"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", &[0; 5], "wanted 4 bytes"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", &[], "fewer elements"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9223372036854775807, 9)}", &[], "array"),
        ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}", &[0; 4], "of one array"),
        (&"[".repeat(60_000), &[], "of one array"),
    ] {
        let found = npy_from_bytes("a.npy", &npy(header, data)).unwrap_err().to_string();
        assert!(found.starts_with("a.npy") && found.contains(message), "{found}");
    }
}

#[test]
fn getters_say_what_is_missing_or_wrong() {
    let file = TensorFile { file: "layer".into(), tensors: every_type(), ..TensorFile::default() };
    for (error, parts) in [
        (file.tensor("q").map(drop), ["\"q\"", "\"scalar\""]),
        (file.tensor("i32").map(drop), ["I32 [2]", "floating-point"]),
        (file.f32s("f64").map(drop), ["F64", "F32, F16 or BF16"]),
        (file.lengths("f32").map(drop), ["F32 [3, 2]", "a list of I32"]),
        (file.lengths("i64").map(drop), ["9223372036854775807", "fit I32"]),
    ] {
        let message = error.unwrap_err().to_string();
        assert!(message.starts_with("layer, tensor "), "{message}");
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}

#[test]
fn only_regular_files_are_opened_or_replaced() {
    let folder = Folder::new("regular");
    let mut paths = vec![folder.0.clone()];
    if cfg!(unix) {
        paths.extend(["/dev/zero".into(), "/dev/null".into()]);
    }
    for path in paths {
        let message = read_safetensors(&path).unwrap_err().to_string();
        assert!(message.contains("wanted a regular file"), "{message}");
        assert!(read_npy(&path).is_err());
        assert!(write_safetensors(&path, &BTreeMap::new(), &HashMap::new()).is_err());
    }
    assert!(matches!(read_npy(&folder.join("none.npy")), Err(FileError::Io { .. })));
    let nowhere = folder.join("none").join("x.npy");
    assert!(matches!(write_npy(&nowhere, &every_type()["f32"]), Err(FileError::Io { .. })));
    // As long as it claims to be, and all zeros: nothing of it is read into memory.
    let sparse = folder.join("sparse");
    File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
    assert!(read_safetensors(&sparse).is_err() && read_npy(&sparse).is_err());
}

#[test]
fn damaged_bytes_are_errors_or_other_tensors_but_never_a_panic() {
    let folder = Folder::new("damaged");
    let (path, npy_path) = (folder.join("x.safetensors"), folder.join("x.npy"));
    write_safetensors(&path, &every_type(), &HashMap::new()).unwrap();
    write_npy(&npy_path, &every_type()["f32"]).unwrap();
    for bytes in [fs::read(&path).unwrap(), fs::read(&npy_path).unwrap()] {
        let read = |bytes: &[u8]| safetensors_from_bytes("x", bytes).is_ok() || npy_from_bytes("x", bytes).is_ok();
        assert!(read(&bytes));
        for len in 0..bytes.len() {
            assert!(!read(&bytes[..len]), "cut to {len} bytes");
        }
        let mut damaged = bytes.clone();
        for i in 0..bytes.len() {
            for bit in 0..8 {
                damaged[i] ^= 1 << bit;
                read(&damaged);
                damaged[i] = bytes[i];
            }
            for byte in [0, b'9', b'[', b'"', 0xFF] {
                damaged[i] = byte;
                read(&damaged);
            }
            damaged[i] = bytes[i];
        }
    }
}
