//! One attention call: borrowed tensors, how they are batched, and options, checked once at the door.

mod check;
mod paged;

use crate::head::Head;
use crate::kv_rows::{KvRows, Pages};
use crate::{AttentionError, DType, Options, TensorView};
use ndarray::{ArrayView2, Axis, s};
use std::ops::Range;

/// Keys and values.
#[derive(Clone, Debug)]
pub enum Kv<'a> {
    /// k `[batch, kv_heads, kv_len, d]` and v `[batch, kv_heads, kv_len, d_v]`; packed, without the batch axis.
    Contiguous {
        /// The keys.
        k: TensorView<'a>,
        /// The values.
        v: TensorView<'a>,
    },
    /// Pages in pools, found through a block table: key j of sequence b lies in page `block_table[b, j / page]`, at slot
    /// `j % page`. Pages may be shared, and stand in a table more than once and in any order.
    Paged {
        /// Key pages `[pages, page, kv_heads, d]`.
        k_pool: TensorView<'a>,
        /// Value pages `[pages, page, kv_heads, d_v]`.
        v_pool: TensorView<'a>,
        /// Page numbers of each sequence in order, `[batch, columns]`. What stands behind the pages that a sequence's length
        /// asks for is never looked at, nor what lies behind its last key in the last of them.
        block_table: ArrayView2<'a, i32>,
        /// Keys of each sequence, 0 to `columns * page`.
        seq_lens: &'a [i32],
    },
}

/// How sequences lie in the tensors.
#[derive(Clone, Copy, Debug)]
pub enum Batch<'a> {
    /// Rank 4, every sequence of full length.
    Dense,
    /// Rank 4; sequence b has only its first `k_lens[b]` keys, the rest of k and v is never read.
    KeyLens(&'a [i32]),
    /// Rank 3, `[heads, total, d]`: sequence b is rows `cu_seqlens[b] .. cu_seqlens[b + 1]`, in q and in k and v.
    Packed {
        /// Row offsets in q, starting at 0.
        cu_seqlens_q: &'a [i32],
        /// Row offsets in k and v, starting at 0.
        cu_seqlens_k: &'a [i32],
    },
    /// Queries of rank 3, `[heads, total, d]`, as in [`Batch::Packed`]; for paged keys and values, which have their own lengths.
    PackedQueries {
        /// Row offsets in q, starting at 0.
        cu_seqlens_q: &'a [i32],
    },
}

/// Where one sequence lies: its rows in q's and in k's and v's length axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Rows of q and of the output.
    pub q: Range<usize>,
    /// Rows of k and v; of a paged sequence, counted from its own first.
    pub k: Range<usize>,
}

/// One attention call. Whoever holds a `Problem` holds a sound one: shapes, types, lengths and options fit.
#[derive(Clone, Debug)]
pub struct Problem<'a> {
    q: TensorView<'a>,
    k: TensorView<'a>,
    v: TensorView<'a>,
    block_table: Option<ArrayView2<'a, i32>>,
    packed: bool,
    options: Options<'a>,
    sequences: Vec<Sequence>,
}

