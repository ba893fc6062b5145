//! A problem that owns its tensors.

use attention::{AttentionError, Batch, Kv, Mask, Options, Problem, Tensor};
use ndarray::{Array1, Array2, Array4, ArrayD};

/// Tensors with any strides, and options: what a [`Problem`] borrows.
#[derive(Clone, Debug)]
pub struct OwnedProblem {
    /// Queries, `[batch, heads, q_len, d]`, or packed `[heads, total_q, d]`.
    pub q: Tensor,
    /// Keys, `[batch, kv_heads, kv_len, d]`, or packed `[kv_heads, total_k, d]`.
    pub k: Tensor,
    /// Values, as keys with d_v channels.
    pub v: Values,
    /// The pages of each sequence, if k and v are pools `[pages, page, kv_heads, d or d_v]`.
    pub pages: Option<OwnedPages>,
    /// How sequences lie in the tensors.
    pub batch: OwnedBatch,
    /// As [`Options::scale`].
    pub scale: Option<f64>,
    /// As [`Options::mask`].
    pub mask: Mask,
    /// As [`Options::softcap`].
    pub softcap: f64,
    /// As [`Options::alibi_slopes`].
    pub alibi_slopes: Option<ArrayD<f32>>,
    /// As [`Options::bias`].
    pub bias: Option<Array4<f32>>,
    /// As [`Options::sinks`].
    pub sinks: Option<Array1<f32>>,
}

/// Values, in memory of their own or not.
#[derive(Clone, Debug)]
pub enum Values {
    /// A tensor of their own.
    Own(Tensor),
    /// The first so many channels of the keys, where these lie.
    OfKeys(usize),
}

impl Values {
    /// `v`, or the memory of the keys if `v` is nothing but their first channels.
    pub fn new(v: Tensor, k: &Tensor) -> Self {
        match (v.shape().last(), k.shape().last()) {
            (Some(&d_v), Some(&d)) if d_v <= d && k.view().columns(0..d_v).to_tensor() == v => Values::OfKeys(d_v),
            _ => Values::Own(v),
        }
    }
}

/// A [`Batch`] that owns its lengths.
#[derive(Clone, Debug)]
pub enum OwnedBatch {
    /// As [`Batch::Dense`].
    Dense,
    /// As [`Batch::KeyLens`].
    KeyLens(Vec<i32>),
    /// As [`Batch::Packed`].
    Packed {
        /// Row offsets in q.
        cu_seqlens_q: Vec<i32>,
        /// Row offsets in k and v.
        cu_seqlens_k: Vec<i32>,
    },
    /// As [`Batch::PackedQueries`].
    PackedQueries {
        /// Row offsets in q.
        cu_seqlens_q: Vec<i32>,
    },
}

/// Which pages each sequence has.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedPages {
    /// `[batch, columns]`
    pub block_table: Array2<i32>,
    /// Keys of each sequence.
    pub seq_lens: Vec<i32>,
}

impl OwnedProblem {
    /// The problem, if the tensors fit together.
    ///
    /// # Errors
    /// As [`Problem::new`].
    pub fn try_problem(&self) -> Result<Problem<'_>, AttentionError> {
        let batch = match &self.batch {
            OwnedBatch::Dense => Batch::Dense,
            OwnedBatch::KeyLens(k_lens) => Batch::KeyLens(k_lens),
            OwnedBatch::Packed { cu_seqlens_q, cu_seqlens_k } => Batch::Packed { cu_seqlens_q, cu_seqlens_k },
            OwnedBatch::PackedQueries { cu_seqlens_q } => Batch::PackedQueries { cu_seqlens_q },
        };
        let options = Options {
            scale: self.scale,
            mask: self.mask,
            softcap: self.softcap,
            alibi_slopes: self.alibi_slopes.as_ref().map(|slopes| slopes.view()),
            bias: self.bias.as_ref().map(|bias| bias.view()),
            sinks: self.sinks.as_ref().map(|sinks| sinks.view()),
        };
        let k = self.k.view();
        let v = match &self.v {
            Values::Own(v) => v.view(),
            Values::OfKeys(d_v) => k.columns(0..*d_v),
        };
        let kv = match &self.pages {
            None => Kv::Contiguous { k, v },
            Some(OwnedPages { block_table, seq_lens }) => {
                Kv::Paged { k_pool: k, v_pool: v, block_table: block_table.view(), seq_lens }
            }
        };
        Problem::new(self.q.view(), kv, batch, options)
    }

    /// The problem, where the tensors are known to fit together, as those of a [`Spec`](crate::problems::Spec) do.
    ///
    /// # Panics
    /// If they do not.
    pub fn problem(&self) -> Problem<'_> {
        self.try_problem().expect("a sound problem")
    }
}
