//! Tensors whose element type is known only at run time, owned and borrowed, over ndarray.
//!
//! A view keeps any strides: transposed, sliced, reversed and broadcast views all work.

use crate::dtype::{DType, E4m3, Element};
use half::{bf16, f16};
use ndarray::{Array, Array2, ArrayD, ArrayView, ArrayView1, ArrayViewMut, ArrayViewMutD, Axis};
use ndarray::{Dimension, Ix1, Ix2, Ix3, IxDyn, RemoveAxis, Zip, s};
use std::ops::Range;

/// A borrowed tensor of any element type, with any strides.
#[derive(Clone, Debug)]
pub enum TensorView<'a, D: Dimension = IxDyn> {
    /// See [`DType::F32`].
    F32(ArrayView<'a, f32, D>),
    /// See [`DType::F64`].
    F64(ArrayView<'a, f64, D>),
    /// See [`DType::F16`].
    F16(ArrayView<'a, f16, D>),
    /// See [`DType::Bf16`].
    Bf16(ArrayView<'a, bf16, D>),
    /// See [`DType::E4m3`].
    E4m3(ArrayView<'a, E4m3, D>),
}

/// A mutably borrowed tensor of any element type that an output can have, with any strides.
#[derive(Debug)]
pub enum TensorViewMut<'a, D: Dimension = IxDyn> {
    /// See [`DType::F32`].
    F32(ArrayViewMut<'a, f32, D>),
    /// See [`DType::F64`].
    F64(ArrayViewMut<'a, f64, D>),
    /// See [`DType::F16`].
    F16(ArrayViewMut<'a, f16, D>),
    /// See [`DType::Bf16`].
    Bf16(ArrayViewMut<'a, bf16, D>),
}

/// An owned tensor of any element type.
#[derive(Clone, Debug, PartialEq)]
pub enum Tensor {
    /// See [`DType::F32`].
    F32(ArrayD<f32>),
    /// See [`DType::F64`].
    F64(ArrayD<f64>),
    /// See [`DType::F16`].
    F16(ArrayD<f16>),
    /// See [`DType::Bf16`].
    Bf16(ArrayD<bf16>),
    /// See [`DType::E4m3`].
    E4m3(ArrayD<E4m3>),
}

/// The rows of one head: a type-erased matrix `[rows, d]`.
pub type Rows<'a> = TensorView<'a, Ix2>;

/// Runs one expression on whichever array a type-erased tensor holds.
macro_rules! each {
    ($on:expr, $array:ident => $body:expr, [$($enum:ident :: $variant:ident),+]) => {
        match $on { $($enum::$variant($array) => $body),+ }
    };
}
/// As `each!`, rewrapping the result in the same variant of `$out`.
macro_rules! map {
    ($on:expr, $array:ident => $body:expr, $enum:ident to $out:ident, [$($variant:ident),+]) => {
        match $on { $($enum::$variant($array) => $out::$variant($body)),+ }
    };
}

impl<'a, D: Dimension> TensorView<'a, D> {
    /// The length of each axis.
    pub fn shape(&self) -> &[usize] {
        each!(self, a => a.shape(),
            [TensorView::F32, TensorView::F64, TensorView::F16, TensorView::Bf16, TensorView::E4m3])
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            TensorView::F32(_) => DType::F32,
            TensorView::F64(_) => DType::F64,
            TensorView::F16(_) => DType::F16,
            TensorView::Bf16(_) => DType::Bf16,
            TensorView::E4m3(_) => DType::E4m3,
        }
    }

    /// A shorter-lived view of the same elements.
    pub fn view(&self) -> TensorView<'_, D> {
        map!(self, a => a.view(), TensorView to TensorView, [F32, F64, F16, Bf16, E4m3])
    }

    /// Every element as f64, exactly.
    pub fn to_f64(&self) -> Array<f64, D> {
        each!(self, a => a.mapv(Element::to_f64),
            [TensorView::F32, TensorView::F64, TensorView::F16, TensorView::Bf16, TensorView::E4m3])
    }
}

impl<'a, D: RemoveAxis> TensorView<'a, D> {
    /// The subview at `index` of the first axis.
    ///
    /// # Panics
    /// If there is no such axis, or it is shorter.
    pub fn index_first(self, index: usize) -> TensorView<'a, D::Smaller> {
        map!(self, a => a.index_axis_move(Axis(0), index), TensorView to TensorView, [F32, F64, F16, Bf16, E4m3])
    }
}

impl<'a> TensorView<'a, IxDyn> {
    /// The subview of `rows` of the last axis but one.
    ///
    /// # Panics
    /// If there is no such axis, or it is shorter.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let axis = Axis(self.shape().len() - 2);
        let mut view = self.clone();
        each!(&mut view, a => a.slice_axis_inplace(axis, rows.into()),
            [TensorView::F32, TensorView::F64, TensorView::F16, TensorView::Bf16, TensorView::E4m3]);
        view
    }

    /// The subview of `columns` of the last axis.
    ///
    /// # Panics
    /// If there is no such axis, or it is shorter.
    pub fn columns(&self, columns: Range<usize>) -> Self {
        let axis = Axis(self.shape().len() - 1);
        let mut view = self.clone();
        each!(&mut view, a => a.slice_axis_inplace(axis, columns.into()),
            [TensorView::F32, TensorView::F64, TensorView::F16, TensorView::Bf16, TensorView::E4m3]);
        view
    }

    /// Whether this is the first columns of `other`: the same memory, read through the same strides.
    ///
    /// ```
    /// # use attention::TensorView;
    /// let k = ndarray::Array4::<f32>::zeros((1, 1, 7, 6));
    /// let k = TensorView::from(k.view());
    /// assert!(k.columns(0..4).is_prefix_of(&k) && !k.columns(1..4).is_prefix_of(&k));
    /// ```
    pub fn is_prefix_of(&self, other: &TensorView<'_>) -> bool {
        fn memory<T>(a: &ArrayView<T, IxDyn>) -> (*const u8, Vec<isize>) {
            // The stride of an axis with a single place is never used.
            let strides = a.shape().iter().zip(a.strides()).map(|(&n, &stride)| if n > 1 { stride } else { 0 });
            (a.as_ptr().cast(), strides.collect())
        }
        fn first(view: &TensorView<'_>, columns: usize) -> (*const u8, Vec<isize>) {
            each!(view.columns(0..columns), a => memory(&a),
                [TensorView::F32, TensorView::F64, TensorView::F16, TensorView::Bf16, TensorView::E4m3])
        }
        let Some((&columns, rows)) = self.shape().split_last() else { return false };
        let fits = other.shape().split_last().is_some_and(|(&all, others)| columns <= all && rows == others);
        fits && self.dtype() == other.dtype() && first(self, columns) == first(other, columns)
    }

    /// A copy of the elements, as they are.
    pub fn to_tensor(&self) -> Tensor {
        map!(self, a => a.to_owned(), TensorView to Tensor, [F32, F64, F16, Bf16, E4m3])
    }

    /// The pages of one kv head, `[pages, page, d]`, of a pool `[pages, page, kv_heads, d]`.
    pub(crate) fn pages(&self, kv_head: usize) -> TensorView<'a, Ix3> {
        map!(self.clone(), a => {
            let pages = a.index_axis_move(Axis(2), kv_head);
            pages.into_dimensionality().expect("a validated pool has this rank")
        }, TensorView to TensorView, [F32, F64, F16, Bf16, E4m3])
    }

    /// The matrix made of `rows` of the last two axes, once the others are fixed by `index`.
    pub(crate) fn matrix(&self, index: &[usize], rows: Range<usize>) -> Rows<'a> {
        let mut view = self.clone();
        for &i in index {
            view = view.index_first(i);
        }
        map!(view, a => {
            a.into_dimensionality::<Ix2>().expect("a validated problem has this rank")
        }, TensorView to TensorView, [F32, F64, F16, Bf16, E4m3])
        .slice_rows(rows)
    }
}

impl<'a> Rows<'a> {
    /// The matrix of a range of rows.
    #[inline(always)]
    pub fn slice_rows(self, rows: Range<usize>) -> Rows<'a> {
        map!(self, a => a.slice_move(s![rows, ..]), TensorView to TensorView, [F32, F64, F16, Bf16, E4m3])
    }

    /// Copies a range of rows into fast memory as a row-major f32 matrix: the load of a tile.
    pub fn load(&self, rows: Range<usize>) -> Array2<f32> {
        let d = self.shape()[1];
        let mut tile = vec![0.0; rows.len() * d];
        for (row, tile) in rows.clone().zip(tile.chunks_exact_mut(d)) {
            self.load_row(row, tile);
        }
        Array2::from_shape_vec((rows.len(), d), tile).expect("as many numbers as that")
    }

    /// Copies one row as f32 into `out`, of as many channels.
    ///
    /// Always inlined, so that a caller compiled for some vector instructions widens with them.
    #[inline(always)]
    pub fn load_row(&self, row: usize, out: &mut [f32]) {
        each!(self, a => match a.row(row).to_slice() {
            Some(row) => Element::widen(row, out),
            None => out.iter_mut().zip(a.row(row)).for_each(|(out, x)| *out = x.to_f32()),
        }, [Self::F32, Self::F64, Self::F16, Self::Bf16, Self::E4m3])
    }

    /// Copies one row as f64, exactly.
    pub(crate) fn row_f64(&self, row: usize) -> Array<f64, Ix1> {
        each!(self, a => a.row(row).mapv(|x| x.to_f64()),
            [Self::F32, Self::F64, Self::F16, Self::Bf16, Self::E4m3])
    }
}

