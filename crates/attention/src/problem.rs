//! One attention call: borrowed tensors, how they are batched, and options, checked once at the door.

use crate::head::Head;
use crate::{AttentionError, DType, Options, TensorView};
use ndarray::{ArrayView2, s};
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
    /// Pages in pools, found through a block table. Its place is kept: [`Problem::new`] refuses it for now.
    Paged {
        /// Key pages `[pages, page, kv_heads, d]`.
        k_pool: TensorView<'a>,
        /// Value pages `[pages, page, kv_heads, d_v]`.
        v_pool: TensorView<'a>,
        /// Page numbers of each sequence in order, `[batch, columns]`.
        block_table: ArrayView2<'a, i32>,
        /// Keys of each sequence.
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
}

/// Where one sequence lies: its rows in q's and in k's and v's length axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Rows of q and of the output.
    pub q: Range<usize>,
    /// Rows of k and v.
    pub k: Range<usize>,
}

/// One attention call. Whoever holds a `Problem` holds a sound one: shapes, types, lengths and options fit.
#[derive(Clone, Debug)]
pub struct Problem<'a> {
    q: TensorView<'a>,
    k: TensorView<'a>,
    v: TensorView<'a>,
    packed: bool,
    options: Options<'a>,
    sequences: Vec<Sequence>,
}

impl<'a> Problem<'a> {
    /// Checks everything that can be wrong with a call and names what is.
    ///
    /// q is `[batch, heads, q_len, d]`, or packed `[heads, total_q, d]`. Query head h reads kv head
    /// `h / (heads / kv_heads)`. Lengths and batch may be 0; heads, d and d_v are at least 1.
    ///
    /// # Errors
    /// [`AttentionError::Shape`], [`AttentionError::DType`] or [`AttentionError::Value`] name what does not fit;
    /// paged keys and values and E4m3 tensors are [`AttentionError::Unsupported`]; a batch too large to list is
    /// [`AttentionError::Memory`].
    pub fn new(
        q: impl Into<TensorView<'a>>,
        kv: Kv<'a>,
        batch: Batch<'_>,
        options: Options<'a>,
    ) -> Result<Self, AttentionError> {
        let q = q.into();
        let Kv::Contiguous { k, v } = kv else {
            return Err(AttentionError::Unsupported { rung: "Problem", what: "paged keys and values".into() });
        };
        check_dtypes(&q, &k, &v)?;
        let packed = matches!(batch, Batch::Packed { .. });
        check_shapes(&q, &k, &v, packed)?;
        let problem = Problem { sequences: sequences(&q, &k, batch)?, q, k, v, packed, options };
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
    /// The keys.
    pub fn k(&self) -> &TensorView<'a> {
        &self.k
    }
    /// The values.
    pub fn v(&self) -> &TensorView<'a> {
        &self.v
    }
    /// The options.
    pub fn options(&self) -> &Options<'a> {
        &self.options
    }
    /// Each sequence of the batch.
    pub fn sequences(&self) -> &[Sequence] {
        &self.sequences
    }
    /// Whether the tensors are packed, of rank 3.
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
        self.k.shape()[self.k.shape().len() - 3]
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
        let options = &self.options;
        Head {
            q: self.q.matrix(&index(head), q),
            k: self.k.matrix(&index(kv_head), k.clone()),
            v: self.v.matrix(&index(kv_head), k),
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
            return value("scale", self.scale(), "a finite f32");
        }
        let cap = options.softcap as f32;
        if !cap.is_finite() || options.softcap < 0.0 || (cap == 0.0) != (options.softcap == 0.0) {
            return value("softcap", options.softcap, "0 for off, or a positive finite f32");
        }
        if let Some(slopes) = &options.alibi_slopes {
            if slopes.shape() != [heads] && slopes.shape() != [batch, heads] {
                return shape("alibi_slopes", slopes.shape(), format!("[{heads}] or [{batch}, {heads}]"));
            }
            if let Some(slope) = slopes.iter().find(|slope| !slope.is_finite()) {
                return value("alibi_slopes", slope, "finite slopes");
            }
        }
        if let Some(sinks) = options.sinks
            && sinks.len() != heads
        {
            return shape("sinks", sinks.shape(), format!("[{heads}]"));
        }
        if let Some(bias) = options.bias {
            let (q_len, k_len) = self.longest();
            let [b, h, q, k] = *bias.shape() else { unreachable!("an ArrayView4 has rank 4") };
            if (b != 1 && b != batch) || (h != 1 && h != heads) || q != q_len || k != k_len {
                let wanted = format!("[1 or {batch}, 1 or {heads}, {q_len}, {k_len}]");
                return shape("bias", bias.shape(), wanted);
            }
        }
        Ok(())
    }

    /// Rows and columns of a bias: the tensor's own lengths, or the longest of a packed batch.
    fn longest(&self) -> (usize, usize) {
        if self.packed {
            let longest = |len: fn(&Sequence) -> usize| self.sequences.iter().map(len).max().unwrap_or(0);
            (longest(|s| s.q.len()), longest(|s| s.k.len()))
        } else {
            (self.q.shape()[2], self.k.shape()[2])
        }
    }
}

fn shape<T>(tensor: &'static str, found: &[usize], wanted: String) -> Result<T, AttentionError> {
    Err(AttentionError::Shape { tensor, found: found.to_vec(), wanted })
}

