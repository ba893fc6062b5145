//! A manager so naive that it can be read at a glance: one contiguous copy of tokens for each sequence, the free list a
//! vector, the cache a vector of whole prefixes that is searched from end to end, and a copy of everything to go back to
//! when a call fails half-way.

use crate::{Append, BlockCopy, BlockId, Config, ExtraKey, ManagerError, NULL, Slot};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What the cache knows a block by: all tokens up to its end, and the keys that they were computed under.
pub(crate) type Known = (Vec<u32>, Vec<ExtraKey>);

/// One sequence, written out.
#[derive(Clone, Debug)]
pub(crate) struct Copied {
    pub(crate) tokens: Vec<u32>,
    pub(crate) keys: Vec<ExtraKey>,
    pub(crate) ring: Option<usize>,
    pub(crate) table: Vec<BlockId>,
}

impl Copied {
    /// What the keys and values of token t stand for: all tokens up to it, and what they were computed under.
    pub(crate) fn contents(&self) -> Vec<u16> {
        let mut state = DefaultHasher::new();
        self.keys.iter().filter(|key| !matches!(key, ExtraKey::Image { .. })).for_each(|key| key.hash(&mut state));
        let mut of = |(t, token): (usize, &u32)| {
            let begins = |key: &&ExtraKey| matches!(key, ExtraKey::Image { first, .. } if *first == t);
            (token, self.keys.iter().find(begins)).hash(&mut state);
            state.finish() as u16
        };
        self.tokens.iter().enumerate().map(&mut of).collect()
    }

    /// What the cache knows the first `end` tokens by.
    fn prefix(&self, end: usize) -> Known {
        let counts = |key: &&ExtraKey| !matches!(key, ExtraKey::Image { first, .. } if *first >= end);
        (self.tokens[..end].to_vec(), self.keys.iter().filter(counts).cloned().collect())
    }

    fn distinct(&self) -> Vec<BlockId> {
        let mut distinct = Vec::new();
        for &block in &self.table {
            if block != NULL && !distinct.contains(&block) {
                distinct.push(block);
            }
        }
        distinct
    }
}

/// What a call gave.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Admitted { cached: usize },
    Appended(Append),
    Extended(Vec<BlockCopy>),
    Done,
    Refused(Refusal),
}

/// An error without its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Refusal {
    OutOfBlocks,
    NeverFits,
    TooLong,
    Other,
}