impl<'a, D: Dimension> TensorViewMut<'a, D> {
    /// The length of each axis.
    pub fn shape(&self) -> &[usize] {
        each!(self, a => a.shape(), [TensorViewMut::F32, TensorViewMut::F64, TensorViewMut::F16, TensorViewMut::Bf16])
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            TensorViewMut::F32(_) => DType::F32,
            TensorViewMut::F64(_) => DType::F64,
            TensorViewMut::F16(_) => DType::F16,
            TensorViewMut::Bf16(_) => DType::Bf16,
        }
    }

    /// A shorter-lived view of the same elements.
    pub fn view_mut(&mut self) -> TensorViewMut<'_, D> {
        map!(self, a => a.view_mut(), TensorViewMut to TensorViewMut, [F32, F64, F16, Bf16])
    }

    /// Two disjoint views, split before `index` of `axis`.
    pub(crate) fn split_at(self, axis: usize, index: usize) -> (Self, Self) {
        macro_rules! split {
            ($($variant:ident),+) => {
                match self {
                    $(TensorViewMut::$variant(a) => {
                        let (head, tail) = a.split_at(Axis(axis), index);
                        (TensorViewMut::$variant(head), TensorViewMut::$variant(tail))
                    })+
                }
            };
        }
        split!(F32, F64, F16, Bf16)
    }
}

