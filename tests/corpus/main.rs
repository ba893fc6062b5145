//! The corpus: small PTX programs, at least one for each form of instruction, and what an H200 made of them.
//!
//! Each [form] is run on [special and random values](values), and its outputs are [compared](compare) with those that are
//! recorded in `tests/data/corpus`: bit for bit, but for what the PTX ISA leaves open. That is what the simulated GPU is held
//! against. `FLASH_LADDER_DEVICE=cuda` holds the first GPU against it instead; with `FLASH_LADDER_RECORD=FOLDER` too, it writes
//! what that GPU gives into the folder, and compares nothing.
//!
//! Of what Hopper copies and multiplies in the background, arithmetic says what it gives too: a trial holds the device against
//! that.

mod compare;
mod form;
mod forms;
mod map;
mod promise;
mod recording;
mod run;
mod values;

use compare::Rule;
use device::nvrtc::Nvrtc;
use device::{Device, DeviceError};
use form::Program;
use forms::FAMILIES;
use half::{bf16, f16};
use libtest_mimic::{Arguments, Failed, Trial};
use recording::Recording;
use run::Runner;
use std::env::VarError;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

/// A family's name and its programs.
type Programs = (&'static str, Vec<Program>);

fn main() -> ExitCode {
    if let Some(folder) = std::env::var_os("FLASH_LADDER_RECORD") {
        return match recording::record(device(), &programs().collect::<Vec<_>>(), Path::new(&folder)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let mut arguments = Arguments::from_args();
    // One device.
    arguments.test_threads = Some(1);
    let mut trials: Vec<Trial> =
        families().iter().map(|(name, programs)| Trial::test(*name, || agrees(programs))).collect();
    trials.push(Trial::test("hopper_programs_give_what_arithmetic_says", hopper_programs_give_what_arithmetic_says));
    trials.push(Trial::test("the_recording_keeps_the_promises_of_the_isa", the_recording_keeps_the_promises));
    trials.push(Trial::test("a_changed_bit_is_noticed", a_changed_bit_is_noticed));
    trials.push(Trial::test("a_broken_device_ends_a_run", a_broken_device_ends_a_run));
    trials.push(Trial::test("formats_are_those_of_hardware", formats_are_those_of_hardware));
    trials.push(Trial::test("no_two_programs_have_one_name", no_two_programs_have_one_name));
    let no_ptxas = ptxas().is_none();
    let kind = if no_ptxas { "not run: found no ptxas beside NVRTC or in PATH" } else { "" };
    let assembles = Trial::test("every_program_assembles", every_program_assembles);
    trials.push(assembles.with_kind(kind).with_ignored_flag(no_ptxas));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// What is held against the recording: a simulated GPU, or the first GPU where `FLASH_LADDER_DEVICE` asks for it.
fn device() -> &'static Result<Device, String> {
    static DEVICE: OnceLock<Result<Device, String>> = OnceLock::new();
    DEVICE.get_or_init(|| match std::env::var("FLASH_LADDER_DEVICE").as_deref() {
        Ok("cuda") => Device::cuda(0).map_err(|error| error.to_string()),
        Ok("sim") | Err(VarError::NotPresent) => Ok(Device::simulated()),
        other => Err(format!("FLASH_LADDER_DEVICE: found {other:?}, wanted cuda or sim")),
    })
}

fn stored() -> Result<&'static Recording, Failed> {
    static RECORDING: OnceLock<Result<Recording, String>> = OnceLock::new();
    // Of the checkout where it runs, or of the one where it was built.
    let here = PathBuf::from("tests/data/corpus");
    let folder = if here.is_dir() { here } else { [env!("CARGO_MANIFEST_DIR"), "data", "corpus"].iter().collect() };
    RECORDING.get_or_init(|| Recording::read(&folder)).as_ref().map_err(Failed::from)
}

fn families() -> &'static [Programs] {
    static FAMILIES_OF_PROGRAMS: OnceLock<Vec<Programs>> = OnceLock::new();
    FAMILIES_OF_PROGRAMS.get_or_init(|| FAMILIES.iter().map(|family| (family.name, family.programs())).collect())
}

/// Every program.
fn programs() -> impl Iterator<Item = &'static Program> {
    families().iter().flat_map(|(_, programs)| programs)
}

