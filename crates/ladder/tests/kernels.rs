//! `ladder kernels`, and what `ladder doctor` says of CUDA, as a user meets them on machines that lack it, or have something
//! broken in its place.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

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
    for arch in ["90", "sm_", "sm_9", "sm_-90", "sm_90a", "sm_99999999999"] {
        let output = ladder(&["kernels", "--arch", arch], &[]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("wanted an architecture, such as sm_90") && stderr.contains("--arch"), "{stderr}");
    }
}

/// With the compiler that is here, if one is: every kernel compiles without spills, and the prebuilt PTX is what its sources
/// compile to.
#[test]
fn kernels_are_checked() {
    let output = ladder(&["kernels", "--check", "--json"], &[]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["failures"], Value::Array(Vec::new()));
    if answer["nvrtc"].is_string() {
        let rows = answer["kernels"].as_array().unwrap();
        assert!(ladder::kernels::variants().all(|variant| {
            variant.kernels.iter().all(|(kernel, ..)| rows.iter().any(|row| row["kernel"] == *kernel))
        }));
    }
}

fn doctor(variables: &[(&str, &Path)]) -> Value {
    let lines = ladder(&["doctor"], variables);
    assert!(lines.status.success() && lines.stderr.is_empty(), "{}", text(&lines.stderr));
    let output = ladder(&["doctor", "--json"], variables);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A library that loads, and has no function of the driver or the compiler: one that this program itself uses.
#[cfg(target_os = "linux")]
fn foreign_library() -> Vec<u8> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().filter_map(|line| line.split_whitespace().last()).find(|path| path.contains("libgcc_s"));
    fs::read(path.expect("Rust's programs use libgcc_s")).unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn the_doctor_names_a_driver_or_a_compiler_that_does_not_work() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [(NVRTC, folder.path()), ("LD_LIBRARY_PATH", folder.path())];
    for (content, driver, compiler) in [
        (b"no library".to_vec(), "CUDA driver: found no libcuda that loads", "libnvrtc.so.13, which does not work"),
        (foreign_library(), "CUDA driver: found a libcuda without cuInit", "libnvrtc.so.13, which does not work"),
    ] {
        for name in ["libcuda.so", "libcuda.so.1", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0"] {
            fs::write(folder.path().join(name), &content).unwrap();
        }
        let found = doctor(&variables);
        let (cuda, nvrtc) = (found["cuda"]["missing"].as_str().unwrap(), found["nvrtc"]["missing"].as_str().unwrap());
        assert!(cuda.starts_with(driver) && cuda.contains("525"), "{cuda}");
        assert!(nvrtc.contains(compiler) && nvrtc.contains("pip install"), "{nvrtc}");
        assert_eq!(found["cuda"]["devices"], Value::Array(Vec::new()));
        assert!(found["nvrtc"]["library"].is_null() && found["nvrtc"]["headers"].is_null(), "{found}");
    }
}

#[test]
fn the_doctor_tells_of_cuda_what_is_here_or_what_is_missing() {
    let found = doctor(&[]);
    let devices = found["cuda"]["devices"].as_array().unwrap();
    assert_eq!(found["cuda"]["missing"].is_string(), devices.is_empty(), "{found}");
    assert_eq!(found["nvrtc"]["missing"].is_null(), found["nvrtc"]["headers"].is_string(), "{found}");
    assert_eq!(found["nvrtc"]["version"].is_string(), found["nvrtc"]["library"].is_string(), "{found}");
}
