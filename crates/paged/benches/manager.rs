//! What the manager's calls take on one core, with no bytes behind it: appends, forks and look-ups.
//!
//! `cargo bench -p paged`. Each line is the median of several runs, and says how many blocks the pool has.

use paged::{BlockManager, Config, ManagerError, SequenceId};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Slots of a block, as in vLLM.
const PAGE: usize = 16;

/// Runs of each measurement.
const RUNS: usize = 15;

fn main() -> Result<(), ManagerError> {
    for (sequences, blocks) in [(1, 300_000), (256, 300_000), (4096, 1_000_000)] {
        let each = append(sequences, blocks)?;
        let rate = 1e3 / each.as_nanos() as f64 * 4096.0;
        println!("append, {sequences} sequences in turn, {blocks} blocks: {rate:.1} million a second");
    }
    for blocks in [8192, 1_000_000] {
        let (fork, free) = fork(blocks)?;
        println!("fork of a table of 4096 blocks, {blocks} blocks: {fork:.1?}; freeing the fork: {free:.1?}");
    }
    for blocks in [4096, 1_000_000] {
        let (look_up, admit) = look_up(blocks)?;
        println!("look-up of 32768 tokens, {blocks} blocks: {look_up:.1?}; admitting and freeing them: {admit:.1?}");
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The time of 4096 appends, one to each sequence in turn, each with another token.
fn append(sequences: usize, blocks: usize) -> Result<Duration, ManagerError> {
    let mut manager = BlockManager::new(Config::new(blocks, PAGE))?;
    let admit = |manager: &mut BlockManager| Ok(manager.admit(&[], &[])?.sequence);
    let live = (0..sequences).map(|_| admit(&mut manager)).collect::<Result<Vec<SequenceId>, ManagerError>>()?;
    let mut times = Vec::new();
    let mut token = 0;
    // Several hundred tokens a sequence at most, so that the pool lasts.
    for _ in 0..1000 {
        let began = Instant::now();
        for _ in 0..4096 {
            token += 1;
            black_box(manager.append(live[token as usize % sequences], token)?);
        }
        times.push(began.elapsed());
    }
    Ok(median(times))
}

fn fork(blocks: usize) -> Result<(Duration, Duration), ManagerError> {
    let mut manager = BlockManager::new(Config::new(blocks, PAGE))?;
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

/// A prompt of 32,768 tokens that is cached, in a pool whose other blocks are cached too.
fn look_up(blocks: usize) -> Result<(Duration, Duration), ManagerError> {
    let mut manager = BlockManager::new(Config::new(blocks, PAGE))?;
    let prompt: Vec<u32> = (0..32_768).collect();
    let of_prompt = prompt.len() / PAGE;
    for other in 1..=(blocks - 1 - of_prompt) / 1000 {
        let tokens: Vec<u32> = (0..1000 * PAGE as u32).map(|t| t.wrapping_mul(other as u32 * 2 + 1)).collect();
        let sequence = manager.admit(&tokens, &[])?.sequence;
        manager.free(sequence)?;
    }
    let sequence = manager.admit(&prompt, &[])?.sequence;
    manager.free(sequence)?;
    let (mut look_ups, mut admits) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let began = Instant::now();
        let cached = black_box(manager.look_up(&prompt, &[])?);
        look_ups.push(began.elapsed());
        assert_eq!(cached, prompt.len() - PAGE, "a prompt that is cached in full recomputes its last block");
        let began = Instant::now();
        let sequence = manager.admit(&prompt, &[])?.sequence;
        manager.free(sequence)?;
        admits.push(began.elapsed());
    }
    Ok((median(look_ups), median(admits)))
}
