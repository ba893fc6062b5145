//! The prefix cache: which block holds the keys and values of which full page of tokens, behind which others.
//!
//! A tree. A node is a full block's tokens and extra keys behind the node of the block before, so a path from the root is
//! a prefix of prompts. One hash table finds a node by a hash that is chained: of the parent's hash, the tokens and the
//! keys. Whatever the hash says, a node is found only if its parent, its tokens and its keys are equal; equal hashes cost
//! time and nothing else.
//!
//! A node outlives its block where something needs it: a node behind it, or a sequence that may grow from it. So the
//! first blocks of a prefix can be reused, as those left of a window are, and what stands behind them is still found.

use crate::{BlockId, ExtraKey, NULL};
use hashbrown::HashTable;
use std::hash::BuildHasher;
use std::ops::Range;

/// A prefix in the cache: a node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix(pub(crate) u32);

impl Prefix {
    /// No token.
    pub const EMPTY: Prefix = Prefix(0);
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) parent: Prefix,
    pub(crate) hash: u64,
    /// The block that is found, or [`NULL`].
    pub(crate) block: BlockId,
    /// Nodes behind it, sequences at it, and one for its block.
    pub(crate) holds: u32,
    pub(crate) keys: Vec<ExtraKey>,
}

/// The prefixes of which the cache has blocks.
#[derive(Clone, Debug)]
pub struct Prefixes {
    page: usize,
    pub(crate) nodes: Vec<Node>,
    /// A page of tokens for each node.
    tokens: Vec<u32>,
    unused: Vec<Prefix>,
    pub(crate) by_hash: HashTable<Prefix>,
}

impl Prefixes {
    pub(crate) fn new(page: usize) -> Self {
        let root = Node { parent: Prefix::EMPTY, hash: 0, block: NULL, holds: 1, keys: Vec::new() };
        Prefixes { page, nodes: vec![root], tokens: Vec::new(), unused: Vec::new(), by_hash: HashTable::new() }
    }

    /// What `parent` grows to by a full block of these tokens under these keys, if the cache knows it. `hash` is
    /// [`chain_hash`] of the parent's [`hash`](Self::hash), the tokens and the keys.
    pub fn find(&self, parent: Prefix, hash: u64, tokens: &[u32], keys: &[ExtraKey]) -> Option<Prefix> {
        let equal = |prefix: &Prefix| {
            let node = self.node(*prefix);
            node.parent == parent && self.tokens(*prefix) == tokens && node.keys == keys
        };
        self.by_hash.find(hash, equal).copied()
    }

    /// The block with the keys and values of the prefix's last page.
    pub fn block(&self, prefix: Prefix) -> Option<BlockId> {
        Some(self.node(prefix).block).filter(|&block| block != NULL)
    }

    /// The prefix's own hash, the parent's in the hash of what it grows to.
    pub fn hash(&self, prefix: Prefix) -> u64 {
        self.node(prefix).hash
    }

    /// The prefix grown by a full block, which is found from now on unless another is. A hold moves from `prefix` to it.
    pub(crate) fn enter(
        &mut self,
        prefix: Prefix,
        hash: u64,
        (tokens, keys): (&[u32], Vec<ExtraKey>),
        block: BlockId,
    ) -> Prefix {
        let grown = self.find(prefix, hash, tokens, &keys).unwrap_or_else(|| self.insert(prefix, hash, tokens, keys));
        if self.node(grown).block == NULL {
            self.nodes[grown.0 as usize].block = block;
            self.hold(grown);
        }
        self.hold(grown);
        self.leave(prefix);
        grown
    }

