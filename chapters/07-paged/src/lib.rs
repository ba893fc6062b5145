//! Chapter 7, the exercise: the block manager of PagedAttention, section 4 of Kwon et al. (arXiv 2309.06180).
//!
//! Six functions are yours, in this order: [`Table::slot`], [`Table::grow`], [`Table::share`], [`Table::own`],
//! [`chain_hash`], [`longest_hit`]. The rest is given. `cargo run --release -- check 7` says how far you are, and `--hint`
//! helps.
//!
//! Keys and values lie in blocks of a fixed number of slots. A [`Table`] says where those of one sequence are. [`Blocks`],
//! which is given, knows how many tables hold each block: [`Blocks::allocate`] hands out one that nobody holds,
//! [`Blocks::retain`] and [`Blocks::release`] count holders up and down. It also keeps the cache of full blocks, and decides
//! which is reused first. Its docs, and those of [`ExtraKey`]: crates/paged/src/blocks.rs and keys.rs, or
//! `cargo doc -p paged --open`.
//!
//! [`BlockManager`], at the end, is made of your steps.

#![allow(unused, clippy::todo, reason = "what the functions still to be written will use is already here")]

use paged::{Append, BlockCopy, BlockId, Blocks, Config, ExtraKey, ManagerError, NULL, Prefix, Slot};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// The blocks of a sequence in the order of its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// A block for each page of tokens. The same one may stand at several places.
    pub blocks: Vec<BlockId>,
    /// Tokens.
    pub len: usize,
    page: usize,
}

impl Table {
    /// No token, with `page` slots (at least 1) a block.
    pub fn new(page: usize) -> Self {
        Table::listing(page, Vec::new(), 0)
    }

    /// A table that lists these blocks as they are, any of them as often as one likes. Nobody's count changes.
    pub fn listing(page: usize, blocks: Vec<BlockId>, len: usize) -> Self {
        Table { blocks, len, page: page.max(1) }
    }

    /// Slots of a block.
    pub fn page(&self) -> usize {
        self.page
    }

    /// The block that entry `index` has; `None` if the table is not so long.
    pub fn held(&self, index: usize) -> Option<BlockId> {
        self.blocks.get(index).copied()
    }

    /// Step 1. Where token `t` lies: its block, and its slot in the block. `None` if the table has no token `t`.
    ///
    /// With pages of 4 and the blocks 7, 3, token 5 lies in block 3, slot 1.
    ///
    /// First hint: entry 0 has tokens 0 to `page - 1`, entry 1 the next `page` tokens.
    pub fn slot(&self, t: usize) -> Option<Slot> {
        todo!("step 1, Table::slot")
    }

