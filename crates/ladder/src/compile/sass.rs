//! NVIDIA's tools, where they are: what reads machine code, and what assembles PTX.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::NamedTempFile;

/// How often each instruction that matters stands in a kernel.
pub(super) type Counts = BTreeMap<String, u32>;

/// The programs that were found.
pub(super) struct Tools {
    nvdisasm: Option<PathBuf>,
    ptxas: Option<PathBuf>,
}

impl Tools {
    /// Those of the toolkit or Python environment that NVRTC is of, or else of `PATH`.
    pub(super) fn find(nvrtc: &Path) -> Self {
        let folder = nvrtc.parent().unwrap_or(Path::new(""));
        let beside = ["../bin", "../../bin", "../../cuda_nvcc/bin"].map(|place| folder.join(place));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> = beside.into_iter().chain(std::env::split_paths(&path)).collect();
        let tool = |name: &str| {
            let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
            folders.iter().map(|folder| folder.join(&name)).find(|path| path.is_file())
        };
        Tools { nvdisasm: tool("nvdisasm"), ptxas: tool("ptxas") }
    }

    /// What could not be done without a tool, and what brings it.
    pub(super) fn left_out(&self) -> impl Iterator<Item = String> {
        let sass = self
            .nvdisasm
            .is_none()
            .then_some("instructions are not counted: found no nvdisasm; pip install nvidia-cuda-nvdisasm");
        let ptx = self
            .ptxas
            .is_none()
            .then_some("prebuilt PTX is not assembled: found no ptxas; pip install nvidia-cuda-nvcc");
        sass.into_iter().chain(ptx).map(String::from)
    }

    /// How often instructions stand in each kernel of a cubin, if there is a tool for it.
    pub(super) fn counts(&self, cubin: &[u8]) -> Result<Option<BTreeMap<String, Counts>>> {
        let Some(nvdisasm) = &self.nvdisasm else { return Ok(None) };
        let output = run(nvdisasm, ["-c"], cubin)?;
        Ok(Some(count(&String::from_utf8_lossy(&output.stdout))))
    }

    /// Assembles PTX, if there is a tool for it: the compiler writes what the assembler may refuse.
    pub(super) fn assemble(&self, ptx: &str, arch: &str) -> Result<()> {
        let Some(ptxas) = &self.ptxas else { return Ok(()) };
        let object = NamedTempFile::new().context("a temporary file")?;
        let args = [OsStr::new("--gpu-name"), OsStr::new(arch), OsStr::new("--output-file"), object.path().as_os_str()];
        run(ptxas, args, ptx.as_bytes()).map(drop)
    }
}

/// Runs a tool on a file with that content.
fn run(tool: &Path, args: impl IntoIterator<Item = impl AsRef<OsStr>>, content: &[u8]) -> Result<Output> {
    let mut file = NamedTempFile::new().context("a temporary file")?;
    file.write_all(content).context("a temporary file")?;
    let output = Command::new(tool).args(args).arg(file.path()).output().with_context(|| tool.display().to_string())?;
    if !output.status.success() {
        bail!("{}: {}", tool.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output)
}

/// Counts instructions in what nvdisasm prints, kernel by kernel.
fn count(listing: &str) -> BTreeMap<String, Counts> {
    let mut kernels: BTreeMap<String, Counts> = BTreeMap::new();
    let mut kernel = String::new();
    for line in listing.lines().map(str::trim_start) {
        if let Some(section) = line.strip_prefix(".section\t") {
            let name = section.strip_prefix(".text.").and_then(|name| name.split(',').next());
            kernel = name.unwrap_or_default().to_string();
        } else if let Some((_, instruction)) = line.strip_prefix("/*").and_then(|line| line.split_once("*/")) {
            // A predicate stands before the instruction, "@!P0 LDG.E R2, ...".
            let mut words = instruction.split_whitespace().skip_while(|word| word.starts_with(['@', '{']));
            if let Some(name) = words.next().and_then(|word| highlight(word.trim_end_matches(';'))) {
                *kernels.entry(kernel.clone()).or_default().entry(name).or_default() += 1;
            }
        }
    }
    kernels
}

/// An instruction that is counted, under the name that it is counted by: for those that move data, with the width in bits.
fn highlight(instruction: &str) -> Option<String> {
    let mut parts = instruction.split('.');
    let name = parts.next()?;
    match name {
        "FFMA" | "HFMA2" | "HMMA" | "HGMMA" | "QGMMA" | "MUFU" | "BAR" | "LDSM" | "LDL" | "STL" => Some(name.into()),
        "LDG" | "STG" | "LDS" | "STS" | "LDGSTS" => {
            let width = parts.find_map(|part| match part {
                "U8" | "S8" => Some("8"),
                "U16" | "S16" => Some("16"),
                "64" | "128" => Some(part),
                _ => None,
            });
            Some(format!("{name}.{}", width.unwrap_or("32")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of nvdisasm 13.
    const LISTING: &str = r#"
//--------------------- .text.k2                  --------------------------
	.section	.text.k2,"ax",@progbits
	.sectioninfo	@"SHI_REGISTERS=72"
.text.k2:
        /*0050*/                   LDG.E R2, desc[UR4][R64.64] ;
        /*0060*/                   IMAD.WIDE R24, R0, 0x4, R64 ;
        /*0070*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R24.64] ;
        /*0080*/                   LDGSTS.E.BYPASS.LTC128B.128 [R7], desc[UR4][R2.64] ;
        /*0090*/                   FFMA.FTZ R3, R4, R5, R6 ;
        /*00a0*/                   FFMA R3, R4, R5, R6 ;
	.section	.nv.info.k2,"",@"SHT_CUDA_INFO"
	.section	.text.arr,"ax",@progbits
        /*0290*/                   STL [R0], R13 ;
        /*02a0*/                   LDG.E.U16 R2, desc[UR4][R64.64] ;
        /*02b0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*02e0*/                   STL.64 [R1+0x18], R6 ;
"#;

    #[test]
    fn instructions_are_counted_kernel_by_kernel_with_the_width_of_what_they_move() {
        let text = |kernel: &str| {
            let counts = &count(LISTING)[kernel];
            counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(text("k2"), "FFMA 2, LDG.128 1, LDG.32 1, LDGSTS.128 1");
        assert_eq!(text("arr"), "BAR 1, LDG.16 1, STL 2");
    }
}
