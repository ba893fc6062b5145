//! Where results go: owned, borrowed, and cut into the disjoint pieces that threads fill.

use crate::dtype::Element;
use crate::tensor::{Tensor, TensorViewMut, outer};
use crate::{AttentionError, DType, Problem};
use ndarray::{ArrayD, ArrayView1, ArrayViewMut1, ArrayViewMutD, Axis, Ix2, IxDyn, Slice};
use std::ops::Range;

/// The result of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// `[batch, heads, q_len, d_v]`, packed `[heads, total_q, d_v]`, in q's type.
    pub o: Tensor,
    /// `ln sum_j e^s`, natural, without the sink, -inf for a row that sees no key: `[batch, heads, q_len]`, packed
    /// `[heads, total_q]`.
    pub lse: ArrayD<f32>,
}

impl Output {
    /// Room for the result of `problem`: o all 0, lse all -inf, as it stays for packed rows of no sequence.
    ///
    /// # Errors
    /// [`AttentionError::Memory`] if there is none.
    pub fn empty(problem: &Problem) -> Result<Self, AttentionError> {
        let shape = problem.o_shape();
        let o = match problem.dtype() {
            DType::F32 => Tensor::F32(filled("o", &shape, 0.0)?),
            DType::F64 => Tensor::F64(filled("o", &shape, 0.0)?),
            DType::F16 => Tensor::F16(filled("o", &shape, half::f16::ZERO)?),
            DType::Bf16 => Tensor::Bf16(filled("o", &shape, half::bf16::ZERO)?),
            DType::E4m3 => unreachable!("no problem has E4m3 tensors"),
        };
        Ok(Output { o, lse: filled("lse", &problem.lse_shape(), f32::NEG_INFINITY)? })
    }

    /// A copy of the result of `rows` of each head alone.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn rows(&self, rows: Range<usize>) -> Output {
        let axis = Axis(self.lse.ndim() - 1);
        let lse = self.lse.slice_axis(axis, rows.clone().into()).to_owned();
        Output { o: self.o.view().rows(rows).to_tensor(), lse }
    }

    /// The same memory as a place to write to.
    pub fn view_mut(&mut self) -> OutputMut<'_> {
        let o = self.o.view_mut().expect("an output is never E4m3");
        OutputMut { o, lse: self.lse.view_mut() }
    }
}

/// An array of `shape` filled with `fill`, or an error where there is no memory for it.
///
/// # Errors
/// [`AttentionError::Memory`], with `what` in it.
pub fn filled<T: Clone>(what: &'static str, shape: &[usize], fill: T) -> Result<ArrayD<T>, AttentionError> {
    let bytes = shape.iter().fold(size_of::<T>() as u128, |bytes, &n| bytes.saturating_mul(n as u128));
    let no_memory = AttentionError::Memory { what, bytes };
    if bytes > isize::MAX as u128 {
        return Err(no_memory);
    }
    let len = shape.iter().product();
    let mut data = Vec::new();
    data.try_reserve_exact(len).map_err(|_| no_memory)?;
    data.resize(len, fill);
    Ok(ArrayD::from_shape_vec(IxDyn(shape), data).expect("the lengths agree"))
}

/// Bytes that a CPU finds with one address translation: the least that an operating system gives.
const MEMORY_PAGE: usize = 4096;

/// As [`filled`], but the first element is the first of a page of memory. An array that is read in pieces here and there
/// pays for each page that a piece touches; begun anywhere, pieces of whole pages would touch one more.
///
/// # Errors
/// As [`filled`].
pub fn page_aligned<T: Element>(what: &'static str, shape: &[usize], fill: T) -> Result<ArrayD<T>, AttentionError> {
    let len = shape.iter().fold(1, |len: usize, &n| len.saturating_mul(n));
    let mut array = filled(what, &[len.saturating_add(MEMORY_PAGE / size_of::<T>())], fill)?;
    let start = array.as_ptr().align_offset(MEMORY_PAGE);
    array.slice_axis_inplace(Axis(0), Slice::from(start..start + len));
    Ok(array.into_shape_with_order(shape).expect("the lengths agree"))
}

/// Borrowed memory for a result, written through its own strides. Only rows of a sequence are written.
#[derive(Debug)]
pub struct OutputMut<'a> {
    /// As [`Output::o`].
    pub o: TensorViewMut<'a>,
    /// As [`Output::lse`].
    pub lse: ArrayViewMutD<'a, f32>,
}

