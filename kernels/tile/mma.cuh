// Products of matrices on tensor cores, for the rows of a warp: the two of attention.
#pragma once
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "tile/rows.cuh"

// ANCHOR: s
/// S += Q K^T, for rows of Q from `row` on and as many rows of K as S has columns.
template <class T, int TILES, int N, int D>
__device__ void add_q_kt(Accumulators<TILES, N>& s, Halves<D> q, int row, Halves<D> k) {
    // The chunks whose addresses a lane gives: four matrices of Q are A, and four of K are B for 16 keys.
    const int lane = thread_index() % LANES;
    const unsigned q_at = q.chunk(row + lane % 16, lane / 16), k_at = k.chunk(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int c = 0; c < D / CHUNK; c += 2) {  // 16 channels at a time
        unsigned a[TILES][4];
#pragma unroll
        for (int t = 0; t < TILES; ++t) ldmatrix_x4(a[t], q.beyond(q_at, 16 * t, c));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            unsigned b[4];
            ldmatrix_x4(b, k.beyond(k_at, 8 * n, c));
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                mma_m16n8k16<T>(s.x[t][n], a[t], b[0], b[1]);
                mma_m16n8k16<T>(s.x[t][n + 1], a[t], b[2], b[3]);
            }
        }
    }
}
// ANCHOR_END: s

// ANCHOR: o
/// O += P V. `weights(t, n, a)` gives P as A: 16 rows of tile t, 16 keys from 8 n on.
template <class T, int N, int TILES, int D, class Weights>
__device__ void add_p_v(Accumulators<TILES, D / 8>& o, Halves<D> v, Weights weights) {
    // Rows of V are keys, B wants them as columns: transposed on the way.
    const int lane = thread_index() % LANES;
    const unsigned v_at = v.chunk(lane % 16, lane / 16);
#pragma unroll
    for (int n = 0; n < N; n += 2) {  // 16 keys at a time
        unsigned a[TILES][4];
#pragma unroll
        for (int t = 0; t < TILES; ++t) weights(t, n, a[t]);
#pragma unroll
        for (int c = 0; c < D / CHUNK; c += 2) {
            unsigned b[4];
            ldmatrix_x4_trans(b, v.beyond(v_at, 8 * n, c));
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                mma_m16n8k16<T>(o.x[t][c], a[t], b[0], b[1]);
                mma_m16n8k16<T>(o.x[t][c + 1], a[t], b[2], b[3]);
            }
        }
    }
}
// ANCHOR_END: o
