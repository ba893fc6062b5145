//! What the tests of the binary share: how it is run, and where their files lie.

use std::fs;
use std::process::{Command, Output};
use tempfile::TempDir;

pub(crate) fn ladder(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ladder")).args(args).output().expect("the binary starts")
}

/// Runs the binary, wants success and an empty stderr, and returns what it printed.
pub(crate) fn answer(args: &[&str]) -> String {
    let output = ladder(args);
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{args:?}: {:?}, {stderr}", output.status);
    assert_eq!(stderr, "", "{args:?}");
    stdout
}

/// Wants exit code 2, nothing on stdout, and one line on stderr that names each of `names`.
pub(crate) fn refused(args: &[&str], names: &[&str]) {
    let output = ladder(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(output.stdout, b"", "{args:?}");
    assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    assert!(stderr.starts_with("error: "), "{args:?}: {stderr}");
    for name in names {
        assert!(stderr.contains(name), "{args:?}: wanted {name:?} in {stderr}");
    }
}

/// A folder for the files of one test.
pub(crate) struct Folder(pub(crate) TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_string()
    }

    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }
}
