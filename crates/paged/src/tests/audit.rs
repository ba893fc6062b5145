//! Every invariant of a manager, checked in full.

use super::model::Naive;
use crate::{BlockId, BlockManager, NULL, Prefix, SequenceId, Table, chain_hash};
use std::collections::HashMap;
use std::hash::BuildHasher;

/// # Panics
/// If one does not hold.
pub(crate) fn audit<S: BuildHasher>(manager: &BlockManager<S>, naive: &Naive, hasher: &S) {
    lengths(manager);
    let listed = the_list(manager);
    assert_eq!(listed, naive.free, "the list of blocks that nobody holds");
    counts(manager, &listed);
    cache(manager, naive, &listed);
    chains(manager, naive, hasher);
    holds(manager);
}

/// Blocks of a table, each once.
fn distinct(table: &Table) -> Vec<BlockId> {
    let mut blocks: Vec<BlockId> = table.blocks.iter().copied().filter(|&block| block != NULL).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

fn lengths<S: BuildHasher>(manager: &BlockManager<S>) {
    for (id, sequence) in &manager.sequences {
        let table = &sequence.table;
        assert_eq!(table.blocks.len(), table.len.div_ceil(table.page()), "blocks of sequence {id}");
        let most = table.ring().map_or(usize::MAX, |ring| ring.get());
        let all = table.blocks.iter().filter(|&&block| block != NULL).count().min(most);
        assert_eq!(distinct(table).len(), all, "different blocks of sequence {id}");
    }
}

/// The blocks that nobody holds, as they are linked.
fn the_list<S: BuildHasher>(manager: &BlockManager<S>) -> Vec<BlockId> {
    let mut listed = Vec::new();
    let (mut before, mut block) = (NULL, manager.blocks.links[0].after);
    while block != NULL {
        assert!(listed.len() < manager.blocks.usable(), "the list goes in a circle");
        assert_eq!(manager.blocks.links[block as usize].before, before, "the link back from block {block}");
        listed.push(block);
        (before, block) = (block, manager.blocks.links[block as usize].after);
    }
    assert_eq!(manager.blocks.links[0].before, before, "the list's end");
    listed
}

fn counts<S: BuildHasher>(manager: &BlockManager<S>, listed: &[BlockId]) {
    let mut uses: HashMap<BlockId, u32> = HashMap::new();
    for sequence in manager.sequences.values() {
        distinct(&sequence.table).into_iter().for_each(|block| *uses.entry(block).or_default() += 1);
    }
    for block in 1..=manager.blocks.usable() as BlockId {
        let refs = manager.blocks.refs(block);
        assert_eq!(refs, uses.get(&block).copied().unwrap_or(0), "holders of block {block}");
        assert_eq!(listed.contains(&block), refs == 0, "block {block} of {refs} holders in the list");
    }
    assert_eq!(manager.blocks.refs(NULL), 0, "holders of the null block");
    let stats = manager.stats();
    assert_eq!((stats.uses, stats.used), (uses.values().sum::<u32>() as usize, uses.len()));
    assert_eq!(stats.used + manager.blocks.free(), manager.blocks.usable(), "used and free blocks");
    assert_eq!(stats.used + stats.cached + stats.free, manager.blocks.usable(), "used, cached and free blocks");
    let filled: usize = {
        let mut slots: Vec<(BlockId, usize)> = Vec::new();
        for sequence in manager.sequences.values() {
            slots.extend((0..sequence.table.len).filter_map(|t| sequence.table.slot(t)).map(|s| (s.block, s.offset)));
        }
        slots.sort_unstable();
        slots.dedup();
        slots.len()
    };
    assert_eq!(stats.wasted, stats.slots - filled, "slots without a token");
}

/// Blocks that are found hold what they are found by, and the list has those last that can be found.
fn cache<S: BuildHasher>(manager: &BlockManager<S>, naive: &Naive, listed: &[BlockId]) {
    let prefixes = manager.blocks.prefixes();
    let mut found: Vec<(Vec<u32>, BlockId)> = Vec::new();
    for &prefix in &prefixes.by_hash {
        let Some(block) = prefixes.block(prefix) else { continue };
        assert_eq!(manager.blocks.links[block as usize].prefix, prefix, "the cached block {block}");
        found.push((path(manager, prefix), block));
    }
    let mut wanted: Vec<_> = naive.cache.iter().map(|((tokens, _), block)| (tokens.clone(), *block)).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted, "cached blocks");
    let is_cached = |block: &&BlockId| manager.blocks.links[**block as usize].prefix != Prefix::EMPTY;
    let cached = listed.iter().filter(is_cached).count();
    assert_eq!(cached, manager.blocks.cached(), "cached blocks that nobody holds");
    assert!(listed[listed.len() - cached..].iter().all(|block| is_cached(&block)), "what is not cached goes first");
}

/// The tokens from the root to a node.
fn path<S: BuildHasher>(manager: &BlockManager<S>, mut prefix: Prefix) -> Vec<u32> {
    let prefixes = manager.blocks.prefixes();
    let mut pages = Vec::new();
    while prefix != Prefix::EMPTY {
        pages.push(prefixes.tokens(prefix));
        prefix = prefixes.nodes[prefix.0 as usize].parent;
    }
    pages.into_iter().rev().flatten().copied().collect()
}

/// Each sequence stands at the prefix of its own tokens, and each node's hash is that of the chain.
fn chains<S: BuildHasher>(manager: &BlockManager<S>, naive: &Naive, hasher: &S) {
    for (&id, copied) in &naive.sequences {
        let sequence = &manager.sequences[&SequenceId(id)];
        assert_eq!(sequence.table.blocks, copied.table, "the table of sequence {id}");
        assert_eq!(sequence.table.len, copied.tokens.len(), "the length of sequence {id}");
        if copied.ring.is_none() {
            let all = [path(manager, sequence.prefix).as_slice(), &sequence.tail].concat();
            assert_eq!(all, copied.tokens, "the tokens of sequence {id}");
            assert!(sequence.tail.len() < manager.blocks.page());
        }
    }
    let prefixes = manager.blocks.prefixes();
    for &prefix in &prefixes.by_hash {
        let node = &prefixes.nodes[prefix.0 as usize];
        let hash = chain_hash(hasher, prefixes.hash(node.parent), prefixes.tokens(prefix), &node.keys);
        assert_eq!(node.hash, hash);
    }
}

/// A node is held by its block, by nodes behind it and by sequences; none is kept that nothing holds.
fn holds<S: BuildHasher>(manager: &BlockManager<S>) {
    let prefixes = manager.blocks.prefixes();
    let mut holds: HashMap<u32, u32> = HashMap::new();
    for &prefix in &prefixes.by_hash {
        *holds.entry(prefix.0).or_default() += u32::from(prefixes.block(prefix).is_some());
        *holds.entry(prefixes.nodes[prefix.0 as usize].parent.0).or_default() += 1;
    }
    manager.sequences.values().for_each(|sequence| *holds.entry(sequence.prefix.0).or_default() += 1);
    for &prefix in &prefixes.by_hash {
        assert_eq!(prefixes.nodes[prefix.0 as usize].holds, holds[&prefix.0], "holds of a node");
        assert!(holds[&prefix.0] > 0, "a node that nothing holds");
    }
}