    /// A node without a block, held by nobody yet.
    fn insert(&mut self, parent: Prefix, hash: u64, tokens: &[u32], keys: Vec<ExtraKey>) -> Prefix {
        let node = Node { parent, hash, block: NULL, holds: 0, keys };
        let prefix = match self.unused.pop() {
            Some(prefix) => prefix,
            None => {
                self.nodes.push(node.clone());
                self.tokens.extend_from_slice(tokens);
                Prefix(self.nodes.len() as u32 - 1)
            }
        };
        let place = self.place(prefix);
        self.tokens[place].copy_from_slice(tokens);
        self.nodes[prefix.0 as usize] = node;
        self.hold(parent);
        let nodes = &self.nodes;
        self.by_hash.insert_unique(hash, prefix, |prefix| nodes[prefix.0 as usize].hash);
        prefix
    }

    /// The prefix's block is reused.
    pub(crate) fn evict(&mut self, prefix: Prefix) {
        self.nodes[prefix.0 as usize].block = NULL;
        self.leave(prefix);
    }

    /// The root needs no hold, and what this cache does not know is none of its own.
    pub(crate) fn hold(&mut self, prefix: Prefix) {
        if let Some(node) = self.nodes.get_mut(prefix.0 as usize) {
            node.holds += 1;
        }
    }

    /// One less holds the prefix. With the last it goes, and leaves its parent.
    pub(crate) fn leave(&mut self, mut prefix: Prefix) {
        while prefix != Prefix::EMPTY {
            let Some(node) = self.nodes.get_mut(prefix.0 as usize).filter(|node| node.holds > 0) else { return };
            node.holds -= 1;
            if node.holds > 0 {
                return;
            }
            let (hash, parent) = (node.hash, node.parent);
            if let Ok(entry) = self.by_hash.find_entry(hash, |found| *found == prefix) {
                entry.remove();
            }
            self.unused.push(prefix);
            prefix = parent;
        }
    }

    pub(crate) fn tokens(&self, prefix: Prefix) -> &[u32] {
        &self.tokens[self.place(prefix)]
    }

    /// Where a node's tokens lie; the root has none.
    fn place(&self, prefix: Prefix) -> Range<usize> {
        let end = prefix.0 as usize * self.page;
        end - self.page..end
    }

    /// A prefix that another cache gave is none of this one's: it counts as empty.
    fn node(&self, prefix: Prefix) -> &Node {
        self.nodes.get(prefix.0 as usize).unwrap_or(&self.nodes[0])
    }
}

/// The hash of a full block: of the hash of the block before it (0 for none), its tokens, and its extra keys.
///
/// By default a manager's hasher is the standard library's: SipHash with keys drawn when the manager is made, so that
/// nobody can choose prompts whose hashes are equal. Equal hashes never give a wrong hit, but a table full of them is
/// slow.
// ANCHOR: chain_hash
pub fn chain_hash(hasher: &impl BuildHasher, parent: u64, tokens: &[u32], keys: &[ExtraKey]) -> u64 {
    hasher.hash_one((parent, tokens, keys))
}
// ANCHOR_END: chain_hash

/// The cached blocks that a prompt begins with. `cached(i, tokens)` is the block that holds the i-th full page of the
/// prompt; it is asked from the first on, until it has none.
///
/// Only full pages are asked for, and the last token is always left to compute: it is what the next one is drawn from. So a
/// prompt that is cached in full recomputes its last block.
///
/// ```
/// let all = |i: usize, _: &[u32]| Some(i as i32 + 1);
/// assert_eq!(paged::longest_hit(&[7; 11], 4, all), [1, 2]);
/// assert_eq!(paged::longest_hit(&[7; 12], 4, all), [1, 2]);
/// assert_eq!(paged::longest_hit(&[7; 13], 4, all), [1, 2, 3]);
/// ```
// ANCHOR: longest_hit
pub fn longest_hit(
    prompt: &[u32],
    page: usize,
    mut cached: impl FnMut(usize, &[u32]) -> Option<BlockId>,
) -> Vec<BlockId> {
    let page = page.max(1);
    let most = prompt.len().saturating_sub(1) / page;
    prompt.chunks_exact(page).take(most).enumerate().map_while(|(i, tokens)| cached(i, tokens)).collect()
}
// ANCHOR_END: longest_hit
