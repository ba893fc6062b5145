//! `ladder kernels`, as a user meets it where there is a compiler, and where there is none.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::{env, fs};

/// Where NVRTC is looked for, and nowhere else.
const NVRTC: &str = "FLASH_LADDER_NVRTC";

fn ladder(args: &[&str], variables: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ladder"));
    command.args(args).envs(variables.iter().copied()).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn without_a_compiler_prebuilt_files_are_checked_and_it_is_said_what_to_install() {
    let empty = tempfile::tempdir().unwrap();
    let nowhere = [(NVRTC, empty.path())];
    let checked = ladder(&["kernels", "--check"], &nowhere);
    assert_eq!((checked.status.code(), text(&checked.stderr)), (Some(0), String::new()));
    let answer = text(&checked.stdout);
    assert!(
        answer.starts_with("no kernel was compiled: NVRTC: found no library of it; pip install nvidia-cuda-nvrtc"),
        "{answer}"
    );
    let json: Value = serde_json::from_slice(&ladder(&["kernels", "--check", "--json"], &nowhere).stdout).unwrap();
    assert!(json["nvrtc"].is_null() && json["failures"].as_array().unwrap().is_empty(), "{json}");
    let written = ladder(&["kernels"], &nowhere);
    let stderr = text(&written.stderr);
    assert_eq!((written.status.code(), written.stdout.len(), stderr.lines().count()), (Some(2), 0, 1), "{stderr}");
    assert!(stderr.starts_with("error: NVRTC: found no library of it; pip install"), "{stderr}");
}

#[test]
fn an_architecture_that_is_none_is_refused() {
    for arch in ["90", "sm_", "sm_9", "sm_75", "sm_-90", "sm_+90", "sm_090", "sm_90a", "sm_1000", "sm_99999999999"] {
        let output = ladder(&["kernels", "--arch", arch], &[]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("wanted sm_80 or newer, as sm_90") && stderr.contains("--arch"), "{stderr}");
    }
}

/// Only into the sources that this program was built with.
#[test]
fn nothing_is_written_beside_other_sources() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    for name in ["chapters", "kernels/prebuilt"] {
        fs::create_dir_all(place(name)).unwrap();
    }
    fs::write(place("Cargo.toml"), "").unwrap();
    let refusal = || {
        let output = Command::new(env!("CARGO_BIN_EXE_ladder")).arg("kernels").current_dir(&folder).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len(), stderr.lines().count()), (Some(2), 0, 1), "{stderr}");
        assert_eq!(fs::read_dir(place("kernels/prebuilt")).unwrap().count(), 0);
        stderr
    };
    assert!(refusal().contains("05_ceiling.cu: "));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    for name in device::files().filter(|name| !name.starts_with("prebuilt/")) {
        fs::create_dir_all(place("kernels").join(name).parent().unwrap()).unwrap();
        fs::copy(sources.join(name), place("kernels").join(name)).unwrap();
    }
    fs::write(place("kernels/05_fa1.cu"), "// newer").unwrap();
    let stderr = refusal();
    assert!(stderr.contains("05_fa1.cu: found another text than in this program"), "{stderr}");
}

/// With the compiler that is here, if one is: every kernel compiles without spills (for one architecture, and in CI for all),
/// and the prebuilt PTX is what its sources compile to. Where it is said which compiler, it must be there.
#[test]
fn kernels_are_checked() {
    let output = ladder(&["kernels", "--check", "--arch", "sm_90", "--json"], &[]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["failures"], Value::Array(Vec::new()));
    if answer["nvrtc"].is_string() {
        let rows = answer["kernels"].as_array().unwrap();
        assert!(ladder::kernels::of_nvrtc().all(|variant| {
            variant.kernels.iter().all(|(kernel, ..)| rows.iter().any(|row| row["kernel"] == *kernel))
        }));
    } else {
        assert!(env::var_os(NVRTC).is_none(), "{NVRTC} is set: {answer}");
    }
}