/// All that went wrong, as one failure.
fn all_of(faults: Vec<String>) -> Result<(), Failed> {
    if faults.is_empty() { Ok(()) } else { Err(format!("{} programs\n{}", faults.len(), faults.join("\n")).into()) }
}

/// The device gives what is recorded.
fn agrees(programs: &[Program]) -> Result<(), Failed> {
    let runner = Runner::new(device().as_ref()?)?;
    let stored = stored()?;
    let check = |program: &Program| compare::agree(program, Some(stored.of(program)?), &runner.run(program)?);
    all_of(runner.check_each(&programs.iter().collect::<Vec<_>>(), check)?)
}

/// The device gives what arithmetic says, where that says anything.
fn hopper_programs_give_what_arithmetic_says() -> Result<(), Failed> {
    let runner = Runner::new(device().as_ref()?)?;
    let said: Vec<_> = programs().filter(|program| program.truth.is_some()).collect();
    let check = |program: &Program| compare::is_true(program, &runner.run(program)?);
    all_of(runner.check_each(&said, check)?)
}

/// Approximations of the device are as near as the ISA says, so that the bounds are right, and inputs and outputs are
/// those of the same tuple. What arithmetic says is what the device gave.
fn the_recording_keeps_the_promises() -> Result<(), Failed> {
    let stored = stored()?;
    let check = |program: &Program| {
        let recorded = stored.of(program)?;
        compare::agree(program, None, recorded)?;
        program.truth.as_ref().map_or(Ok(()), |_| compare::is_true(program, recorded))
    };
    all_of(programs().filter_map(|program| check(program).err()).collect())
}

/// The comparisons see one bit: the lowest where bits are compared, one in the middle of the fraction of what is near
/// the truth.
fn a_changed_bit_is_noticed() -> Result<(), Failed> {
    let stored = stored()?;
    let check = |program: &Program| {
        let recorded = stored.of(program)?;
        let mut start = 0;
        for column in &program.outputs {
            let mut changed = recorded.to_vec();
            let end = start + program.count * column.bytes;
            let bit = match compare::rule(program, column) {
                Rule::Near(format, _) => format.fraction / 2 + 2,
                _ => 0,
            };
            let bytes = (start + bit as usize / 8..end).step_by(column.bytes);
            bytes.for_each(|byte| changed[byte] ^= 1 << (bit % 8));
            if compare::agree(program, Some(recorded), &changed).is_ok() {
                return Err(format!("{}: changed outputs agree", program.name));
            }
            start = end;
        }
        Ok(())
    };
    let with_truth = programs().filter_map(|program| Some((program, program.truth.as_ref()?)));
    let agrees_when_changed = with_truth.filter(|(program, truth)| {
        let mut changed = (*truth).clone();
        *changed.last_mut().expect("a program has outputs") ^= 1;
        compare::is_true(program, &changed).is_ok()
    });
    let said = agrees_when_changed.map(|(program, _)| format!("{}: a changed truth agrees", program.name));
    all_of(programs().filter_map(|program| check(program).err()).chain(said).collect())
}

/// One fault is told in place of all that would follow. A stream in a capture stands for a device that was broken: waiting for
/// either fails.
fn a_broken_device_ends_a_run() -> Result<(), Failed> {
    let device = Device::simulated();
    let runner = Runner::new(&device)?;
    let programs: Vec<&Program> = programs().take(3).collect();
    let names: Vec<String> = programs.iter().map(|program| program.name.clone()).collect();
    let check = || runner.check_each(&programs, |program| Err(program.name.clone()));
    let whole = check();
    let mut broken = Ok(Vec::new());
    let capture = runner.stream.capture(|_| {
        broken = check();
        Ok::<_, DeviceError>(())
    });
    let told = format!("{0}\n{0}: the device runs nothing after it, 2 programs not run", names[0]);
    if whole == Ok(names) && broken == Err(told) && capture.is_err() {
        return Ok(());
    }
    Err(format!("found {whole:?} and {broken:?}").into())
}