    /// Step 2. One token more: the place that it gets. A block is taken when a token is the first one in it, and not
    /// before.
    ///
    /// First hint: if the last block has a free slot, only `len` changes. Else `blocks.allocate()?` gives a block for the
    /// table. That may fail, and then nothing must have changed.
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`] if a block is needed and all are held.
    pub fn grow(&mut self, blocks: &mut Blocks) -> Result<Slot, ManagerError> {
        todo!("step 2, Table::grow")
    }

    /// Step 3. A second table of the same tokens, for a fork of the sequence. Nothing is copied: each block of the table
    /// has one holder more. A block that the table lists twice has one holder more too, not two: it will be given back
    /// once when the fork ends.
    ///
    /// First hint: [`Table::discard`], which is given, does the opposite.
    ///
    /// # Errors
    /// Those of [`Blocks::retain`].
    pub fn share(&self, blocks: &mut Blocks) -> Result<Table, ManagerError> {
        todo!("step 3, Table::share")
    }

    /// Step 4, copy-on-write. Before the next token is written: if its place is in a block that other tables hold too, a
    /// fresh block takes that block's place in this table, and the old one has a holder less. The answer says what to
    /// copy: the slots that are filled. `None` if there is nothing to copy, because the block has no other holder or the
    /// next token begins a block.
    ///
    /// A table that lists the block twice lists the fresh one in both places; all `page` slots are copied then.
    ///
    /// First hint: [`Table::held`] at `len / page` is the block of the next token's place, and [`Blocks::refs`] says how
    /// many hold it. Take the fresh block first: that may fail, and then nothing must have changed.
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`] if a block is needed and all are held.
    pub fn own(&mut self, blocks: &mut Blocks) -> Result<Option<BlockCopy>, ManagerError> {
        todo!("step 4, Table::own")
    }

    /// A place for one token more, in a block that nobody else writes.
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`] if a block is needed and all are held; nothing has changed then.
    pub fn append(&mut self, blocks: &mut Blocks) -> Result<Append, ManagerError> {
        let copy = self.own(blocks)?;
        Ok(Append { slot: self.grow(blocks)?, copy })
    }

    /// Gives every block back once, the last one first: what stands behind it is of no use without the blocks before, so
    /// it is to be reused before them.
    ///
    /// # Errors
    /// Those of [`Blocks::release`].
    pub fn discard(self, blocks: &mut Blocks) -> Result<(), ManagerError> {
        blocks.start_visit();
        for &block in self.blocks.iter().rev() {
            if blocks.first_visit(block) {
                blocks.release(block)?;
            }
        }
        Ok(())
    }
}

/// Step 5. The hash of a full block: of the hash of the block before it (0 for none), its tokens, and its extra keys, all
/// three. So two blocks have the same hash only if all tokens and keys up to their ends are the same.
///
/// First hint: [`BuildHasher::hash_one`] hashes a tuple.
pub fn chain_hash(hasher: &impl BuildHasher, parent: u64, tokens: &[u32], keys: &[ExtraKey]) -> u64 {
    todo!("step 5, chain_hash")
}

/// Step 6. The cached blocks that a prompt begins with. `cached(i, tokens)` is the block that holds the i-th page of the
/// prompt, given its tokens. It is to be asked from the first page on, in order, until it has none.
///
/// Ask for full pages alone, and never for the last token: somebody has to compute it, since the next token is drawn from
/// what comes out there. So of a prompt that is cached in full the last block is not taken.
///
/// With pages of 4, a prompt of 11 or 12 tokens asks for at most two pages, one of 13 for three.
///
/// First hint: how many pages may be asked for at most? Then walk over them, and stop at the first one that is missing.
pub fn longest_hit(
    prompt: &[u32],
    page: usize,
    mut cached: impl FnMut(usize, &[u32]) -> Option<BlockId>,
) -> Vec<BlockId> {
    todo!("step 6, longest_hit")
}

/// A sequence's number.
pub type SequenceId = u64;

/// What came of admitting a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The new sequence.
    pub sequence: SequenceId,
    /// Its first tokens, whose keys and values were found in the cache.
    pub cached: usize,
}

/// What the manager keeps of one sequence.
#[derive(Clone, Debug)]
struct Sequence {
    table: Table,
    /// Its full blocks in the cache, which it holds.
    prefix: Prefix,
    /// The tokens behind them, less than a page.
    tail: Vec<u32>,
    keys: Vec<ExtraKey>,
}

impl Sequence {
    /// One token more. With it a block may become full, which enters the cache then.
    fn push(&mut self, token: u32, blocks: &mut Blocks, hasher: &impl BuildHasher) -> Result<Append, ManagerError> {
        let append = self.table.append(blocks)?;
        self.tail.push(token);
        if self.tail.len() == self.table.page() {
            let keys = ExtraKey::of_block(&self.keys, self.table.len - self.tail.len()..self.table.len);
            let hash = chain_hash(hasher, blocks.prefixes().hash(self.prefix), &self.tail, &keys);
            self.prefix = blocks.enter(self.prefix, hash, (&self.tail, keys), append.slot.block)?;
            self.tail.clear();
        }
        Ok(append)
    }
}

/// Who holds which block, for many sequences.
#[derive(Clone, Debug)]
pub struct BlockManager<S = RandomState> {
    blocks: Blocks,
    sequences: HashMap<SequenceId, Sequence>,
    admitted: u64,
    hasher: S,
}

impl BlockManager {
    /// A manager of a pool that nobody uses yet. Of the configuration it takes the blocks and the page.
    ///
    /// # Errors
    /// Those of [`Blocks::new`].
    pub fn new(config: Config) -> Result<Self, ManagerError> {
        let blocks = Blocks::new(config.blocks, config.page)?;
        Ok(BlockManager { blocks, sequences: HashMap::new(), admitted: 0, hasher: RandomState::new() })
    }
}

impl<S: BuildHasher> BlockManager<S> {
    /// A new sequence of the tokens of `prompt`. It shares the blocks that the cache has of its beginning, and has places
    /// for the rest.
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`] if it does not fit; nothing has changed then.
    pub fn admit(&mut self, prompt: &[u32], keys: &[ExtraKey]) -> Result<Admission, ManagerError> {
        let (page, mut path) = (self.blocks.page(), vec![Prefix::EMPTY]);
        let found = longest_hit(prompt, page, |i, tokens| {
            let (parent, prefixes) = (*path.get(i)?, self.blocks.prefixes());
            let keys = ExtraKey::of_block(keys, i * page..(i + 1) * page);
            let hash = chain_hash(&self.hasher, prefixes.hash(parent), tokens, &keys);
            path.push(prefixes.find(parent, hash, tokens, &keys)?);
            prefixes.block(*path.last()?)
        });
        // What the hit holds is not there to be allocated.
        let free = self.blocks.free() - found.iter().filter(|&&block| self.blocks.refs(block) == 0).count();
        let wanted = prompt.len().div_ceil(page) - found.len();
        if wanted > free {
            return Err(ManagerError::OutOfBlocks { free, wanted });
        }
        found.iter().try_for_each(|&block| self.blocks.retain(block))?;
        let (prefix, cached) = (path.get(found.len()).copied().unwrap_or(Prefix::EMPTY), found.len() * page);
        self.blocks.hold(prefix);
        let table = Table::listing(page, found, cached);
        let sequence = self.insert(Sequence { table, prefix, tail: Vec::new(), keys: keys.to_vec() });
        for &token in &prompt[cached..] {
            self.append(sequence, token)?;
        }
        Ok(Admission { sequence, cached })
    }

    /// One token more: where its key and value go, and what to copy before they are written.
    ///
    /// # Errors
    /// An unknown sequence is a [`ManagerError::Value`]; [`ManagerError::OutOfBlocks`]. Nothing has changed then.
    pub fn append(&mut self, sequence: SequenceId, token: u32) -> Result<Append, ManagerError> {
        let entry = self.sequences.get_mut(&sequence).ok_or_else(|| unknown(sequence))?;
        entry.push(token, &mut self.blocks, &self.hasher)
    }

    /// A second sequence of the same tokens in the same blocks.
    ///
    /// # Errors
    /// An unknown sequence is a [`ManagerError::Value`].
    pub fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, ManagerError> {
        let parent = self.sequences.get(&sequence).ok_or_else(|| unknown(sequence))?;
        let child = Sequence { table: parent.table.share(&mut self.blocks)?, ..parent.clone() };
        self.blocks.hold(child.prefix);
        Ok(self.insert(child))
    }

    /// Ends a sequence and gives back its blocks. What is full stays in the cache until it is reused.
    ///
    /// # Errors
    /// An unknown sequence is a [`ManagerError::Value`].
    pub fn free(&mut self, sequence: SequenceId) -> Result<(), ManagerError> {
        let entry = self.sequences.remove(&sequence).ok_or_else(|| unknown(sequence))?;
        self.blocks.leave(entry.prefix);
        entry.table.discard(&mut self.blocks)
    }

    /// The block table of a sequence.
    ///
    /// # Errors
    /// An unknown sequence is a [`ManagerError::Value`].
    pub fn table(&self, sequence: SequenceId) -> Result<&Table, ManagerError> {
        self.sequences.get(&sequence).map(|entry| &entry.table).ok_or_else(|| unknown(sequence))
    }

    /// The blocks: who holds them, and how many are left.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        self.sequences.insert(self.admitted, sequence);
        self.admitted += 1;
        self.admitted - 1
    }
}

fn unknown(sequence: SequenceId) -> ManagerError {
    ManagerError::Value { name: "sequence", found: sequence.to_string(), wanted: "one that is live".into() }
}
