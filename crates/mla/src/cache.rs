//! The cache of a sequence: the latent and the rotated key of each token, and nothing else.

use crate::dims::check_type;
use crate::rope::Pairing;
use attention::{AttentionError, DType, Kv, Rows, TensorView};
use half::{bf16, f16};
use ndarray::{Array2, ArrayView, ArrayView2, IntoDimension, s};
use std::marker::PhantomData;
use std::ops::Range;

/// What a layer wants of the cache of a sequence, wherever its rows lie: d_c + d_rope numbers for each token, the row
/// `[c_kv | k_rope]`, in the layer's type. k_rope is stored rotated, in pairs `P`.
pub trait LatentCache<P>: Sync {
    /// Tokens in it: the position of the next one.
    fn len(&self) -> usize;

    /// Whether it holds no token.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Channels of a latent.
    fn d_c(&self) -> usize;

    /// Channels of a rotated key.
    fn d_rope(&self) -> usize;

    /// Numbers of a token: d_c + d_rope.
    fn width(&self) -> usize {
        self.d_c() + self.d_rope()
    }

    /// The element type.
    fn dtype(&self) -> DType;

    /// Adds rows of further tokens, `[tokens, d_c + d_rope]`, rounded to the cache's type.
    ///
    /// # Errors
    /// [`AttentionError::Shape`], [`AttentionError::Memory`], or [`AttentionError::Value`] if a pool has no places for them;
    /// the cache is as before then.
    fn append(&mut self, rows: ArrayView2<f32>) -> Result<(), AttentionError>;

    /// Forgets all tokens but the first `tokens`.
    fn truncate(&mut self, tokens: usize);

    /// Keys and values of the absorbed form, of one sequence and one head: k is the rows themselves, v their first d_c
    /// columns.
    fn kv(&self) -> Kv<'_>;

    /// Copies the rows of some tokens, in f32.
    ///
    /// # Panics
    /// If there are fewer.
    fn load(&self, tokens: Range<usize>) -> Array2<f32>;
}

/// The rows of one sequence, one behind the other. A cache and a layer with other pairs do not fit together.
///
/// ```compile_fail,E0277
/// use mla::{Cache, Form, HalfSplit, Interleaved, Layer};
/// fn decode(layer: &Layer<Interleaved>, h: attention::TensorView, cache: &mut Cache<HalfSplit>) {
///     let _ = layer.forward(Form::Absorbed, &h, cache);
/// }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Cache<P> {
    d_c: usize,
    d_rope: usize,
    rows: Numbers,
    pairing: PhantomData<P>,
}

/// Rows one behind the other.
#[derive(Clone, Debug, PartialEq)]
enum Numbers {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

/// Runs one expression on whichever vector there is.
macro_rules! each {
    ($on:expr, $vec:ident => $body:expr) => {
        match $on {
            Numbers::F32($vec) => $body,
            Numbers::F16($vec) => $body,
            Numbers::Bf16($vec) => $body,
        }
    };
}

impl<P: Pairing> Cache<P> {
    /// An empty cache with room for `tokens` tokens; it grows beyond them when it must.
    ///
    /// # Errors
    /// [`AttentionError::DType`] if it is no type of a layer, [`AttentionError::Value`] if d_c is 0, or d_rope 0 or odd, and
    /// [`AttentionError::Memory`].
    pub fn new(dtype: DType, d_c: usize, d_rope: usize, tokens: usize) -> Result<Self, AttentionError> {
        check_type("cache", dtype)?;
        if d_c == 0 {
            return AttentionError::value("d_c", d_c, "at least 1");
        }
        if d_rope == 0 || d_rope % 2 == 1 {
            return AttentionError::value("d_rope", d_rope, "pairs of channels");
        }
        if d_c.checked_add(d_rope).is_none_or(|width| width > i32::MAX as usize) {
            return AttentionError::value("d_c", d_c, "at most 2^31 - 1 numbers with d_rope");
        }
        let mut rows = match dtype {
            DType::F16 => Numbers::F16(Vec::new()),
            DType::Bf16 => Numbers::Bf16(Vec::new()),
            DType::F32 | DType::F64 | DType::E4m3 => Numbers::F32(Vec::new()),
        };
        let numbers = tokens.saturating_mul(d_c.saturating_add(d_rope));
        each!(&mut rows, rows => rows.try_reserve_exact(numbers)).map_err(|_| no_memory(numbers, dtype))?;
        Ok(Cache { d_c, d_rope, rows, pairing: PhantomData })
    }

