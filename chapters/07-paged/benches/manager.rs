//! What sharing saves, in calls: an append, a fork of a long sequence, and a prompt that has been there before.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use paged::{BlockManager, Config};

/// Tokens of the long sequence: 4096 blocks.
const TOKENS: u32 = 65_536;

fn manager() -> BlockManager {
    BlockManager::new(Config::new(20_000, 16)).expect("a pool")
}

fn append(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("append");
    group.throughput(Throughput::Elements(u64::from(TOKENS)));
    let empty = || {
        let mut manager = manager();
        let sequence = manager.admit(&[], &[]).expect("room").sequence;
        (manager, sequence)
    };
    group.bench_function("65536 tokens", |bencher| {
        let all = |(mut manager, sequence): (BlockManager, _)| {
            (0..TOKENS).for_each(|token| assert!(manager.append(sequence, token).is_ok()));
            manager
        };
        bencher.iter_batched(empty, all, BatchSize::LargeInput);
    });
}

fn share(criterion: &mut Criterion) {
    let mut manager = manager();
    let prompt: Vec<u32> = (0..TOKENS).collect();
    let parent = manager.admit(&prompt, &[]).expect("room").sequence;
    let mut group = criterion.benchmark_group("a sequence of 4096 blocks");
    group.bench_function("fork and free", |bencher| {
        bencher.iter(|| {
            let child = manager.fork(parent).expect("a live parent");
            manager.free(child).expect("a live child");
        });
    });
    group.bench_function("look-up", |bencher| bencher.iter(|| manager.look_up(&prompt, &[]).expect("no image")));
}

criterion_group!(benches, append, share);
criterion_main!(benches);
