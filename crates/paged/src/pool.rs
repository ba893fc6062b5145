//! The bytes: keys and values of every block, in memory of the CPU.

use crate::{BlockCopy, BlockId, NULL, Slot, Table};
use attention::dtype::Element;
use attention::{AttentionError, DType, Kv, Tensor, TensorView, page_aligned};
use ndarray::{Array2, ArrayD, ArrayViewD, Axis, Ix4, s};

/// The lengths of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// Blocks, the null block one of them.
    pub blocks: usize,
    /// Slots of a block.
    pub page: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Channels of a key.
    pub d: usize,
    /// Channels of a value.
    pub d_v: usize,
}

impl PoolShape {
    fn check(self) -> Result<(), AttentionError> {
        let PoolShape { blocks, page, kv_heads, d, d_v } = self;
        let lengths = [("blocks", blocks), ("page", page), ("kv_heads", kv_heads), ("d", d), ("d_v", d_v)];
        match lengths.into_iter().find(|(_, length)| *length == 0) {
            Some((name, length)) => AttentionError::value(name, length, "at least 1"),
            None => Ok(()),
        }
    }
}

/// Keys `[blocks, page, kv_heads, d]` and values `[blocks, page, kv_heads, d_v]` of one element type.
///
/// It does what a manager orders, and its two calls are all that a manager needs of whatever holds the bytes: first
/// [`copy`](Self::copy), then [`write`](Self::write). A pool on another device takes the same two.
///
/// ```
/// use attention::{DType, Kv};
/// use ndarray::Array3;
/// use paged::{BlockManager, Config, KvPool, PoolShape, block_table};
///
/// let mut manager = BlockManager::new(Config::new(8, 4))?;
/// let mut pool = KvPool::new(DType::F32, PoolShape { blocks: 8, page: 4, kv_heads: 1, d: 2, d_v: 2 })?;
/// let sequence = manager.admit(&[1, 2, 3, 4, 5], &[])?.sequence;
/// let rows = Array3::<f32>::ones((5, 1, 2));
/// pool.write(manager.table(sequence)?, 0, &rows.view().into(), &rows.view().into())?;
///
/// let (block_table, seq_lens) = block_table(&[manager.table(sequence)?])?;
/// let Kv::Paged { k_pool, .. } = pool.kv(&block_table, &seq_lens) else { unreachable!() };
/// assert_eq!((k_pool.shape(), seq_lens[0]), (&[8, 4, 1, 2][..], 5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct KvPool {
    shape: PoolShape,
    k: Tensor,
    /// None in a pool of latents.
    v: Option<Tensor>,
}

impl KvPool {
    /// A pool of zeros.
    ///
    /// # Errors
    /// [`AttentionError::Value`] if a length is 0; [`AttentionError::Memory`].
    pub fn new(dtype: DType, shape: PoolShape) -> Result<Self, AttentionError> {
        shape.check()?;
        let (k, v) = (zeros("k_pool", dtype, shape)?, zeros("v_pool", dtype, PoolShape { d: shape.d_v, ..shape })?);
        Ok(KvPool { shape, k, v: Some(v) })
    }

    /// A pool of zeros for latents: values are the first d_v channels of their keys, in the same memory.
    ///
    /// # Errors
    /// As [`KvPool::new`], and [`AttentionError::Value`] if d_v is beyond d.
    pub fn latents(dtype: DType, shape: PoolShape) -> Result<Self, AttentionError> {
        shape.check()?;
        if shape.d_v > shape.d {
            return AttentionError::value("d_v", shape.d_v, format!("at most d, {}", shape.d));
        }
        Ok(KvPool { shape, k: zeros("k_pool", dtype, shape)?, v: None })
    }

