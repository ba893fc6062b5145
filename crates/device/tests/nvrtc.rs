//! The compiler: how it is missing, and, where it is not, what it makes. No GPU is needed.

use device::nvrtc::{self, Nvrtc};
use device::{DeviceError, Source, assembly, occupancy};
use std::fs;
use std::path::{Path, PathBuf};

fn open(folder: &Path) -> String {
    Nvrtc::open(&[folder.to_path_buf()]).unwrap_err().to_string()
}

#[test]
fn a_folder_with_no_library_or_a_broken_one_is_an_error_that_says_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(
        open(folder.path()),
        format!("NVRTC: found no library of it; {} (or a CUDA toolkit) brings it", nvrtc::INSTALL)
    );
    assert_eq!(open(&folder.path().join("not there")), open(folder.path()));
    let library = folder.path().join("libnvrtc.so.13");
    for garbage in [&b""[..], b"\x7fELF\x02\x01\x01", b"text"] {
        fs::write(&library, garbage).unwrap();
        fs::write(folder.path().join("libnvrtc-builtins.so.13.0"), garbage).unwrap();
        let error = open(folder.path());
        assert!(error.starts_with(&format!("NVRTC: found {}, which does not work: ", library.display())), "{error}");
        assert!(error.contains(nvrtc::INSTALL), "{error}");
    }
}

/// The compiler of this machine, or a line that says why the test was not run.
fn compiler() -> Option<&'static Nvrtc> {
    let found = Nvrtc::find().and_then(|nvrtc| nvrtc.include().map(|_| nvrtc));
    found.map_err(|missing| eprintln!("not run: {missing}")).ok()
}

const PROBE: &str = include_str!("probe.cu");

fn source<'a>(name: &'a str, text: &'a str, defines: &'a [(&'a str, &'a str)]) -> Source<'a> {
    Source::new(name, text, defines, |header| (header == "probe.cuh").then_some(include_str!("probe.cuh")))
}

