//! What of CUDA is here: the driver's devices, and the compiler.

use crate::format;
use device::nvrtc::Nvrtc;
use device::{Attributes, DeviceError};
use ladder::bench::cuda_version;
use serde_json::{Value, json};

/// The devices that CUDA shows, with their names.
pub(super) type Devices = Result<Vec<(String, Attributes)>, DeviceError>;

/// The compiler, if there is one.
pub(super) type Compiler = Result<&'static Nvrtc, DeviceError>;

/// What is missing, where the line has said of what.
fn why(error: &DeviceError) -> String {
    match error {
        DeviceError::Missing { why, .. } => why.clone(),
        other => other.to_string(),
    }
}

pub(super) fn devices_text(devices: &Devices) -> String {
    let devices = match devices {
        Ok(devices) => devices,
        Err(missing) => return why(missing),
    };
    let one = |(ordinal, (name, attributes)): (usize, &(String, Attributes))| {
        let (major, minor) = attributes.compute_capability;
        let memory = format::bytes(attributes.memory_bytes as f64);
        format!("{ordinal}: {name}, compute capability {major}.{minor}, {memory}")
    };
    let driver = devices.first().map_or("-".into(), |(_, attributes)| cuda_version(attributes.driver));
    format!("driver of CUDA {driver}; {}", devices.iter().enumerate().map(one).collect::<Vec<_>>().join("; "))
}

pub(super) fn devices_json(devices: &Devices) -> Value {
    let one = |(name, attributes): &(String, Attributes)| {
        let (major, minor) = attributes.compute_capability;
        json!({
            "name": name,
            "compute_capability": format!("{major}.{minor}"),
            "multiprocessors": attributes.multiprocessors,
            "memory_bytes": attributes.memory_bytes,
        })
    };
    json!({
        "driver": devices.as_ref().ok().and_then(|devices| devices.first()).map(|(_, attributes)| cuda_version(attributes.driver)),
        "devices": devices.as_ref().map_or(Vec::new(), |devices| devices.iter().map(one).collect()),
        "missing": devices.as_ref().err().map(DeviceError::to_string),
    })
}

pub(super) fn compiler_text(compiler: &Compiler) -> String {
    let nvrtc = match compiler {
        Ok(nvrtc) => nvrtc,
        Err(missing) => return why(missing),
    };
    let headers = match nvrtc.include() {
        Ok(folder) => format!("headers in {}", folder.display()),
        Err(missing) => missing.to_string(),
    };
    let (major, minor) = nvrtc.version();
    format!("{major}.{minor}, {}; {headers}", nvrtc.path().display())
}

pub(super) fn compiler_json(compiler: &Compiler) -> Value {
    let found = compiler.as_ref().ok();
    let headers = found.map(|nvrtc| nvrtc.include());
    let missing = compiler.as_ref().err().or(headers.as_ref().and_then(|headers| headers.as_ref().err()));
    json!({
        "version": found.map(|nvrtc| nvrtc.version()).map(|(major, minor)| format!("{major}.{minor}")),
        "library": found.map(|nvrtc| nvrtc.path().display().to_string()),
        "headers": headers.as_ref().and_then(|headers| headers.as_ref().ok()).map(|folder| folder.display().to_string()),
        "missing": missing.map(DeviceError::to_string),
    })
}
