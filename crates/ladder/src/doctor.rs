//! `ladder doctor`: what this machine has, and what will run where.

mod cuda;

use crate::cli::{self, DoctorArgs};
use crate::devices;
use crate::{format, memory};
use anyhow::Result;
use fa2::Fa2Simd;
use ladder::bench::cpu_model;
use ladder::registry::RUNGS;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

pub(crate) fn main(args: &DoctorArgs) -> Result<bool> {
    let cpu = cpu_model();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let (features, available) = (cpu_features(), memory::available());
    let (devices, compiler) = (device::cuda_attributes(), device::nvrtc::Nvrtc::find());
    let gpu = gpu(devices.is_ok());
    let rungs: Vec<&str> = RUNGS.iter().map(|rung| rung.name).collect();
    if args.json {
        let on_device = devices::names().map(|rung| json!({ "rung": rung, "runs_on": "cuda" }));
        let answer = json!({
            "cpu": cpu,
            "architecture": std::env::consts::ARCH,
            "features": features,
            "vectors": Fa2Simd::default().simd().to_string(),
            "threads": threads,
            "available_memory": available,
            "gpu": gpu.found,
            "gpu_detail": gpu.detail,
            "cuda": cuda::devices_json(&devices),
            "nvrtc": cuda::compiler_json(&compiler),
            "rungs": rungs.iter().map(|rung| json!({ "rung": rung, "runs_on": "cpu" })).chain(on_device).collect::<Vec<_>>(),
        });
        cli::print(&answer.to_string())?;
        return Ok(true);
    }
    cli::print(&format!(
        "cpu       {cpu} ({})\nfeatures  {}\nvectors   {} in fa2-simd\nthreads   {threads}\nmemory    {} available\ngpu       {}\n\
         cuda      {}\nnvrtc     {}\nsimulator needs neither a GPU nor CUDA: it runs the kernels' prebuilt PTX on the CPU\n\
         rungs     {}: on the CPU, in {threads} threads\n          {}: on a GPU, with --device cuda; on a simulated one, with --device sim",
        std::env::consts::ARCH,
        if features.is_empty() { "none beyond the baseline".into() } else { features.join(" ") },
        Fa2Simd::default().simd(),
        format::bytes(available as f64),
        gpu.detail,
        cuda::devices_text(&devices),
        cuda::compiler_text(&compiler),
        rungs.join(", "),
        devices::names().collect::<Vec<_>>().join(", "),
    ))?;
    Ok(true)
}

/// The vector extensions that matter to attention, of those the CPU has.
#[cfg(target_arch = "x86_64")]
fn cpu_features() -> Vec<&'static str> {
    macro_rules! detected {
        ($($feature:tt),+) => {
            [$(($feature, std::arch::is_x86_feature_detected!($feature))),+]
        };
    }
    let all = detected!("sse4.2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512bw", "avx512vnni", "avx512bf16");
    all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

/// The vector extensions that matter to attention, of those the CPU has.
#[cfg(target_arch = "aarch64")]
fn cpu_features() -> Vec<&'static str> {
    macro_rules! detected {
        ($($feature:tt),+) => {
            [$(($feature, std::arch::is_aarch64_feature_detected!($feature))),+]
        };
    }
    let all = detected!("neon", "fp16", "bf16", "dotprod", "i8mm", "sve", "sve2");
    all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

/// The vector extensions that matter to attention: none are looked for on this architecture.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn cpu_features() -> Vec<&'static str> {
    Vec::new()
}

/// Whether there is a GPU that CUDA could use.
struct Gpu {
    found: bool,
    detail: String,
}

/// Looks for an NVIDIA GPU and its driver by the files they leave. In some containers there are none, though CUDA shows a device.
fn gpu(shown: bool) -> Gpu {
    let driver = fs::read_to_string("/proc/driver/nvidia/version").ok();
    let version = driver.as_deref().and_then(|text| text.lines().next()).map(str::trim);
    let models: Vec<String> = gpu_models();
    let library = file_in_path_list("LD_LIBRARY_PATH", &["libcuda.so.1"])
        .or_else(|| file_in(LIBRARY_FOLDERS.iter().map(PathBuf::from), &["libcuda.so.1", "nvcuda.dll"]));
    let tool = file_in_path_list("PATH", &["nvidia-smi", "nvidia-smi.exe"]);
    let found = !models.is_empty() || (version.is_some() && library.is_some());
    let name = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let detail = if found {
        let models = if models.is_empty() { "an NVIDIA GPU".into() } else { models.join(", ") };
        let library = name(&library).unwrap_or("no libcuda, so that CUDA cannot use it".into());
        format!("{models}; {}; {library}", version.unwrap_or("driver of unknown version"))
    } else if shown {
        "an NVIDIA GPU, which CUDA shows; found no files of its driver".into()
    } else {
        match (name(&library), name(&tool)) {
            (None, None) => "none: found no NVIDIA driver, no libcuda and no nvidia-smi".into(),
            (library, tool) => {
                let left: Vec<String> = [library, tool].into_iter().flatten().collect();
                format!("none: found {}, but no driver is loaded", left.join(" and "))
            }
        }
    };
    Gpu { found: found || shown, detail }
}

const LIBRARY_FOLDERS: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "C:\\Windows\\System32",
];

/// The models of the GPUs that the Linux driver shows.
fn gpu_models() -> Vec<String> {
    let Ok(folders) = fs::read_dir("/proc/driver/nvidia/gpus") else { return Vec::new() };
    let information = folders.flatten().filter_map(|gpu| fs::read_to_string(gpu.path().join("information")).ok());
    information
        .filter_map(|text| {
            let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
            Some(model.trim().to_string())
        })
        .collect()
}

fn file_in_path_list(variable: &str, names: &[&str]) -> Option<PathBuf> {
    let folders = std::env::var_os(variable)?;
    file_in(std::env::split_paths(&folders), names)
}

fn file_in(folders: impl Iterator<Item = impl AsRef<Path>>, names: &[&str]) -> Option<PathBuf> {
    folders.flat_map(|folder| names.iter().map(move |name| folder.as_ref().join(name))).find(|path| path.is_file())
}
