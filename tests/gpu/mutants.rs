//! Wrong kernels: each is a kernel with one fault put into its text, and the check must catch it.

use crate::problems::{beyond_f32_products, for_devices};
use crate::resident::runs;
use attention::{AttentionError, DType};
use cuda_fa2::CudaRung;
use device::{Device, Source};
use ladder::kernels::variants;
use ladder::registry::{DeviceRung, rungs_of};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use rayon::prelude::*;
use testkit::check;
use testkit::problems::Spec;

/// Drawn problems within which a fault must show that the fixed ones do not show.
const WITHIN: u32 = 200;

/// A fault: what it is, the file, and the text that takes the place of another.
type Fault = (&'static str, &'static str, &'static str, &'static str);

/// Faults of the headers, which every rung must catch.
const SHARED: &[Fault] = &[
    ("top-left causal", "tile/problem.cuh", "const int own = i + k_len - q_len;", "const int own = i;"),
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
    ("a sink in the wrong power", "tile/softmax.cuh", "expf(sink - m)));", "expf(sink)));"),
    ("an lse without the maximum", "tile/softmax.cuh", "m + logf(l)", "logf(l)"),
    ("values of hidden keys", "tile/softmax.cuh", "p == 0.0f ? o : fmaf(p, v, o)", "fmaf(p, v, o)"),
    (
        "a row of no key that divides by 0",
        "tile/softmax.cuh",
        "return l == 0.0f ? 0.0f : __fdividef(",
        "return __fdividef(",
    ),
];

const MMA: &str = "05_fa2_mma.cu";
const FA3: &str = "06_fa3.cu";
const JOBS: &str = "tile/jobs.cuh";
const PANELS: &str = "tile/panels.cuh";
const ROWS: &str = "tile/rows.cuh";
const RESULTS: &str = "tile/results.cuh";
const HALVES: &str = "tile/halves.cuh";
const SPLITS: &str = "tile/splits.cuh";

/// Faults of rows in fragments of tensor cores, which every rung that has some must catch.
const OF_ROWS: &[Fault] = &[
    (
        "a tile of keys taken as whole eight keys too soon",
        ROWS,
        "whole = {last.start, first.end - B::KEYS}",
        "whole = {last.start, first.end - B::KEYS + 8}",
    ),
    (
        "a maximum of half of the lanes that share a row",
        ROWS,
        "most = max_over<4>(most) * scale;",
        "most = max_over<2>(most) * scale;",
    ),
    (
        "a sum of half of the lanes that share a row",
        RESULTS,
        "l[r] = sum_over<4>(state.l[r])",
        "l[r] = sum_over<2>(state.l[r])",
    ),
    (
        "a forgotten rescale of O",
        ROWS,
        "state.o.of_row(r, c, 0) *= rescale[r], state.o.of_row(r, c, 1) *= rescale[r];",
        ";",
    ),
    ("a forgotten rescale of l", ROWS, "state.m[r] = m_new, state.l[r] *= rescale[r];", "state.m[r] = m_new;"),
    // An m that never moves is none: weights overflow, and such rows are computed again, slowly and right.
    (
        "m moved before the rescale is made of it",
        ROWS,
        "rescale[r] = ex2(state.m[r] - m_new);",
        "state.m[r] = m_new, rescale[r] = ex2(state.m[r] - m_new);",
    ),
    (
        "m moved without a rescale where it moves little",
        ROWS,
        "most - state.m[r] > SLACK ? most : state.m[r];\n        moved |= m_new != state.m[r];",
        "fmaxf(most, state.m[r]);\n        moved |= m_new - state.m[r] > SLACK;\n        if (m_new - state.m[r] <= SLACK) state.m[r] = m_new;",
    ),
    (
        "rows that need care taken as if they did not",
        RESULTS,
        "const bool is_careful =",
        "const bool is_careful = false &&",
    ),
    (
        "rows that need care asked for of a lane that has others",
        RESULTS,
        "lane = row % 8 * 4;  // that",
        "lane = row % 8 * 2;  // that",
    ),
    (
        "rows that need care told as the first of a lane",
        RESULTS,
        "(is_there && is_careful) << r;",
        "(is_there && is_careful) << 0;",
    ),
    ("numbers of O left to the wrong lane", RESULTS, "odd ? x : y, step);", "odd ? y : x, step);"),
    (
        "numbers of O exchanged with the lane beside where it should be the one after",
        RESULTS,
        "exchange(x0, x2, 2), exchange(x1, x3, 2);",
        "exchange(x0, x2, 1), exchange(x1, x3, 1);",
    ),
    ("keys hidden from one too late on", ROWS, "min(B::KEYS, end)), rest", "min(B::KEYS, end + 1)), rest"),
    ("keys before the first not hidden", ROWS, " & ~bits_before<B>(keys.start - j0);", ";"),
    ("keys behind the last not hidden", ROWS, "seen = bits_before<B>(keys.end - j0) & ~", "seen = ~"),
    ("neighbouring keys as if two lanes had them", ROWS, "- threadIdx.x % 4 * 2;", "- threadIdx.x % 4;"),
    (
        "ALiBi and bias of another row",
        ROWS,
        "const int row = min(at.own(r), at.end_row - 1), i = row / at.pack();",
        "const int row = min(at.own(r), at.end_row - 1), i = max(row / at.pack() - 1, 0);",
    ),
];

