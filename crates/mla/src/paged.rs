//! The cache of a sequence in the pages of a pool that other sequences share.

use crate::rope::Pairing;
use crate::{Cache, LatentCache};
use attention::{AttentionError, DType, Kv};
use ndarray::{Array2, ArrayView2, Ix1};
use paged::{KvPool, Table, block_table};
use std::marker::PhantomData;
use std::ops::Range;

/// The latents of one sequence in a pool of latents `[blocks, page, 1, d_c + d_rope]`, at the places that a block table says.
///
/// The table comes from a block manager, which has made places for tokens before they are appended here.
///
/// ```
/// use attention::DType;
/// use mla::{Interleaved, LatentCache, PagedCache};
/// use ndarray::Array2;
/// use paged::{BlockManager, Config, KvPool, PoolShape};
///
/// let mut manager = BlockManager::new(Config::new(8, 4))?;
/// let mut pool = KvPool::latents(DType::F32, PoolShape { blocks: 8, page: 4, kv_heads: 1, d: 8 + 2, d_v: 8 })?;
/// let sequence = manager.admit(&[1, 2, 3, 4, 5], &[])?.sequence;
/// let mut cache = PagedCache::<Interleaved>::new(&mut pool, manager.table(sequence)?, 0)?;
/// cache.append(Array2::ones((5, 10)).view())?;
/// assert_eq!((cache.len(), cache.load(4..5).sum()), (5, 10.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PagedCache<'a, P> {
    pool: &'a mut KvPool,
    table: &'a Table,
    block_table: Array2<i32>,
    len: [i32; 1],
    pairing: PhantomData<P>,
}

impl<'a, P: Pairing> PagedCache<'a, P> {
    /// The cache whose first `tokens` tokens are in the pool already, such as those of a prefix that others have computed.
    /// Their keys must have been rotated in pairs `P`: a pool itself knows no pairs.
    ///
    /// # Errors
    /// [`AttentionError::Shape`] if it is no pool of latents for one head with pairs of rotated channels,
    /// [`AttentionError::Value`] if its pages are not those of the table, or the table has no places in it for `tokens` tokens.
    pub fn new(pool: &'a mut KvPool, table: &'a Table, tokens: usize) -> Result<Self, AttentionError> {
        let found = pool.shape();
        let latents = pool.v().is_prefix_of(&pool.k()) && found.kv_heads == 1;
        if !latents || found.d == found.d_v || (found.d - found.d_v) % 2 == 1 {
            return AttentionError::shape(
                "pool",
                pool.k().shape(),
                "[blocks, page, 1, d_c + d_rope], its first d_c channels the values",
            );
        }
        if table.page() != found.page {
            return AttentionError::value("page", table.page(), format!("{} as in the pool", found.page));
        }
        let (block_table, places) = block_table(&[table])?;
        let len = match i32::try_from(tokens) {
            Ok(len) if len <= places[0] => len,
            _ => {
                return AttentionError::value(
                    "tokens",
                    tokens,
                    format!("at most {}, for which the table has places", places[0]),
                );
            }
        };
        for token in (0..tokens).step_by(found.page).chain(tokens.checked_sub(1)) {
            let block = table.slot(token).map_or(-1, |slot| slot.block);
            if usize::try_from(block).is_ok_and(|block| block < found.blocks) {
                continue;
            }
            return AttentionError::value(
                "table",
                format!("no block of the pool for token {token}"),
                "one for each token",
            );
        }
        Ok(PagedCache { pool, table, block_table, len: [len], pairing: PhantomData })
    }
}

impl<P: Pairing> LatentCache<P> for PagedCache<'_, P> {
    fn len(&self) -> usize {
        self.len[0] as usize
    }

    fn d_c(&self) -> usize {
        self.pool.shape().d_v
    }

    fn d_rope(&self) -> usize {
        self.pool.shape().d - self.pool.shape().d_v
    }

    fn dtype(&self) -> DType {
        self.pool.k().dtype()
    }

    fn append(&mut self, rows: ArrayView2<f32>) -> Result<(), AttentionError> {
        // The contiguous cache knows how rows are rounded.
        let mut rounded = Cache::<P>::new(self.dtype(), self.d_c(), self.d_rope(), rows.nrows())?;
        rounded.append(rows)?;
        let k = rounded.view((rows.nrows(), 1, self.width()));
        self.pool.write(self.table, self.len(), &k, &k.columns(0..self.d_c()))?;
        self.len[0] += rows.nrows() as i32;
        Ok(())
    }

    fn truncate(&mut self, tokens: usize) {
        self.len[0] = self.len[0].min(i32::try_from(tokens).unwrap_or(i32::MAX));
    }

    fn kv(&self) -> Kv<'_> {
        self.pool.kv(&self.block_table, &self.len)
    }

    fn load(&self, tokens: Range<usize>) -> Array2<f32> {
        let pool = self.pool.k();
        let mut rows = Array2::zeros((tokens.len(), self.width()));
        for (token, mut row) in tokens.zip(rows.rows_mut()) {
            let slot = self.table.slot(token).expect("a place, which every token in the cache has");
            let found = pool.clone().index_first(slot.block as usize).index_first(slot.offset).index_first(0);
            row.assign(&found.to_f64().mapv(|x| x as f32).into_dimensionality::<Ix1>().expect("one axis is left"));
        }
        rows
    }
}