impl<'a> Problem<'a> {
    /// Checks everything that can be wrong with a call and names what is.
    ///
    /// q is `[batch, heads, q_len, d]`, or packed `[heads, total_q, d]`. Query head h reads kv head
    /// `h / (heads / kv_heads)`. Lengths and batch may be 0; heads, d and d_v are at least 1. With paged keys and values
    /// the batch is [`Batch::Dense`] or [`Batch::PackedQueries`].
    ///
    /// # Errors
    /// [`AttentionError::Shape`], [`AttentionError::DType`] or [`AttentionError::Value`] name what does not fit;
    /// E4m3 tensors are [`AttentionError::Unsupported`]; a batch too large to list is [`AttentionError::Memory`].
    pub fn new(
        q: impl Into<TensorView<'a>>,
        kv: Kv<'a>,
        batch: Batch<'_>,
        options: Options<'a>,
    ) -> Result<Self, AttentionError> {
        let q = q.into();
        let packed = matches!(batch, Batch::Packed { .. } | Batch::PackedQueries { .. });
        let (k, v, block_table, sequences) = match kv {
            Kv::Contiguous { k, v } => {
                check::dtypes(&q, [("k", &k), ("v", &v)])?;
                check::shapes(&q, &k, &v, packed)?;
                let sequences = check::sequences(&q, &k, batch)?;
                (k, v, None, sequences)
            }
            Kv::Paged { k_pool, v_pool, block_table, seq_lens } => {
                check::dtypes(&q, [("k_pool", &k_pool), ("v_pool", &v_pool)])?;
                paged::shapes(&q, &k_pool, &v_pool, packed)?;
                let sequences = paged::sequences(&q, (&k_pool, &v_pool), block_table, seq_lens, batch)?;
                (k_pool, v_pool, Some(block_table), sequences)
            }
        };
        let problem = Problem { q, k, v, block_table, packed, options, sequences };
        problem.check_options()?;
        Ok(problem)
    }

    /// Dense attention of rank 4 tensors: [`Problem::new`] with [`Kv::Contiguous`] and [`Batch::Dense`].
    ///
    /// # Errors
    /// As [`Problem::new`].
    pub fn dense(
        q: impl Into<TensorView<'a>>,
        k: impl Into<TensorView<'a>>,
        v: impl Into<TensorView<'a>>,
        options: Options<'a>,
    ) -> Result<Self, AttentionError> {
        Problem::new(q, Kv::Contiguous { k: k.into(), v: v.into() }, Batch::Dense, options)
    }

