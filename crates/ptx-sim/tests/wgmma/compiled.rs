//! A kernel as a compiler writes it: attention on one head, with inline PTX for `wgmma` alone.

use flate2::read::GzDecoder;
use half::bf16;
use ptx_sim::{Counters, Fault, FaultKind, LaunchError, Memory, Module, Schedule, Shape};
use std::io::Read;

const D: usize = 64;
/// Queries of a block, keys of a tile.
const QUERIES: usize = 64;
const KEYS: usize = 128;

fn ptx() -> String {
    let mut text = String::new();
    GzDecoder::new(&include_bytes!("attention.ptx.gz")[..]).read_to_string(&mut text).unwrap();
    text
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
    let (blocks, tiles) = ((q.len() / D / QUERIES) as u32, (k.len() / D / KEYS) as u32);
    let shape = Shape { grid: [blocks, 1, 1], block: [128, 1, 1], shared_bytes: 0 };
    let arguments = [q_at, k_at, v_at, out].map(u64::to_le_bytes);
    let mut arguments: Vec<&[u8]> = arguments.iter().map(|bytes| bytes.as_slice()).collect();
    let tiles = tiles.to_le_bytes();
    arguments.push(&tiles);
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

#[test]
fn attention_of_256_tokens() {
    let (q, k, v) = (tensor(256, 1), tensor(256, 2), tensor(256, 3));
    let (text, problem) = (ptx(), [&q[..], &k, &v]);
    let wanted = plain(problem);
    let (first, counters) = run(&text, problem, 0).unwrap();
    for (found, wanted) in first.iter().zip(&wanted) {
        // P is rounded to bf16, and many errors of 2^-9 of a weight's share add up.
        assert!((f64::from(*found) - wanted).abs() < 2e-3, "found {found}, wanted {wanted}");
    }
    // Two products, each of 2 N^2 d.
    assert_eq!(counters.flops.tensor, 4 * 256 * 256 * 64);
    for seed in 1..6 {
        let (out, _) = run(&text, problem, seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        assert!(out == first, "seed {seed}");
    }
}

#[test]
fn attention_without_what_orders_it() {
    let (q, k, v) = (tensor(64, 1), tensor(256, 2), tensor(256, 3));
    let text = ptx();
    let found = |text: &str| match run(text, [&q, &k, &v], 1) {
        Ok(_) => panic!("found no fault"),
        Err(fault) => fault.kind,
    };
    let without = |what: &str, place: usize| {
        let (at, _) = text.match_indices(what).nth(place).unwrap();
        format!("{}{}", &text[..at], &text[at + what.len()..])
    };
    assert_eq!(found(&without("fence.proxy.async.shared::cta;", 0)), FaultKind::ProxyFence);
    // Before the fence of the next tile there is a read of all accumulators, and before that of O a write.
    assert_eq!(found(&without("wgmma.fence.sync.aligned;", 0)), FaultKind::WgmmaFence);
    assert_eq!(found(&without("wgmma.fence.sync.aligned;", 1)), FaultKind::WgmmaFence);
    assert_eq!(found(&without("wgmma.wait_group.sync.aligned 0;", 0)), FaultKind::Fragment);
    // Without the wait for O, V is overwritten, or O is scaled.
    let late = found(&without("wgmma.wait_group.sync.aligned 0;", 1));
    assert!(matches!(late, FaultKind::Fragment | FaultKind::Operand), "{late:?}");
    let barrier = found(&without("bar.sync \t0;", 1));
    assert!(matches!(barrier, FaultKind::Race | FaultKind::Uninitialised), "{barrier:?}");
}
