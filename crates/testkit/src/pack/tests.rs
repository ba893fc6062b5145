use super::*;
use crate::files::tests::Folder;
use crate::files::{FileTensor, write_safetensors};
use attention::oracle::{Oracle, truth};
use attention::{Attention, Mask, OutputMut, Tensor};
use ndarray::{Array, arr1};
use std::collections::{BTreeMap, HashMap};
use std::fs;

/// Two sequences of one key and three, in a tensor of three whose unused keys are NaN. All scores are 0.
fn padded_tensors() -> BTreeMap<String, FileTensor> {
    let q = Array::<f32, _>::zeros((2, 1, 1, 2));
    let mut k = Array::<f32, _>::zeros((2, 1, 3, 2));
    let mut v = Array::from_shape_fn((2, 1, 3, 2), |(_, _, j, _)| j as f32);
    for key in 1..3 {
        k.slice_mut(ndarray::s![0, 0, key, ..]).fill(f32::NAN);
        v.slice_mut(ndarray::s![0, 0, key, ..]).fill(f32::NAN);
    }
    let o = Array::from_shape_vec((2, 1, 1, 2), vec![0f32, 0.0, 1.0, 1.0]).unwrap();
    let lse = Array::from_shape_vec((2, 1, 1), vec![0f32, 3f32.ln()]).unwrap();
    let float = |name: &str, tensor: Tensor| (name.to_string(), tensor.into());
    BTreeMap::from([
        float("q", q.into()),
        float("k", k.into()),
        float("v", v.into()),
        float("o", o.into()),
        float("lse", lse.into()),
        ("k_lens".into(), arr1(&[1, 3]).into_dyn().into()),
    ])
}

const MINIMAL: &str = r#"{"cases": [{"name": "a", "family": "kvlen", "dtype": "F32", "file": "a.safetensors",
    "tol": {"o": 1e-6, "lse": 1e-6}, "poison": "nan", "ref_max": {"lse": -Infinity}, "note": "\"NaN\\",
    "alibi_slopes": null, "sink_logits": null}]}"#;

/// The family and the settings of a layer, to stand in place of another family.
const MLA: &str = r#"mla", "d_model": 1, "hq": 1, "d_nope": 1, "d_rope": 2, "dv": 1, "d_c": 1, "d_cq": 1, "rope_theta": 1e4,
    "norm_eps": 1e-6, "steps": 1, "pos0": "0"#;

fn pack(folder: &Folder, manifest: &str, tensors: &BTreeMap<String, FileTensor>) -> Pack {
    write_safetensors(&folder.join("a.safetensors"), tensors, &HashMap::new()).unwrap();
    pack_at(folder, manifest)
}

fn pack_at(folder: &Folder, manifest: &str) -> Pack {
    fs::write(folder.join("manifest.json"), manifest).unwrap();
    Pack::open(&folder.0).unwrap()
}

fn run(pack: &Pack, runner: Runner) -> Result<CaseReport, PackError> {
    pack.run(&pack.cases()[0], runner)
}

fn solve(problem: &Problem) -> Result<Outcome, AttentionError> {
    Ok(truth(problem).into())
}

#[test]
fn a_minimal_pack_with_nan_poison_runs() {
    let folder = Folder::new("minimal");
    let pack = pack(&folder, MINIMAL, &padded_tensors());
    let report = run(&pack, &solve).unwrap();
    assert_eq!(report.status, Status::Pass);
    assert!(report.worst_o <= 1.0 && report.worst_lse <= 1.0);
}