#[test]
fn another_library_by_its_name_lacks_a_function_and_is_an_error() {
    let Some(nvrtc) = compiler() else { return };
    // NVRTC's builtins are a library that loads, with none of its functions.
    let builtins = fs::read_dir(nvrtc.path().parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let mut builtins = builtins.filter(|path| path.to_string_lossy().contains("libnvrtc-builtins.so"));
    let folder = tempfile::tempdir().unwrap();
    fs::copy(builtins.next().unwrap(), folder.path().join("libnvrtc.so.13")).unwrap();
    let error = open(folder.path());
    assert!(error.contains("which does not work") && error.contains("nvrtc"), "{error}");
}

#[test]
fn ptx_is_the_same_bytes_each_time_with_no_path_in_it_and_is_what_lies_beside_the_tests() {
    let Some(nvrtc) = compiler() else { return };
    for (name, text, arch) in [("probe", PROBE, "sm_80"), ("hopper", include_str!("hopper.cu"), "sm_90")] {
        let file = format!("{name}.cu");
        let ptx = || String::from_utf8(nvrtc.ptx(&source(&file, text, &[]), arch).unwrap().code).unwrap();
        let made = ptx();
        assert_eq!(made, ptx());
        let include = nvrtc.include().unwrap().display().to_string();
        assert!(
            !made.contains(&include) && !made.contains(env!("CARGO_MANIFEST_DIR")) && made.ends_with('\n'),
            "{made}"
        );
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.{arch}.ptx"));
        let made = device::prebuilt::lowered(&made);
        if std::env::var_os("FLASH_LADDER_WRITE").is_some() {
            fs::write(&path, &made).unwrap();
        }
        let compiler = |ptx: &str| ptx.lines().find(|line| line.contains("release")).map(String::from);
        let beside = fs::read_to_string(&path).unwrap();
        if compiler(&beside) == compiler(&made) {
            assert_eq!(beside, made, "{}: FLASH_LADDER_WRITE=1 writes it anew", path.display());
        }
    }
}

#[test]
fn a_cubin_is_an_elf_file_and_its_log_tells_what_kernels_take() {
    let Some(nvrtc) = compiler() else { return };
    for arch in ["sm_80", "sm_90"] {
        let cubin = nvrtc.cubin(&source("probe.cu", PROBE, &[]), arch).unwrap();
        assert_eq!(&cubin.code[..4], b"\x7fELF");
        let usage = assembly::usage(&cubin.log);
        let kernel = usage.iter().find(|usage| usage.kernel == "fill_shared").unwrap();
        // One number, and what the alignment of dynamic memory adds.
        assert!((4..=16).contains(&kernel.shared_bytes), "{kernel:?}");
        assert_eq!((kernel.stack_bytes, kernel.spill_bytes), (0, 0));
        assert!((8..64).contains(&kernel.registers));
        assert_eq!(occupancy::blocks_per_multiprocessor(arch, 1024, kernel.registers, 4), Some(2));
    }
}

#[test]
fn an_array_that_is_indexed_at_run_time_shows_as_a_stack() {
    let Some(nvrtc) = compiler() else { return };
    let text = "extern \"C\" __global__ void k(int* x) { int a[64] = {}; for (int i = 0; i < *x; i++) a[x[i]] += i; *x = a[x[1]]; }";
    let cubin = nvrtc.cubin(&source("stack.cu", text, &[]), "sm_90").unwrap();
    assert_eq!(assembly::usage(&cubin.log)[0].stack_bytes, 256);
}

#[test]
fn matrix_instructions_that_do_not_overlap_are_noticed() {
    let Some(nvrtc) = compiler() else { return };
    let text = include_str!("serialised.cu");
    let cubin = nvrtc.cubin(&source("serialised.cu", text, &[]), "sm_90a").unwrap();
    let notices = assembly::serialised(&cubin.log);
    assert!(
        notices.iter().any(|notice| notice.contains("wgmma.mma_async instructions are serialized")),
        "{}",
        cubin.log
    );
    let plain = nvrtc.cubin(&source("probe.cu", PROBE, &[]), "sm_90a").unwrap();
    assert_eq!(assembly::serialised(&plain.log), Vec::<&str>::new());
    // It writes PTX of the same instructions for an architecture that has none of them.
    assert!(nvrtc.ptx(&source("serialised.cu", text, &[]), "sm_80").is_ok());
    let error = nvrtc.cubin(&source("serialised.cu", text, &[]), "sm_80").unwrap_err().to_string();
    assert!(error.contains("wgmma"), "{error}");
}

#[test]
fn what_does_not_compile_is_an_error_with_the_compilers_words() {
    let Some(nvrtc) = compiler() else { return };
    let refused = |text: &str, defines: &[(&str, &str)], arch: &str| {
        let error = nvrtc.cubin(&source("bad.cu", text, defines), arch).unwrap_err();
        assert!(matches!(error, DeviceError::Compile { .. }), "{error:?}");
        error.to_string()
    };
    let error = refused("__device__ int wrong = ;", &[], "sm_90");
    assert!(error.starts_with("bad.cu: does not compile: bad.cu(1): error: expected an expression"), "{error}");
    assert!(refused("#include \"no_such.cuh\"", &[], "sm_90").contains("no_such.cuh"));
    assert!(refused("__device__ int right;", &[], "sm_12345").contains("gpu-architecture"));
    assert!(refused("__device__ int ri\0ght;", &[], "sm_90").contains("zero byte"));
    let text =
        "#include <cuda_fp16.h>\n#include <cuda/std/limits>\nextern \"C\" __global__ void k(half* x) { *x = WIDTH; }";
    assert!(nvrtc.cubin(&source("good.cu", text, &[("WIDTH", "3")]), "sm_80").is_ok());
    assert!(refused(text, &[], "sm_80").contains("WIDTH"));
    assert!(nvrtc.knows("sm_90a") && nvrtc.knows("sm_80") && !nvrtc.knows("sm_12345"));
}