/// Faults of each rung's own files, and of those that some rungs have in common.
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
    ("cuda-fa2", OF_ROWS),
    (
        "cuda-fa2",
        &[
            (
                "P's registers in the wrong order",
                ROWS,
                "2 * t + x % 2, n + x / 2, scale",
                "2 * t + x / 2, n + x / 2, scale",
            ),
            (
                "P's pairs the wrong way round",
                ROWS,
                "a[x] = pair_from_f32<T>(p.x, p.y);",
                "a[x] = pair_from_f32<T>(p.y, p.x);",
            ),
            (
                "keys that a row does not see",
                MMA,
                "if (j0 < at.whole.start || j0 > at.whole.end) hide(",
                "if (false) hide(",
            ),
            (
                "the last tile of keys left out",
                MMA,
                "j0 < end; j0 += STEP, stage ^= 1",
                "j0 + B::KEYS <= end; j0 += STEP, stage ^= 1",
            ),
            // Two groups that share keys. An m of one group alone makes weights that overflow: such rows are computed again,
            // slowly and right. That, and what groups do to each other's memory, is in tests/sim.
            ("the same tiles for both groups", MMA, "place.begin + group * B::KEYS, end", "place.begin, end"),
            (
                "tiles that the other group has too",
                MMA,
                "constexpr int STEP = B::GROUPS * B::KEYS;",
                "constexpr int STEP = B::KEYS;",
            ),
            ("the first group's rows alone", MMA, "join(state, (float*)memory, group);", "__syncthreads();"),
            ("m of one group, with l of both", MMA, "state.m[r] = m, state.l[r] = mine", "state.l[r] = mine"),
            (
                "m that is the lesser of two, of l for the greater",
                MMA,
                "state.m[r] = m, state.l[r] = mine",
                "state.m[r] = fminf(state.m[r], other), state.l[r] = mine",
            ),
            ("l of one group alone", MMA, "mine * state.l[r] + its * next();", "mine * state.l[r], next();"),
            ("l of the other group without its weight", MMA, "state.l[r] + its * next();", "state.l[r] + next();"),
            ("O of one group alone", MMA, "x = mine * x + its * next();", "x = mine * x, next();"),
            ("O of the other group without its weight", MMA, "mine * x + its * next();", "mine * x + next();"),
            ("O of the first group without its weight", MMA, "x = mine * x + its", "x = x + its"),
            ("a weight of the other way round", MMA, "its = ex2(other - m);", "its = ex2(m - other);"),
            (
                "half of Q where the other half should be",
                MMA,
                "of_group, one, place.row + group * SHARE, rows",
                "of_group, one, place.row, rows",
            ),
            (
                "rows of the other group's warps",
                ROWS,
                "(B::GROUPS > 1 ? warp % B::WARPS : warp)",
                "(B::GROUPS > 1 ? (warp + warp / B::WARPS) % B::WARPS : warp)",
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
            (
                "the scale folded twice",
                MMA,
                "OPTIONS ? LOG2_E : problem.options.scale * LOG2_E;",
                "problem.options.scale * LOG2_E;",
            ),
            (
                "an exponent of e taken as one of 2",
                MMA,
                "OPTIONS ? LOG2_E : problem.options.scale * LOG2_E;",
                "OPTIONS ? 1.0f : problem.options.scale;",
            ),
            (
                "the heads of a group packed by rows",
                "tile/halves.cuh",
                "data + r / heads * row + r % heads * head;",
                "data + r % heads * row + r / heads * head;",
            ),
            (
                "a row of a head taken for its number among all heads",
                ROWS,
                "sight.visible(min(r / pack(), sight.q_len - 1));",
                "sight.visible(min(r, sight.q_len - 1));",
            ),
            (
                "shares of the keys that overlap by a tile",
                ROWS,
                "end = min(end, begin + share);",
                "end = min(end, begin + share + B::KEYS);",
            ),
            (
                "shares of the keys a tile too short",
                ROWS,
                "end = min(end, begin + share);",
                "end = min(end, begin + share - B::KEYS);",
            ),
            (
                "splits of O added without their weights",
                SPLITS,
                "sum = add_weighted(sum, share[w], of_warps[w][c]);",
                "sum = add_weighted(sum, 1.0f, of_warps[w][c]);",
            ),
            (
                "splits of l added without their weights",
                SPLITS,
                "l += share[w] * l_of_warps[w];",
                "l += l_of_warps[w];",
            ),
            ("the splits of one warp alone", SPLITS, "w < COMBINERS; ++w) sum", "w < 1; ++w) sum"),
        ],
    ),
    ("fa3", OF_ROWS),
    // None that waits for what never comes, which a GPU would do for ever: those are in tests/sim.
    (
        "fa3",
        &[
            (
                "P's registers in the wrong order",
                ROWS,
                "p[n / 2][n % 2 * 2 + r] = pair",
                "p[n / 2][n % 2 + 2 * r] = pair",
            ),
            (
                "P's pairs the wrong way round",
                ROWS,
                "(s.of_row(r, n, 0), s.of_row(r, n, 1));\n    }",
                "(s.of_row(r, n, 1), s.of_row(r, n, 0));\n    }",
            ),
            (
                "rows of Q of another warpgroup",
                FA3,
                "tiles.q(), group * 64}",
                "tiles.q(), (group + 1) % BLOCK_CONSUMERS * 64}",
            ),
            (
                "channels of K one step away",
                FA3,
                "(q.row, c), k.along_rows(0, c), c > 0",
                "(q.row, c), k.along_rows(0, c ^ 16), c > 0",
            ),
            ("weights of other keys", FA3, "p[j / 16], v.along", "p[j / 16 ^ 1], v.along"),
            (
                "V of the next tile",
                FA3,
                "tiles.v(v_turn.stage()));  // line 11 (2)",
                "tiles.v(turn.stage()));  // line 11 (2)",
            ),
            (
                "a first tile of keys taken as whole",
                FA3,
                "softmax(SCORE_OPTIONS || j0 < whole.start || j0 > whole.end);",
                "softmax(SCORE_OPTIONS);",
            ),
            ("zeros in place of a value that rows see", FA3, "r >= partial.seen.start", "r > partial.seen.start"),
            ("a tile of rows left out", JOBS, "tile < schedule.tiles;", "tile + 1 < schedule.tiles;"),
            ("a kv head for each head", JOBS, "found.at.first_head / problem.group;", "found.at.first_head;"),
            ("keys of the first sequence", JOBS, "found.k_row = sequence.k_start;", "found.k_row = 0;"),
            ("rows of the first sequence", JOBS, "sequence.q_start + found.at.row,", "found.at.row,"),
            ("the first of the batch", FA3, "tensor.batch ? batch : 0", "0"),
            (
                "values of a row twice",
                PANELS,
                "descriptor(data + r * ROW_BYTES, P",
                "descriptor(data + r / 32 * 32 * ROW_BYTES, P",
            ),
            ("eight rows too close", PANELS, "EIGHT_ROWS = 8 * ROW_BYTES", "EIGHT_ROWS = 4 * ROW_BYTES"),
            ("no swizzle", PANELS, "| (Descriptor)1 << 62;", "| (Descriptor)0 << 62;"),
        ],
    ),
];

