//! Kernels as a compiler writes them: attention on one head, in CUDA with inline PTX.

use flate2::read::GzDecoder;
use half::bf16;
use ptx_sim::{Counters, Fault, FaultKind, LaunchError, Memory, Module, Schedule, Shape};
use ptx_sim::{Element, OutOfBoundsFill, Swizzle, Tiling};
use std::io::Read;

const D: usize = 64;
/// Queries of a warpgroup, keys of a tile.
const QUERIES: usize = 64;
const KEYS: usize = 128;

/// One warpgroup a block, whose threads copy.
const PLAIN: &[u8] = include_bytes!("attention.ptx.gz");
/// A warp that copies tensors, and two warpgroups that multiply, with both products under way at a time.
const SPECIALISED: &[u8] = include_bytes!("specialised.ptx.gz");

fn ptx(packed: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    text
}

/// A tensor in memory, of rows of 64, 128 of which are copied at a time, and swizzled.
fn map(address: u64, rows: usize) -> [u8; 128] {
    let map = Tiling {
        element: Element::Bf16,
        address,
        lengths: &[D as u64, rows as u64],
        strides: &[2 * D as u64],
        tile: &[D as u32, KEYS as u32],
        swizzle: Swizzle::B128,
        fill: OutOfBoundsFill::Zeros,
    };
    map.encode().unwrap()
}

/// Numbers from -1 to 1 that bf16 has.
fn tensor(rows: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bf16::from_f32((state >> 16) as f32 / 32768.0 - 1.0).to_f32()
    };
    (0..rows * D).map(|_| next()).collect()
}

fn run(text: &str, [q, k, v]: [&[f32]; 3], seed: u64) -> Result<(Vec<f32>, Counters), Box<Fault>> {
    let mut memory = Memory::new(1 << 22);
    let module = Module::load(text, &mut memory).unwrap();
    let mut upload = |numbers: &[f32]| {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        let address = memory.alloc(bytes.len() as u64).unwrap();
        memory.write(address, &bytes).unwrap();
        address
    };
    let [q_at, k_at, v_at] = [upload(q), upload(k), upload(v)];
    let out = memory.alloc(4 * q.len() as u64).unwrap();
    let tiles = ((k.len() / D / KEYS) as u32).to_le_bytes();
    let rows = q.len() / D;
    let specialised = text.contains("setmaxnreg");
    let (threads, queries, shared_bytes) = if specialised { (384, 2 * QUERIES, 80 << 10) } else { (128, QUERIES, 0) };
    let shape = Shape { grid: [(rows / queries) as u32, 1, 1], block: [threads, 1, 1], shared_bytes };
    let addresses = [q_at, k_at, v_at].map(u64::to_le_bytes);
    let maps = [map(q_at, rows), map(k_at, k.len() / D), map(v_at, v.len() / D)];
    let mut arguments: Vec<&[u8]> = if specialised {
        maps.iter().map(|map| map.as_slice()).collect()
    } else {
        addresses.iter().map(|address| address.as_slice()).collect()
    };
    let out_at = out.to_le_bytes();
    arguments.extend([&out_at[..], &tiles]);
    let schedule = Schedule { seed, steps: 1 << 24 };
    let counters = match module.kernel("attention").unwrap().launch(&mut memory, shape, &arguments, schedule) {
        Ok(counters) => counters,
        Err(LaunchError::Fault(fault)) => return Err(fault),
        Err(refused) => panic!("{refused}"),
    };
    let mut bytes = vec![0; 4 * q.len()];
    memory.read(out, &mut bytes).unwrap();
    Ok((bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect(), counters))
}

/// In f64. The kernel's exponentials have base 2, and no scale.
fn plain([q, k, v]: [&[f32]; 3]) -> Vec<f64> {
    let mut out = vec![0.0; q.len()];
    for (q, out) in q.chunks_exact(D).zip(out.chunks_exact_mut(D)) {
        let scores =
            k.chunks_exact(D).map(|k| q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>());
        let weights: Vec<f64> = scores.map(f64::exp2).collect();
        let sum: f64 = weights.iter().sum();
        for (weight, v) in weights.iter().zip(v.chunks_exact(D)) {
            for (out, v) in out.iter_mut().zip(v) {
                *out += weight / sum * f64::from(*v);
            }
        }
    }
    out
}

