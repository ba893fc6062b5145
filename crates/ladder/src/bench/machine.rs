//! Where something was measured.

use device::Device;
use device::nvrtc::Nvrtc;
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use std::{env, fs, thread};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// The machine of some results. What does not bear on them is left out: a CPU's results name no GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The model of the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Threads that the CPU runs at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Main memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The model of the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// The version of its driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The version of CUDA that the driver knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
    /// The version of NVRTC, if there is one; without it, the driver compiles what is prebuilt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvrtc: Option<String>,
    /// The GPU's highest clocks and the power that it may draw, where the system tells. Left out where `CUDA_VISIBLE_DEVICES`
    /// is set: the system's first GPU need not be CUDA's then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clocks: Option<String>,
}

impl Machine {
    /// This machine, for results of its CPU.
    pub fn cpu() -> Self {
        let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
        let memory = System::new_with_specifics(memory).total_memory();
        Machine {
            cpu: Some(cpu_model()),
            threads: thread::available_parallelism().ok().map(usize::from),
            memory_bytes: Some(memory).filter(|&bytes| bytes > 0),
            ..Machine::default()
        }
    }

    /// This machine, for results of its first GPU.
    pub fn gpu(device: &Device) -> Self {
        Machine {
            gpu: Some(device.name().into()),
            driver: fs::read_to_string("/proc/driver/nvidia/version").ok().as_deref().and_then(driver),
            cuda: Some(cuda_version(device.attributes().driver)),
            nvrtc: Nvrtc::find().ok().map(Nvrtc::version).map(|(major, minor)| format!("{major}.{minor}")),
            clocks: env::var_os("CUDA_VISIBLE_DEVICES").is_none().then(clocks).flatten(),
            ..Machine::default()
        }
    }
}

/// A version of CUDA as its driver tells it: 13000 is "13.0".
pub fn cuda_version(driver: u32) -> String {
    format!("{}.{}", driver / 1000, driver % 1000 / 10)
}

/// The model of the CPU, as far as the system tells.
pub fn cpu_model() -> String {
    let system = System::new_with_specifics(RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()));
    let brand = system.cpus().first().map(|cpu| cpu.brand().trim()).filter(|brand| !brand.is_empty());
    brand.unwrap_or("unknown").to_string()
}

/// The driver's version, of what the kernel's module says about itself: the first word of digits and points.
fn driver(version: &str) -> Option<String> {
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    version.split_whitespace().find(is_version).map(String::from)
}

fn clocks() -> Option<String> {
    let answer = Command::new("nvidia-smi")
        .args(["--id=0", "--query-gpu=clocks.max.sm,clocks.max.mem,power.limit", "--format=csv,noheader"])
        .stderr(Stdio::null())
        .output()
        .ok()
        .filter(|answer| answer.status.success())?;
    describe_clocks(&String::from_utf8(answer.stdout).ok()?)
}

/// Three numbers with their units, in words.
fn describe_clocks(answer: &str) -> Option<String> {
    match answer.trim().split(", ").collect::<Vec<_>>()[..] {
        [sm, memory, power] => Some(format!("up to {sm}, memory up to {memory}, power up to {power}")),
        _ => None,
    }
}

/// The commit that the sources stand at, with `-dirty` behind it if a tracked file has changed; `None` where git does
/// not say, for example because the sources came as an archive.
pub fn commit() -> Option<String> {
    let answer = Command::new("git")
        .args(["-C", env!("CARGO_MANIFEST_DIR")])
        .args(["describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"])
        .stderr(Stdio::null())
        .output()
        .ok()
        .filter(|answer| answer.status.success())?;
    let commit = String::from_utf8(answer.stdout).ok()?.trim().to_string();
    Some(commit).filter(|commit| !commit.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{cuda_version, describe_clocks, driver};

    #[test]
    fn what_the_system_says_of_a_gpu_is_understood() {
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version:";
        let open =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U22)";
        assert_eq!([closed, open].map(driver), [Some("535.129.03".into()), Some("580.159.04".into())]);
        assert_eq!(driver("no such thing"), None);
        assert_eq!([12080, 13000].map(cuda_version), ["12.8", "13.0"]);
        let words = "up to 1980 MHz, memory up to 3201 MHz, power up to 700.00 W";
        assert_eq!(describe_clocks("1980 MHz, 3201 MHz, 700.00 W\n").as_deref(), Some(words));
        assert_eq!(describe_clocks("No devices were found"), None);
    }
}
