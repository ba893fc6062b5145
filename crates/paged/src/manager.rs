//! The block manager: sequences by their numbers, over [`Blocks`] and one [`Table`] each.

use crate::sequence::Sequence;
use crate::{Append, BlockCopy, BlockId, Blocks, ExtraKey, ManagerError, NULL, Prefix, Stats, Table};
use crate::{chain_hash, longest_hit};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;

/// A sequence's number. None is given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub(crate) u64);

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How large the pool is, and what limits a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Blocks of the pool, the null block one of them: 2 to `i32::MAX`.
    pub blocks: usize,
    /// Slots of a block, 1 to `i32::MAX`. vLLM's default is 16.
    pub page: usize,
    /// Columns of a block table: a sequence has at most `columns * page` tokens. `None` for no such limit.
    pub columns: Option<usize>,
    /// Keys that a query sees, its own one of them, where all layers have such a window. Blocks wholly to the left of it
    /// are given back while their sequence is live.
    pub window: Option<NonZeroUsize>,
}

impl Config {
    /// `blocks` blocks of `page` slots, without columns and window.
    pub fn new(blocks: usize, page: usize) -> Self {
        Config { blocks, page, columns: None, window: None }
    }

    /// A block table has columns for so many tokens, and their number fits the lengths that attention takes.
    pub(crate) fn check_length(&self, tokens: usize) -> Result<(), ManagerError> {
        let most = self.columns.map_or(usize::MAX, |columns| columns.saturating_mul(self.page)).min(i32::MAX as usize);
        if tokens > most { Err(ManagerError::TooLong { tokens, most }) } else { Ok(()) }
    }

    /// Blocks that neither the token behind `len` others nor any later one sees.
    pub(crate) fn left_of_window(&self, len: usize) -> usize {
        self.window.map_or(0, |window| (len + 1).saturating_sub(window.get()) / self.page)
    }

    /// The most blocks that a window can reach while `chunk` tokens are placed: those of the chunk and of the keys that its
    /// first query sees, which begin anywhere in a block.
    fn windowed(&self, chunk: usize) -> Option<usize> {
        let keys = self.window?.get().saturating_add(chunk.max(1)) - 1;
        Some(keys.div_ceil(self.page).saturating_add(1))
    }
}

/// What came of admitting a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The new sequence.
    pub sequence: SequenceId,
    /// Its first tokens, whose keys and values were found in the cache: only the others are to be computed and written.
    pub cached: usize,
}

/// The found part of a prompt: its blocks, and where the cache goes on from there.
struct Hit {
    blocks: Vec<BlockId>,
    prefix: Prefix,
}

/// Who holds which block of a pool, for many sequences; [the crate's page](crate) shows it at work.
///
/// `S` makes the hashes of the prefix cache; see [`chain_hash`] for the default.
#[derive(Clone, Debug)]
pub struct BlockManager<S = RandomState> {
    config: Config,
    pub(crate) blocks: Blocks,
    pub(crate) sequences: HashMap<SequenceId, Sequence>,
    admitted: u64,
    prompt_tokens: u64,
    hit_tokens: u64,
    hasher: S,
}

impl BlockManager {
    /// A manager of a pool that nobody uses yet.
    ///
    /// # Errors
    /// Those of [`Blocks::new`].
    pub fn new(config: Config) -> Result<Self, ManagerError> {
        BlockManager::with_hasher(config, RandomState::new())
    }
}

impl<S: BuildHasher> BlockManager<S> {
    /// As [`new`](BlockManager::new), with hashes of one's own.
    ///
    /// # Errors
    /// Those of [`Blocks::new`].
    pub fn with_hasher(config: Config, hasher: S) -> Result<Self, ManagerError> {
        let blocks = Blocks::new(config.blocks, config.page)?;
        let (sequences, admitted, prompt_tokens, hit_tokens) = (HashMap::new(), 0, 0, 0);
        Ok(BlockManager { config, blocks, sequences, admitted, prompt_tokens, hit_tokens, hasher })
    }

    /// A new sequence of the tokens of `prompt`. It shares the blocks that the cache has of its beginning, and has places
    /// for the rest.
    ///
    /// # Errors
    /// [`ManagerError::NeverFits`] or [`ManagerError::TooLong`] if the prompt and one more token would not fit even
    /// alone; [`ManagerError::OutOfBlocks`] if it does not fit now; [`ManagerError::Value`] for an image outside it.
    pub fn admit(&mut self, prompt: &[u32], keys: &[ExtraKey]) -> Result<Admission, ManagerError> {
        self.admit_chunk(prompt, keys, prompt.len())
    }

