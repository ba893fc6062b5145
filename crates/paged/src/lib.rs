//! Paged keys and values: the block manager and the pool of PagedAttention (Kwon et al., arXiv 2309.06180, section 4), with
//! what vLLM's present block manager does beside.
//!
//! A sequence's keys and values lie in blocks of a fixed number of slots, anywhere in a pool; its **block table** says
//! where, in the order of its tokens. Nothing is reserved for tokens that are not there yet, so at most one block of a
//! sequence is not full. And a block can be in several tables:
//!
//! - a **fork** holds its parent's blocks. Whoever first writes into a block that others hold copies it (*copy-on-write*);
//! - full blocks are cached under their tokens and all that stands before them. A prompt that **begins** like one before
//!   takes its blocks over instead of computing them.
//!
//! A block that nobody holds is reused, the least recently freed first, and stays cached until then.
//!
//! ```
//! use paged::{BlockManager, Config};
//!
//! let mut manager = BlockManager::new(Config::new(100, 4))?;
//! let first = manager.admit(&[1, 2, 3, 4, 5, 6, 7, 8, 9], &[])?;
//! // The same beginning: two full blocks are found, the rest is to be computed.
//! let second = manager.admit(&[1, 2, 3, 4, 5, 6, 7, 8, 20, 21], &[])?;
//! assert_eq!((first.cached, second.cached), (0, 8));
//! assert_eq!(manager.table(first.sequence)?.blocks, [1, 2, 3]);
//! assert_eq!(manager.table(second.sequence)?.blocks, [1, 2, 4]);
//! // A fork writes into a copy of the last block.
//! let child = manager.fork(first.sequence)?;
//! let append = manager.append(child, 10)?;
//! assert_eq!(append.copy.map(|copy| (copy.from, copy.to, copy.slots)), Some((3, 5, 1)));
//! assert_eq!((append.slot.block, append.slot.offset), (5, 1));
//! # Ok::<(), paged::ManagerError>(())
//! ```
//!
//! A block is found by others from the moment its last token has a place, so a token gets its place in the step that
//! computes and writes its key and value: [`BlockManager::admit_chunk`] and [`BlockManager::extend`] take a prompt a step at
//! a time.
//!
//! [`BlockManager`] knows numbers and tokens, no tensor. What it orders is plain data, [`BlockCopy`] and [`Slot`], for
//! whatever holds the bytes; [`KvPool`] does on a CPU. [`SharedBlockManager`] is for several threads. [`Blocks`] and
//! [`Table`] are what a manager is made of. [`Paged`] and [`PagedSimd`] are the rungs that attend through block tables.
//!
//! What it does not do: decide who waits and who is preempted when blocks run out. It refuses, and changes nothing; the
//! rest is a scheduler's business.

mod blocks;
mod error;
mod keys;
mod manager;
mod pool;
mod prefixes;
mod rung;
mod sequence;
mod shared;
mod stats;
mod table;
#[cfg(test)]
mod tests;

pub use blocks::{BlockId, Blocks, NULL};
pub use error::ManagerError;
pub use keys::ExtraKey;
pub use manager::{Admission, BlockManager, Config, SequenceId};
pub use pool::{KvPool, PoolShape, block_table};
pub use prefixes::{Prefix, Prefixes, chain_hash, longest_hit};
pub use rung::{Paged, PagedSimd};
pub use shared::{Lease, SharedBlockManager};
pub use stats::Stats;
pub use table::{Append, BlockCopy, Slot, Table};
