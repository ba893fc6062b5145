//! The steps in which a kernel was made.
//!
//! The kernel that stands in `kernels` is the last of them. What a step changed is a diff in `kernels/steps`, and a kernel
//! before it is the last one with the later diffs taken back. So there is one kernel to keep, and each step can still be run,
//! counted and measured. No step is prebuilt: all but the last need NVRTC.

use crate::trace::TRACE;
use device::{Device, DeviceError, Module, Source, Variant, file};
use diffy::Patch;
use std::collections::BTreeMap;

/// A step in which a kernel was made.
#[derive(Debug)]
pub struct Step {
    /// Its place, from 1 up, and what it is, "2 swizzle".
    pub name: &'static str,
    /// What it changed of the step before it: a file of the folder `kernels`; the first has none.
    pub diff: Option<&'static str>,
    /// Threads that a block of the last step has more.
    pub fewer_threads: u32,
    /// Whether blocks stay until all tiles are done; else there is one for each.
    pub blocks_stay: bool,
}

impl Step {
    /// One whose blocks are those of the last step, a block for each tile.
    pub const fn new(name: &'static str, diff: Option<&'static str>) -> Step {
        Step { name, diff, fewer_threads: 0, blocks_stay: false }
    }
}

/// From plain products on tensor cores to the kernel of `cuda-fa2` as it is.
pub(crate) static FA2_STEPS: [Step; 7] = [
    Step::new("1 plain ldmatrix", None),
    Step::new("2 swizzle", Some("steps/fa2/2-swizzle.diff")),
    Step::new("3 cp.async", Some("steps/fa2/3-cp_async.diff")),
    Step::new("4 two stages", Some("steps/fa2/4-two_stages.diff")),
    Step::new("5 powers of two", Some("steps/fa2/5-powers_of_two.diff")),
    Step::new("6 P in registers", Some("steps/fa2/6-register_p.diff")),
    Step::new("7 m may stay behind", Some("steps/fa2/7-lazy_rescale.diff")),
];

/// A variant of the kernel as it was after that step, compiled with these macros, and loaded.
///
/// # Errors
/// A later step's diff is not of the sources as they are; there is no NVRTC; the device fails; it is to keep [marks](TRACE), and has
/// none to keep.
pub(crate) fn module(
    steps: &[Step],
    step: usize,
    device: &Device,
    variant: &Variant,
    defines: &[(&str, &str)],
) -> Result<Module, DeviceError> {
    let (now, texts) = (variant.source()?, texts(steps, step)?);
    let text = |name: &str| texts.get(name).map(String::as_str).or_else(|| file(name));
    let own = text(variant.file).unwrap_or(now.text);
    let source = Source::new(variant.file, own, defines, text);
    let keeps = source.headers.iter().any(|(name, _)| *name == "tile/trace.cuh");
    if !keeps && defines.iter().any(|(name, _)| *name == TRACE) {
        let (name, wanted) = (format!("kernel of {}", variant.file), "one that keeps marks, as fa3's from step 2 on");
        return Err(DeviceError::Value { name, found: "one without marks".into(), wanted: wanted.into() });
    }
    device.load(&device.image(variant, &source)?)
}

/// The files that steps behind this one have changed, as they were after it.
///
/// # Errors
/// A diff is not of the sources as they are.
pub fn texts(steps: &[Step], step: usize) -> Result<BTreeMap<String, String>, DeviceError> {
    let later = steps.iter().skip(step.saturating_add(1)).rev().filter_map(|step| step.diff);
    let mut texts = BTreeMap::new();
    for diff in later {
        let stale = |found: &dyn ToString| {
            let wanted = "a diff of the kernel as it is";
            DeviceError::Value { name: diff.into(), found: found.to_string(), wanted: wanted.into() }
        };
        // One for each file that it changes.
        for of_file in file(diff).unwrap_or_default().split("--- a/").skip(1) {
            let of_file = format!("--- a/{of_file}");
            let patch = Patch::from_str(&of_file).map_err(|error| stale(&error))?;
            let name = patch.modified().and_then(|path| path.strip_prefix("b/kernels/")).unwrap_or_default();
            let now = texts.get(name).map(String::as_str).or_else(|| file(name)).unwrap_or_default();
            let before = diffy::apply(now, &patch.reverse()).map_err(|error| stale(&error))?;
            texts.insert(name.to_string(), before);
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_diff_is_of_the_kernel_as_it_is_and_is_one_of_the_steps() {
        let first = texts(&FA2_STEPS, 0).unwrap();
        assert_eq!(
            first.keys().collect::<Vec<_>>(),
            ["05_fa2_mma.cu", "tile/halves.cuh", "tile/results.cuh", "tile/rows.cuh"]
        );
        assert!(first["tile/rows.cuh"].contains("expf(") && !first["tile/halves.cuh"].contains("cp_async_16("));
        assert!(texts(&FA2_STEPS, 6).unwrap().is_empty());
        let diffs: Vec<&str> = FA2_STEPS.iter().filter_map(|step| step.diff).collect();
        assert_eq!(device::files().filter(|name| name.starts_with("steps/fa2/")).collect::<Vec<_>>(), diffs);
    }
}