/// The part of an output that belongs to some rows of one head of one sequence. No two of them overlap.
#[derive(Debug)]
pub struct RowsMut<'a> {
    /// The sequence, for [`Problem::head`].
    pub sequence: usize,
    /// The query head, for [`Problem::head`].
    pub head: usize,
    /// Which rows of that head.
    pub rows: Range<usize>,
    o: TensorViewMut<'a, Ix2>,
    lse: ArrayViewMut1<'a, f32>,
}

impl OutputMut<'_> {
    /// Cuts the output into one piece for each head of each sequence.
    ///
    /// # Errors
    /// [`AttentionError::Shape`] or [`AttentionError::DType`] if the output does not fit `problem`.
    pub fn heads(&mut self, problem: &Problem) -> Result<Vec<RowsMut<'_>>, AttentionError> {
        if self.o.dtype() != problem.dtype() {
            let wanted = format!("{} as in q", problem.dtype());
            return Err(AttentionError::DType { tensor: "o", found: self.o.dtype(), wanted });
        }
        for (tensor, found, wanted) in
            [("o", self.o.shape(), problem.o_shape()), ("lse", self.lse.shape(), problem.lse_shape())]
        {
            if found != wanted {
                return Err(AttentionError::Shape { tensor, found: found.to_vec(), wanted: format!("{wanted:?}") });
            }
        }
        // Without a row there is nothing to write, however many heads and sequences there are.
        Ok(match problem.is_packed() {
            _ if self.lse.is_empty() => Vec::new(),
            true => self.packed_heads(problem),
            false => self.dense_heads(),
        })
    }

    fn dense_heads(&mut self) -> Vec<RowsMut<'_>> {
        let mut pieces = Vec::new();
        let batches = self.o.view_mut().outer().into_iter().zip(outer(self.lse.view_mut()));
        for (sequence, (o, lse)) in batches.enumerate() {
            for (head, (o, lse)) in o.outer().into_iter().zip(outer(lse)).enumerate() {
                let (o, lse) = (o.into_matrix(), into_row(lse));
                pieces.push(RowsMut { sequence, head, rows: 0..lse.len(), o, lse });
            }
        }
        pieces
    }

    fn packed_heads(&mut self, problem: &Problem) -> Vec<RowsMut<'_>> {
        let mut pieces = Vec::new();
        let heads = self.o.view_mut().outer().into_iter().zip(outer(self.lse.view_mut()));
        for (head, (o, lse)) in heads.enumerate() {
            let (mut o, mut lse) = (o.into_matrix(), into_row(lse));
            // Sequences lie one behind the other from row 0, so each is the front of what is left.
            for (sequence, rows) in problem.sequences().iter().map(|s| s.q.len()).enumerate() {
                let (o_front, o_rest) = o.split_at(0, rows);
                let (lse_front, lse_rest) = lse.split_at(Axis(0), rows);
                pieces.push(RowsMut { sequence, head, rows: 0..rows, o: o_front, lse: lse_front });
                (o, lse) = (o_rest, lse_rest);
            }
        }
        pieces
    }
}

impl<'a> RowsMut<'a> {
    /// Cuts the piece into tiles of `rows` rows, the last perhaps shorter.
    pub fn tiles(self, rows: usize) -> Vec<RowsMut<'a>> {
        let RowsMut { sequence, head, rows: all, mut o, mut lse } = self;
        let mut tiles = Vec::new();
        for start in all.clone().step_by(rows) {
            let end = all.end.min(start.saturating_add(rows));
            let (o_front, o_rest) = o.split_at(0, end - start);
            let (lse_front, lse_rest) = lse.split_at(Axis(0), end - start);
            tiles.push(RowsMut { sequence, head, rows: start..end, o: o_front, lse: lse_front });
            (o, lse) = (o_rest, lse_rest);
        }
        tiles
    }

    /// Stores the result of row `row` (counted like `rows`), rounding `o` once to the output's type.
    pub fn store(&mut self, row: usize, o: ArrayView1<'_, impl Element>, lse: f32) {
        let row = row - self.rows.start;
        self.o.store_row(row, o);
        self.lse[row] = lse;
    }
}

fn into_row(view: ArrayViewMutD<'_, f32>) -> ArrayViewMut1<'_, f32> {
    view.into_dimensionality().expect("lse has been checked against the problem")
}