    /// As [`admit`](Self::admit), but of the tokens that the cache does not have only the first `chunk` get places.
    /// [`extend`](Self::extend) takes the others, a chunk at a time.
    ///
    /// # Errors
    /// Those of [`admit`](Self::admit).
    pub fn admit_chunk(&mut self, prompt: &[u32], keys: &[ExtraKey], chunk: usize) -> Result<Admission, ManagerError> {
        let keys = ExtraKey::checked(keys, prompt.len())?;
        self.check_fit(prompt.len(), self.config.windowed(chunk))?;
        let hit = self.hit(prompt, &keys);
        let cached = hit.blocks.len() * self.config.page;
        let end = prompt.len().min(cached.saturating_add(chunk));
        // What the hit holds is not there to be allocated.
        let unheld = |&&block: &&BlockId| block != NULL && self.blocks.refs(block) == 0;
        let free = self.blocks.free() - hit.blocks.iter().filter(unheld).count();
        let wanted = end.div_ceil(self.config.page) - hit.blocks.len();
        if wanted > free {
            return Err(ManagerError::OutOfBlocks { free, wanted });
        }
        let table = Table::cached(self.config.page, hit.blocks, &mut self.blocks)?;
        self.blocks.hold(hit.prefix);
        let sequence = self.insert(Sequence { prefix: hit.prefix, keys, ..Sequence::new(table) });
        self.extend(sequence, &prompt[cached..end])?;
        self.prompt_tokens += prompt.len() as u64;
        self.hit_tokens += cached as u64;
        Ok(Admission { sequence, cached })
    }

    /// A new sequence of the tokens of `prompt` in at most `ring` blocks, where token t takes the place of token
    /// `t - ring * page`: the rolling buffer of a window. It has no part in the prefix cache.
    ///
    /// Whoever writes the keys must not add more tokens at once than the ring has room for beside the window: the places of
    /// earlier ones are taken as soon as later ones are placed.
    ///
    /// # Errors
    /// Those of [`admit`](Self::admit).
    pub fn admit_rolling(&mut self, prompt: &[u32], ring: NonZeroUsize) -> Result<SequenceId, ManagerError> {
        self.check_fit(prompt.len(), Some(ring.get()))?;
        let table = Table::rolling(self.config.page, ring);
        let (free, wanted) = (self.blocks.free(), table.wanted(prompt.len(), &self.blocks));
        if wanted > free {
            return Err(ManagerError::OutOfBlocks { free, wanted });
        }
        let sequence = self.insert(Sequence::new(table));
        self.extend(sequence, prompt)?;
        Ok(sequence)
    }

    /// One token more: where its key and value go, and what to copy before they are written.
    ///
    /// # Errors
    /// [`ManagerError::UnknownSequence`], [`ManagerError::TooLong`], [`ManagerError::OutOfBlocks`]; nothing has changed
    /// then, not even if it was the copy that found no block.
    pub fn append(&mut self, sequence: SequenceId, token: u32) -> Result<Append, ManagerError> {
        let entry = self.sequences.get_mut(&sequence).ok_or(ManagerError::UnknownSequence(sequence))?;
        entry.prepare(1, &self.config, &mut self.blocks)?;
        entry.push(token, &mut self.blocks, &self.hasher)
    }

    /// Several tokens more, all or none: what to copy before their keys and values are written. Where they go the
    /// [`table`](Self::table) says.
    ///
    /// # Errors
    /// Those of [`append`](Self::append).
    pub fn extend(&mut self, sequence: SequenceId, tokens: &[u32]) -> Result<Vec<BlockCopy>, ManagerError> {
        let entry = self.sequences.get_mut(&sequence).ok_or(ManagerError::UnknownSequence(sequence))?;
        entry.prepare(tokens.len(), &self.config, &mut self.blocks)?;
        let mut copies = Vec::new();
        for &token in tokens {
            copies.extend(entry.push(token, &mut self.blocks, &self.hasher)?.copy);
        }
        Ok(copies)
    }

    /// A second sequence of the same tokens in the same blocks. Whichever of the two first writes into a block of both
    /// copies it.
    ///
    /// # Errors
    /// [`ManagerError::UnknownSequence`].
    pub fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, ManagerError> {
        let entry = self.sequences.get(&sequence).ok_or(ManagerError::UnknownSequence(sequence))?;
        let child = entry.fork(&mut self.blocks)?;
        Ok(self.insert(child))
    }