    /// The cache of tokens whose latents c_kv `[tokens, d_c]` and keys k_rope `[tokens, d_rope]` came from elsewhere; the
    /// keys must have been rotated in pairs `P`.
    ///
    /// # Errors
    /// As [`Cache::new`], and [`AttentionError::Shape`] or [`AttentionError::DType`] if the two do not fit together.
    pub fn from_parts(c_kv: &TensorView, k_rope: &TensorView) -> Result<Self, AttentionError> {
        let &[tokens, d_c] = c_kv.shape() else { return AttentionError::shape("c_kv", c_kv.shape(), "[tokens, d_c]") };
        let d_rope = match *k_rope.shape() {
            [rows, d_rope] if rows == tokens => d_rope,
            _ => return AttentionError::shape("k_rope", k_rope.shape(), format!("[{tokens}, d_rope], to fit c_kv")),
        };
        if c_kv.dtype() != k_rope.dtype() {
            let wanted = format!("{} as in c_kv", c_kv.dtype());
            return Err(AttentionError::DType { tensor: "k_rope", found: k_rope.dtype(), wanted });
        }
        let mut cache = Cache::new(c_kv.dtype(), d_c, d_rope, tokens)?;
        let mut rows = Array2::zeros((tokens, d_c + d_rope));
        rows.slice_mut(s![.., ..d_c]).assign(&c_kv.to_f64().mapv(|x| x as f32));
        rows.slice_mut(s![.., d_c..]).assign(&k_rope.to_f64().mapv(|x| x as f32));
        cache.append(rows.view())?;
        Ok(cache)
    }

    /// The latents, `[tokens, d_c]`.
    pub fn c_kv(&self) -> TensorView<'_> {
        self.view((self.len(), self.width())).columns(0..self.d_c)
    }

    /// The rotated keys, `[tokens, d_rope]`.
    pub fn k_rope(&self) -> TensorView<'_> {
        self.view((self.len(), self.width())).columns(self.d_c..self.width())
    }

    /// The numbers in another shape.
    pub(crate) fn view(&self, shape: impl IntoDimension) -> TensorView<'_> {
        each!(&self.rows, rows => TensorView::from(view(shape, rows)))
    }
}

impl<P: Pairing> LatentCache<P> for Cache<P> {
    fn len(&self) -> usize {
        each!(&self.rows, rows => rows.len()) / (self.d_c + self.d_rope)
    }

    fn d_c(&self) -> usize {
        self.d_c
    }

    fn d_rope(&self) -> usize {
        self.d_rope
    }

    fn dtype(&self) -> DType {
        match self.rows {
            Numbers::F32(_) => DType::F32,
            Numbers::F16(_) => DType::F16,
            Numbers::Bf16(_) => DType::Bf16,
        }
    }

    fn append(&mut self, rows: ArrayView2<f32>) -> Result<(), AttentionError> {
        if rows.ncols() != self.width() {
            return AttentionError::shape("cache rows", rows.shape(), format!("[tokens, {}]", self.width()));
        }
        let (numbers, dtype) = (rows.len(), self.dtype());
        each!(&mut self.rows, to => to.try_reserve(numbers)).map_err(|_| no_memory(numbers, dtype))?;
        match &mut self.rows {
            Numbers::F32(to) => to.extend(rows),
            Numbers::F16(to) => to.extend(rows.iter().map(|&x| f16::from_f32(x))),
            Numbers::Bf16(to) => to.extend(rows.iter().map(|&x| bf16::from_f32(x))),
        }
        Ok(())
    }

    fn truncate(&mut self, tokens: usize) {
        let numbers = tokens.saturating_mul(self.width());
        each!(&mut self.rows, rows => rows.truncate(numbers));
    }

    // ANCHOR: kv
    fn kv(&self) -> Kv<'_> {
        let k = self.view((1, 1, self.len(), self.width()));
        Kv::Contiguous { v: k.columns(0..self.d_c), k }
    }
    // ANCHOR_END: kv

    fn load(&self, tokens: Range<usize>) -> Array2<f32> {
        let shape = (self.len(), self.width());
        match &self.rows {
            Numbers::F32(rows) => Rows::F32(view(shape, rows)).load(tokens),
            Numbers::F16(rows) => Rows::F16(view(shape, rows)).load(tokens),
            Numbers::Bf16(rows) => Rows::Bf16(view(shape, rows)).load(tokens),
        }
    }
}

impl<P: Pairing> Cache<P> {
    /// Bytes that it has allocated.
    pub fn allocated(&self) -> usize {
        each!(&self.rows, rows => rows.capacity()) * self.dtype().size()
    }
}

fn view<T, D: IntoDimension>(shape: D, numbers: &[T]) -> ArrayView<'_, T, D::Dim> {
    let shape = shape.into_dimension();
    ArrayView::from_shape(shape, numbers).expect("whole rows")
}

fn no_memory(numbers: usize, dtype: DType) -> AttentionError {
    AttentionError::Memory { what: "the cache", bytes: numbers as u128 * dtype.size() as u128 }
}