impl<'a> TensorViewMut<'a, IxDyn> {
    /// The disjoint subviews along the first axis.
    pub(crate) fn outer(self) -> Vec<TensorViewMut<'a, IxDyn>> {
        match self {
            Self::F32(a) => outer(a).map(TensorViewMut::F32).collect(),
            Self::F64(a) => outer(a).map(TensorViewMut::F64).collect(),
            Self::F16(a) => outer(a).map(TensorViewMut::F16).collect(),
            Self::Bf16(a) => outer(a).map(TensorViewMut::Bf16).collect(),
        }
    }

    /// The same view as a matrix; it must have rank 2.
    pub(crate) fn into_matrix(self) -> TensorViewMut<'a, Ix2> {
        map!(self, a => a.into_dimensionality().expect("an output checked against its problem"),
            TensorViewMut to TensorViewMut, [F32, F64, F16, Bf16])
    }
}

impl TensorViewMut<'_, Ix2> {
    /// Rounds `values` into row `row`, to nearest even: the one rounding of a result.
    pub(crate) fn store_row(&mut self, row: usize, values: ArrayView1<'_, impl Element>) {
        match self {
            Self::F32(a) => Zip::from(a.row_mut(row)).and(values).for_each(|o, x| *o = x.to_f32()),
            Self::F64(a) => Zip::from(a.row_mut(row)).and(values).for_each(|o, x| *o = x.to_f64()),
            Self::F16(a) => Zip::from(a.row_mut(row)).and(values).for_each(|o, x| *o = f16::from_f32(x.to_f32())),
            Self::Bf16(a) => Zip::from(a.row_mut(row)).and(values).for_each(|o, x| *o = bf16::from_f32(x.to_f32())),
        }
    }
}

