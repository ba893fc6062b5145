//! Whether contiguous tensors fit each other, and where their sequences lie.

use super::{Batch, Sequence};
use crate::{AttentionError, DType, TensorView};
use std::ops::Range;

pub(super) fn dtypes(q: &TensorView, kv: [(&'static str, &TensorView); 2]) -> Result<(), AttentionError> {
    for (tensor, found) in kv.map(|(tensor, view)| (tensor, view.dtype())) {
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

pub(super) fn shapes(q: &TensorView, k: &TensorView, v: &TensorView, packed: bool) -> Result<(), AttentionError> {
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
        tensor_shape(tensor, found, rank, rank - 3, &wanted)?;
    }
    let (q, k, v) = (q.shape(), k.shape(), v.shape());
    let mut wanted = k.to_vec();
    if !packed {
        wanted[0] = q[0];
    }
    wanted[rank - 1] = q[rank - 1];
    if k != wanted {
        return AttentionError::shape("k", k, format!("{wanted:?}, to fit q {q:?}"));
    }
    if v[..rank - 1] != k[..rank - 1] {
        return AttentionError::shape("v", v, format!("{:?} and any d_v, to fit k {k:?}", &k[..rank - 1]));
    }
    groups("k", k, k[rank - 3], q[rank - 3])
}

/// Whether a tensor has its rank, heads at its axis `heads_axis`, channels at its last, and elements that can be counted.
pub(super) fn tensor_shape(
    tensor: &'static str,
    found: &[usize],
    rank: usize,
    heads_axis: usize,
    layout: &str,
) -> Result<(), AttentionError> {
    if found.len() != rank {
        return AttentionError::shape(tensor, found, layout);
    }
    if found[heads_axis] == 0 || found[rank - 1] == 0 {
        return AttentionError::shape(tensor, found, format!("{layout} with heads and channels of at least 1"));
    }
    // A broadcast view can be larger than memory; every count and copy below this size stays in range.
    let elements = found.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
    if elements.is_none_or(|elements| elements > isize::MAX as usize / size_of::<f64>()) {
        return AttentionError::shape(tensor, found, format!("{layout} with no more elements than memory can hold"));
    }
    Ok(())
}

/// Whether query heads can share the kv heads of the tensor.
pub(super) fn groups(
    tensor: &'static str,
    found: &[usize],
    kv_heads: usize,
    heads: usize,
) -> Result<(), AttentionError> {
    if !heads.is_multiple_of(kv_heads) {
        return AttentionError::shape(tensor, found, format!("a number of kv heads that divides q's {heads} heads"));
    }
    Ok(())
}

pub(super) fn sequences(q: &TensorView, k: &TensorView, batch: Batch) -> Result<Vec<Sequence>, AttentionError> {
    let dense = |k_len: usize| Sequence { q: 0..q.shape()[2], k: 0..k_len };
    match batch {
        Batch::Dense => {
            let batch = q.shape()[0];
            let mut sequences = room(batch)?;
            sequences.resize(batch, dense(k.shape()[2]));
            Ok(sequences)
        }
        Batch::KeyLens(k_lens) => {
            let (batch, kv_len) = (q.shape()[0], k.shape()[2]);
            if k_lens.len() != batch {
                return AttentionError::shape("k_lens", &[k_lens.len()], format!("[{batch}]"));
            }
            let within = |len: i32| usize::try_from(len).ok().filter(|&len| len <= kv_len);
            k_lens
                .iter()
                .map(|&len| {
                    within(len).map_or_else(
                        || AttentionError::value("k_lens", len, format!("0 to {kv_len}")),
                        |len| Ok(dense(len)),
                    )
                })
                .collect()
        }
        Batch::Packed { cu_seqlens_q, cu_seqlens_k } => {
            let q = offsets("cu_seqlens_q", cu_seqlens_q, q.shape()[1])?;
            let k = offsets("cu_seqlens_k", cu_seqlens_k, k.shape()[1])?;
            if q.len() != k.len() {
                return AttentionError::shape(
                    "cu_seqlens_k",
                    &[k.len() + 1],
                    format!("[{}] as cu_seqlens_q", q.len() + 1),
                );
            }
            let mut sequences = room(q.len())?;
            sequences.extend(q.into_iter().zip(k).map(|(q, k)| Sequence { q, k }));
            Ok(sequences)
        }
        Batch::PackedQueries { .. } => {
            AttentionError::value("batch", "packed queries alone", "offsets of k too, as k is not paged")
        }
    }
}

/// Room for something of each sequence of a batch, which may be more than memory holds.
fn room<T>(batch: usize) -> Result<Vec<T>, AttentionError> {
    let (mut list, bytes) = (Vec::new(), batch as u128 * size_of::<T>() as u128);
    let no_memory = |_| AttentionError::Memory { what: "the sequences of the batch", bytes };
    list.try_reserve_exact(batch).map_err(no_memory)?;
    Ok(list)
}

/// The row ranges that `cu_seqlens` describes, checked against the `total` rows there are.
pub(super) fn offsets(
    name: &'static str,
    cu_seqlens: &[i32],
    total: usize,
) -> Result<Vec<Range<usize>>, AttentionError> {
    if cu_seqlens.first() != Some(&0) {
        let found = cu_seqlens.first().map_or("no entry".into(), |first| format!("{first} first"));
        return AttentionError::value(name, found, "0 first");
    }
    let range = |pair: &[i32]| match (usize::try_from(pair[0]), usize::try_from(pair[1])) {
        (Ok(start), Ok(end)) if start <= end && end <= total => Ok(start..end),
        _ => AttentionError::value(
            name,
            format!("{} then {}", pair[0], pair[1]),
            format!("offsets that do not fall, up to {total}"),
        ),
    };
    let mut ranges = room(cu_seqlens.len() - 1)?;
    for pair in cu_seqlens.windows(2) {
        ranges.push(range(pair)?);
    }
    Ok(ranges)
}
