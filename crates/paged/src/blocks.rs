//! The pool's blocks by number: who holds which, and which is reused next.
//!
//! Two arrays indexed by the block's number. One has how many sequences hold it, and is all that forking walks over. The
//! other has its neighbours in the list of those that nobody holds. The null block is never handed out, so its own two
//! links are the ends of that list.

use crate::{ExtraKey, ManagerError, Prefix, Prefixes};
use std::mem::replace;

/// A block's number, as block tables hold it; never negative.
pub type BlockId = i32;

/// The block that stands in tables for one that a window has left behind. It holds nothing and is never handed out.
pub const NULL: BlockId = 0;

#[derive(Clone, Debug)]
struct Count {
    refs: u32,
    /// The last walk that met the block.
    visit: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Link {
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
    counts: Vec<Count>,
    pub(crate) links: Vec<Link>,
    page: usize,
    pub(crate) visit: u32,
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
        let (mut counts, mut links) = (Vec::new(), Vec::new());
        counts.try_reserve_exact(blocks).map_err(|_| ManagerError::Memory(blocks))?;
        links.try_reserve_exact(blocks).map_err(|_| ManagerError::Memory(blocks))?;
        counts.resize(blocks, Count { refs: 0, visit: 0 });
        let last = blocks as BlockId - 1;
        links.extend((0..=last).map(|block| Link {
            before: if block == NULL { last } else { block - 1 },
            after: if block == last { NULL } else { block + 1 },
            prefix: Prefix::EMPTY,
        }));
        let prefixes = Prefixes::new(page);
        Ok(Blocks { counts, links, page, visit: 0, free: blocks - 1, cached: 0, uses: 0, prefixes })
    }

    /// Slots of a block.
    pub fn page(&self) -> usize {
        self.page
    }
    /// All blocks but the null block.
    pub fn usable(&self) -> usize {
        self.links.len() - 1
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
        usize::try_from(block).ok().and_then(|block| self.counts.get(block)).map_or(0, |count| count.refs)
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
        let block = self.link_of(NULL).after;
        if block == NULL {
            return Err(ManagerError::OutOfBlocks { free: 0, wanted: 1 });
        }
        self.unlink(block);
        let evicted = replace(&mut self.link_of_mut(block).prefix, Prefix::EMPTY);
        if evicted != Prefix::EMPTY {
            self.prefixes.evict(evicted);
        }
        self.counts[block as usize].refs = 1;
        self.uses += 1;
        Ok(block)
    }
    // ANCHOR_END: allocate

    /// One more holds `block`, which another holds or the cache still has.
    ///
    /// # Errors
    /// [`ManagerError::UnknownBlock`].
    // Inlined, as its opposite is: a fork or an end does it for every block of a table.
    #[inline]
    pub fn retain(&mut self, block: BlockId) -> Result<(), ManagerError> {
        match self.refs(block) {
            0 if self.is_cached(block) => self.unlink(block),
            0 => return Err(ManagerError::UnknownBlock(block)),
            _ => {}
        }
        self.counts[block as usize].refs += 1;
        self.uses += 1;
        Ok(())
    }

    /// One less holds `block`. With the last it joins the list: at the end if it is cached, else in front.
    ///
    /// # Errors
    /// [`ManagerError::UnknownBlock`] if nobody holds it.
    #[inline]
    pub fn release(&mut self, block: BlockId) -> Result<(), ManagerError> {
        if self.refs(block) == 0 {
            return Err(ManagerError::UnknownBlock(block));
        }
        self.uses -= 1;
        let count = &mut self.counts[block as usize];
        count.refs -= 1;
        if count.refs == 0 {
            self.give_back(block);
        }
        Ok(())
    }

    /// Begins a walk over blocks, of which [`first_visit`](Self::first_visit) tells apart new and repeated ones.
    pub fn start_visit(&mut self) {
        self.visit = self.visit.wrapping_add(1);
        if self.visit == 0 {
            // Marks of walks long past would pass for this one's.
            self.counts.iter_mut().for_each(|count| count.visit = 0);
            self.visit = 1;
        }
    }

    /// Whether this walk meets `block` for the first time. The null block counts as met.
    pub fn first_visit(&mut self, block: BlockId) -> bool {
        let visit = self.visit;
        let count = usize::try_from(block).ok().and_then(|block| self.counts.get_mut(block));
        block != NULL && count.is_none_or(|count| replace(&mut count.visit, visit) != visit)
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
        if self.refs(block) == 0 || self.is_cached(block) {
            return Err(ManagerError::UnknownBlock(block));
        }
        if tokens.len() != self.page {
            let (found, wanted) = (tokens.len().to_string(), self.page.to_string());
            return Err(ManagerError::Value { name: "tokens", found, wanted });
        }
        let grown = self.prefixes.enter(prefix, hash, (tokens, keys), block);
        if self.prefixes.block(grown) == Some(block) {
            self.link_of_mut(block).prefix = grown;
        }
        Ok(grown)
    }

    /// One more holds `prefix`: it is kept, so that it can grow, even when its block is reused.
    pub fn hold(&mut self, prefix: Prefix) {
        self.prefixes.hold(prefix);
    }

    /// Gives up a hold, one that [`hold`](Self::hold) has made: the cache does not check whose it is.
    pub fn leave(&mut self, prefix: Prefix) {
        self.prefixes.leave(prefix);
    }

    fn is_cached(&self, block: BlockId) -> bool {
        let link = usize::try_from(block).ok().and_then(|block| self.links.get(block));
        link.is_some_and(|link| link.prefix != Prefix::EMPTY)
    }

    fn link_of(&self, block: BlockId) -> &Link {
        &self.links[block as usize]
    }
    fn link_of_mut(&mut self, block: BlockId) -> &mut Link {
        &mut self.links[block as usize]
    }

    /// Nobody holds `block` any more: it joins the list.
    fn give_back(&mut self, block: BlockId) {
        match self.is_cached(block) {
            true => self.link(block, self.link_of(NULL).before, NULL),
            false => self.link(block, NULL, self.link_of(NULL).after),
        }
    }

    fn link(&mut self, block: BlockId, before: BlockId, after: BlockId) {
        (self.link_of_mut(block).before, self.link_of_mut(block).after) = (before, after);
        self.link_of_mut(before).after = block;
        self.link_of_mut(after).before = block;
        self.free += 1;
        self.cached += usize::from(self.is_cached(block));
    }

    fn unlink(&mut self, block: BlockId) {
        let (before, after) = (self.link_of(block).before, self.link_of(block).after);
        self.link_of_mut(before).after = after;
        self.link_of_mut(after).before = before;
        self.free -= 1;
        self.cached -= usize::from(self.is_cached(block));
    }
}
