//! The pool's blocks by number: who holds which, and which is reused next.
//!
//! One entry a block, in an array indexed by its number: how many sequences hold it, and its neighbours in the list of
//! those that nobody holds. The null block is never handed out, so its own two links are the ends of that list.

use crate::{ExtraKey, ManagerError, Prefix, Prefixes};
use std::mem::replace;

/// A block's number, as block tables hold it; never negative.
pub type BlockId = i32;

/// The block that stands in tables for one that a window has left behind. It holds nothing and is never handed out.
pub const NULL: BlockId = 0;

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The last walk that met the block.
    visit: u64,
    refs: u32,
    /// Neighbours in the list, while nobody holds the block.
    pub(crate) before: BlockId,
    pub(crate) after: BlockId,
    /// Where it stands in the cache; [`Prefix::EMPTY`] if it does not.
    pub(crate) prefix: Prefix,
}

/// Blocks with reference counts, the list of those that nobody holds, and the cache of those that are full.
///
/// What nobody holds is reused from the front of the list: first what is not cached, then the least recently given back.
/// A cached block stays in the cache until it is reused.
///
/// ```
/// use paged::Blocks;
///
/// let mut blocks = Blocks::new(3, 16)?; // the null block, 1 and 2
/// let block = blocks.allocate()?;
/// blocks.retain(block)?;
/// blocks.release(block)?;
/// assert_eq!((blocks.refs(block), blocks.free()), (1, 1));
/// blocks.release(block)?;
/// assert!(blocks.release(block).is_err());
/// assert_eq!(blocks.free(), 2);
/// # Ok::<(), paged::ManagerError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Blocks {
    pub(crate) entries: Vec<Entry>,
    page: usize,
    visit: u64,
    free: usize,
    cached: usize,
    uses: usize,
    prefixes: Prefixes,
}

impl Blocks {
    /// `blocks` blocks of `page` slots, the null block one of them. Nobody holds any.
    ///
    /// # Errors
    /// [`ManagerError::Value`] for fewer than two blocks or more than block tables can name, or no slot in a block;
    /// [`ManagerError::Memory`] where the lists of so many blocks find none.
    pub fn new(blocks: usize, page: usize) -> Result<Self, ManagerError> {
        let most = BlockId::MAX as usize;
        for (name, found, least) in [("blocks", blocks, 2), ("page", page, 1)] {
            if !(least..=most).contains(&found) {
                let (found, wanted) = (found.to_string(), format!("{least} to {most}"));
                return Err(ManagerError::Value { name, found, wanted });
            }
        }
        let mut entries = Vec::new();
        entries.try_reserve_exact(blocks).map_err(|_| ManagerError::Memory(blocks))?;
        let last = blocks as BlockId - 1;
        entries.extend((0..=last).map(|block| Entry {
            visit: 0,
            refs: 0,
            before: if block == NULL { last } else { block - 1 },
            after: if block == last { NULL } else { block + 1 },
            prefix: Prefix::EMPTY,
        }));
        let prefixes = Prefixes::new(page);
        Ok(Blocks { entries, page, visit: 0, free: blocks - 1, cached: 0, uses: 0, prefixes })
    }

