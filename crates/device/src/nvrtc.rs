//! NVRTC, NVIDIA's compiler as a library: found, loaded and asked to compile.
//!
//! It is opened here by its path, not through cudarc, which looks for names alone, knows no folder of a Python environment,
//! and panics where the library or a function of it is not there. No GPU and no driver is needed.

mod find;
mod library;

use crate::{DeviceError, Source};
use library::Library;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What to install where NVRTC, or headers that kernels include, are missing.
pub const INSTALL: &str = "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt";

/// The compiler, loaded, with the folder of CUDA's headers.
#[derive(Debug)]
pub struct Nvrtc {
    library: Library,
    path: PathBuf,
    version: (u32, u32),
    include: Option<PathBuf>,
}

/// What came of a compilation.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The PTX as text, or the cubin.
    pub code: Vec<u8>,
    /// The compiler's words; of a cubin, its assembler's report of what each kernel takes, too.
    pub log: String,
}

/// Which library was found, with its version.
///
/// # Errors
/// As [`Nvrtc::find`].
pub fn available() -> Result<String, DeviceError> {
    let nvrtc = Nvrtc::find()?;
    let (major, minor) = nvrtc.version();
    Ok(format!("{major}.{minor}, {}", nvrtc.path().display()))
}

impl Nvrtc {
    /// The compiler of this machine; looks once in the life of the process. It is taken from the folder that
    /// `FLASH_LADDER_NVRTC` names, if it names one; or else from the first of these that has one: the Python environment that
    /// `VIRTUAL_ENV` names, the folders of `LD_LIBRARY_PATH` (`PATH` on Windows), `CUDA_HOME`, `CUDA_PATH`, and the folders
    /// where systems keep libraries.
    ///
    /// # Errors
    /// None is found, or none that works; with what to install.
    pub fn find() -> Result<&'static Nvrtc, DeviceError> {
        static FOUND: OnceLock<Result<Nvrtc, DeviceError>> = OnceLock::new();
        FOUND.get_or_init(|| Nvrtc::by_variables(|name| std::env::var_os(name))).as_ref().map_err(Clone::clone)
    }

    fn by_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Nvrtc, DeviceError> {
        let only = find::only(&variable);
        let note = only.map(|folder| format!("; {} names {} alone", find::ONLY, folder.display()));
        Nvrtc::first(&find::folders(variable), &note.unwrap_or_default())
    }

    /// The compiler in the first of these folders that has one that works.
    ///
    /// # Errors
    /// None has; with what to install.
    pub fn open(folders: &[PathBuf]) -> Result<Nvrtc, DeviceError> {
        Nvrtc::first(folders, "")
    }

    /// As [`open`](Nvrtc::open); the error ends with a note on the folders.
    fn first(folders: &[PathBuf], note: &str) -> Result<Nvrtc, DeviceError> {
        let mut failed = None;
        for path in folders.iter().flat_map(|folder| find::libraries(folder, "nvrtc")) {
            let folder = path.parent().unwrap_or(Path::new(""));
            let builtins = find::libraries(folder, "nvrtc-builtins");
            match Library::open(&path, &builtins) {
                Ok((library, version)) => {
                    return Ok(Nvrtc { library, version, include: find::include(folder), path });
                }
                Err(why) => failed = failed.or(Some(format!("found {}, which does not work: {why}", path.display()))),
            }
        }
        let why = failed.unwrap_or_else(|| "found no library of it".into());
        Err(DeviceError::Missing {
            what: "NVRTC",
            why: format!("{why}; {INSTALL} (or a CUDA toolkit) brings it{note}"),
        })
    }

    /// Where the library is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major and minor number of its CUDA version.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The folder with `cuda_fp16.h` and what it includes.
    ///
    /// # Errors
    /// There is none where this library's headers would be; with what to install.
    pub fn include(&self) -> Result<&Path, DeviceError> {
        self.include.as_deref().ok_or_else(|| DeviceError::Missing {
            what: "CUDA headers",
            why: format!("found no cuda_fp16.h for {}; {INSTALL} (or a CUDA toolkit) brings it", self.path.display()),
        })
    }

    /// Whether it can make machine code for an architecture, "sm_90".
    pub fn knows(&self, arch: &str) -> bool {
        let number = arch.trim_start_matches("sm_").trim_end_matches('a');
        number.parse().is_ok_and(|number| self.library.architectures().is_ok_and(|known| known.contains(&number)))
    }

    /// Whether a driver of a CUDA version, [as it tells it](crate::Attributes::driver), can load the machine code that this
    /// makes of a source for an architecture.
    ///
    /// # Errors
    /// The driver is of an older major version; the architecture is not known; the source includes headers of CUDA, which are
    /// not there.
    pub fn serves(&self, source: &Source, arch: &str, driver: u32) -> Result<(), DeviceError> {
        self.folders(source)?;
        let (major, minor) = self.version;
        let why = if major > driver / 1000 {
            format!("found version {major}.{minor}, wanted one that a driver of CUDA {} can load from", driver / 1000)
        } else if !self.knows(arch) {
            format!("found version {major}.{minor}, wanted one that knows {arch}")
        } else {
            return Ok(());
        };
        Err(DeviceError::Missing { what: "NVRTC", why })
    }

    /// Compiles to PTX for a least architecture, with the lines of the source, whose files are called as [`Source`] calls them.
    /// The text has no path and no date in it: the same source gives the same bytes.
    ///
    /// # Errors
    /// The source does not compile; it includes headers of CUDA, which are not there.
    pub fn ptx(&self, source: &Source, arch: &str) -> Result<Compiled, DeviceError> {
        let compiled = self.compile(source, ptx_options(arch), library::Kind::Ptx)?;
        Ok(Compiled { code: without_paths(&String::from_utf8_lossy(&compiled.code), source).into(), ..compiled })
    }

    /// Compiles to machine code for an architecture, with the lines of the source for a profiler.
    ///
    /// # Errors
    /// As [`ptx`](Nvrtc::ptx).
    pub fn cubin(&self, source: &Source, arch: &str) -> Result<Compiled, DeviceError> {
        self.compile(source, cubin_options(arch), library::Kind::Cubin)
    }

    fn compile(&self, source: &Source, mut options: Vec<String>, kind: library::Kind) -> Result<Compiled, DeviceError> {
        options.extend(self.folders(source)?.iter().map(|folder| format!("-I{}", folder.display())));
        options.extend(source.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        self.library.compile(source, &options, kind)
    }

    /// Where what a source includes of others is looked for: nowhere, if it includes nothing of others.
    fn folders(&self, source: &Source) -> Result<Vec<PathBuf>, DeviceError> {
        if !source.includes_others {
            return Ok(Vec::new());
        }
        // Toolkits of CUDA 13 keep C++'s own headers in a folder of their own.
        let include = self.include()?;
        Ok(vec![include.to_path_buf(), include.join("cccl")])
    }
}