/// Rungs that NVRTC does not compile. The wrong variants of their PTX are in tests/sim.
const BEFOREHAND: &[&str] = &["triton-fa2"];

pub(crate) fn wrong_kernels_are_caught(device: &Device) -> Result<(), Failed> {
    let mut faults = Vec::new();
    for rung in rungs_of(device).filter(|rung| !BEFOREHAND.contains(&rung.name)) {
        let own: Vec<&Fault> = OWN.iter().filter(|(name, _)| *name == rung.name).flat_map(|(_, own)| *own).collect();
        if own.is_empty() {
            return Err(format!("{}: a rung without faults of its own", rung.name).into());
        }
        faults.extend(SHARED.iter().chain(own).map(|fault| (rung, fault)));
    }
    let passed = |&(rung, fault): &(&DeviceRung, &Fault)| {
        // A simulated device runs one launch at a time, so each fault has one of its own.
        let device = if let Device::Simulated(_) = device { Device::simulated() } else { device.clone() };
        Some(is_caught(&device, rung, fault).err()?.message().unwrap_or_default().to_string())
    };
    let passed: Vec<String> = faults.par_iter().filter_map(passed).collect();
    println!("{} wrong kernels", faults.len());
    if passed.is_empty() { Ok(()) } else { Err(passed.join("\n").into()) }
}