    /// Slots of a block.
    pub fn page(&self) -> usize {
        self.page
    }
    /// All blocks but the null block.
    pub fn usable(&self) -> usize {
        self.entries.len() - 1
    }
    /// Blocks that nobody holds, cached ones among them.
    pub fn free(&self) -> usize {
        self.free
    }
    /// Blocks that nobody holds and that a hit can still find.
    pub fn cached(&self) -> usize {
        self.cached
    }
    /// The sum of all reference counts.
    pub fn uses(&self) -> usize {
        self.uses
    }
    /// How many hold `block`; 0 for a number that is no block's.
    pub fn refs(&self, block: BlockId) -> u32 {
        self.entry(block).map_or(0, |entry| entry.refs)
    }
    /// The cache of full blocks.
    pub fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    /// The next block of the list, held once. If it was cached it is so no more.
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`] if all are held.
    // ANCHOR: allocate
    pub fn allocate(&mut self) -> Result<BlockId, ManagerError> {
        let block = self.at(NULL).after;
        if block == NULL {
            return Err(ManagerError::OutOfBlocks { free: 0, wanted: 1 });
        }
        self.unlink(block);
        let evicted = replace(&mut self.at_mut(block).prefix, Prefix::EMPTY);
        if evicted != Prefix::EMPTY {
            self.prefixes.evict(evicted);
        }
        self.at_mut(block).refs = 1;
        self.uses += 1;
        Ok(block)
    }
    // ANCHOR_END: allocate

    /// One more holds `block`, which another holds or the cache still has.
    ///
    /// # Errors
    /// [`ManagerError::UnknownBlock`].
    pub fn retain(&mut self, block: BlockId) -> Result<(), ManagerError> {
        let entry = self.entry(block).ok_or(ManagerError::UnknownBlock(block))?;
        if entry.refs == 0 {
            if entry.prefix == Prefix::EMPTY {
                return Err(ManagerError::UnknownBlock(block));
            }
            self.unlink(block);
        }
        self.at_mut(block).refs += 1;
        self.uses += 1;
        Ok(())
    }

    /// One less holds `block`. With the last it joins the list: at the end if it is cached, else in front.
    ///
    /// # Errors
    /// [`ManagerError::UnknownBlock`] if nobody holds it.
    pub fn release(&mut self, block: BlockId) -> Result<(), ManagerError> {
        if self.refs(block) == 0 {
            return Err(ManagerError::UnknownBlock(block));
        }
        self.uses -= 1;
        let entry = self.at_mut(block);
        entry.refs -= 1;
        if entry.refs == 0 {
            match entry.prefix {
                Prefix::EMPTY => self.link(block, NULL, self.at(NULL).after),
                _ => self.link(block, self.at(NULL).before, NULL),
            }
        }
        Ok(())
    }

    /// Begins a walk over blocks, of which [`first_visit`](Self::first_visit) tells apart new and repeated ones.
    pub fn start_visit(&mut self) {
        self.visit += 1;
    }

    /// Whether this walk meets `block` for the first time. The null block counts as met.
    pub fn first_visit(&mut self, block: BlockId) -> bool {
        let visit = self.visit;
        let entry = usize::try_from(block).ok().and_then(|block| self.entries.get_mut(block));
        block != NULL && entry.is_none_or(|entry| replace(&mut entry.visit, visit) != visit)
    }

    /// A prefix grows by the full block of these tokens: the prefix that comes of it. Unless another block holds the same
    /// behind the same already, `block` is the one that is found from now on. The caller's hold moves along.
    ///
    /// `hash` is that of [`Prefixes::find`].
    ///
    /// # Errors
    /// [`ManagerError::UnknownBlock`] if nobody holds `block`, or it is cached; [`ManagerError::Value`] if it is not full.
    pub fn enter(
        &mut self,
        prefix: Prefix,
        hash: u64,
        (tokens, keys): (&[u32], Vec<ExtraKey>),
        block: BlockId,
    ) -> Result<Prefix, ManagerError> {
        if self.entry(block).is_none_or(|entry| entry.refs == 0 || entry.prefix != Prefix::EMPTY) {
            return Err(ManagerError::UnknownBlock(block));
        }
        if tokens.len() != self.page {
            let (found, wanted) = (tokens.len().to_string(), self.page.to_string());
            return Err(ManagerError::Value { name: "tokens", found, wanted });
        }
        let grown = self.prefixes.enter(prefix, hash, (tokens, keys), block);
        if self.prefixes.block(grown) == Some(block) {
            self.at_mut(block).prefix = grown;
        }
        Ok(grown)
    }

    /// One more holds `prefix`: it is kept, so that it can grow, even when its block is reused.
    pub fn hold(&mut self, prefix: Prefix) {
        self.prefixes.hold(prefix);
    }

    /// Gives up a hold.
    pub fn leave(&mut self, prefix: Prefix) {
        self.prefixes.leave(prefix);
    }

    fn entry(&self, block: BlockId) -> Option<&Entry> {
        self.entries.get(usize::try_from(block).ok()?)
    }
    fn at(&self, block: BlockId) -> &Entry {
        &self.entries[block as usize]
    }
    fn at_mut(&mut self, block: BlockId) -> &mut Entry {
        &mut self.entries[block as usize]
    }

    fn link(&mut self, block: BlockId, before: BlockId, after: BlockId) {
        (self.at_mut(block).before, self.at_mut(block).after) = (before, after);
        self.at_mut(before).after = block;
        self.at_mut(after).before = block;
        self.free += 1;
        self.cached += usize::from(self.at(block).prefix != Prefix::EMPTY);
    }

    fn unlink(&mut self, block: BlockId) {
        let (before, after) = (self.at(block).before, self.at(block).after);
        self.at_mut(before).after = after;
        self.at_mut(after).before = before;
        self.free -= 1;
        self.cached -= usize::from(self.at(block).prefix != Prefix::EMPTY);
    }
}
