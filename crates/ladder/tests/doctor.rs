//! `ladder doctor`, as a user meets it on machines that lack CUDA, or have something broken in its place.

use ladder::registry::{DEVICE_RUNGS, RUNGS};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

fn ladder(args: &[&str], variables: &[(&str, &Path)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ladder"));
    let output = command.args(args).envs(variables.iter().copied()).output().expect("the binary starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What it says where these variables are set, in the form for a program.
fn doctor(variables: &[(&str, &Path)]) -> Value {
    ladder(&["doctor"], variables);
    serde_json::from_str(&ladder(&["doctor", "--json"], variables)).unwrap()
}

#[test]
fn the_doctor_describes_the_machine() {
    let doctor = doctor(&[]);
    assert!(doctor["threads"].as_u64().unwrap() >= 1);
    assert!(doctor["available_memory"].as_u64().unwrap() > 0);
    assert!(doctor["gpu"].is_boolean() && doctor["cpu"].is_string());
    let wanted = RUNGS.iter().map(|rung| (rung.name, "cpu")).chain(DEVICE_RUNGS.iter().map(|rung| (rung.name, "cuda")));
    let rungs = doctor["rungs"].as_array().unwrap();
    assert!(rungs.iter().map(|row| (row["rung"].as_str().unwrap(), row["runs_on"].as_str().unwrap())).eq(wanted));
    let text = ladder(&["doctor"], &[]);
    let names = DEVICE_RUNGS.iter().map(|rung| rung.name).collect::<Vec<_>>().join(", ");
    let places = "on a GPU, with --device cuda; on a simulated one, with --device sim";
    assert!(text.contains(&format!("{names}: {places}")), "{text}");
    assert!(text.contains("\nsimulator needs neither a GPU nor CUDA"), "{text}");
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
    let variables = [("FLASH_LADDER_NVRTC", folder.path()), ("LD_LIBRARY_PATH", folder.path())];
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