/// It gives the same bits under every schedule, and those are near enough.
fn agrees(text: &str, problem: [&[f32]; 3]) {
    let (first, counters) = run(text, problem, 0).unwrap_or_else(|fault| panic!("{fault}"));
    for (found, wanted) in first.iter().zip(plain(problem)) {
        // P is rounded to bf16, and many errors of 2^-9 of a weight's share add up.
        assert!((f64::from(*found) - wanted).abs() < 2e-3, "found {found}, wanted {wanted}");
    }
    // Two products, of queries with keys and of weights with values.
    let [q, k, _] = problem;
    assert_eq!(counters.flops.tensor as usize, 4 * q.len() * k.len() / D);
    for seed in 1..6 {
        let (out, _) = run(text, problem, seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        assert!(out == first, "seed {seed}");
    }
}

/// What is wrong with a text, under some schedules.
fn found(text: &str, problem: [&[f32]; 3]) -> Vec<FaultKind> {
    let kind = |seed| match run(text, problem, seed) {
        Ok(_) => panic!("seed {seed}: found no fault"),
        Err(fault) => fault.kind,
    };
    (1..6).map(kind).collect()
}

/// A text without one of the places where it has some words.
fn without(text: &str, what: &str, place: usize) -> String {
    let (at, _) = text.match_indices(what).nth(place).unwrap();
    format!("{}{}", &text[..at], &text[at + what.len()..])
}

#[test]
fn attention_of_256_tokens() {
    let (q, k, v) = (tensor(256, 1), tensor(256, 2), tensor(256, 3));
    agrees(&ptx(PLAIN), [&q, &k, &v]);
    agrees(&ptx(SPECIALISED), [&q, &k, &v]);
}

#[test]
fn warps_that_copy_and_warps_that_multiply() {
    // Two stages have five tiles.
    let (q, k, v) = (tensor(128, 1), tensor(640, 2), tensor(640, 3));
    let (text, problem) = (ptx(SPECIALISED), [&q[..], &k, &v]);
    agrees(&text, problem);
    // The first wait is before the loop. Of those in it, S is read behind one, and a stage is given back behind the other.
    for (wait, place) in [("wgmma.wait_group.sync.aligned 0;", 0), ("wgmma.wait_group.sync.aligned 1;", 0)] {
        let kinds = found(&without(&text, wait, place), problem);
        assert!(kinds.iter().all(|kind| *kind == FaultKind::Fragment), "{kinds:?}");
    }
    let kinds = found(&without(&text, "wgmma.wait_group.sync.aligned 0;", 1), problem);
    assert!(kinds.iter().all(|kind| matches!(kind, FaultKind::Fragment | FaultKind::Operand)), "{kinds:?}");
}

#[test]
fn attention_without_what_orders_it() {
    let (q, k, v) = (tensor(64, 1), tensor(256, 2), tensor(256, 3));
    let (text, problem) = (ptx(PLAIN), [&q[..], &k, &v]);
    let found = |what, place| found(&without(&text, what, place), problem);
    let all = |kinds: Vec<FaultKind>, wanted| kinds.iter().all(|kind| *kind == wanted);
    assert!(all(found("fence.proxy.async.shared::cta;", 0), FaultKind::ProxyFence));
    // Accumulators are read before the fence of the next tile, and O is scaled before the other one.
    assert!(all(found("wgmma.fence.sync.aligned;", 0), FaultKind::WgmmaFence));
    assert!(all(found("wgmma.fence.sync.aligned;", 1), FaultKind::WgmmaFence));
    assert!(all(found("wgmma.wait_group.sync.aligned 0;", 0), FaultKind::Fragment));
    // Without the wait for O, V is overwritten, or O is scaled.
    let late = found("wgmma.wait_group.sync.aligned 0;", 1);
    assert!(late.iter().all(|kind| matches!(kind, FaultKind::Fragment | FaultKind::Operand)), "{late:?}");
    let barrier = found("bar.sync \t0;", 1);
    assert!(barrier.iter().all(|kind| matches!(kind, FaultKind::Race | FaultKind::Uninitialised)), "{barrier:?}");
}
