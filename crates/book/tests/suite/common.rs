//! A small repository in a temporary folder.

use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// This repository.
pub(crate) fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A repository of the given files; it vanishes when dropped.
pub(crate) fn repository(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        write(folder.path(), path, text);
    }
    folder
}

/// Writes one file, and the folders that it lies in.
pub(crate) fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Copies a folder with all that is in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let from = entry.unwrap().path();
        let to = to.join(from.file_name().unwrap());
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

/// Four rows of made-up results.
pub(crate) const RESULTS: &str = r#"{
    "machine": {"cpu": "Example 9000", "threads": 8},
    "date": "2026-01-31", "commit": "0123abc", "method": "median of 5 alternations",
    "rows": [
        {"who": "fa1", "q_len": 1024, "head_dim": 64, "mask": "full", "ms": 12.3456, "tflops": 0.0271},
        {"who": "fa2", "q_len": 1024, "head_dim": 64, "mask": "full", "ms": 4.11},
        {"who": "fa2", "q_len": 1024, "head_dim": 64, "mask": "causal", "ms": 2.5},
        {"who": "a | peer", "q_len": 4096, "head_dim": 64, "mask": "full", "ms": 1234.5678}
    ]
}"#;