#[test]
fn wrong_results_fail() {
    let folder = Folder::new("wrong");
    let pack = pack(&folder, MINIMAL, &padded_tensors());
    let breaks: [fn(&mut Outcome); 6] = [
        |outcome| outcome.o[[0, 0, 0, 1]] += 2e-6,
        |outcome| outcome.lse[[1, 0, 0]] *= -1.0,
        |outcome| outcome.o.fill(f64::NAN),
        |outcome| outcome.lse[[0, 0, 0]] = f64::NAN,
        |outcome| outcome.lse[[0, 0, 0]] = f64::NEG_INFINITY,
        |outcome| outcome.o = ArrayD::zeros(vec![2, 1, 1, 1]),
    ];
    for breaks in breaks {
        let report = run(&pack, &|problem| {
            let mut outcome = solve(problem)?;
            breaks(&mut outcome);
            Ok(outcome)
        })
        .unwrap();
        assert!(matches!(report.status, Status::Fail(_)), "{report:?}");
        assert!(!(report.worst_o <= 1.0 && report.worst_lse <= 1.0), "{report:?}");
    }
}

#[test]
fn errors_of_a_runner_are_fail_or_unsupported() {
    let folder = Folder::new("errors");
    let pack = pack(&folder, MINIMAL, &padded_tensors());
    let unsupported = AttentionError::Unsupported { rung: "r", what: "padding".into() };
    let report = run(&pack, &|_| Err(unsupported.clone())).unwrap();
    assert_eq!(report.status, Status::Unsupported("r does not support padding".into()));
    let memory = AttentionError::Memory { what: "S", bytes: 1 };
    let report = run(&pack, &|_| Err(memory.clone())).unwrap();
    assert_eq!(report.status, Status::Fail(memory.to_string()));
    assert!(report.worst_o.is_nan() && report.worst_lse.is_nan());
}

/// Writes o and lse, or neither.
struct Forgetful {
    o: bool,
    lse: bool,
}

impl Attention for Forgetful {
    fn name(&self) -> &'static str {
        "forgetful"
    }
    fn supports(&self, _: &Problem) -> Result<(), AttentionError> {
        Ok(())
    }
    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        let mut result = Oracle.forward(problem)?;
        if self.o {
            let (attention::TensorViewMut::F32(to), Tensor::F32(from)) = (&mut out.o, &result.o) else {
                unreachable!("the pack is F32")
            };
            to.assign(from);
        }
        if self.lse {
            out.lse.assign(&result.view_mut().lse);
        }
        Ok(())
    }
}

#[test]
fn what_a_rung_leaves_unwritten_fails() {
    let folder = Folder::new("canaries");
    let pack = pack(&folder, MINIMAL, &padded_tensors());
    for (o, lse) in [(true, true), (false, true), (true, false)] {
        let report = run(&pack, &|problem| run_on_canaries(&Forgetful { o, lse }, problem)).unwrap();
        assert_eq!(report.status == Status::Pass, o && lse, "{report:?}");
    }
}

#[test]
fn packed_rows_of_no_sequence_may_hold_anything() {
    let folder = Folder::new("packed");
    let manifest = MINIMAL.replace("kvlen", "varlen");
    let rank3 = |fill: f32| Tensor::from(Array::from_elem((1, 3, 2), fill)).into();
    let tensors = BTreeMap::from([
        ("q".to_string(), rank3(0.0)),
        ("k".into(), rank3(0.0)),
        ("v".into(), rank3(5.0)),
        ("o".into(), rank3(5.0)),
        ("lse".into(), Tensor::from(Array::from_elem((1, 3), 2f32.ln())).into()),
        ("cu_seqlens_q".into(), arr1(&[0, 2]).into_dyn().into()),
        ("cu_seqlens_k".into(), FileTensor::I64(arr1(&[0, 2]).into_dyn())),
    ]);
    let pack = pack(&folder, &manifest, &tensors);
    let report = run(&pack, &|problem| run_on_canaries(&Oracle, problem)).unwrap();
    assert_eq!(report.status, Status::Pass, "{report:?}");
    let report = run(&pack, &|problem| run_on_canaries(&Forgetful { o: false, lse: false }, problem)).unwrap();
    assert!(matches!(report.status, Status::Fail(_)), "{report:?}");
}

