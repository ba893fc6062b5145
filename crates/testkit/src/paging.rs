//! Keys and values of any problem, laid out in pages.

use crate::{OwnedBatch, OwnedPages, OwnedProblem, Values};
use attention::dtype::Element;
use attention::{E4m3, Sequence, Tensor, page_aligned};
use half::{bf16, f16};
use ndarray::{Array2, ArrayD, Axis, Ix3, Slice, s};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

/// Pages that no sequence has.
const SPARE: usize = 2;

impl OwnedProblem {
    /// The same problem with its keys and values in pages of `page` slots, which lie in an order that `seed` draws. Spare
    /// pages and slots behind the last key hold NaN, entries of the table behind the last page any number at all. In memory
    /// the slots of a page lie in one piece for each head.
    ///
    /// # Panics
    /// If the tensors do not fit together, keys and values are paged already, or `page` is 0.
    pub fn paged(&self, page: usize, seed: u64) -> OwnedProblem {
        assert!(self.pages.is_none(), "keys and values are paged already");
        let sequences = self.problem().sequences().to_vec();
        let pages = |sequence: &Sequence| sequence.k.len().div_ceil(page);
        let columns = 1 + sequences.iter().map(pages).max().unwrap_or(0);
        let mut rng = StdRng::seed_from_u64(seed);
        let mut places: Vec<i32> = (0..(SPARE + sequences.iter().map(pages).sum::<usize>()) as i32).collect();
        places.shuffle(&mut rng);
        let total = places.len();
        let mut block_table = Array2::from_shape_simple_fn((sequences.len(), columns), || rng.random());
        for (sequence, mut row) in sequences.iter().zip(block_table.rows_mut()) {
            row.iter_mut().zip(places.drain(..pages(sequence))).for_each(|(entry, place)| *entry = place);
        }
        let pool = Pool { page, pages: total, sequences: &sequences, table: &block_table };
        let longest = sequences.iter().map(|sequence| sequence.k.len()).max().unwrap_or(0);
        OwnedProblem {
            k: pool.filled(&self.k),
            v: match &self.v {
                Values::Own(v) => Values::Own(pool.filled(v)),
                &Values::OfKeys(d_v) => Values::OfKeys(d_v),
            },
            batch: match &self.batch {
                OwnedBatch::Packed { cu_seqlens_q, .. } => {
                    OwnedBatch::PackedQueries { cu_seqlens_q: cu_seqlens_q.clone() }
                }
                _ => OwnedBatch::Dense,
            },
            // A bias has columns for the longest sequence, not for padding.
            bias: self.bias.as_ref().map(|bias| bias.slice(s![.., .., .., ..longest]).to_owned()),
            pages: Some(OwnedPages {
                seq_lens: sequences.iter().map(|sequence| sequence.k.len() as i32).collect(),
                block_table,
            }),
            ..self.clone()
        }
    }
}

/// Where the rows of some tensor go.
struct Pool<'a> {
    page: usize,
    pages: usize,
    sequences: &'a [Sequence],
    table: &'a Array2<i32>,
}

impl Pool<'_> {
    /// A pool `[pages, page, kv_heads, channels]` with the rows of a contiguous tensor.
    fn filled(&self, rows: &Tensor) -> Tensor {
        match rows {
            Tensor::F32(rows) => Tensor::F32(self.scattered(rows, f32::NAN)),
            Tensor::F64(rows) => Tensor::F64(self.scattered(rows, f64::NAN)),
            Tensor::F16(rows) => Tensor::F16(self.scattered(rows, f16::NAN)),
            Tensor::Bf16(rows) => Tensor::Bf16(self.scattered(rows, bf16::NAN)),
            Tensor::E4m3(rows) => Tensor::E4m3(self.scattered(rows, E4m3(0x7F))),
        }
    }

    fn scattered<T: Element>(&self, rows: &ArrayD<T>, nothing: T) -> ArrayD<T> {
        let rank = rows.ndim();
        let (kv_heads, channels) = (rows.shape()[rank - 3], rows.shape()[rank - 1]);
        let lengths = &[self.pages, kv_heads, self.page, channels];
        let mut pool = page_aligned("a pool", lengths, nothing).expect("memory for a copy of a tensor");
        pool.swap_axes(1, 2);
        for (b, (sequence, table)) in self.sequences.iter().zip(self.table.rows()).enumerate() {
            // `[kv_heads, total, channels]`
            let all = if rank == 4 { rows.index_axis(Axis(0), b) } else { rows.view() };
            let keys = all.slice_axis(Axis(1), Slice::from(sequence.k.clone()));
            let keys = keys.into_dimensionality::<Ix3>().expect("three axes are left");
            for (j, key) in keys.axis_iter(Axis(1)).enumerate() {
                pool.slice_mut(s![table[j / self.page], j % self.page, .., ..]).assign(&key);
            }
        }
        pool
    }
}