    /// The queries.
    pub fn q(&self) -> &TensorView<'a> {
        &self.q
    }
    /// The keys; of a paged problem, their pool.
    pub fn k(&self) -> &TensorView<'a> {
        &self.k
    }
    /// The values; of a paged problem, their pool.
    pub fn v(&self) -> &TensorView<'a> {
        &self.v
    }
    /// Where the pages of each sequence are, `[batch, columns]`, if keys and values are paged.
    pub fn block_table(&self) -> Option<ArrayView2<'a, i32>> {
        self.block_table
    }
    /// The options.
    pub fn options(&self) -> &Options<'a> {
        &self.options
    }
    /// Each sequence of the batch.
    pub fn sequences(&self) -> &[Sequence] {
        &self.sequences
    }
    /// Whether q and o are packed, of rank 3; k and v are then too, if they are not paged.
    pub fn is_packed(&self) -> bool {
        self.packed
    }
    /// The element type of q, k, v and o.
    pub fn dtype(&self) -> DType {
        self.q.dtype()
    }
    /// Query heads.
    pub fn heads(&self) -> usize {
        self.q.shape()[self.q.shape().len() - 3]
    }
    /// Key and value heads.
    pub fn kv_heads(&self) -> usize {
        let shape = self.k.shape();
        if self.block_table.is_some() { shape[2] } else { shape[shape.len() - 3] }
    }
    /// Channels of a query or key.
    pub fn d(&self) -> usize {
        self.q.shape()[self.q.shape().len() - 1]
    }
    /// Channels of a value.
    pub fn d_v(&self) -> usize {
        self.v.shape()[self.v.shape().len() - 1]
    }
    /// Whether v is the first d_v channels of k, in the same memory, as in latent attention.
    pub fn values_are_keys(&self) -> bool {
        self.v.is_prefix_of(&self.k)
    }
    /// Factor of q . k: the given one, or `1/sqrt(d)`.
    pub fn scale(&self) -> f64 {
        self.options.scale.unwrap_or_else(|| 1.0 / (self.d() as f64).sqrt())
    }
    /// The shape of o: that of q with d_v channels.
    pub fn o_shape(&self) -> Vec<usize> {
        let mut shape = self.q.shape().to_vec();
        *shape.last_mut().expect("q has rank 3 or 4") = self.d_v();
        shape
    }
    /// The shape of lse: that of q without its channels.
    pub fn lse_shape(&self) -> Vec<usize> {
        self.q.shape()[..self.q.shape().len() - 1].to_vec()
    }

    /// The independent attention of query head `head` in sequence `sequence`.
    pub fn head(&self, sequence: usize, head: usize) -> Head<'a> {
        let kv_head = head / (self.heads() / self.kv_heads());
        let Sequence { q, k } = self.sequences[sequence].clone();
        let (q_len, k_len) = (q.len(), k.len());
        let index = |head: usize| if self.packed { vec![head] } else { vec![sequence, head] };
        let kv_rows = |tensor: &TensorView<'a>| match self.block_table {
            Some(table) => KvRows::Paged(Pages::new(tensor.pages(kv_head), table.index_axis_move(Axis(0), sequence))),
            None => KvRows::Contiguous(tensor.matrix(&index(kv_head), k.clone())),
        };
        let options = &self.options;
        Head {
            q: self.q.matrix(&index(head), q),
            k: kv_rows(&self.k),
            v: kv_rows(&self.v),
            sink: options.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head]),
            scale: self.scale() as f32,
            softcap: options.softcap as f32,
            slope: options.alibi_slopes.as_ref().map(|slopes| match slopes.ndim() {
                1 => slopes[[head]],
                _ => slopes[[sequence, head]],
            }),
            bias: options.bias.map(|bias| {
                let (batches, heads) = (bias.shape()[0], bias.shape()[1]);
                let (b, h) = (if batches == 1 { 0 } else { sequence }, if heads == 1 { 0 } else { head });
                bias.slice_move(s![b, h, ..q_len, ..k_len])
            }),
            mask: options.mask,
            q_len,
            k_len,
        }
    }

    fn check_options(&self) -> Result<(), AttentionError> {
        let options = &self.options;
        let (batch, heads) = (self.sequences.len(), self.heads());
        if !(self.scale() as f32).is_finite() {
            return AttentionError::value("scale", self.scale(), "a finite f32");
        }
        let cap = options.softcap as f32;
        if !cap.is_finite() || options.softcap < 0.0 || (cap == 0.0) != (options.softcap == 0.0) {
            return AttentionError::value("softcap", options.softcap, "0 for off, or a positive finite f32");
        }
        if let Some(slopes) = &options.alibi_slopes {
            if slopes.shape() != [heads] && slopes.shape() != [batch, heads] {
                return AttentionError::shape(
                    "alibi_slopes",
                    slopes.shape(),
                    format!("[{heads}] or [{batch}, {heads}]"),
                );
            }
            if let Some(slope) = slopes.iter().find(|slope| !slope.is_finite()) {
                return AttentionError::value("alibi_slopes", slope, "finite slopes");
            }
        }
        if let Some(sinks) = options.sinks
            && sinks.len() != heads
        {
            return AttentionError::shape("sinks", sinks.shape(), format!("[{heads}]"));
        }
        if let Some(bias) = options.bias {
            let (q_len, k_len) = self.longest();
            let [b, h, q, k] = *bias.shape() else { unreachable!("an ArrayView4 has rank 4") };
            if (b != 1 && b != batch) || (h != 1 && h != heads) || q != q_len || k != k_len {
                let wanted = format!("[1 or {batch}, 1 or {heads}, {q_len}, {k_len}]");
                return AttentionError::shape("bias", bias.shape(), wanted);
            }
        }
        Ok(())
    }

    /// Rows and columns of a bias: the tensor's own lengths, or the longest of a packed or paged batch.
    fn longest(&self) -> (usize, usize) {
        let longest = |len: fn(&Sequence) -> usize| self.sequences.iter().map(len).max().unwrap_or(0);
        let q_len = if self.packed { longest(|s| s.q.len()) } else { self.q.shape()[2] };
        let ragged_keys = self.packed || self.block_table.is_some();
        (q_len, if ragged_keys { longest(|s| s.k.len()) } else { self.k.shape()[2] })
    }
}
