//! What the manager keeps of one sequence.

use crate::{Append, BlockId, Blocks, Config, ExtraKey, ManagerError, Prefix, Table, chain_hash};
use std::hash::BuildHasher;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) table: Table,
    /// Its full blocks in the cache, which it holds.
    pub(crate) prefix: Prefix,
    /// The tokens behind them, less than a page.
    pub(crate) tail: Vec<u32>,
    pub(crate) keys: Arc<[ExtraKey]>,
}

impl Sequence {
    /// Behind no prefix and under no keys.
    pub(crate) fn new(table: Table) -> Self {
        Sequence { table, prefix: Prefix::EMPTY, tail: Vec::new(), keys: [].into() }
    }

    /// Makes sure that `count` tokens more fit, and gives back what their window does not reach. Nothing changes if they
    /// do not fit.
    pub(crate) fn prepare(&mut self, count: usize, config: &Config, blocks: &mut Blocks) -> Result<(), ManagerError> {
        config.check_length(self.table.len.saturating_add(count))?;
        let left = if self.table.ring().is_some() { 0 } else { config.left_of_window(self.table.len) };
        let (wanted, free) = (self.table.wanted(count, blocks), blocks.free() + self.table.gained(left, blocks));
        if wanted > free {
            return Err(ManagerError::OutOfBlocks { free, wanted });
        }
        self.table.forget(left, blocks)
    }

    /// One token more, for which [`prepare`](Self::prepare) has found room.
    pub(crate) fn push(
        &mut self,
        token: u32,
        blocks: &mut Blocks,
        hasher: &impl BuildHasher,
    ) -> Result<Append, ManagerError> {
        let append = self.table.append(blocks)?;
        if self.table.ring().is_none() {
            self.tail.push(token);
            if self.tail.len() == blocks.page() {
                self.seal(append.slot.block, blocks, hasher)?;
            }
        }
        Ok(append)
    }

    /// Enters the block that has just become full into the cache.
    fn seal(&mut self, block: BlockId, blocks: &mut Blocks, hasher: &impl BuildHasher) -> Result<(), ManagerError> {
        let end = self.table.len;
        let keys = ExtraKey::of_block(&self.keys, end - self.tail.len()..end);
        let hash = chain_hash(hasher, blocks.prefixes().hash(self.prefix), &self.tail, &keys);
        self.prefix = blocks.enter(self.prefix, hash, (&self.tail, keys), block)?;
        self.tail.clear();
        Ok(())
    }

    pub(crate) fn fork(&self, blocks: &mut Blocks) -> Result<Sequence, ManagerError> {
        let table = self.table.share(blocks)?;
        blocks.hold(self.prefix);
        Ok(Sequence { table, prefix: self.prefix, tail: self.tail.clone(), keys: self.keys.clone() })
    }

    pub(crate) fn free(self, blocks: &mut Blocks) -> Result<(), ManagerError> {
        blocks.leave(self.prefix);
        self.table.discard(blocks)
    }
}
