//! How well a pool is used.

/// Counts of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Live sequences.
    pub sequences: usize,
    /// Blocks that some sequence holds.
    pub used: usize,
    /// Blocks that none holds and that a hit can still find.
    pub cached: usize,
    /// Blocks that none holds and no hit can find.
    pub free: usize,
    /// Slots of the used blocks.
    pub slots: usize,
    /// Those of them without a token: at the end of each sequence's last block.
    pub wasted: usize,
    /// The sum of reference counts: blocks that would be used if nothing were shared.
    pub uses: usize,
    /// Tokens of all prompts admitted so far, but for rolling ones, which have no part in the cache.
    pub prompt_tokens: u64,
    /// Those of them that were found in the cache.
    pub hit_tokens: u64,
}

impl Stats {
    /// How many sequences hold a used block, on average: 1 where nothing is shared, 0 where nothing is used.
    pub fn sharing(&self) -> f64 {
        self.uses as f64 / self.used.max(1) as f64
    }

    /// The part of the used slots that holds no token; 0 where none is used.
    pub fn waste(&self) -> f64 {
        self.wasted as f64 / self.slots.max(1) as f64
    }

    /// The part of all prompts' tokens that was found in the cache; 0 before the first.
    pub fn hit_rate(&self) -> f64 {
        self.hit_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}
