//! A paged cache that can be told to make a mistake.

use super::super::cache::{Cache, Usage, fa2, lengths};
use super::super::model::{D, KV_HEADS, Rows};
use anyhow::Result;
use attention::{Attention, Batch, DType, Options, Output, Problem};
use paged::{BlockCopy, BlockId, KvPool, Paged, PoolShape, Table, block_table};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    /// The block that a request shares with another is not copied before it is written.
    CopySkipped,
    /// It is copied, but for its last slot.
    CopyShort,
    /// Each block is looked up one entry too far.
    TableOffByOne,
    /// A token does not see its own key.
    KeyMissing,
    /// One token more is taken for cached than is.
    HitTooLong,
    /// The token that begins a block is not written.
    WriteMissing,
}

impl Fault {
    pub(super) const ALL: [Fault; 6] = [
        Fault::CopySkipped,
        Fault::CopyShort,
        Fault::TableOffByOne,
        Fault::KeyMissing,
        Fault::HitTooLong,
        Fault::WriteMissing,
    ];
}

/// Blocks are never freed. A request shares whatever tokens it begins with like one before it, even within a block.
pub(super) struct Careless {
    pool: KvPool,
    page: usize,
    next: BlockId,
    fault: Option<Fault>,
    requests: BTreeMap<usize, (Vec<u32>, Table)>,
}

impl Careless {
    pub(super) fn new(page: usize, fault: Option<Fault>) -> Self {
        let shape = PoolShape { blocks: 4000, page, kv_heads: KV_HEADS, d: D, d_v: D };
        Careless { pool: KvPool::new(DType::F32, shape).unwrap(), page, next: 1, fault, requests: BTreeMap::new() }
    }

    fn fresh(&mut self) -> BlockId {
        self.next += 1;
        self.next - 1
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

impl Cache for Careless {
    fn most(&self) -> usize {
        self.pool.shape().blocks
    }

    fn admit(&mut self, request: usize, tokens: &[u32], chunk: usize, _: usize) -> Result<Option<usize>> {
        let common =
            |other: &[u32]| other.iter().zip(&tokens[1..]).zip(tokens).take_while(|((a, _), b)| a == b).count();
        let others = self.requests.values().map(|(other, table)| (common(other), table.blocks.clone()));
        let (mut hit, mut blocks) = others.max_by_key(|(hit, _)| *hit).unwrap_or_default();
        blocks.truncate(hit.div_ceil(self.page));
        if hit % self.page > 0 && !self.is(Fault::CopySkipped) {
            let (from, to) = (blocks[hit / self.page], self.fresh());
            self.pool.copy(BlockCopy { from, to, slots: hit % self.page - usize::from(self.is(Fault::CopyShort)) })?;
            blocks[hit / self.page] = to;
        }
        if self.is(Fault::HitTooLong) && hit + 1 < tokens.len() && hit % self.page > 0 {
            hit += 1;
        }
        self.requests.insert(request, (tokens[..hit].to_vec(), Table::listing(self.page, blocks, hit)));
        self.extend(request, &tokens[hit..tokens.len().min(hit + chunk)])?;
        Ok(Some(hit))
    }

    fn extend(&mut self, request: usize, tokens: &[u32]) -> Result<bool> {
        let (mut known, mut table) = self.requests.remove(&request).unwrap();
        known.extend(tokens);
        while table.blocks.len() * self.page < known.len() {
            table.blocks.push(self.fresh());
        }
        table.len = known.len();
        self.requests.insert(request, (known, table));
        Ok(true)
    }

    fn write(&mut self, request: usize, start: usize, rows: &Rows) -> Result<()> {
        let (_, table) = &self.requests[&request];
        for token in 0..rows.k.dim().0 {
            if !(self.is(Fault::WriteMissing) && (start + token).is_multiple_of(self.page)) {
                let row = |x: &ndarray::Array3<f32>| x.slice(ndarray::s![token..=token, .., ..]).to_owned();
                self.pool.write(table, start + token, &row(&rows.k).view().into(), &row(&rows.v).view().into())?;
            }
        }
        Ok(())
    }

    fn attend(&self, request: usize, start: usize, rows: &Rows) -> Result<Output> {
        let (_, table) = &self.requests[&request];
        let mut table = table.clone();
        if self.is(Fault::TableOffByOne) {
            table.blocks.rotate_left(1);
        }
        let (tables, _) = block_table(&vec![&table; rows.q.dim().0])?;
        let mut lengths = lengths(start, rows);
        if self.is(Fault::KeyMissing) {
            lengths.iter_mut().for_each(|length| *length -= 1);
        }
        let kv = self.pool.kv(&tables, &lengths);
        let problem = Problem::new(rows.q.view(), kv, Batch::Dense, Options::default())?;
        Ok(Paged::new(fa2()).forward(&problem)?)
    }

    fn release(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }
}