/// The options that decide what PTX is made; those of [folders and macros](Nvrtc::ptx) come beside them.
pub(crate) fn ptx_options(arch: &str) -> Vec<String> {
    vec!["--std=c++17".into(), format!("--gpu-architecture={}", arch.replace("sm_", "compute_")), "-lineinfo".into()]
}

/// The options that decide what cubin is made.
pub(crate) fn cubin_options(arch: &str) -> Vec<String> {
    vec!["--std=c++17".into(), format!("--gpu-architecture={arch}"), "-lineinfo".into(), "--ptxas-options=-v".into()]
}

/// PTX whose `.file` lines have the names that a source gives its files, and of others the last part of the path.
fn without_paths(ptx: &str, source: &Source) -> String {
    let short = |line: &str| {
        let (head, path) =
            line.strip_suffix('"')?.split_once('"').filter(|(head, _)| head.trim().starts_with(".file"))?;
        let mut names = source.headers.iter().map(|(name, _)| *name).chain([source.name]);
        let own = names.find(|name| path.strip_suffix(name).is_some_and(|folder| folder.ends_with('/')));
        Some(format!("{head}\"{}\"", own.or(path.rsplit('/').next())?))
    };
    ptx.lines().map(|line| short(line).unwrap_or(line.into()) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_named_and_not_there_is_an_error_that_says_by_which_variable() {
        let missing = Nvrtc::by_variables(|name| (name == find::ONLY).then(|| "/not/there".into())).unwrap_err();
        let wanted = "brings it; FLASH_LADDER_NVRTC names /not/there alone";
        assert!(missing.to_string().ends_with(wanted), "{missing}");
        let missing = Nvrtc::first(&[], "").err().map(|missing| missing.to_string());
        assert!(missing.is_some_and(|missing| missing.ends_with("brings it")));
    }

    #[test]
    fn files_are_named_as_the_source_names_them_and_nothing_else_changes() {
        let source = Source::new("a.cu", "#include \"tile/b.cuh\"", &[], |name| (name == "tile/b.cuh").then_some(""));
        let ptx = "\t.file\t1 \"/home/me/a.cu\"\n.file 2 \"/home/me/tile/b.cuh\"\n.file 3 \"/usr/include/cuda_fp16.hpp\"\n\
                   .file 4 \"/x/tile/not_b.cuh\"\n.pragma \"/home/me/a.cu\"\n.loc 1 2 3";
        let wanted = "\t.file\t1 \"a.cu\"\n.file 2 \"tile/b.cuh\"\n.file 3 \"cuda_fp16.hpp\"\n\
                      .file 4 \"not_b.cuh\"\n.pragma \"/home/me/a.cu\"\n.loc 1 2 3\n";
        assert_eq!(without_paths(ptx, &source), wanted);
    }
}
