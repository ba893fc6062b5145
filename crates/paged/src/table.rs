//! The block table of one sequence: where each of its tokens lies, and how that changes as it grows, forks and ends.

use crate::{BlockId, Blocks, ManagerError, NULL};
use std::num::NonZeroUsize;
use std::ops::Range;

/// A place for the key and the value of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The block.
    pub block: BlockId,
    /// The slot in the block, below the page size.
    pub offset: usize,
}

/// An order to whatever holds the bytes: the first `slots` slots of a block, to the same slots of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block that is read.
    pub from: BlockId,
    /// The block that is written.
    pub to: BlockId,
    /// How many of its slots.
    pub slots: usize,
}

/// Where a new token goes, and what must be copied before it is written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    /// The new token's place.
    pub slot: Slot,
    /// The copy, if others hold the block in which the place would have been.
    pub copy: Option<BlockCopy>,
}

/// The blocks of a sequence in the order of its tokens: token t lies in entry `t / page`, slot `t % page`.
///
/// ```
/// use paged::{Blocks, Slot, Table};
///
/// let mut blocks = Blocks::new(10, 4)?;
/// let mut parent = Table::new(4);
/// for _ in 0..6 {
///     parent.append(&mut blocks)?;
/// }
/// assert_eq!((parent.blocks.as_slice(), parent.slot(5)), (&[1, 2][..], Some(Slot { block: 2, offset: 1 })));
/// // A fork holds the same blocks; the first of the two to grow copies the last one.
/// let mut child = parent.share(&mut blocks)?;
/// let copy = child.append(&mut blocks)?.copy.expect("a block of two holders");
/// assert_eq!((copy.from, copy.to, copy.slots), (2, 3, 2));
/// assert_eq!(child.blocks, [1, 3]);
/// assert_eq!(parent.append(&mut blocks)?.copy, None);
/// # Ok::<(), paged::ManagerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// A block for each page of tokens; [`NULL`] where a window has left it behind.
    pub blocks: Vec<BlockId>,
    /// Tokens.
    pub len: usize,
    page: usize,
    ring: Option<NonZeroUsize>,
    /// Entries, from the first, that are [`NULL`].
    forgotten: usize,
}

impl Table {
    /// No token, with `page` slots (at least 1) a block.
    pub fn new(page: usize) -> Self {
        Table { blocks: Vec::new(), len: 0, page: page.max(1), ring: None, forgotten: 0 }
    }

    /// No token, and never more than `ring` different blocks: token t takes the place of token `t - ring * page`, and the
    /// table lists a block again for each time that it comes round. It serves a window of at most so many tokens.
    pub fn rolling(page: usize, ring: NonZeroUsize) -> Self {
        Table { ring: Some(ring), ..Table::new(page) }
    }

    /// A table that lists these blocks as they are, any of them as often as one likes. Nobody's count changes: that each is
    /// held is for its maker to see to.
    pub fn listing(page: usize, blocks: Vec<BlockId>, len: usize) -> Self {
        Table { blocks, len, ..Table::new(page) }
    }

    /// A table that begins with full blocks, found in a cache, of which each is held once more.
    pub(crate) fn cached(page: usize, found: Vec<BlockId>, blocks: &mut Blocks) -> Result<Self, ManagerError> {
        let forgotten = found.iter().take_while(|&&block| block == NULL).count();
        found[forgotten..].iter().try_for_each(|&block| blocks.retain(block))?;
        Ok(Table { len: found.len() * page, blocks: found, forgotten, ..Table::new(page) })
    }

    /// Slots of a block.
    pub fn page(&self) -> usize {
        self.page
    }
    /// How many different blocks it may have, if that is limited.
    pub fn ring(&self) -> Option<NonZeroUsize> {
        self.ring
    }

    /// Where token `t` lies; `None` if there is no such token, or a window has left it behind.
    // ANCHOR: slot
    pub fn slot(&self, t: usize) -> Option<Slot> {
        let block = *self.blocks.get(t / self.page)?;
        (t < self.len && block != NULL).then_some(Slot { block, offset: t % self.page })
    }
    // ANCHOR_END: slot

    /// Filled slots of the last block; all of them once the table has been round.
    pub(crate) fn filled_in_last(&self) -> usize {
        let round = self.ring.is_some_and(|ring| self.blocks.len() > ring.get());
        match self.len % self.page {
            0 => self.page,
            _ if round => self.page,
            filled => filled,
        }
    }

    /// The block that entry `index` has, or will have because it comes round to it.
    pub fn held(&self, index: usize) -> Option<BlockId> {
        let before = || self.blocks.get(index.checked_sub(self.ring?.get())?);
        self.blocks.get(index).or_else(before).copied()
    }

