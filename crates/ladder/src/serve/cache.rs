//! What the ways of keeping keys and values have in common, as the scheduler sees them.

use super::model::{D, Rows};
use anyhow::Result;
use attention::{NoMeter, Output};
use fa2::Fa2;
use std::num::NonZeroUsize;

/// Fast memory of the rung, which makes key tiles of 32 keys: it is the same everywhere, and so are the tiles.
const FAST_MEMORY: usize = 4 * 32 * (2 * D) * size_of::<f32>();

/// A way of keeping keys and values in a memory of fixed size. Requests go by their place in the trace.
pub(crate) trait Cache {
    /// The tokens of the longest request that fits if it is alone.
    fn most(&self) -> usize;

    /// Takes in a request of these tokens, which may become `longest`. How many of its first tokens are there already; the
    /// `chunk` behind them have places now. `None` if there is no room; nothing has changed then.
    fn admit(&mut self, request: usize, tokens: &[u32], chunk: usize, longest: usize) -> Result<Option<usize>>;

    /// Places for these tokens more; `false` if there is no room; nothing has changed then.
    fn extend(&mut self, request: usize, tokens: &[u32]) -> Result<bool>;

    /// Writes the keys and values of the tokens from `start` on into their places.
    fn write(&mut self, request: usize, start: usize, rows: &Rows) -> Result<()>;

    /// The attention of the tokens from `start` on, o `[tokens, HEADS, 1, D]`.
    ///
    /// Each token is a sequence of its own, one query on the keys up to its own. In one sequence of many queries its last
    /// key tile would end where the chunk does, and a sum of the same numbers, and zeros for the hidden keys, is grouped by
    /// the length of its tile: equal, but not bit for bit.
    fn attend(&self, request: usize, start: usize, rows: &Rows) -> Result<Output>;

    /// A request gives up its memory.
    fn release(&mut self, request: usize) -> Result<()>;

    /// What is held now.
    fn usage(&self) -> Usage;
}

/// Slots of a cache, each for the key and the value of one token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Those that no other request can have.
    pub(crate) held: usize,
    /// Those of them with a token.
    pub(crate) filled: usize,
    /// Held ones, each counted once for every request that holds it.
    pub(crate) uses: usize,
}

/// FlashAttention-2 with the keys in one piece.
pub(crate) fn fa2() -> Fa2 {
    Fa2::new(FAST_MEMORY, NoMeter).with_splits(NonZeroUsize::MIN)
}

/// How many keys each of the tokens from `start` on sees.
pub(crate) fn lengths(start: usize, rows: &Rows) -> Vec<i32> {
    // A request has far fewer tokens than i32 has numbers.
    (start + 1..).take(rows.q.dim().0).map(|keys| keys as i32).collect()
}