    /// The lengths.
    pub fn shape(&self) -> PoolShape {
        self.shape
    }
    /// The keys, `[blocks, page, kv_heads, d]`.
    pub fn k(&self) -> TensorView<'_> {
        self.k.view()
    }
    /// The values, `[blocks, page, kv_heads, d_v]`.
    pub fn v(&self) -> TensorView<'_> {
        self.v.as_ref().map_or_else(|| self.k().columns(0..self.shape.d_v), Tensor::view)
    }

    /// Keys and values as attention takes them, of the sequences that [`block_table`] gave these for.
    pub fn kv<'a>(&'a self, block_table: &'a Array2<BlockId>, seq_lens: &'a [i32]) -> Kv<'a> {
        Kv::Paged { k_pool: self.k(), v_pool: self.v(), block_table: block_table.view(), seq_lens }
    }

    /// Does a copy that a manager ordered.
    ///
    /// # Errors
    /// [`AttentionError::Value`] if one of the blocks is none of this pool's or the null block, or has fewer slots;
    /// nothing is written then.
    pub fn copy(&mut self, copy: BlockCopy) -> Result<(), AttentionError> {
        self.check_block("from", copy.from)?;
        self.check_block("to", copy.to)?;
        if copy.slots > self.shape.page {
            return AttentionError::value("slots", copy.slots, format!("at most {}", self.shape.page));
        }
        copy_block(&mut self.k, copy);
        if let Some(v) = &mut self.v {
            copy_block(v, copy);
        }
        Ok(())
    }

    /// Writes k `[tokens, kv_heads, d]` and v `[tokens, kv_heads, d_v]` into the places of the tokens from `start` on.
    ///
    /// # Errors
    /// [`AttentionError::Shape`], [`AttentionError::DType`], or [`AttentionError::Value`] if the table has another page
    /// size, has no place for one of the tokens, or names a block that is none of this pool's, or v is not the first channels
    /// of k in a pool of latents; nothing is written then.
    pub fn write(&mut self, table: &Table, start: usize, k: &TensorView, v: &TensorView) -> Result<(), AttentionError> {
        let tokens = k.shape().first().copied().unwrap_or(0);
        for (tensor, rows, channels) in [("k", k.view(), self.shape.d), ("v", v.view(), self.shape.d_v)] {
            let wanted = [tokens, self.shape.kv_heads, channels];
            if rows.shape() != wanted {
                let (found, wanted) = (rows.shape().to_vec(), format!("{wanted:?}"));
                return Err(AttentionError::Shape { tensor, found, wanted });
            }
            if rows.dtype() != self.k.dtype() {
                let wanted = format!("{} as in the pool", self.k.dtype());
                return Err(AttentionError::DType { tensor, found: rows.dtype(), wanted });
            }
        }
        let slots = self.slots(table, start, tokens)?;
        if self.v.is_none() && !v.is_prefix_of(k) {
            return AttentionError::value(
                "v",
                "rows of their own",
                "the first channels of k, in its memory, in a pool of latents",
            );
        }
        write_rows(&mut self.k, k, &slots);
        if let Some(pool) = &mut self.v {
            write_rows(pool, v, &slots);
        }
        Ok(())
    }

    /// The places of `tokens` tokens from `start` on, all of them in this pool.
    fn slots(&self, table: &Table, start: usize, tokens: usize) -> Result<Vec<Slot>, AttentionError> {
        if table.page() != self.shape.page {
            return AttentionError::value("page", table.page(), format!("{} as in the pool", self.shape.page));
        }
        let place = |token: usize| {
            let Some(slot) = start.checked_add(token).and_then(|token| table.slot(token)) else {
                return AttentionError::value(
                    "tokens",
                    format!("{tokens} from token {start}"),
                    format!("tokens that have a place, of {}", table.len),
                );
            };
            self.check_block("block_table", slot.block)?;
            Ok(slot)
        };
        (0..tokens).map(place).collect()
    }

    fn check_block(&self, name: &'static str, block: BlockId) -> Result<(), AttentionError> {
        match usize::try_from(block) {
            Ok(number) if block != NULL && number < self.shape.blocks => Ok(()),
            _ => AttentionError::value(
                name,
                format!("block {block}"),
                format!("a block from 1 to {}", self.shape.blocks - 1),
            ),
        }
    }
}