impl From<ManagerError> for Refusal {
    fn from(error: ManagerError) -> Self {
        match error {
            ManagerError::OutOfBlocks { .. } => Refusal::OutOfBlocks,
            ManagerError::NeverFits { .. } => Refusal::NeverFits,
            ManagerError::TooLong { .. } => Refusal::TooLong,
            _ => Refusal::Other,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Naive {
    pub(crate) config: Config,
    /// By the order in which they were made.
    pub(crate) sequences: BTreeMap<u64, Copied>,
    pub(crate) made: u64,
    /// The next to be reused first.
    pub(crate) free: Vec<BlockId>,
    pub(crate) cache: Vec<(Known, BlockId)>,
}

impl Naive {
    pub(crate) fn new(config: Config) -> Self {
        let free = (1..config.blocks as BlockId).collect();
        Naive { config, sequences: BTreeMap::new(), made: 0, free, cache: Vec::new() }
    }

    pub(crate) fn refs(&self, block: BlockId) -> usize {
        self.sequences.values().filter(|sequence| sequence.table.contains(&block)).count()
    }

    /// A call that leaves no trace if it fails.
    fn all_or_nothing(&mut self, call: impl FnOnce(&mut Self) -> Result<Outcome, Refusal>) -> Outcome {
        let before = self.clone();
        call(self).unwrap_or_else(|refusal| {
            *self = before;
            Outcome::Refused(refusal)
        })
    }

    pub(crate) fn admit(&mut self, prompt: &[u32], keys: &[ExtraKey], chunk: usize) -> Outcome {
        let page = self.config.page;
        self.all_or_nothing(|naive| {
            let one_more = (prompt.len() + 1).div_ceil(page);
            // A window's keys before a chunk's first query, and the chunk, from anywhere in a block on.
            let reach = |window: usize| (window - 1 + chunk.clamp(1, prompt.len().max(1))).div_ceil(page) + 1;
            naive.check_fit(prompt.len(), naive.config.window.map_or(one_more, |window| reach(window.get())))?;
            let mut keys = keys.to_vec();
            keys.sort();
            keys.dedup();
            let mut sequence = Copied { tokens: prompt.to_vec(), keys, ring: None, table: Vec::new() };
            sequence.table = naive.hit(&sequence);
            let cached = sequence.table.len() * page;
            sequence.tokens.truncate(cached);
            naive.free.retain(|block| !sequence.table.contains(block));
            naive.insert(sequence);
            let end = prompt.len().min(cached.saturating_add(chunk));
            naive.place(naive.made - 1, &prompt[cached..end])?;
            Ok(Outcome::Admitted { cached })
        })
    }

    pub(crate) fn admit_rolling(&mut self, prompt: &[u32], ring: usize) -> Outcome {
        self.all_or_nothing(|naive| {
            naive.check_fit(prompt.len(), ring)?;
            naive.insert(Copied { tokens: Vec::new(), keys: Vec::new(), ring: Some(ring), table: Vec::new() });
            naive.place(naive.made - 1, prompt)?;
            Ok(Outcome::Done)
        })
    }

    pub(crate) fn append(&mut self, sequence: u64, token: u32) -> Outcome {
        self.all_or_nothing(|naive| {
            let copy = naive.place(sequence, &[token])?.pop();
            let placed = &naive.sequences[&sequence];
            let t = placed.tokens.len() - 1;
            let slot = Slot { block: placed.table[t / naive.config.page], offset: t % naive.config.page };
            Ok(Outcome::Appended(Append { slot, copy }))
        })
    }

    pub(crate) fn extend(&mut self, sequence: u64, tokens: &[u32]) -> Outcome {
        self.all_or_nothing(|naive| naive.place(sequence, tokens).map(Outcome::Extended))
    }

    pub(crate) fn fork(&mut self, sequence: u64) -> Outcome {
        let child = self.sequences[&sequence].clone();
        self.insert(child);
        Outcome::Done
    }

    pub(crate) fn free(&mut self, sequence: u64) -> Outcome {
        let gone = self.sequences.remove(&sequence).expect("a live sequence");
        let mut last_first = gone.table.clone();
        last_first.reverse();
        for block in (Copied { table: last_first, ..gone }).distinct() {
            self.give_back(block);
        }
        Outcome::Done
    }

    fn insert(&mut self, sequence: Copied) {
        self.sequences.insert(self.made, sequence);
        self.made += 1;
    }

    fn check_fit(&self, tokens: usize, most: usize) -> Result<(), Refusal> {
        self.check_length(tokens + 1)?;
        let wanted = (tokens + 1).div_ceil(self.config.page).min(most);
        if wanted < self.config.blocks { Ok(()) } else { Err(Refusal::NeverFits) }
    }

    fn check_length(&self, tokens: usize) -> Result<(), Refusal> {
        let fits = self.config.columns.is_none_or(|columns| tokens <= columns * self.config.page);
        if fits { Ok(()) } else { Err(Refusal::TooLong) }
    }

    /// The first blocks of the prompt that are cached. The last token is not asked for.
    fn hit(&self, prompt: &Copied) -> Vec<BlockId> {
        let page = self.config.page;
        let most = prompt.tokens.len().saturating_sub(1) / page;
        let at = |i: usize| {
            let prefix = prompt.prefix((i + 1) * page);
            self.cache.iter().find(|(known, _)| *known == prefix).map(|(_, block)| *block)
        };
        let found: Vec<Option<BlockId>> = (0..most).map(at).collect();
        let leading = found.iter().take_while(|block| block.is_some()).count();
        let beginning = |n: usize, from: usize| {
            let block = |i: usize| if i < from { NULL } else { found[i].expect("it is there") };
            (0..n).map(block).collect()
        };
        let Some(window) = self.config.window else { return beginning(leading, 0) };
        // The longest one that has all blocks that the next token's window reaches: the window less itself.
        let needed = (window.get() - 1).div_ceil(page);
        let run = needed.max(1);
        let whole = |n: &usize| found[n - run..*n].iter().all(Option::is_some);
        match (run..=most).rev().find(whole) {
            Some(n) => beginning(n, n - needed),
            None => beginning(leading, 0),
        }
    }

    /// Tokens one by one; the copies that they took.
    fn place(&mut self, id: u64, tokens: &[u32]) -> Result<Vec<BlockCopy>, Refusal> {
        let page = self.config.page;
        self.check_length(self.sequences[&id].tokens.len() + tokens.len())?;
        self.leave_window(id);
        let mut copies = Vec::new();
        for &token in tokens {
            let sequence = &self.sequences[&id];
            let (index, offset) = (sequence.tokens.len() / page, sequence.tokens.len() % page);
            let round = sequence.ring.filter(|&ring| index >= ring).map(|ring| sequence.table[index - ring]);
            let there = sequence.table.get(index).copied().or(round);
            let block = match there {
                Some(block) if self.refs(block) == 1 => block,
                Some(from) => {
                    let to = self.take()?;
                    copies.push(BlockCopy { from, to, slots: if round.is_some() { page } else { offset } });
                    let table = &mut self.sequences.get_mut(&id).expect("a live sequence").table;
                    table.iter_mut().filter(|entry| **entry == from).for_each(|entry| *entry = to);
                    to
                }
                None => self.take()?,
            };
            let sequence = self.sequences.get_mut(&id).expect("a live sequence");
            sequence.table.truncate(index);
            sequence.table.push(block);
            sequence.tokens.push(token);
            let (end, sequence) = (sequence.tokens.len(), &self.sequences[&id]);
            if sequence.ring.is_none() && end % page == 0 {
                let prefix = sequence.prefix(end);
                if !self.cache.iter().any(|(known, _)| *known == prefix) {
                    self.cache.push((prefix, block));
                }
            }
        }
        Ok(copies)
    }

    /// Blocks that the next token does not see go back, the last one first.
    fn leave_window(&mut self, id: u64) {
        let sequence = &self.sequences[&id];
        let Some(window) = self.config.window.filter(|_| sequence.ring.is_none()) else { return };
        let sees_from = (sequence.tokens.len() + 1).saturating_sub(window.get());
        for i in (0..sequence.table.len()).rev() {
            let block = self.sequences[&id].table[i];
            if (i + 1) * self.config.page <= sees_from && block != NULL {
                self.sequences.get_mut(&id).expect("a live sequence").table[i] = NULL;
                self.give_back(block);
            }
        }
    }

    fn take(&mut self) -> Result<BlockId, Refusal> {
        if self.free.is_empty() {
            return Err(Refusal::OutOfBlocks);
        }
        let block = self.free.remove(0);
        self.cache.retain(|(_, cached)| *cached != block);
        Ok(block)
    }

    fn give_back(&mut self, block: BlockId) {
        if self.refs(block) > 0 {
            return;
        }
        if self.cache.iter().any(|(_, cached)| *cached == block) {
            self.free.push(block);
        } else {
            self.free.insert(0, block);
        }
    }
}