#[test]
fn masks_are_read_as_flash_attention_means_them() {
    let folder = Folder::new("masks");
    for (json, mask) in [
        (r#"{}"#, Mask::Full),
        (r#"{"causal": false, "window": null}"#, Mask::Full),
        (r#"{"causal": false, "window": [-1, -1]}"#, Mask::Full),
        (r#"{"causal": true}"#, Mask::Causal),
        (r#"{"causal": true, "window": [-1, -1]}"#, Mask::Causal),
        (r#"{"causal": true, "window": [-1, 7]}"#, Mask::Causal),
        (r#"{"causal": true, "window": [3, 7]}"#, Mask::Window { left: Some(3), right: Some(0) }),
        (r#"{"window": [-1, 0]}"#, Mask::Window { left: None, right: Some(0) }),
        (r#"{"window": [2, 0]}"#, Mask::Window { left: Some(2), right: Some(0) }),
        (r#"{"window": [0, null]}"#, Mask::Window { left: Some(0), right: None }),
    ] {
        let manifest = MINIMAL.replace(r#""poison": "nan""#, &format!(r#""mask": {json}"#));
        let pack = pack(&folder, &manifest, &padded_tensors());
        assert_eq!(pack.load(&pack.cases()[0]).unwrap().problem().unwrap().options().mask, mask, "{json}");
    }
}

#[test]
fn what_no_rung_takes_is_unsupported_unread() {
    let folder = Folder::new("unsupported");
    for (from, to, reason) in [("kvlen", MLA, "mla"), ("F32", "FP8", "FP8")] {
        let pack = pack(&folder, &MINIMAL.replace(from, to), &BTreeMap::new());
        let report = run(&pack, &solve).unwrap();
        assert!(matches!(&report.status, Status::Unsupported(why) if why.contains(reason)), "{report:?}");
    }
    let pack = pack(&folder, MINIMAL, &BTreeMap::new());
    let report = pack.run_layer(&pack.cases()[0], &|_| unreachable!("no layer")).unwrap();
    assert_eq!(report.status, Status::Unsupported("no layer takes the kvlen family".into()));
}

#[test]
fn a_pack_that_contradicts_itself_is_an_error_that_says_where() {
    let folder = Folder::new("contradictions");
    let tensors = |json: &str| MINIMAL.replace(r#""poison": "nan""#, &format!(r#""tensors": {json}"#));
    for (manifest, part) in [
        (tensors(r#"{"q": ["float32", [2, 1, 1, 2]], "o": ["float32", [2, 1, 1, 2]]}"#), None),
        (
            tensors(r#"{"q": ["float32", [2, 1, 1, 3]]}"#),
            Some("\"q\": found F32 [2, 1, 1, 2], wanted F32 [2, 1, 1, 3]"),
        ),
        (tensors(r#"{"q": ["float16", [2, 1, 1, 2]]}"#), Some("\"q\": found F32 [2, 1, 1, 2], wanted F16")),
        (tensors(r#"{"do": ["float32", [1]]}"#), Some("\"do\": found no such tensor, wanted F32 [1]")),
        (MINIMAL.replace("F32", "F16"), Some("\"q\": found F32, wanted F16")),
        (MINIMAL.replace(r#""poison": "nan""#, r#""sinks": true"#), Some("tensor \"sinks\"")),
        (MINIMAL.replace("kvlen", "varlen"), Some("tensor \"cu_seqlens_q\"")),
        (MINIMAL.replace("a.safetensors", "b.safetensors"), Some("b.safetensors")),
    ] {
        let pack = pack(&folder, &manifest, &padded_tensors());
        match (run(&pack, &solve), part) {
            (Ok(report), None) => assert_eq!(report.status, Status::Pass),
            (Err(error), Some(part)) => {
                let message = error.to_string();
                assert!(message.contains(part) && message.contains(".safetensors"), "{message}");
            }
            (other, _) => panic!("{other:?}"),
        }
    }
    let mut shorter = padded_tensors();
    shorter.insert("lse".into(), Tensor::from(Array::<f32, _>::zeros((2, 1, 2))).into());
    let message = run(&pack(&folder, MINIMAL, &shorter), &solve).unwrap_err().to_string();
    assert!(message.contains("\"lse\": found shape [2, 1, 2], wanted [2, 1, 1]"), "{message}");
}

#[test]
fn a_manifest_that_is_none_or_leaves_the_pack_is_an_error() {
    let folder = Folder::new("manifests");
    assert!(matches!(Pack::open(&folder.0), Err(PackError::File(FileError::Io { .. }))));
    for manifest in ["", "{}", "[1]", r#"{"cases": [{"name": "a"}]}"#] {
        fs::write(folder.join("manifest.json"), manifest).unwrap();
        let message = Pack::open(&folder.0).unwrap_err().to_string();
        assert!(message.contains("wanted the manifest of a pack"), "{message}");
    }
    for file in ["../a.safetensors", "/a.safetensors", "x/../../a.safetensors", "./.."] {
        fs::write(folder.join("manifest.json"), MINIMAL.replace("a.safetensors", file)).unwrap();
        let message = Pack::open(&folder.0).unwrap_err().to_string();
        assert!(message.contains("wanted a path inside the pack") && message.contains("\"a\""), "{message}");
    }
}

#[test]
fn a_misspelt_family_or_type_is_an_error_that_lists_the_known_ones() {
    let folder = Folder::new("misspelt");
    for (from, to, part) in [
        ("kvlen", "kvlens", "family \"kvlens\" of case \"a\", wanted one of dense, kvlen, varlen, paged, mla"),
        ("kvlen", "MLA", "family \"MLA\" of case \"a\""),
        ("kvlen", "mla", "family mla without the settings of case \"a\", wanted d_model"),
        ("F32", "FP32", "dtype \"FP32\" of case \"a\", wanted one of F16, BF16, F32, F64, FP8"),
    ] {
        fs::write(folder.join("manifest.json"), MINIMAL.replace(from, to)).unwrap();
        let message = Pack::open(&folder.0).unwrap_err().to_string();
        assert!(message.contains("manifest.json: found") && message.contains(part), "{message}");
    }
}

#[cfg(unix)]
#[test]
fn a_symbolic_link_may_not_lead_out_of_the_pack() {
    use std::os::unix::fs::symlink;
    let (folder, outside) = (Folder::new("links"), Folder::new("links-outside"));
    let inner = pack(&folder, MINIMAL, &padded_tensors());
    let (file, kept) = (folder.join("a.safetensors"), folder.join("kept.safetensors"));
    fs::rename(&file, &kept).unwrap();
    symlink("kept.safetensors", &file).unwrap();
    assert_eq!(run(&inner, &solve).unwrap().status, Status::Pass, "a link within the pack");
    let refused = |error: PackError, name: &str| {
        let message = error.to_string();
        assert!(matches!(error, PackError::File(FileError::Format { .. })), "{message}");
        for part in [name, "found a symbolic link to", "links-outside", "wanted a file inside the pack"] {
            assert!(message.contains(part), "{part} in {message}");
        }
    };
    fs::rename(&kept, outside.join("kept.safetensors")).unwrap();
    fs::remove_file(&file).unwrap();
    symlink(outside.join("kept.safetensors"), &file).unwrap();
    refused(run(&inner, &solve).unwrap_err(), "a.safetensors");
    // A folder on the way may be the link too.
    symlink(&outside.0, folder.join("deep")).unwrap();
    let deep = pack_at(&folder, &MINIMAL.replace("a.safetensors", "deep/kept.safetensors"));
    refused(run(&deep, &solve).unwrap_err(), "kept.safetensors");
    fs::rename(folder.join("manifest.json"), outside.join("manifest.json")).unwrap();
    symlink(outside.join("manifest.json"), folder.join("manifest.json")).unwrap();
    refused(Pack::open(&folder.0).unwrap_err(), "manifest.json");
}
