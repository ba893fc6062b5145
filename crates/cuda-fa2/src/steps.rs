//! The steps in which the kernel of `cuda-fa2` was made.
//!
//! The kernel that stands in `kernels` is the last of them. What a step changed is a diff in `kernels/steps`, and a kernel
//! before it is the last one with the later diffs taken back. So there is one kernel to keep, and each step can still be run,
//! counted and measured. No step is prebuilt: all but the last need NVRTC.

use device::{Device, DeviceError, Module, Source, Variant, file};
use diffy::Patch;
use std::collections::BTreeMap;

/// One of [`STEPS`].
#[derive(Debug)]
pub struct Step {
    /// Its place, from 1 up, and what it is, "2 swizzle".
    pub name: &'static str,
    /// What it changed of the step before it, in the folder `kernels`.
    diff: Option<&'static str>,
}

/// From plain products on tensor cores to the kernel as it is.
pub static STEPS: [Step; 7] = [
    Step { name: "1 plain ldmatrix", diff: None },
    Step { name: "2 swizzle", diff: Some("steps/2-swizzle.diff") },
    Step { name: "3 cp.async", diff: Some("steps/3-cp_async.diff") },
    Step { name: "4 two stages", diff: Some("steps/4-two_stages.diff") },
    Step { name: "5 powers of two", diff: Some("steps/5-powers_of_two.diff") },
    Step { name: "6 P in registers", diff: Some("steps/6-register_p.diff") },
    Step { name: "7 m may stay behind", diff: Some("steps/7-lazy_rescale.diff") },
];

impl Step {
    /// A variant of the kernel as it was after this step, loaded.
    ///
    /// # Errors
    /// A later step's diff is not of the sources as they are; there is no NVRTC; the device fails.
    pub(crate) fn module(&self, device: &Device, variant: &Variant) -> Result<Module, DeviceError> {
        let (now, texts) = (variant.source()?, self.texts()?);
        let text = |name: &str| texts.get(name).map(String::as_str).or_else(|| file(name));
        let own = text(variant.file).unwrap_or(now.text);
        device.load(&device.image(variant, &Source::new(variant.file, own, variant.defines, text))?)
    }

    /// The files that later steps have changed, as they were after this one.
    fn texts(&self) -> Result<BTreeMap<String, String>, DeviceError> {
        let later = STEPS.iter().rev().take_while(|step| step.name != self.name).filter_map(|step| step.diff);
        let mut texts = BTreeMap::new();
        for diff in later {
            let wanted = "a diff of the kernel as it is";
            let stale = |found| DeviceError::Value { name: diff.into(), found, wanted: wanted.into() };
            let patch = Patch::from_str(file(diff).unwrap_or_default()).map_err(|error| stale(error.to_string()))?;
            let name = patch.modified().and_then(|path| path.strip_prefix("b/kernels/")).unwrap_or_default();
            let now = texts.get(name).map(String::as_str).or_else(|| file(name)).unwrap_or_default();
            let before = diffy::apply(now, &patch.reverse()).map_err(|error| stale(error.to_string()))?;
            texts.insert(name.to_string(), before);
        }
        Ok(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_diff_is_of_the_kernel_as_it_is_and_is_one_of_the_steps() {
        let first = STEPS[0].texts().unwrap();
        assert_eq!(first.keys().collect::<Vec<_>>(), ["05_fa2_mma.cu", "tile/halves.cuh"]);
        assert!(first["05_fa2_mma.cu"].contains("expf(") && !first["tile/halves.cuh"].contains("cp_async_16("));
        assert!(STEPS[6].texts().unwrap().is_empty());
        let diffs: Vec<&str> = STEPS.iter().filter_map(|step| step.diff).collect();
        assert_eq!(device::files().filter(|name| name.starts_with("steps/")).collect::<Vec<_>>(), diffs);
    }
}