/// The block tables of some sequences as one, `[sequences, columns]`, with as many columns as the longest has blocks and
/// -1 where a shorter one has none; and their lengths.
///
/// # Errors
/// [`AttentionError::Value`] for a length that is no i32.
pub fn block_table(tables: &[&Table]) -> Result<(Array2<BlockId>, Vec<i32>), AttentionError> {
    let columns = tables.iter().map(|table| table.blocks.len()).max().unwrap_or(0);
    let mut all = Array2::from_elem((tables.len(), columns), -1);
    let mut seq_lens = Vec::with_capacity(tables.len());
    for (table, mut row) in tables.iter().zip(all.rows_mut()) {
        row.iter_mut().zip(&table.blocks).for_each(|(entry, &block)| *entry = block);
        match i32::try_from(table.len) {
            Ok(len) => seq_lens.push(len),
            Err(_) => return AttentionError::value("seq_lens", table.len, format!("at most {}", i32::MAX)),
        }
    }
    Ok((all, seq_lens))
}

/// A pool `[blocks, page, kv_heads, d]` of zeros. In memory the slots of a block lie one behind the other for each head, so
/// that what a head reads of a block is one piece, and in as few pages of memory as it can be.
fn zeros(what: &'static str, dtype: DType, shape: PoolShape) -> Result<Tensor, AttentionError> {
    fn pool<T: Element + Default>(what: &'static str, lengths: &[usize]) -> Result<ArrayD<T>, AttentionError> {
        let mut pool = page_aligned(what, lengths, T::default())?;
        pool.swap_axes(1, 2);
        Ok(pool)
    }
    let lengths = &[shape.blocks, shape.kv_heads, shape.page, shape.d];
    Ok(match dtype {
        DType::F32 => Tensor::F32(pool(what, lengths)?),
        DType::F64 => Tensor::F64(pool(what, lengths)?),
        DType::F16 => Tensor::F16(pool(what, lengths)?),
        DType::Bf16 => Tensor::Bf16(pool(what, lengths)?),
        DType::E4m3 => Tensor::E4m3(pool(what, lengths)?),
    })
}

fn copy_block(pool: &mut Tensor, copy: BlockCopy) {
    fn blocks<T: Copy>(pool: &mut ArrayD<T>, BlockCopy { from, to, slots }: BlockCopy) {
        let filled = |block: BlockId| s![block as usize, ..slots, .., ..];
        let mut pool = pool.view_mut().into_dimensionality::<Ix4>().expect("a pool has four axes");
        let rows = pool.slice(filled(from)).to_owned();
        pool.slice_mut(filled(to)).assign(&rows);
    }
    match pool {
        Tensor::F32(pool) => blocks(pool, copy),
        Tensor::F64(pool) => blocks(pool, copy),
        Tensor::F16(pool) => blocks(pool, copy),
        Tensor::Bf16(pool) => blocks(pool, copy),
        Tensor::E4m3(pool) => blocks(pool, copy),
    }
}

/// Writes rows of the pool's own element type.
fn write_rows(pool: &mut Tensor, rows: &TensorView, slots: &[Slot]) {
    fn write<T: Copy>(pool: &mut ArrayD<T>, rows: &ArrayViewD<T>, slots: &[Slot]) {
        let mut pool = pool.view_mut().into_dimensionality::<Ix4>().expect("a pool has four axes");
        for (slot, row) in slots.iter().zip(rows.axis_iter(Axis(0))) {
            pool.slice_mut(s![slot.block as usize, slot.offset, .., ..]).assign(&row);
        }
    }
    match (pool, rows) {
        (Tensor::F32(pool), TensorView::F32(rows)) => write(pool, rows, slots),
        (Tensor::F64(pool), TensorView::F64(rows)) => write(pool, rows, slots),
        (Tensor::F16(pool), TensorView::F16(rows)) => write(pool, rows, slots),
        (Tensor::Bf16(pool), TensorView::Bf16(rows)) => write(pool, rows, slots),
        (Tensor::E4m3(pool), TensorView::E4m3(rows)) => write(pool, rows, slots),
        _ => unreachable!("the types were compared before"),
    }
}
