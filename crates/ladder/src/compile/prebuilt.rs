//! The PTX under `kernels/prebuilt`.

use super::sass::Tools;
use crate::check::repository;
use anyhow::{Context, Result, ensure};
use device::nvrtc::Nvrtc;
use device::{Variant, prebuilt};
use ladder::kernels;
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// By this line two files tell whether one compiler has made them.
const COMPILER: &str = "// Cuda compilation tools";

/// What is wrong with the files in this program, as far as it shows without a compiler: one is not there, or not of the sources
/// in this program, or of no variant.
pub(super) fn failures() -> Vec<String> {
    let broken = kernels::variants().filter_map(|variant| prebuilt::ptx(variant).err()).map(|error| error.to_string());
    let wanted: BTreeSet<String> =
        kernels::variants().map(|variant| format!("prebuilt/{}", variant.ptx_name())).collect();
    let is_wanted = |name: &str| wanted.contains(name.trim_end_matches(".gz"));
    let others = device::files().filter(|name| name.starts_with("prebuilt/") && !is_wanted(name));
    broken.chain(others.map(|name| format!("kernels/{name}: of no variant, wanted it gone"))).collect()
}

/// The file of each variant that is NVRTC's to compile, compiled anew, of those that assemble.
pub(super) fn compiled(nvrtc: &Nvrtc, tools: &Tools, failures: &mut Vec<String>) -> Vec<(&'static Variant, String)> {
    let file = |variant: &Variant| -> Result<String> {
        let ptx = nvrtc.ptx(&variant.source()?, variant.arch)?;
        let text = prebuilt::text(variant, &String::from_utf8_lossy(&ptx.code))?;
        tools.assemble(&text, variant.arch)?;
        Ok(text)
    };
    let variants: Vec<_> = kernels::of_nvrtc().collect();
    let mut files = Vec::new();
    for (variant, text) in variants.par_iter().map(|variant| (*variant, file(variant))).collect::<Vec<_>>() {
        match text {
            Ok(text) => files.push((variant, text)),
            Err(error) => failures.push(format!("{}: {error:#}", variant.ptx_name())),
        }
    }
    files
}

/// The files in this program that this very compiler does not make of their sources.
pub(super) fn differences(files: &[(&'static Variant, String)]) -> Vec<String> {
    let compiler = |text: &str| text.lines().find(|line| line.starts_with(COMPILER)).map(String::from);
    let other = |variant: &Variant, text: &str| {
        prebuilt::ptx(variant).is_ok_and(|found| compiler(&found) == compiler(text) && found != text)
    };
    let differing = files.iter().filter(|(variant, text)| other(variant, text));
    differing
        .map(|(variant, _)| format!("kernels/prebuilt/{}: not what its sources compile to", variant.ptx_name()))
        .collect()
}

/// The repository, if its sources are those in this program: PTX of others must not replace what is there.
pub(super) fn root() -> Result<PathBuf> {
    let root = repository::root()?;
    for name in device::files().filter(|name| !name.starts_with("prebuilt/")) {
        let path = root.join("kernels").join(name);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        ensure!(
            device::file(name) == Some(&text),
            "{}: found another text than in this program, wanted the sources that it was built with: build it anew",
            path.display()
        );
    }
    Ok(root)
}

/// Writes the files that are not there as they are, and says so.
pub(super) fn write(root: &Path, files: &[(&'static Variant, String)]) -> Result<String> {
    let (folder, mut written) = (root.join("kernels/prebuilt"), 0);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    for (variant, text) in files {
        let (name, bytes) = prebuilt::file(variant, text);
        // A text that has become long, or short, had another name.
        for old in [variant.ptx_name(), format!("{}.gz", variant.ptx_name())] {
            if old != name && folder.join(&old).exists() {
                fs::remove_file(folder.join(&old)).with_context(|| old)?;
            }
        }
        let path = folder.join(&name);
        // Another gzip packs the same text into other bytes.
        let same = |found: Vec<u8>| found == bytes || prebuilt::unpacked(&found).is_ok_and(|found| found == *text);
        if fs::read(&path).is_ok_and(same) {
            continue;
        }
        fs::write(&path, &bytes).with_context(|| path.display().to_string())?;
        written += 1;
    }
    Ok(format!("kernels/prebuilt: {} files, {written} written in {}", files.len(), folder.display()))
}
