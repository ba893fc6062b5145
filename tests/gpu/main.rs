//! The rungs that run on a device, on the first GPU, and where there is none on a simulated one, with smaller problems and
//! fewer of them.
//!
//! A program of its own: it can be carried to a machine with a GPU and run there, in the root of the repository. Most tests
//! need nothing but the driver; where there is no NVRTC for a test that compiles, they show as ignored, with the reason.
//! `FLASH_LADDER_DEVICE` (`cuda` or `sim`) asks for a device, and `PROPTEST_CASES` sets how many problems are drawn for each
//! rung.

mod laws;
mod mutants;
mod packs;
mod problems;
mod resident;
mod splits;
mod steps;
mod volume;

use cuda_fa2::Target;
use device::nvrtc::Nvrtc;
use device::{Device, DeviceError};
use ladder::registry;
use libtest_mimic::{Arguments, Failed, Trial};
use std::env::VarError;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;

/// What a test does with the device.
type Test = fn(&Device) -> Result<(), Failed>;

const TESTS: &[(&str, Test)] = &[
    ("every_rung_of_a_device_conforms", packs::every_rung_conforms),
    ("a_layer_of_minilm", packs::a_layer_of_minilm),
    ("numbers_beyond_f32_products", problems::numbers_beyond_f32_products),
    ("splits_change_nothing_but_rounding", splits::splits_change_nothing_but_rounding),
    ("a_second_run_gives_the_same_bits", laws::a_second_run_gives_the_same_bits),
    ("a_sequence_of_a_batch_alone_gives_the_same_bits", laws::a_sequence_alone_gives_the_same_bits),
    ("what_no_row_sees_changes_no_bit", laws::what_no_row_sees_changes_no_bit),
    ("what_is_refused_stands_in_the_table", laws::what_is_refused_stands_in_the_table),
    ("threads_share_a_rung", laws::threads_share_a_rung),
    ("a_captured_graph_gives_the_same_bits", resident::a_captured_graph_gives_the_same_bits),
    ("rungs_share_tensors", resident::rungs_share_tensors),
    ("nothing_outside_the_output_is_written", resident::nothing_outside_the_output_is_written),
];

/// Tests that compile kernels.
const WITH_NVRTC: &[(&str, Test)] = &[
    (
        "steps_of_a_kernel_are_right_and_do_what_they_are_for",
        steps::steps_of_a_kernel_are_right_and_do_what_they_are_for,
    ),
    ("prebuilt_ptx_gives_what_nvrtc_gives", resident::prebuilt_ptx_gives_what_nvrtc_gives),
    ("wrong_kernels_are_caught", mutants::wrong_kernels_are_caught),
];

/// Tests that need the speed of a GPU, and the last its memory.
const LARGE: &[(&str, Test)] = &[
    ("a_layer_of_smollm2", packs::a_layer_of_smollm2),
    ("elements_beyond_2_to_the_31", volume::elements_beyond_2_to_the_31),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let on_gpu = on_gpu();
    if on_gpu {
        // One device: tests side by side would wait for each other, and none could measure memory.
        arguments.test_threads = Some(1);
    }
    let kind = if on_gpu { "cuda" } else { "simulated" };
    let trials = |tests: &'static [(&str, Test)], missing: Option<String>| {
        let kind = missing.as_ref().map_or(kind.into(), |why| format!("not run: {why}"));
        let trial = move |&(name, test): &'static (&str, Test)| Trial::test(name, move || test(&device(on_gpu)?));
        tests.iter().map(move |test| trial(test).with_kind(kind.clone()).with_ignored_flag(missing.is_some()))
    };
    let no_compiler = Nvrtc::find().err().map(|why| why.to_string());
    let too_small = (!on_gpu).then(|| "it takes minutes and more on a simulated GPU".into());
    let target = if on_gpu { first_gpu() } else { Target::from(Device::simulated().attributes()) };
    let drawn = registry::DEVICE_RUNGS.iter().map(move |rung| {
        let test = move || problems::drawn_problems_agree(rung, &device(on_gpu)?);
        let runs = rung.runs_on(target);
        let kind = if runs { kind } else { "not run: the rung is not for this device" };
        let name = format!("drawn_problems_of_{}_agree_with_the_oracle_and_other_rungs", rung.name);
        Trial::test(name, test).with_kind(kind).with_ignored_flag(!runs)
    });
    // The longest first.
    let fixed = trials(TESTS, None).chain(trials(LARGE, too_small));
    let all = trials(WITH_NVRTC, no_compiler).chain(drawn).chain(fixed).collect();
    libtest_mimic::run(&arguments, all).exit_code()
}

/// Whether the tests run on a GPU: what `FLASH_LADDER_DEVICE` says, or else whether there is one.
fn on_gpu() -> bool {
    match std::env::var("FLASH_LADDER_DEVICE").as_deref() {
        Ok("cuda") => true,
        Ok("sim") => false,
        Err(VarError::NotPresent) => device::cuda_devices().is_ok(),
        other => panic!("FLASH_LADDER_DEVICE: found {other:?}, wanted cuda or sim"),
    }
}

/// What plans are made for on the first GPU. No context is created.
fn first_gpu() -> Target {
    let all = device::cuda_attributes().unwrap_or_else(|error| panic!("{error}"));
    Target::from(&all[0].1)
}

/// The first GPU, or a simulated one of its own for each test. No context is created before a test asks for it.
fn device(on_gpu: bool) -> Result<Device, DeviceError> {
    static GPU: OnceLock<Result<Device, DeviceError>> = OnceLock::new();
    if on_gpu { GPU.get_or_init(|| Device::cuda(0)).clone() } else { Ok(Device::simulated()) }
}

/// A file or folder of this package's data: of the checkout where it runs, or of the one where it was built.
fn data(name: &str) -> PathBuf {
    let here = PathBuf::from("tests/data");
    let data = if here.is_dir() { here } else { [env!("CARGO_MANIFEST_DIR"), "data"].iter().collect() };
    data.join(name)
}
