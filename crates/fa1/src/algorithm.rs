//! Algorithm 1 of FlashAttention, its line numbers beside the code.

use crate::{Blocks, F32, tiles};
use attention::{Head, LSE_BYTES, Meter, RowsMut, sink_factor, weight};
use ndarray::{Array1, Array2, ArrayViewMut1, ArrayViewMut2, s};

/// o `[q_len, d_v]`, l and m `[q_len]` of one head, as they lie in slow memory between the steps. o is divided by l at
/// every step.
#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    /// The output over the keys so far.
    pub o: Array2<f32>,
    /// The sum of the weights so far, against m.
    pub l: Array1<f32>,
    /// The largest score so far.
    pub m: Array1<f32>,
}

impl Running {
    /// Line 2: o = 0, l = 0, m = -inf.
    pub fn new(q_len: usize, d_v: usize) -> Self {
        Running {
            o: Array2::zeros((q_len, d_v)),
            l: Array1::zeros(q_len),
            m: Array1::from_elem(q_len, f32::NEG_INFINITY),
        }
    }

    /// Bytes of `rows` rows.
    fn bytes(rows: usize, d_v: usize) -> usize {
        F32 * rows * (d_v + 2)
    }
}

/// Lines 2 to 15 for one head.
pub fn head(head: &Head, blocks: Blocks, meter: &impl Meter) -> Running {
    let (q_len, d, d_v, size) = (head.q_len, head.d(), head.d_v(), head.q.dtype().size());
    let mut running = Running::new(q_len, d_v); // line 2
    meter.allocate(Running::bytes(q_len, d_v));
    meter.write(Running::bytes(q_len, d_v));
    // Lines 3 and 4, dividing into blocks, are the two `tiles`.
    for keys in tiles(head.k_len, blocks.keys) {
        // Lines 5 and 6: load K_j, V_j.
        let (k_j, v_j) = (head.k.load(keys.clone()), head.v.load(keys.clone()));
        meter.read(size * keys.len() * (d + d_v));
        for rows in tiles(q_len, blocks.rows) {
            // Lines 7 and 8: load Q_i, O_i, l_i, m_i.
            let q_i = head.q.load(rows.clone());
            let mut o_i = running.o.slice_mut(s![rows.clone(), ..]);
            let (l_i, m_i) = (running.l.slice_mut(s![rows.clone()]), running.m.slice_mut(s![rows.clone()]));
            meter.read(size * rows.len() * d + Running::bytes(rows.len(), d_v));
            // Line 9: S_ij = Q_i K_j^T.
            let mut s_ij = Array2::zeros((rows.len(), keys.len()));
            head.scores((rows.clone(), q_i.view()), (keys.clone(), k_j.view()), s_ij.view_mut());
            // Lines 10 to 13, but for the product.
            update(s_ij.view_mut(), o_i.view_mut(), l_i, m_i);
            // Line 12, the product: s_ij holds the weights now.
            head.accumulate((rows.clone(), s_ij.view()), (keys.clone(), v_j.view()), o_i);
            meter.write(Running::bytes(rows.len(), d_v));
        }
    }
    running
}

/// Lines 10 to 13 of the listing, up to the product `P~ V_j` of line 12 that the caller adds to `o`.
///
/// `s` is `[rows, keys]`, `o` `[rows, d_v]`, `l` and `m` `[rows]`. On return `s` holds
/// `diag(l_new)^-1 e^(m~ - m_new) P~`, and `o` holds `diag(l_new)^-1 diag(l) e^(m - m_new) O`. A row that sees no key of
/// the tile has weights 0 and keeps its o, l and m.
pub fn update(
    mut s: ArrayViewMut2<f32>,
    mut o: ArrayViewMut2<f32>,
    mut l: ArrayViewMut1<f32>,
    mut m: ArrayViewMut1<f32>,
) {
    for (r, mut s) in s.rows_mut().into_iter().enumerate() {
        // Line 10: m~ = rowmax(S), P~ = exp(S - m~), l~ = rowsum(P~).
        let m_tile = s.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        s.mapv_inplace(|s| weight(s, m_tile));
        let l_tile = s.sum();
        if l_tile == 0.0 {
            continue;
        }
        // Line 11: m_new = max(m, m~), l_new = e^(m - m_new) l + e^(m~ - m_new) l~.
        let m_new = m[r].max(m_tile);
        let (old, new) = (weight(m[r], m_new), weight(m_tile, m_new));
        let l_new = old * l[r] + new * l_tile;
        // Line 12: O = diag(l_new)^-1 (diag(l) e^(m - m_new) O + e^(m~ - m_new) P~ V).
        o.row_mut(r).mapv_inplace(|o| l[r] * old / l_new * o);
        s.mapv_inplace(|p| new / l_new * p);
        // Line 13: l = l_new, m = m_new.
        l[r] = l_new;
        m[r] = m_new;
    }
}

/// Line 16, return O, and what the listing leaves out: one more pass over o, l and m applies the sink, takes
/// `lse = m + ln l`, and rounds o to its type.
pub fn finish(head: &Head, running: Running, out: &mut RowsMut, meter: &impl Meter) {
    let Running { o, l, m } = running;
    meter.read(Running::bytes(l.len(), head.d_v()));
    for (i, o_i) in o.rows().into_iter().enumerate() {
        if l[i] == 0.0 {
            out.store(i, o_i, f32::NEG_INFINITY);
        } else {
            out.store(i, (&o_i * sink_factor(head.sink, m[i], l[i])).view(), m[i] + l[i].ln());
        }
    }
    meter.write(head.q.dtype().size() * o.len() + LSE_BYTES * l.len());
    meter.release(Running::bytes(l.len(), head.d_v()));
}