fn value<T>(name: &'static str, found: impl ToString, wanted: impl ToString) -> Result<T, AttentionError> {
    Err(AttentionError::Value { name, found: found.to_string(), wanted: wanted.to_string() })
}

fn check_dtypes(q: &TensorView, k: &TensorView, v: &TensorView) -> Result<(), AttentionError> {
    for (tensor, found) in [("k", k.dtype()), ("v", v.dtype())] {
        if found != q.dtype() {
            let wanted = format!("{} as in q", q.dtype());
            return Err(AttentionError::DType { tensor, found, wanted });
        }
    }
    if q.dtype() == DType::E4m3 {
        return Err(AttentionError::Unsupported { rung: "Problem", what: format!("{} tensors", DType::E4m3) });
    }
    Ok(())
}

fn check_shapes(q: &TensorView, k: &TensorView, v: &TensorView, packed: bool) -> Result<(), AttentionError> {
    let layout = |heads: &str, len: &str, d: &str| match packed {
        true => format!("[{heads}, {len}, {d}] (packed)"),
        false => format!("[batch, {heads}, {len}, {d}]"),
    };
    let rank = if packed { 3 } else { 4 };
    for (tensor, found, wanted) in [
        ("q", q.shape(), layout("heads", "q_len", "d")),
        ("k", k.shape(), layout("kv_heads", "kv_len", "d")),
        ("v", v.shape(), layout("kv_heads", "kv_len", "d_v")),
    ] {
        if found.len() != rank {
            return shape(tensor, found, wanted);
        }
        if found[rank - 3] == 0 || found[rank - 1] == 0 {
            return shape(tensor, found, format!("{wanted} with heads and channels of at least 1"));
        }
        // A broadcast view can be larger than memory; every count and copy below this size stays in range.
        let elements = found.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        if elements.is_none_or(|elements| elements > isize::MAX as usize / size_of::<f64>()) {
            return shape(tensor, found, format!("{wanted} with no more elements than memory can hold"));
        }
    }
    let (q, k, v) = (q.shape(), k.shape(), v.shape());
    let mut wanted = k.to_vec();
    if !packed {
        wanted[0] = q[0];
    }
    wanted[rank - 1] = q[rank - 1];
    if k != wanted {
        return shape("k", k, format!("{wanted:?}, to fit q {q:?}"));
    }
    if v[..rank - 1] != k[..rank - 1] {
        return shape("v", v, format!("{:?} and any d_v, to fit k {k:?}", &k[..rank - 1]));
    }
    let (heads, kv_heads) = (q[rank - 3], k[rank - 3]);
    if heads % kv_heads != 0 {
        return shape("k", k, format!("a number of kv heads that divides q's {heads} heads"));
    }
    Ok(())
}

fn sequences(q: &TensorView, k: &TensorView, batch: Batch) -> Result<Vec<Sequence>, AttentionError> {
    let dense = |k_len: usize| Sequence { q: 0..q.shape()[2], k: 0..k_len };
    match batch {
        Batch::Dense => {
            let (batch, mut sequences) = (q.shape()[0], Vec::new());
            let bytes = batch as u128 * size_of::<Sequence>() as u128;
            let no_memory = |_| AttentionError::Memory { what: "the sequences of the batch", bytes };
            sequences.try_reserve_exact(batch).map_err(no_memory)?;
            sequences.resize(batch, dense(k.shape()[2]));
            Ok(sequences)
        }
        Batch::KeyLens(k_lens) => {
            let (batch, kv_len) = (q.shape()[0], k.shape()[2]);
            if k_lens.len() != batch {
                return shape("k_lens", &[k_lens.len()], format!("[{batch}]"));
            }
            let within = |len: i32| usize::try_from(len).ok().filter(|&len| len <= kv_len);
            k_lens
                .iter()
                .map(|&len| {
                    within(len).map_or_else(|| value("k_lens", len, format!("0 to {kv_len}")), |len| Ok(dense(len)))
                })
                .collect()
        }
        Batch::Packed { cu_seqlens_q, cu_seqlens_k } => {
            let q = offsets("cu_seqlens_q", cu_seqlens_q, q.shape()[1])?;
            let k = offsets("cu_seqlens_k", cu_seqlens_k, k.shape()[1])?;
            if q.len() != k.len() {
                return shape("cu_seqlens_k", &[k.len() + 1], format!("[{}] as cu_seqlens_q", q.len() + 1));
            }
            Ok(q.into_iter().zip(k).map(|(q, k)| Sequence { q, k }).collect())
        }
    }
}

/// The row ranges that `cu_seqlens` describes, checked against the `total` rows there are.
fn offsets(name: &'static str, cu_seqlens: &[i32], total: usize) -> Result<Vec<Range<usize>>, AttentionError> {
    if cu_seqlens.first() != Some(&0) {
        let found = cu_seqlens.first().map_or("no entry".into(), |first| format!("{first} first"));
        return value(name, found, "0 first");
    }
    let range = |pair: &[i32]| match (usize::try_from(pair[0]), usize::try_from(pair[1])) {
        (Ok(start), Ok(end)) if start <= end && end <= total => Ok(start..end),
        _ => value(name, format!("{} then {}", pair[0], pair[1]), format!("offsets that do not fall, up to {total}")),
    };
    cu_seqlens.windows(2).map(range).collect()
}
