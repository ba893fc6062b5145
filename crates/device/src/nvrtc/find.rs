//! Where NVRTC and CUDA's headers may be.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder that is taken and no other, if this variable names one.
pub(super) const ONLY: &str = "FLASH_LADDER_NVRTC";

/// The folder that the variable names.
pub(super) fn only(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    variable(ONLY).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The folders to look in, in order.
pub(super) fn folders(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(only) = only(variable) {
        return vec![only];
    }
    let mut folders: Vec<PathBuf> = variable("VIRTUAL_ENV").map(|root| packages(Path::new(&root))).unwrap_or_default();
    let list = variable(if cfg!(windows) { "PATH" } else { "LD_LIBRARY_PATH" });
    folders.extend(list.iter().flat_map(std::env::split_paths).filter(|folder| folder.is_absolute()));
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).map(PathBuf::from);
    let toolkits: Vec<PathBuf> = toolkits.chain([PathBuf::from("/usr/local/cuda")]).collect();
    folders.extend(toolkits.iter().flat_map(|root| ["lib64", "lib", "bin/x64", "bin"].map(|folder| root.join(folder))));
    folders.extend(
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"].map(PathBuf::from),
    );
    folders
}

/// The folders of a Python environment in which NVIDIA's packages have libraries: of CUDA 13, and of 12.
fn packages(root: &Path) -> Vec<PathBuf> {
    let versions = fs::read_dir(root.join("lib")).into_iter().flatten().flatten().map(|entry| entry.path());
    let versions =
        versions.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python")));
    let sites = versions.chain([root.join("Lib")]).map(|path| path.join("site-packages/nvidia"));
    sites
        .flat_map(|site| {
            ["cu13/lib", "cu13/bin/x86_64", "cuda_nvrtc/lib", "cuda_nvrtc/bin"].map(|folder| site.join(folder))
        })
        .collect()
}

/// The files of a folder that are a library by that name, newest version first.
pub(super) fn libraries(folder: &Path, name: &str) -> Vec<PathBuf> {
    let is_one = |file: &str| {
        let version = file.strip_prefix(&format!("lib{name}.so")).or_else(|| {
            // nvrtc64_130_0.dll
            file.strip_prefix(&format!("{name}64_")).and_then(|rest| rest.strip_suffix(".dll"))
        });
        version.is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || "._".contains(c)))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let named = entries.filter(|path| path.file_name().is_some_and(|name| is_one(&name.to_string_lossy())));
    // Whoever opens a pipe waits for its other end.
    let mut files: Vec<PathBuf> = named.filter(|path| path.is_file()).collect();
    let numbers = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect::<Vec<u32>>()
    };
    files.sort_by_key(|path| std::cmp::Reverse(numbers(path)));
    files
}

/// The folder of the headers that belong to the library of a folder: beside it in toolkits and in packages of CUDA 13, in a
/// package of their own in those of 12, and where the system keeps headers.
pub(super) fn include(folder: &Path) -> Option<PathBuf> {
    let places = ["../include", "../../include", "../../cuda_runtime/include", "../../../include"];
    let mut places = places.into_iter().map(|place| folder.join(place)).filter_map(|place| place.canonicalize().ok());
    places.find(|place| place.join("cuda_fp16.h").is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_folder_named_is_the_only_one() {
        let variable = |name: &str| {
            let value = match name {
                "FLASH_LADDER_NVRTC" => "/here",
                _ => "/there",
            };
            Some(value.into())
        };
        assert_eq!(folders(variable), [PathBuf::from("/here")]);
    }

    #[test]
    fn a_python_environment_comes_before_the_rest_and_the_newest_library_first() {
        let root = tempfile::tempdir().unwrap();
        let lib = root.path().join("lib/python3.12/site-packages/nvidia/cu13/lib");
        let include_folder = lib.join("../include");
        fs::create_dir_all(&lib).unwrap();
        fs::create_dir_all(&include_folder).unwrap();
        for file in [
            "libnvrtc.so.9",
            "libnvrtc.so.13",
            "libnvrtc.so",
            "libnvrtc.alt.so.13",
            "libnvrtc_static.a",
            "libnvrtc-builtins.so.13.0",
            "libnvrtc-builtins.alt.so.13.0",
            "nvrtc64_130_0.dll",
            "nvrtc64_130_0.alt.dll",
        ] {
            fs::write(lib.join(file), "").unwrap();
        }
        let variable = |name: &str| (name == "VIRTUAL_ENV").then(|| root.path().as_os_str().into());
        assert_eq!(folders(variable)[0], lib);
        let names = |name| {
            let files = libraries(&lib, name);
            files.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names("nvrtc"), ["nvrtc64_130_0.dll", "libnvrtc.so.13", "libnvrtc.so.9", "libnvrtc.so"]);
        assert_eq!(names("nvrtc-builtins"), ["libnvrtc-builtins.so.13.0"]);
        #[cfg(unix)]
        {
            let pipe = std::process::Command::new("mkfifo").arg(lib.join("libnvrtc.so.8")).status().unwrap();
            assert!(pipe.success());
            std::os::unix::fs::symlink("/dev/zero", lib.join("libnvrtc.so.7")).unwrap();
            std::os::unix::fs::symlink("libnvrtc.so.13", lib.join("libnvrtc.so.14")).unwrap();
            assert_eq!(names("nvrtc")[1..3], ["libnvrtc.so.14", "libnvrtc.so.13"]);
            assert_eq!(names("nvrtc").len(), 5, "neither a pipe nor a device");
        }
        assert_eq!(include(&lib), None);
        fs::write(include_folder.join("cuda_fp16.h"), "").unwrap();
        assert_eq!(include(&lib), Some(include_folder.canonicalize().unwrap()));
    }
}
