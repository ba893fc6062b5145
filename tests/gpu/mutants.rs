//! Wrong kernels: each is a kernel with one fault put into its text, and the check must catch it.

use crate::problems::{beyond_f32_products, for_devices};
use crate::resident::image;
use attention::{AttentionError, DType};
use cuda_fa2::variants;
use device::{Device, Source, Variant};
use ladder::registry::{DEVICE_RUNGS, DeviceRung};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use testkit::check;
use testkit::problems::Spec;

/// Drawn problems within which a fault must show that the fixed ones do not show.
const WITHIN: u32 = 200;

/// A fault: what it is, the file, and the text that takes the place of another.
type Fault = (&'static str, &'static str, &'static str, &'static str);

/// Faults of the headers, which every rung must catch.
const SHARED: &[Fault] = &[
    ("top-left causal", "tile/problem.cuh", "(long long)i + k.len - q.len;", "(long long)i;"),
    (
        "one key too many",
        "tile/problem.cuh",
        "right < 0 ? k.len : own + right + 1;",
        "right < 0 ? k.len : own + right + 2;",
    ),
    ("a window one key short", "tile/problem.cuh", "left < 0 ? 0 : own - left;", "left < 0 ? 0 : own - left + 1;"),
    (
        "kv heads in turn instead of in groups",
        "tile/problem.cuh",
        "head / p.group, s.k_start, s.k_len, p.d);",
        "head % (p.heads / p.group), s.k_start, s.k_len, p.d);",
    ),
    ("ALiBi that grows with distance", "tile/problem.cuh", "s -= slope *", "s += slope *"),
    (
        "a soft cap after the bias",
        "tile/problem.cuh",
        "if (softcap > 0.0f) s = softcap * tanhf(s / softcap);",
        "if (softcap > 0.0f) s = softcap * tanhf((s + (bias ? bias[i * bias_row + j * bias_key] : 0.0f)) / softcap);",
    ),
    ("a sink in the wrong power", "tile/softmax.cuh", "expf(sink - m) / l) / l", "expf(sink) / l) / l"),
    ("an lse without the maximum", "tile/softmax.cuh", "m + logf(l)", "logf(l)"),
    ("values of hidden keys", "tile/softmax.cuh", "p == 0.0f ? o : fmaf(p, v, o)", "fmaf(p, v, o)"),
    ("a row of no key that divides by 0", "tile/softmax.cuh", "return l == 0.0f ? 0.0f : 1.0f", "return 1.0f"),
];

/// Faults of each rung's own file.
const OWN: &[(&str, &[Fault])] = &[
    (
        "cuda-naive",
        &[
            (
                "a maximum for each half of the warp",
                "05_naive.cu",
                "m = max_over<LANES>(m);",
                "m = max_over<LANES / 2>(m);",
            ),
            ("a sum of one lane", "05_naive.cu", "l = sum_over<LANES>(l);", ""),
        ],
    ),
    (
        "cuda-fa1",
        &[
            (
                "a forgotten rescale of O",
                "05_fa1.cu",
                "(l_old * o_i(r, c) + share * product) / l_new",
                "(l_i[r] * o_i(r, c) + share * product) / l_new",
            ),
            ("m that stays behind", "05_fa1.cu", "l_i[r] = l_new, m_i[r] = m_new;", "l_i[r] = l_new;"),
            ("O overwritten by each tile", "05_fa1.cu", "(l_old * o_i(r, c) + share * product)", "(share * product)"),
        ],
    ),
    (
        "cuda-fa2-simt",
        &[
            ("a forgotten rescale of O", "05_fa2_simt.cu", "o[r][c] *= rescale;", "o[r][c] *= 1.0f;"),
            ("a forgotten rescale of l", "05_fa2_simt.cu", "m[r] = m_new, l[r] *= rescale;", "m[r] = m_new;"),
            (
                "tiles of keys taken as whole",
                "05_fa2_simt.cu",
                "if (j0 < all.start || j0 + KEYS > all.end)",
                "if (false)",
            ),
            (
                "the last tile of keys left out",
                "05_fa2_simt.cu",
                "j0 < any.end; j0 += KEYS",
                "j0 + KEYS <= any.end; j0 += KEYS",
            ),
            ("numbers that are not tame taken as tame", "05_fa2_simt.cu", "fabsf(x[e]) < TAME", "true"),
        ],
    ),
];

/// Rungs that NVRTC does not compile. The wrong variants of their PTX are in tests/sim.
const BEFOREHAND: &[&str] = &["triton-fa2"];

pub(crate) fn wrong_kernels_are_caught(device: &Device) -> Result<(), Failed> {
    let mut caught = 0;
    for rung in DEVICE_RUNGS.iter().filter(|rung| !BEFOREHAND.contains(&rung.name)) {
        let own = OWN.iter().find(|(name, _)| *name == rung.name).ok_or("a rung without faults of its own")?;
        for fault in SHARED.iter().chain(own.1) {
            is_caught(device, rung, fault)?;
            caught += 1;
        }
    }
    println!("{caught} wrong kernels");
    Ok(())
}

fn is_caught(device: &Device, rung: &DeviceRung, &(what, file, right, wrong): &Fault) -> Result<(), Failed> {
    let text = device::file(file).ok_or("no such file")?;
    if text.matches(right).count() != 1 {
        return Err(format!("{what}: {file} has not one \"{right}\"").into());
    }
    let changed = text.replace(right, wrong);
    let with_fault = |name: &str| if name == file { Some(&*changed) } else { device::file(name) };
    let variant = variants().find(|variant| of(rung, variant)).ok_or("no such variant")?;
    let source =
        Source::new(variant.file, with_fault(variant.file).ok_or("no such file")?, variant.defines, with_fault);
    let attention = rung.build(device)?.with_image(variant, &image(device, variant, &source)?)?;
    match beyond_f32_products(&attention, rung.takes) {
        Ok(None) => {}
        // What a simulated device itself reports is caught too.
        Ok(Some(_)) | Err(AttentionError::Device { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let config = Config { cases: WITHIN, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    match runner.run(&of_one_variant(device, rung), |spec| check(&attention, &spec)) {
        Err(TestError::Fail(..)) => Ok(()),
        Ok(()) => Err(format!("{} with {what} passes {WITHIN} problems", rung.name).into()),
        Err(error) => Err(format!("{} with {what}: {error}", rung.name).into()),
    }
}

/// Problems that the first variant of each kernel takes: only that one is compiled with the fault.
fn of_one_variant(device: &Device, rung: &DeviceRung) -> impl Strategy<Value = Spec> + use<> {
    for_devices(device, rung.takes).prop_map(|spec| Spec {
        dtype: DType::F32,
        d: spec.d.min(64),
        d_v: spec.d_v.min(64),
        ..spec
    })
}

/// Whether a rung runs kernels of a variant: "cuda-fa2-simt" those of "05_fa2_simt.cu".
fn of(rung: &DeviceRung, variant: &Variant) -> bool {
    rung.name.trim_start_matches("cuda-").replace('-', "_")
        == variant.file.trim_start_matches("05_").trim_end_matches(".cu")
}