    /// Ends a sequence and gives back its blocks. What is full stays in the cache until it is reused.
    ///
    /// # Errors
    /// [`ManagerError::UnknownSequence`], also for one that has been freed before; nothing has changed then.
    pub fn free(&mut self, sequence: SequenceId) -> Result<(), ManagerError> {
        let entry = self.sequences.remove(&sequence).ok_or(ManagerError::UnknownSequence(sequence))?;
        entry.free(&mut self.blocks)
    }

    /// The block table of a sequence, and how many tokens it has.
    ///
    /// # Errors
    /// [`ManagerError::UnknownSequence`].
    pub fn table(&self, sequence: SequenceId) -> Result<&Table, ManagerError> {
        let entry = self.sequences.get(&sequence).ok_or(ManagerError::UnknownSequence(sequence))?;
        Ok(&entry.table)
    }

    /// How many tokens of a prompt the cache has, so that admitting it would find them. Nothing is held by asking.
    ///
    /// # Errors
    /// [`ManagerError::Value`] for an image outside the prompt.
    pub fn look_up(&self, prompt: &[u32], keys: &[ExtraKey]) -> Result<usize, ManagerError> {
        let keys = ExtraKey::checked(keys, prompt.len())?;
        Ok(self.hit(prompt, &keys).blocks.len() * self.config.page)
    }

    /// The blocks: who holds them, and how many are left.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// How well the pool is used, now and since the beginning.
    pub fn stats(&self) -> Stats {
        let (used, page) = (self.blocks.usable() - self.blocks.free(), self.config.page);
        // Forks of one sequence have one last block together until one of them writes.
        let last = |sequence: &Sequence| Some((*sequence.table.blocks.last()?, sequence.table.filled_in_last()));
        let partial: HashMap<BlockId, usize> = self.sequences.values().filter_map(last).collect();
        Stats {
            sequences: self.sequences.len(),
            used,
            cached: self.blocks.cached(),
            free: self.blocks.free() - self.blocks.cached(),
            slots: used * page,
            wasted: partial.values().map(|filled| page - filled).sum(),
            uses: self.blocks.uses(),
            prompt_tokens: self.prompt_tokens,
            hit_tokens: self.hit_tokens,
        }
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let id = SequenceId(self.admitted);
        self.admitted += 1;
        self.sequences.insert(id, sequence);
        id
    }

    /// Refuses what would not fit with one token more if all blocks were unheld, `most` of them at a time.
    fn check_fit(&self, tokens: usize, most: Option<usize>) -> Result<(), ManagerError> {
        let length = tokens.saturating_add(1);
        self.config.check_length(length)?;
        let wanted = length.div_ceil(self.config.page).min(most.unwrap_or(usize::MAX));
        match self.blocks.usable() {
            most if wanted > most => Err(ManagerError::NeverFits { tokens, wanted, most }),
            _ => Ok(()),
        }
    }

    // ANCHOR: hit
    /// The blocks that the cache has of a prompt's beginning. Under a window the blocks that no later token sees need not
    /// be there.
    fn hit(&self, prompt: &[u32], keys: &[ExtraKey]) -> Hit {
        let (page, prefixes) = (self.config.page, self.blocks.prefixes());
        let mut path = vec![Prefix::EMPTY];
        let mut blocks = longest_hit(prompt, page, |i, tokens| {
            let keys = ExtraKey::of_block(keys, i * page..(i + 1) * page);
            let hash = chain_hash(&self.hasher, prefixes.hash(path[i]), tokens, &keys);
            path.push(prefixes.find(path[i], hash, tokens, &keys)?);
            let block = prefixes.block(path[i + 1]);
            if self.config.window.is_some() { block.or(Some(NULL)) } else { block }
        });
        if let Some(window) = self.config.window {
            keep_run(&mut blocks, (window.get() - 1).div_ceil(page).max(1));
            let left = self.config.left_of_window(blocks.len() * page);
            blocks[..left].fill(NULL);
        }
        Hit { prefix: path[blocks.len()], blocks }
    }
    // ANCHOR_END: hit
}

/// Keeps the longest beginning whose last `run` blocks are there; or, where there is none, as many as are there from the
/// first on.
fn keep_run(blocks: &mut Vec<BlockId>, run: usize) {
    let mut there = 0;
    for first in (0..blocks.len()).rev() {
        there = if blocks[first] == NULL { 0 } else { there + 1 };
        if there == run {
            return blocks.truncate(first + run);
        }
    }
    blocks.truncate(there);
}