/// The disjoint subviews along the first axis.
pub(crate) fn outer<T>(view: ArrayViewMutD<'_, T>) -> impl Iterator<Item = ArrayViewMutD<'_, T>> {
    let mut rest = Some(view);
    std::iter::from_fn(move || {
        let view = rest.take().filter(|view| view.len_of(Axis(0)) > 0)?;
        let (first, tail) = view.split_at(Axis(0), 1);
        rest = Some(tail);
        Some(first.index_axis_move(Axis(0), 0))
    })
}

impl Tensor {
    /// A view of the whole tensor.
    pub fn view(&self) -> TensorView<'_> {
        map!(self, a => a.view(), Tensor to TensorView, [F32, F64, F16, Bf16, E4m3])
    }

    /// A mutable view of the whole tensor; `None` for E4m3, which is no output type.
    pub fn view_mut(&mut self) -> Option<TensorViewMut<'_>> {
        Some(match self {
            Tensor::F32(a) => TensorViewMut::F32(a.view_mut()),
            Tensor::F64(a) => TensorViewMut::F64(a.view_mut()),
            Tensor::F16(a) => TensorViewMut::F16(a.view_mut()),
            Tensor::Bf16(a) => TensorViewMut::Bf16(a.view_mut()),
            Tensor::E4m3(_) => return None,
        })
    }

    /// The same elements behind an axis of length one, at position 0.
    pub fn insert_batch_axis(self) -> Self {
        map!(self, a => a.insert_axis(Axis(0)), Tensor to Tensor, [F32, F64, F16, Bf16, E4m3])
    }

    /// The length of each axis.
    pub fn shape(&self) -> &[usize] {
        each!(self, a => a.shape(), [Tensor::F32, Tensor::F64, Tensor::F16, Tensor::Bf16, Tensor::E4m3])
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.view().dtype()
    }
}

macro_rules! from_array {
    ($($variant:ident: $type:ty),+) => {$(
        impl<'a, D: Dimension> From<ArrayView<'a, $type, D>> for TensorView<'a> {
            fn from(view: ArrayView<'a, $type, D>) -> Self {
                TensorView::$variant(view.into_dyn())
            }
        }
        impl<D: Dimension> From<Array<$type, D>> for Tensor {
            fn from(array: Array<$type, D>) -> Self {
                Tensor::$variant(array.into_dyn())
            }
        }
    )+};
}
from_array!(F32: f32, F64: f64, F16: f16, Bf16: bf16, E4m3: E4m3);

macro_rules! from_array_mut {
    ($($variant:ident: $type:ty),+) => {$(
        impl<'a, D: Dimension> From<ArrayViewMut<'a, $type, D>> for TensorViewMut<'a> {
            fn from(view: ArrayViewMut<'a, $type, D>) -> Self {
                TensorViewMut::$variant(view.into_dyn())
            }
        }
    )+};
}
from_array_mut!(F32: f32, F64: f64, F16: f16, Bf16: bf16);
