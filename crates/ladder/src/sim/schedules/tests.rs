//! Kernels with a fault, as `ladder sim` meets them.

use super::*;
use attention::DType;
use device::{Image, Variant};
use ladder::registry;
use testkit::OwnedProblem;
use testkit::problems::Spec;

/// A variant of a rung's kernels, and its PTX.
fn ptx(file: &str) -> (&'static Variant, &'static str) {
    let variant = cuda_fa2::variants().find(|variant| variant.file == file && variant.name == "f32").unwrap();
    (variant, device::prebuilt::ptx(variant).unwrap())
}

/// One query tile and two tiles of keys.
fn problem() -> OwnedProblem {
    Spec { dtype: DType::F32, ..Spec::plain(33, 40, 16) }.build()
}

/// What a rung with this PTX comes to in some orders.
fn run_with(rung: &str, file: &str, text: &str, schedules: Schedules) -> Result<Simulated, Failure> {
    let (variant, _) = ptx(file);
    let rung = registry::device_rung(rung).unwrap();
    let image = Image::Ptx(text.into());
    let build = |device: &Device| rung.build(device)?.with_image(variant, &image);
    run(&problem().problem(), schedules, build, &ProgressBar::hidden()).unwrap()
}

/// The text with its first so many lines of that beginning left out, but for the first `kept`.
fn without(text: &str, start: &str) -> String {
    let kept: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with(start)).collect();
    assert!(kept.len() < text.lines().count(), "{start}");
    kept.join("\n") + "\n"
}

#[test]
fn a_race_is_told_with_its_seed() {
    let (_, text) = ptx("05_naive.cu");
    let failure = run_with("cuda-naive", "05_naive.cu", &without(text, "bar.sync"), Schedules { first: 5, count: 3 });
    let Failure { seed, what } = failure.unwrap_err();
    assert_eq!(seed, 5);
    assert!(what.starts_with("naive_scores: ") && what.contains("05_naive.cu:"), "{what}");
}