/// The numbers that bits stand for, which bounds are measured from.
fn formats_are_those_of_hardware() -> Result<(), Failed> {
    let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    let halves = (0..=u16::MAX).filter(|&bits| {
        !same(values::F16.value(bits.into()), f16::from_bits(bits).into())
            || !same(values::BF16.value(bits.into()), bf16::from_bits(bits).into())
    });
    let singles = (0..=u32::MAX)
        .step_by(65521)
        .filter(|&bits| !same(values::F32.value(bits.into()), f32::from_bits(bits).into()));
    all_of(halves.map(u32::from).chain(singles).map(|bits| format!("{bits:#x}")).collect())
}

/// A name leads to one program's outputs.
fn no_two_programs_have_one_name() -> Result<(), Failed> {
    let mut names: Vec<&str> = programs().map(|program| program.name.as_str()).collect();
    names.sort_unstable();
    all_of(names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0].into()).collect())
}

/// NVIDIA's assembler takes every program.
fn every_program_assembles() -> Result<(), Failed> {
    let ptxas = ptxas().ok_or("no ptxas")?;
    let mut faults = Vec::new();
    let targets = ["sm_80", "sm_90", "sm_90a"];
    for ((family, programs), target) in families().iter().flat_map(|family| targets.map(|target| (family, target))) {
        // All of a family in one file: starting the assembler takes longer than its work.
        let programs = programs.iter().filter(|program| program.target == target).enumerate();
        let kernels = programs.map(|(k, program)| {
            let text = program.text.split_once(".address_size 64\n").map_or("", |(_, text)| text);
            format!("// {}\n{}", program.name, text.replace(".entry program(", &format!(".entry program{k}(")))
        });
        let text = kernels.collect::<String>();
        if !text.is_empty() {
            let text = format!(".version 8.0\n.target {target}\n.address_size 64\n{text}");
            // The GPU of the recording has the features of its architecture alone, and all those of older ones.
            let arch = if target == "sm_90a" { target } else { "sm_90" };
            faults.extend(assemble(&ptxas, arch, &text)?.map(|said| format!("{family}: {said}")));
        }
    }
    all_of(faults)
}

/// What the assembler has against a text, with the lines that it names.
fn assemble(ptxas: &Path, arch: &str, text: &str) -> Result<Option<String>, Failed> {
    let folder = tempfile::tempdir()?;
    let (file, object) = (folder.path().join("programs.ptx"), folder.path().join("programs.cubin"));
    std::fs::write(&file, text)?;
    let output = Command::new(ptxas).args(["-arch", arch, "-o"]).args([&object, &file]).output()?;
    if output.status.success() {
        return Ok(None);
    }
    let lines: Vec<&str> = text.lines().collect();
    let said = String::from_utf8_lossy(&output.stderr);
    let with_line = |line: &str| {
        let number = line.split_once("line ").and_then(|(_, rest)| rest.split(';').next()?.parse::<usize>().ok());
        let named = number.and_then(|number| lines.get(number - 1)).map_or("", |text| text.trim());
        format!("{line}\n    {named}")
    };
    Ok(Some(said.lines().map(with_line).collect::<Vec<_>>().join("\n")))
}

/// NVIDIA's assembler, beside NVRTC or in `PATH`.
fn ptxas() -> Option<PathBuf> {
    let beside = Nvrtc::find().ok().and_then(|nvrtc| Some(nvrtc.path().parent()?.join("../bin")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = beside.into_iter().chain(std::env::split_paths(&path));
    folders
        .find_map(|folder| Some(folder.join(format!("ptxas{}", std::env::consts::EXE_SUFFIX))).filter(|p| p.is_file()))
}
