//! Wrong kernels: each is a kernel with one fault put into its text, and the check must catch it.

use crate::problems::{beyond_f32_products, for_devices};
use crate::resident::{image, runs};
use attention::{AttentionError, DType};
use cuda_fa2::{CudaRung, variants};
use device::{Device, Source};
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
    ("top-left causal", "tile/problem.cuh", "const int own = i + k.len - q.len;", "const int own = i;"),
    ("one key too many", "tile/problem.cuh", "clamp(own + right + 1);", "clamp(own + right + 2);"),
    ("a window one key short", "tile/problem.cuh", "clamp(own - left),", "clamp(own - left + 1),"),
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

const MMA: &str = "05_fa2_mma.cu";
const HALVES: &str = "tile/halves.cuh";
const SPLITS: &str = "tile/splits.cuh";

/// Faults of each rung's own files.
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
    (
        "cuda-fa2",
        &[
            (
                "keys that a row does not see",
                MMA,
                "if (j0 < shared.whole.start || j0 > shared.whole.end) hide(",
                "if (false) hide(",
            ),
            (
                "a tile of keys taken as whole eight keys too soon",
                MMA,
                "{last.start, first.end - B::KEYS}",
                "{last.start, first.end - B::KEYS + 8}",
            ),
            (
                "the last tile of keys left out",
                MMA,
                "j0 < keys.end; j0 += B::KEYS, stage ^= 1",
                "j0 + B::KEYS <= keys.end; j0 += B::KEYS, stage ^= 1",
            ),
            ("the tile that is on its way read", MMA, "s, v(stage), scale", "s, v(stage ^ 1), scale"),
            (
                "a swizzle of reads that is not that of copies",
                HALVES,
                "(at ^ chunks % RUN * 16)",
                "(at + chunks % RUN * 16)",
            ),
            (
                "rows of Q 8 further up",
                "tile/mma.cuh",
                "q.chunk(row + lane % 16, lane / 16), k_at",
                "q.chunk(row + lane % 8, lane / 16), k_at",
            ),
            ("V not transposed", "tile/mma.cuh", "ldmatrix_x4_trans(b,", "ldmatrix_x4(b,"),
            ("P's registers in the wrong order", MMA, "const int r = 2 * t + x % 2;", "const int r = 2 * t + x / 2;"),
            (
                "P's pairs the wrong way round",
                MMA,
                "pair_from_f32<T>(low, high);\n        }",
                "pair_from_f32<T>(high, low);\n        }",
            ),
            (
                "a maximum of half of the lanes that share a row",
                MMA,
                "most = max_over<4>(most);",
                "most = max_over<2>(most);",
            ),
            (
                "a sum of half of the lanes that share a row",
                MMA,
                "l = sum_over<4>(state.l[r])",
                "l = sum_over<2>(state.l[r])",
            ),
            (
                "a forgotten rescale of O",
                MMA,
                "state.o.of_row(r, c, 0) *= rescale, state.o.of_row(r, c, 1) *= rescale;",
                ";",
            ),
            (
                "a forgotten rescale of l",
                MMA,
                "state.m[r] = m_new[r], state.l[r] *= rescale;",
                "state.m[r] = m_new[r];",
            ),
            ("m that never moves", MMA, "state.m[r] = m_new[r], state.l[r] *= rescale;", "state.l[r] *= rescale;"),
            (
                "m moved without a rescale where it moves little",
                MMA,
                "(most - state.m[r]) * scale > SLACK ? most : state.m[r];\n        moved |= m_new[r] != state.m[r];",
                "fmaxf(most, state.m[r]);\n        moved |= (m_new[r] - state.m[r]) * scale > SLACK;\n        if ((m_new[r] - state.m[r]) * scale <= SLACK) state.m[r] = m_new[r];",
            ),
            ("the scale folded twice", MMA, "OPTIONS ? LOG2_E : head.scale * LOG2_E;", "head.scale * LOG2_E;"),
            (
                "an exponent of e taken as one of 2",
                MMA,
                "OPTIONS ? LOG2_E : head.scale * LOG2_E;",
                "OPTIONS ? 1.0f : head.scale;",
            ),
            (
                "rows that need care taken as if they did not",
                MMA,
                "const bool careful =",
                "const bool careful = false &&",
            ),
            ("the heads of a group packed by rows", MMA, "first_head + r % pack}", "first_head + r / (problem.q_len)}"),
            (
                "a row of a head taken for its number among all heads",
                MMA,
                "head.visible(min(at.own(r) / at.pack,",
                "head.visible(min(at.own(r),",
            ),
            (
                "shares of the keys that overlap by a tile",
                MMA,
                "end = min(end, begin + share);",
                "end = min(end, begin + share + B::KEYS);",
            ),
            (
                "shares of the keys a tile too short",
                MMA,
                "end = min(end, begin + share);",
                "end = min(end, begin + share - B::KEYS);",
            ),
            (
                "splits of O added without their weights",
                SPLITS,
                "add_weighted(o[x][0], share, pair.x)",
                "add_weighted(o[x][0], 1.0f, pair.x)",
            ),
            (
                "splits of l added without their weights",
                SPLITS,
                "l += weight(splits.m[s * rows + blockIdx.x], m) * splits",
                "l += splits",
            ),
            ("the splits of one warp alone", SPLITS, "w < COMBINERS; ++w) sum", "w < 1; ++w) sum"),
            (
                "ALiBi and bias of another row",
                MMA,
                "const int row = min(at.own(r), at.end_row - 1), i = row / at.pack;",
                "const int row = min(at.own(r), at.end_row - 1), i = max(row / at.pack - 1, 0);",
            ),
        ],
    ),
];

