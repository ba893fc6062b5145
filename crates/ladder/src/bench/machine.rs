//! Where something was measured.

use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use std::thread;
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
            gpu: None,
            driver: None,
        }
    }
}

/// The model of the CPU, as far as the system tells.
pub fn cpu_model() -> String {
    let system = System::new_with_specifics(RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()));
    let brand = system.cpus().first().map(|cpu| cpu.brand().trim()).filter(|brand| !brand.is_empty());
    brand.unwrap_or("unknown").to_string()
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