    /// A place for one token more, in a block that nobody else writes: [`own`](Self::own), then [`grow`](Self::grow).
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`] if a block is needed and all are held; nothing has changed then.
    pub fn append(&mut self, blocks: &mut Blocks) -> Result<Append, ManagerError> {
        let copy = self.own(blocks)?;
        Ok(Append { slot: self.grow(blocks)?, copy })
    }

    /// One token more, and its place. A block is taken only when the token is the first one in it.
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`] if a block is needed and all are held; nothing has changed then.
    // ANCHOR: grow
    pub fn grow(&mut self, blocks: &mut Blocks) -> Result<Slot, ManagerError> {
        // A table made by hand may claim more tokens than have a place.
        self.len = self.len.min(self.blocks.len() * self.page);
        let (index, offset) = (self.len / self.page, self.len % self.page);
        if index == self.blocks.len() {
            let block = self.held(index).map_or_else(|| blocks.allocate(), Ok)?;
            self.blocks.push(block);
        }
        self.len += 1;
        Ok(Slot { block: self.blocks[index], offset })
    }
    // ANCHOR_END: grow

    /// Copy-on-write: makes the block in which the next token's place is the table's own. If others hold it, a fresh block
    /// takes its place in the table, and the answer says what to copy: its filled slots, which are all of them if the table
    /// lists it twice.
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`] if a block is needed and all are held; nothing has changed then.
    // ANCHOR: own
    pub fn own(&mut self, blocks: &mut Blocks) -> Result<Option<BlockCopy>, ManagerError> {
        let index = (self.len / self.page).min(self.blocks.len());
        let Some(from) = self.held(index).filter(|&block| blocks.refs(block) > 1) else { return Ok(None) };
        let to = blocks.allocate()?;
        blocks.release(from)?;
        let slots = if self.blocks[..index].contains(&from) { self.page } else { self.len % self.page };
        self.blocks.iter_mut().filter(|block| **block == from).for_each(|block| *block = to);
        Ok(Some(BlockCopy { from, to, slots }))
    }
    // ANCHOR_END: own

    /// A second table of the same tokens. Each block has one holder more, even one that the table lists twice.
    ///
    /// # Errors
    /// [`ManagerError::UnknownBlock`] if the table lists a block that nobody holds; those before it are held once more then.
    // ANCHOR: share
    pub fn share(&self, blocks: &mut Blocks) -> Result<Table, ManagerError> {
        blocks.start_visit();
        for &block in &self.blocks {
            if blocks.first_visit(block) {
                blocks.retain(block)?;
            }
        }
        Ok(self.clone())
    }
    // ANCHOR_END: share

    /// Gives every block back once, the last one first: what stands behind it is of no use without the blocks before, so
    /// it is to be reused before them.
    ///
    /// # Errors
    /// [`ManagerError::UnknownBlock`] if the table lists a block that nobody holds; those behind it are given back then.
    // ANCHOR: discard
    pub fn discard(self, blocks: &mut Blocks) -> Result<(), ManagerError> {
        blocks.start_visit();
        for &block in self.blocks.iter().rev() {
            if blocks.first_visit(block) {
                blocks.release(block)?;
            }
        }
        Ok(())
    }
    // ANCHOR_END: discard

    /// How many blocks `count` tokens more take from the list: those that begin, and copies of those that others hold.
    pub fn wanted(&self, count: usize, blocks: &Blocks) -> usize {
        if count == 0 {
            return 0;
        }
        let (first, listed) = (self.len / self.page, self.blocks.len());
        let ring = self.ring.map_or(usize::MAX, NonZeroUsize::get);
        // Once round, the ring meets only what is its own by then.
        let end = self.len.saturating_add(count).div_ceil(self.page).min(first.saturating_add(ring));
        let begun = end.min(ring).saturating_sub(listed);
        let met = (first..listed).chain(listed.max(ring)..end).filter_map(|index| self.held(index));
        begun + met.filter(|&block| blocks.refs(block) > 1).count()
    }

    /// Entries before `first` that still have a block.
    fn to_forget(&self, first: usize) -> Range<usize> {
        self.forgotten..first.min(self.blocks.len()).max(self.forgotten)
    }

    /// How many blocks [`forget`](Self::forget) would leave to nobody.
    pub(crate) fn gained(&self, first: usize, blocks: &Blocks) -> usize {
        self.blocks[self.to_forget(first)].iter().filter(|&&block| blocks.refs(block) == 1).count()
    }

    /// Gives back the blocks of the entries before `first`, the last one first, and leaves [`NULL`] there.
    pub(crate) fn forget(&mut self, first: usize, blocks: &mut Blocks) -> Result<(), ManagerError> {
        let entries = self.to_forget(first);
        self.forgotten = entries.end;
        for entry in self.blocks[entries].iter_mut().rev() {
            blocks.release(std::mem::replace(entry, NULL))?;
        }
        Ok(())
    }
}