fn is_caught(device: &Device, rung: &DeviceRung, &(what, file, right, wrong): &Fault) -> Result<(), Failed> {
    let text = device::file(file).ok_or("no such file")?;
    if text.matches(right).count() != 1 {
        return Err(format!("{what}: {file} has not one \"{right}\"").into());
    }
    let changed = text.replace(right, wrong);
    let with_fault = |name: &str| if name == file { Some(&*changed) } else { device::file(name) };
    let mut images = Vec::new();
    for variant in variants().filter(|variant| runs(rung, variant) && COMPILED.contains(&variant.name)) {
        let text = with_fault(variant.file).ok_or("no such file")?;
        let source = Source::new(variant.file, text, variant.defines, with_fault);
        images.push((variant, device.image(variant, &source)?));
    }
    for mut attention in rung.forms(device)? {
        for (variant, image) in &images {
            attention = attention.with_image(variant, image)?;
        }
        if shows(device, rung, &attention)? {
            return Ok(());
        }
    }
    Err(format!("{} with {what} passes {WITHIN} problems in each form", rung.name).into())
}

/// Whether a fixed or a drawn problem shows that a kernel is wrong: a few drawn ones show most faults soonest.
fn shows(device: &Device, rung: &DeviceRung, attention: &CudaRung) -> Result<bool, Failed> {
    let drawn = |cases| {
        let config = Config { cases, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        match runner.run(&of_one_variant(device, rung), |spec| check(attention, &spec)) {
            Err(TestError::Fail(..)) => Ok(true),
            Ok(()) => Ok(false),
            Err(error) => Err(Failed::from(format!("{}: {error}", rung.name))),
        }
    };
    let fixed = || match beyond_f32_products(attention, rung.takes) {
        // What a simulated device itself reports is caught too.
        Ok(Some(_)) | Err(AttentionError::Device { .. }) => Ok(true),
        Ok(None) => Ok(false),
        Err(error) => Err(Failed::from(error)),
    };
    Ok(drawn(WITHIN / 10)? || fixed()? || drawn(WITHIN)?)
}

/// The variants that are compiled with a fault: of each rung one, or where options have a kernel of their own two, in F32, or else
/// in BF16, which reaches as far.
const COMPILED: [&str; 4] = ["f32", "f32.d64", "bf16.d64", "bf16.d64.options"];

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