/// Rungs that NVRTC does not compile. The wrong variants of their PTX are in tests/sim.
const BEFOREHAND: &[&str] = &["triton-fa2"];

pub(crate) fn wrong_kernels_are_caught(device: &Device) -> Result<(), Failed> {
    let (mut caught, mut told) = (0, Vec::new());
    for rung in DEVICE_RUNGS.iter().filter(|rung| !BEFOREHAND.contains(&rung.name)) {
        if let (Device::Simulated(_), "cuda-fa2") = (device, rung.name) {
            println!(
                "cuda-fa2: on a GPU alone, for 36 wrong kernels take a quarter of an hour here; tests/sim has others"
            );
            continue;
        }
        let own = OWN.iter().find(|(name, _)| *name == rung.name).ok_or("a rung without faults of its own")?;
        for fault in SHARED.iter().chain(own.1) {
            match is_caught(device, rung, fault) {
                Ok(()) => caught += 1,
                Err(why) => told.push(why.message().unwrap_or_default().to_string()),
            }
        }
    }
    println!("{caught} wrong kernels");
    if told.is_empty() { Ok(()) } else { Err(told.join("\n").into()) }
}

fn is_caught(device: &Device, rung: &DeviceRung, &(what, file, right, wrong): &Fault) -> Result<(), Failed> {
    let text = device::file(file).ok_or("no such file")?;
    if text.matches(right).count() != 1 {
        return Err(format!("{what}: {file} has not one \"{right}\"").into());
    }
    let changed = text.replace(right, wrong);
    let with_fault = |name: &str| if name == file { Some(&*changed) } else { device::file(name) };
    let variant = variants().find(|variant| runs(rung, variant) && COMPILED.contains(&variant.name));
    let variant = variant.ok_or("no such variant")?;
    let source =
        Source::new(variant.file, with_fault(variant.file).ok_or("no such file")?, variant.defines, with_fault);
    let image = image(device, variant, &source)?;
    for attention in rung.forms(device)? {
        if shows(device, rung, &attention.with_image(variant, &image)?)? {
            return Ok(());
        }
    }
    Err(format!("{} with {what} passes {WITHIN} problems in each form", rung.name).into())
}

/// Whether a fixed or a drawn problem shows that a kernel is wrong.
fn shows(device: &Device, rung: &DeviceRung, attention: &CudaRung) -> Result<bool, Failed> {
    match beyond_f32_products(attention, rung.takes) {
        Ok(None) => {}
        // What a simulated device itself reports is caught too.
        Ok(Some(_)) | Err(AttentionError::Device { .. }) => return Ok(true),
        Err(error) => return Err(error.into()),
    }
    let config = Config { cases: WITHIN, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    match runner.run(&of_one_variant(device, rung), |spec| check(attention, &spec)) {
        Err(TestError::Fail(..)) => Ok(true),
        Ok(()) => Ok(false),
        Err(error) => Err(format!("{}: {error}", rung.name).into()),
    }
}

/// The variants that are compiled with a fault: of each rung one, in F32, or else in BF16, which reaches as far.
const COMPILED: [&str; 3] = ["f32", "f32.d64", "bf16.d64"];

/// Problems that these variants take.
fn of_one_variant(device: &Device, rung: &DeviceRung) -> impl Strategy<Value = Spec> + use<> {
    let dtype = if rung.takes.dtypes.contains(&DType::F32) { DType::F32 } else { DType::Bf16 };
    // There is one for 32 channels and fewer.
    let channels = |d: usize, d_v: usize| (d.min(64), if d.max(d_v) > 32 { d_v.min(64) } else { d_v + 32 });
    for_devices(device, rung.takes).prop_map(move |spec| {
        let (d, d_v) = channels(spec.d, spec.d_v);
        Spec { dtype, d, d_v, ..spec }
    })
}
