//! PagedAttention: a request's keys and values lie in blocks anywhere, and it has no more of them than it fills.

use super::cache::{Cache, Usage, fa2, lengths};
use super::model::{D, KV_HEADS, Rows};
use anyhow::{Context, Result};
use attention::{Attention, Batch, DType, Kv, Options, Output, Problem};
use paged::{BlockManager, Config, ExtraKey, KvPool, ManagerError, Paged, PoolShape, SequenceId, block_table};
use std::collections::HashMap;

/// A pool, its manager, and the sequences of requests in it.
pub(crate) struct PagedCache {
    manager: BlockManager,
    pool: KvPool,
    sequences: HashMap<usize, SequenceId>,
    sharing: bool,
    admitted: u64,
}

impl PagedCache {
    /// `blocks` blocks of `page` slots, the null block one of them. With `sharing` prompts that begin alike share blocks.
    ///
    /// # Errors
    /// Those of [`BlockManager::new`] and [`KvPool::new`].
    pub(crate) fn new(blocks: usize, page: usize, sharing: bool) -> Result<Self> {
        let manager = BlockManager::new(Config::new(blocks, page))?;
        let pool = KvPool::new(DType::F32, PoolShape { blocks, page, kv_heads: KV_HEADS, d: D, d_v: D })?;
        Ok(PagedCache { manager, pool, sequences: HashMap::new(), sharing, admitted: 0 })
    }

    fn sequence(&self, request: usize) -> Result<SequenceId> {
        self.sequences.get(&request).copied().context("a request without a sequence")
    }
}

/// `None` where it was only room that was missing.
fn if_room<T>(answer: Result<T, ManagerError>) -> Result<Option<T>> {
    match answer {
        Err(ManagerError::OutOfBlocks { .. }) => Ok(None),
        answer => Ok(Some(answer?)),
    }
}

impl Cache for PagedCache {
    fn most(&self) -> usize {
        self.manager.blocks().usable() * self.manager.blocks().page()
    }

    fn admit(&mut self, request: usize, tokens: &[u32], chunk: usize, _: usize) -> Result<Option<usize>> {
        // Under a salt of its own a sequence finds nothing, and is not found.
        let own = ExtraKey::Salt(self.admitted.to_string());
        let keys = if self.sharing { &[][..] } else { &[own] };
        let admission = if_room(self.manager.admit_chunk(tokens, keys, chunk))?;
        if let Some(admission) = admission {
            self.admitted += 1;
            self.sequences.insert(request, admission.sequence);
        }
        Ok(admission.map(|admission| admission.cached))
    }

    fn extend(&mut self, request: usize, tokens: &[u32]) -> Result<bool> {
        let copies = if_room(self.manager.extend(self.sequence(request)?, tokens))?;
        copies.iter().flatten().try_for_each(|&copy| self.pool.copy(copy))?;
        Ok(copies.is_some())
    }

    fn write(&mut self, request: usize, start: usize, rows: &Rows) -> Result<()> {
        let table = self.manager.table(self.sequence(request)?)?;
        Ok(self.pool.write(table, start, &rows.k.view().into(), &rows.v.view().into())?)
    }

    fn attend(&self, request: usize, start: usize, rows: &Rows) -> Result<Output> {
        let (table, _) = block_table(&[self.manager.table(self.sequence(request)?)?])?;
        // The same for each token.
        let every = (rows.q.dim().0, table.ncols());
        let block_table = table.broadcast(every).context("a table for each token")?;
        let seq_lens = &lengths(start, rows);
        let kv = Kv::Paged { k_pool: self.pool.k(), v_pool: self.pool.v(), block_table, seq_lens };
        let problem = Problem::new(rows.q.view(), kv, Batch::Dense, Options::default())?;
        Ok(Paged::new(fa2()).forward(&problem)?)
    }

    fn release(&mut self, request: usize) -> Result<()> {
        let sequence = self.sequences.remove(&request).context("a request without a sequence")?;
        Ok(self.manager.free(sequence)?)
    }

    fn usage(&self) -> Usage {
        let stats = self.manager.stats();
        let page = self.manager.blocks().page();
        Usage { held: stats.slots, filled: stats.slots - stats.wasted, uses: stats.uses * page }
    }
}
