//! Where the keys and values of one head lie: in a matrix, or in the pages of a pool.
//!
//! Every rung reads keys and values through [`KvRows`], and no product, mask or softmax knows of a block table.

use crate::dtype::{DType, E4m3, Element};
use crate::tensor::{Rows, TensorView};
use half::{bf16, f16};
use ndarray::{Array2, ArrayView1, ArrayView2, Axis, Ix3};
use std::ops::Range;

/// The keys or the values of one head of one sequence, `[rows, d]`.
#[derive(Clone, Debug)]
pub enum KvRows<'a> {
    /// One behind the other.
    Contiguous(Rows<'a>),
    /// In pages.
    Paged(Pages<'a>),
}

/// Rows in the pages of a pool: row `j` lies in page `table[j / page]`, at slot `j % page`.
#[derive(Clone, Debug)]
pub struct Pages<'a> {
    /// The pages of one kv head, `[pages, page, d]`.
    pool: TensorView<'a, Ix3>,
    /// The page numbers of the sequence, all of them in the pool.
    table: ArrayView1<'a, i32>,
}

impl<'a> Pages<'a> {
    /// `table` has been checked against `pool`.
    pub(crate) fn new(pool: TensorView<'a, Ix3>, table: ArrayView1<'a, i32>) -> Self {
        Pages { pool, table }
    }

    // ANCHOR: page
    /// The page in which row `row` lies, `[page, d]`, and the row's slot there.
    #[inline(always)]
    fn page(&self, row: usize) -> (Rows<'a>, usize) {
        let page = self.pool.shape()[1];
        (self.pool.clone().index_first(self.table[row / page] as usize), row % page)
    }
    // ANCHOR_END: page
}

impl<'a> KvRows<'a> {
    /// The number of channels.
    pub fn channels(&self) -> usize {
        match self {
            KvRows::Contiguous(rows) => rows.shape()[1],
            KvRows::Paged(Pages { pool, .. }) => pool.shape()[2],
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            KvRows::Contiguous(rows) => rows.dtype(),
            KvRows::Paged(Pages { pool, .. }) => pool.dtype(),
        }
    }

    // ANCHOR: runs
    /// The rows of `range` in order, as many at once as lie in one matrix: all, or those of one page.
    #[inline(always)]
    pub fn runs(&self, range: Range<usize>) -> impl Iterator<Item = Rows<'a>> {
        let mut next = range.start;
        std::iter::from_fn(move || {
            let left = range.end - next;
            let run = match self {
                _ if left == 0 => return None,
                KvRows::Contiguous(rows) => rows.clone().slice_rows(next..range.end),
                KvRows::Paged(pages) => {
                    let (page, slot) = pages.page(next);
                    let (slots, end) = (page.shape()[0], page.shape()[0].min(slot + left));
                    if end - slot == slots { page } else { page.slice_rows(slot..end) }
                }
            };
            next += run.shape()[0];
            Some(run)
        })
    }
    // ANCHOR_END: runs

    /// The rows of `range` where they lie, in slices of one row or more; `None` if they are not of this type, or a row has
    /// gaps.
    #[inline(always)]
    pub fn slices<T: Element>(&self, range: Range<usize>) -> Option<Vec<&'a [T]>> {
        let mut slices = Vec::with_capacity(16);
        match self {
            KvRows::Contiguous(rows) => push_rows(*T::array(rows)?, range, &mut slices)?,
            KvRows::Paged(Pages { pool, table }) => {
                let pool = *T::array(pool)?;
                let (page, mut next) = (pool.len_of(Axis(1)), range.start);
                while next < range.end {
                    let (id, slot) = (table[next / page], next % page);
                    let end = page.min(slot + range.end - next);
                    push_rows(pool.index_axis_move(Axis(0), id as usize), slot..end, &mut slices)?;
                    next += end - slot;
                }
            }
        }
        Some(slices)
    }

    /// Copies a range of rows into fast memory as a row-major f32 matrix: the load of a tile.
    pub fn load(&self, rows: Range<usize>) -> Array2<f32> {
        let (len, d) = (rows.len(), self.channels());
        let mut tile = vec![0.0; len * d];
        self.load_into(rows, d, &mut tile);
        Array2::from_shape_vec((len, d), tile).expect("as many numbers as that")
    }

    /// Copies a range of rows as f32 into `out`, where one begins `width` numbers behind the other.
    ///
    /// Always inlined, as [`Rows::load_row`] is.
    #[inline(always)]
    pub fn load_into(&self, rows: Range<usize>, width: usize, out: &mut [f32]) {
        // Where rows have no gaps, finding a page costs little beside copying it.
        let copied = match self.dtype() {
            DType::F32 => self.widen::<f32>(rows.clone(), width, out),
            DType::F64 => self.widen::<f64>(rows.clone(), width, out),
            DType::F16 => self.widen::<f16>(rows.clone(), width, out),
            DType::Bf16 => self.widen::<bf16>(rows.clone(), width, out),
            DType::E4m3 => self.widen::<E4m3>(rows.clone(), width, out),
        };
        if copied.is_none() {
            let (d, mut out) = (self.channels(), out.chunks_exact_mut(width));
            for run in self.runs(rows) {
                for (row, out) in (0..run.shape()[0]).zip(&mut out) {
                    run.load_row(row, &mut out[..d]);
                }
            }
        }
    }

    /// [`load_into`](Self::load_into) from [`slices`](Self::slices), where there are some.
    #[inline(always)]
    fn widen<T: Element>(&self, rows: Range<usize>, width: usize, out: &mut [f32]) -> Option<()> {
        let (d, mut out) = (self.channels(), out.chunks_exact_mut(width));
        for slice in self.slices::<T>(rows)? {
            for (row, out) in slice.chunks_exact(d).zip(&mut out) {
                T::widen(row, &mut out[..d]);
            }
        }
        Some(())
    }

    /// The rows of `range`, if they lie in one matrix.
    #[inline(always)]
    pub fn run(&self, range: Range<usize>) -> Option<Rows<'a>> {
        let len = range.len();
        self.runs(range).next().filter(|run| run.shape()[0] == len)
    }

    /// A matrix in which row `row` lies, and its place there.
    #[inline(always)]
    pub fn row(&self, row: usize) -> (Rows<'a>, usize) {
        match self {
            KvRows::Contiguous(rows) => (rows.clone(), row),
            KvRows::Paged(pages) => pages.page(row),
        }
    }
}

/// Adds `rows` of a matrix to `slices`, as one if the matrix has no gaps, or one by one; `None` if a row has gaps itself.
#[inline(always)]
fn push_rows<'a, T>(matrix: ArrayView2<'a, T>, rows: Range<usize>, slices: &mut Vec<&'a [T]>) -> Option<()> {
    let d = matrix.ncols();
    if let Some(all) = matrix.to_slice() {
        slices.push(&all[rows.start * d..rows.end * d]);
        return Some(());
    }
    for row in rows {
        slices.push(matrix.index_axis_move(Axis(0), row).to_slice()?);
    }
    Some(())
}
