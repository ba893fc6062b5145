//! What the manager's calls take on one core, with no bytes behind them: appends, forks and look-ups.
//!
//! `cargo bench -p paged`. Each number is the median of several runs; each line says how many blocks the pool has.

use paged::{BlockManager, Config, ManagerError, SequenceId};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Slots of a block, as in vLLM.
const PAGE: usize = 16;

/// Runs of each measurement.
const RUNS: usize = 15;

fn main() -> Result<(), ManagerError> {
    for (sequences, blocks) in [(1, 300_000), (256, 300_000), (4096, 1_000_000)] {
        let rate = append(sequences, blocks)? / 1e6;
        println!("append, {sequences} sequences in turn, {blocks} blocks: {rate:.1} million a second");
    }
    for blocks in [8192, 1_000_000] {
        let (fork, free) = fork(blocks)?;
        println!("fork of a table of 4096 blocks, {blocks} blocks: {fork:.1?}; freeing the fork: {free:.1?}");
    }
    for blocks in [40_000, 1_000_000] {
        let (look_up, admit) = look_up(blocks)?;
        println!("look-up of 32768 tokens, {blocks} blocks: {look_up:.1?}; admitting and freeing them: {admit:.1?}");
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Appends a second, one to each sequence in turn, each with another token.
fn append(sequences: usize, blocks: usize) -> Result<f64, ManagerError> {
    let mut times = Vec::new();
    let appends = 4_000_000;
    for _ in 0..RUNS {
        let mut manager = BlockManager::new(Config::new(blocks, PAGE))?;
        let admit = |manager: &mut BlockManager| Ok(manager.admit(&[], &[])?.sequence);
        let live = (0..sequences).map(|_| admit(&mut manager)).collect::<Result<Vec<SequenceId>, ManagerError>>()?;
        let began = Instant::now();
        for token in 0..appends {
            black_box(manager.append(live[token % sequences], token as u32)?);
        }
        times.push(began.elapsed());
    }
    Ok(appends as f64 / median(times).as_secs_f64())
}

/// Forking, and freeing the fork.
fn fork(blocks: usize) -> Result<(Duration, Duration), ManagerError> {
    let mut manager = BlockManager::new(Config::new(blocks, PAGE))?;
    // Blocks given back in a disorder, so that the table's lie all over the pool.
    let all = (1..blocks).map(|_| Ok(manager.admit(&[1], &[])?.sequence)).collect::<Result<Vec<_>, ManagerError>>()?;
    // A prime, so that each is met once.
    (0..all.len()).try_for_each(|n| manager.free(all[n * 7919 % all.len()]))?;
    let prompt: Vec<u32> = (0..4096 * PAGE as u32).collect();
    let parent = manager.admit(&prompt, &[])?.sequence;
    let (mut forks, mut frees) = (Vec::new(), Vec::new());
    for _ in 0..RUNS * 20 {
        let began = Instant::now();
        let child = black_box(manager.fork(parent)?);
        forks.push(began.elapsed());
        let began = Instant::now();
        manager.free(child)?;
        frees.push(began.elapsed());
    }
    Ok((median(forks), median(frees)))
}

/// Prompts of 32,768 tokens that are cached, each asked for once, so that no cache of the machine still has it; in a pool
/// whose other blocks are cached too.
fn look_up(blocks: usize) -> Result<(Duration, Duration), ManagerError> {
    let mut manager = BlockManager::new(Config::new(blocks, PAGE))?;
    let prompts: Vec<Vec<u32>> = (1..=(blocks - 1) / 2048)
        .map(|prompt| (0..32_768u32).map(|t| t.wrapping_mul(prompt as u32 * 2 + 1)).collect())
        .collect();
    for prompt in &prompts {
        let sequence = manager.admit(prompt, &[])?.sequence;
        manager.free(sequence)?;
    }
    let (mut look_ups, mut admits) = (Vec::new(), Vec::new());
    for prompt in prompts.iter().rev().take(RUNS) {
        let began = Instant::now();
        let cached = black_box(manager.look_up(prompt, &[])?);
        look_ups.push(began.elapsed());
        assert_eq!(cached, prompt.len() - PAGE, "a prompt that is cached in full recomputes its last block");
    }
    for prompt in prompts.iter().take(RUNS) {
        let began = Instant::now();
        let sequence = manager.admit(prompt, &[])?.sequence;
        manager.free(sequence)?;
        admits.push(began.elapsed());
    }
    Ok((median(look_ups), median(admits)))
}
