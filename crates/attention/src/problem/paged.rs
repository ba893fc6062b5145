//! Whether pools, block table and lengths fit each other and q.

use super::check::{groups, offsets, tensor_shape};
use super::{Batch, Sequence};
use crate::{AttentionError, TensorView};
use ndarray::ArrayView2;
use std::ops::Range;

pub(super) fn shapes(
    q: &TensorView,
    k_pool: &TensorView,
    v_pool: &TensorView,
    packed: bool,
) -> Result<(), AttentionError> {
    let (rank, layout) = if packed { (3, "[heads, total_q, d] (packed)") } else { (4, "[batch, heads, q_len, d]") };
    tensor_shape("q", q.shape(), rank, rank - 3, layout)?;
    tensor_shape("k_pool", k_pool.shape(), 4, 2, "[pages, page, kv_heads, d]")?;
    tensor_shape("v_pool", v_pool.shape(), 4, 2, "[pages, page, kv_heads, d_v]")?;
    let (q, k, v) = (q.shape(), k_pool.shape(), v_pool.shape());
    if k[3] != q[rank - 1] {
        return AttentionError::shape("k_pool", k, format!("{} channels, to fit q {q:?}", q[rank - 1]));
    }
    if v[..3] != k[..3] {
        return AttentionError::shape("v_pool", v, format!("{:?} and any d_v, to fit k_pool {k:?}", &k[..3]));
    }
    if k[1] == 0 {
        return AttentionError::shape("k_pool", k, "pages of at least 1 slot");
    }
    groups("k_pool", k, k[2], q[rank - 3])
}

/// The sequences, each with all its pages in the pool. Of the table only the entries that a length asks for are read.
pub(super) fn sequences(
    q: &TensorView,
    (k_pool, v_pool): (&TensorView, &TensorView),
    table: ArrayView2<i32>,
    seq_lens: &[i32],
    batch: Batch,
) -> Result<Vec<Sequence>, AttentionError> {
    let [pages, page, ..] = *k_pool.shape() else { unreachable!("a pool has rank 4") };
    let channels = k_pool.shape()[3].max(v_pool.shape()[3]);
    let batches = if table.nrows() == seq_lens.len() {
        seq_lens.len()
    } else {
        return AttentionError::shape(
            "seq_lens",
            &[seq_lens.len()],
            format!("[{}], as block_table has rows", table.nrows()),
        );
    };
    let q_rows: Vec<Range<usize>> = match batch {
        Batch::Dense if q.shape()[0] != batches => {
            return AttentionError::shape("seq_lens", &[batches], format!("[{}], the batch of q", q.shape()[0]));
        }
        Batch::Dense => vec![0..q.shape()[2]; batches],
        Batch::PackedQueries { cu_seqlens_q } => offsets("cu_seqlens_q", cu_seqlens_q, q.shape()[1])?,
        Batch::KeyLens(_) | Batch::Packed { .. } => {
            return AttentionError::value("batch", "lengths of k", "none: paged keys have their lengths in seq_lens");
        }
    };
    if q_rows.len() != batches {
        return AttentionError::shape(
            "seq_lens",
            &[batches],
            format!("[{}], the sequences of cu_seqlens_q", q_rows.len()),
        );
    }
    // Pages that stand in a table more than once can make a sequence larger than the pool, and than memory.
    let most = isize::MAX as usize / size_of::<f64>() / channels;
    let longest = table.ncols().saturating_mul(page).min(most);
    let mut sequences = Vec::with_capacity(batches);
    for ((q, &len), entries) in q_rows.into_iter().zip(seq_lens).zip(table.rows()) {
        let Some(len) = usize::try_from(len).ok().filter(|&len| len <= longest) else {
            let columns = table.ncols();
            return AttentionError::value("seq_lens", len, format!("0 to {longest}, {columns} pages of {page} slots"));
        };
        let used = entries.iter().take(len.div_ceil(page)).enumerate();
        if let Some((column, entry)) =
            used.into_iter().find(|(_, entry)| !usize::try_from(**entry).is_ok_and(|id| id < pages))
        {
            let found = format!("{entry} in column {column} of sequence {}", sequences.len());
            return AttentionError::value("block_table", found, format!("the number of one of {pages} pages"));
        }
        sequences.push(Sequence { q, k: 0..len });
    }
    Ok(sequences)
}
