//! Kernels that are not as they should be, and what is said of them.

use super::*;
use device::{Image, prebuilt};
use ladder::registry;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use testkit::OwnedProblem;
use testkit::problems::Spec;

const SCHEDULES: Schedules = Schedules { first: 5, count: 3 };

/// Two tiles of rows, and two of keys.
fn owned() -> OwnedProblem {
    Spec::plain(33, 40, 16).build()
}

/// What `cuda-naive` comes to with its PTX edited: from the first order on, or only after it.
fn edited(edit: fn(&str) -> String, after_the_first: bool) -> Result<Simulated, Failure> {
    let variant = cuda_fa2::variants().find(|variant| (variant.file, variant.name) == ("05_naive.cu", "f32")).unwrap();
    let sound = prebuilt::ptx(variant).unwrap();
    let text = edit(&sound);
    assert_ne!(text, sound);
    let rung = registry::device_rung("cuda-naive").unwrap();
    let first = AtomicBool::new(after_the_first);
    let build = |device: &Device| {
        let text = if first.swap(false, Relaxed) { &*sound } else { &text };
        rung.build(device)?.with_image(variant, &Image::Ptx(text.into()))
    };
    run(&owned().problem(), SCHEDULES, build, &ProgressBar::hidden()).unwrap()
}

#[test]
fn a_fault_is_told_by_the_simulator() {
    let without_barriers = |text: &str| text.replace("bar.sync \t0;", "");
    let Failure { seed, what } = edited(without_barriers, false).unwrap_err();
    assert_eq!(seed, SCHEDULES.first);
    assert!(what.starts_with("naive_scores: ") && what.contains("05_naive.cu:"), "{what}");
    let Failure { seed, what } = edited(without_barriers, true).unwrap_err();
    assert_eq!(seed, SCHEDULES.first + 1, "{what}");
}

#[test]
fn a_wrong_result_is_told_by_its_worst_number() {
    let wrong = |text: &str| text.replace("ex2.approx.ftz.f32", "cos.approx.ftz.f32");
    for (after_the_first, wanted) in [(false, SCHEDULES.first), (true, SCHEDULES.first + 1)] {
        let Failure { seed, what } = edited(wrong, after_the_first).unwrap_err();
        assert_eq!(seed, wanted, "{what}");
        assert!(what.starts_with("against the oracle: lse[0, 0, 0]: found NaN, wanted 4.4188"), "{what}");
    }
}

#[test]
fn other_bits_are_told_though_the_error_rule_allows_them() {
    let towards_zero = |text: &str| text.replace("fma.rn.f32", "fma.rz.f32");
    assert!(edited(towards_zero, false).unwrap().verdict.passes());
    let Failure { seed, what } = edited(towards_zero, true).unwrap_err();
    assert_eq!(seed, SCHEDULES.first + 1);
    assert!(what.starts_with("o: number ") && what.ends_with(" under seed 5"), "{what}");
}

#[test]
fn what_a_rung_does_not_take_is_an_error() {
    let rung = registry::device_rung("cuda-fa2-simt").unwrap();
    let wide = Spec::plain(1, 1, 300).build();
    let error = run(&wide.problem(), SCHEDULES, |device| rung.build(device), &ProgressBar::hidden()).unwrap_err();
    assert!(matches!(error, BenchError::Rung { who: "cuda-fa2-simt", .. }), "{error}");
}
