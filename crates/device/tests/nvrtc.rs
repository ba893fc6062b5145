//! The compiler: how it is missing, and, where it is not, what it makes. Without it most tests are ignored, with the reason;
//! where `FLASH_LADDER_NVRTC` says where it is, they fail. No GPU is needed.

use device::nvrtc::{self, Nvrtc};
use device::{DeviceError, Source, assembly, elf, occupancy};
use libtest_mimic::{Arguments, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

/// What a test does with the compiler.
type Test = fn(&Nvrtc) -> Result<(), DeviceError>;

const TESTS: &[(&str, Test)] = &[
    ("another_library_by_its_name_lacks_a_function_and_is_an_error", another_library),
    ("a_compiler_newer_than_the_driver_or_without_the_device_is_not_used", unfit),
    ("the_library_alone_compiles_what_includes_no_header_of_cuda", library_alone),
    ("ptx_is_the_same_bytes_each_time_with_no_path_in_it_and_is_what_lies_beside_the_tests", same_ptx),
    ("a_cubin_is_a_whole_elf_file_and_its_log_tells_what_kernels_take", cubins),
    ("an_array_that_is_indexed_at_run_time_shows_as_a_stack", stacks),
    ("matrix_instructions_that_do_not_overlap_are_noticed", serialised),
    ("what_does_not_compile_is_an_error_with_the_compilers_words", refused),
];

fn main() -> ExitCode {
    let found = Nvrtc::find().and_then(|nvrtc| nvrtc.include().map(|_| nvrtc));
    let asked_for = env::var_os("FLASH_LADDER_NVRTC").is_some_and(|folder| !folder.is_empty());
    let ignored = found.is_err() && !asked_for;
    let trials = TESTS.iter().map(|&(name, test)| {
        let kind = found.as_ref().err().map_or("nvrtc".into(), |why| format!("not run: {why}"));
        let found = found.clone();
        let trial = Trial::test(name, move || test(found?).map_err(Failed::from));
        trial.with_kind(kind).with_ignored_flag(ignored)
    });
    let missing =
        Trial::test("a_folder_with_no_library_or_a_broken_one_is_an_error_that_says_what_to_install", no_library);
    libtest_mimic::run(&Arguments::from_args(), trials.chain([missing]).collect()).exit_code()
}

fn open(folder: &Path) -> String {
    Nvrtc::open(&[folder.to_path_buf()]).unwrap_err().to_string()
}

fn no_library() -> Result<(), Failed> {
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
        // The system's words name the file a second time.
        #[cfg(target_os = "linux")]
        assert_eq!(error.matches(library.to_str().unwrap()).count(), 2, "{error}");
    }
    Ok(())
}

const PROBE: &str = include_str!("probe.cu");

fn source<'a>(name: &'a str, text: &'a str, defines: &'a [(&'a str, &'a str)]) -> Source<'a> {
    Source::new(name, text, defines, |header| (header == "probe.cuh").then_some(include_str!("probe.cuh")))
}

/// The library that NVRTC has beside it.
fn builtins(nvrtc: &Nvrtc) -> PathBuf {
    let mut files = fs::read_dir(nvrtc.path().parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.to_string_lossy().contains("libnvrtc-builtins.so")).unwrap()
}

fn another_library(nvrtc: &Nvrtc) -> Result<(), DeviceError> {
    // NVRTC's builtins are a library that loads, with none of its functions.
    let folder = tempfile::tempdir().unwrap();
    fs::copy(builtins(nvrtc), folder.path().join("libnvrtc.so.13")).unwrap();
    let error = open(folder.path());
    assert!(error.contains("which does not work") && error.contains("nvrtc"), "{error}");
    Ok(())
}

const PLAIN: &str = "extern \"C\" __global__ void k(int* x) { *x = 1; }";

fn unfit(nvrtc: &Nvrtc) -> Result<(), DeviceError> {
    let major = nvrtc.version().0;
    let serves = |arch, driver| nvrtc.serves(&source("k.cu", PLAIN, &[]), arch, driver);
    serves("sm_90", 1000 * major)?;
    serves("sm_80", 1000 * major + 1000)?;
    let older = serves("sm_90", 1000 * major - 1000 + 80).unwrap_err().to_string();
    assert!(older.contains(&format!("a driver of CUDA {} can load from", major - 1)), "{older}");
    assert!(serves("sm_999", 1000 * major).unwrap_err().to_string().contains("sm_999"));
    Ok(())
}

fn library_alone(nvrtc: &Nvrtc) -> Result<(), DeviceError> {
    let folder = tempfile::tempdir().unwrap();
    for file in [nvrtc.path(), &builtins(nvrtc)] {
        fs::copy(file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    let alone = Nvrtc::open(&[folder.path().to_path_buf()])?;
    assert!(alone.include().is_err());
    let driver = 1000 * alone.version().0;
    let probe = source("probe.cu", PROBE, &[]);
    alone.serves(&probe, "sm_90", driver)?;
    assert_eq!(alone.ptx(&probe, "sm_80")?.code, nvrtc.ptx(&probe, "sm_80")?.code);
    let half = source("half.cu", "#include <cuda_fp16.h>", &[]);
    for refused in [alone.serves(&half, "sm_90", driver), alone.cubin(&half, "sm_90").map(drop)] {
        let error = refused.unwrap_err().to_string();
        assert!(
            error.starts_with("CUDA headers: found no cuda_fp16.h for ") && error.contains(nvrtc::INSTALL),
            "{error}"
        );
    }
    Ok(())
}

fn same_ptx(nvrtc: &Nvrtc) -> Result<(), DeviceError> {
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
    Ok(())
}

fn cubins(nvrtc: &Nvrtc) -> Result<(), DeviceError> {
    for arch in ["sm_80", "sm_90"] {
        let cubin = nvrtc.cubin(&source("probe.cu", PROBE, &[]), arch).unwrap();
        assert!(elf::is_whole(&cubin.code) && !elf::is_whole(&cubin.code[..cubin.code.len() - 1]));
        let usage = assembly::usage(&cubin.log);
        let kernel = usage.iter().find(|usage| usage.kernel == "fill_shared").unwrap();
        // One number, and what the alignment of dynamic memory adds.
        assert!((4..=16).contains(&kernel.shared_bytes), "{kernel:?}");
        assert_eq!((kernel.stack_bytes, kernel.spill_bytes), (0, 0));
        assert!((8..64).contains(&kernel.registers));
        assert_eq!(occupancy::blocks_per_multiprocessor(arch, 1024, kernel.registers, 4), Some(2));
    }
    Ok(())
}

fn stacks(nvrtc: &Nvrtc) -> Result<(), DeviceError> {
    let text = "extern \"C\" __global__ void k(int* x) { int a[64] = {}; for (int i = 0; i < *x; i++) a[x[i]] += i; *x = a[x[1]]; }";
    let cubin = nvrtc.cubin(&source("stack.cu", text, &[]), "sm_90").unwrap();
    assert_eq!(assembly::usage(&cubin.log)[0].stack_bytes, 256);
    Ok(())
}

fn serialised(nvrtc: &Nvrtc) -> Result<(), DeviceError> {
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
    Ok(())
}

fn refused(nvrtc: &Nvrtc) -> Result<(), DeviceError> {
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
    Ok(())
}
