// What a warp leaves of its rows: O and lse, or where blocks share the keys of a row, its part of them.
//
// Lines are those of Algorithm 1 of FlashAttention-2 (Dao, arXiv 2307.08691).
#pragma once
#include "ptx/global.cuh"
#include "tile/rows.cuh"
#include "tile/splits.cuh"

/// Beyond this a score times log2(e), rounded, is off by enough to be seen in a weight. A row of such scores is computed with
/// care. So is one of numbers that are not finite, or so large that rounded weights might take a mean of values beyond them.
constexpr float FARTHEST = 0x1p12f;
static_assert(-LOWEST > FARTHEST);

/// Of four lanes side by side, lane i gives its x[j] to lane j, and has in x[j] then what lane j gave it.
__device__ inline void exchange(unsigned (&x)[4]) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const bool odd = threadIdx.x & step;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & step) continue;
            const unsigned got = __shfl_xor_sync(ALL_LANES, odd ? x[i] : x[i + step], step);
            x[i] = odd ? got : x[i], x[i + step] = odd ? x[i + step] : got;
        }
    }
}

/// Writes two neighbouring channels of a row, those that there are.
template <class T> __device__ void put_pair(const Rows<T>& o, int row, int c, unsigned pair) {
    if (c < o.channels) o(row, c) = T{(unsigned short)pair};
    if (c + 1 < o.channels) o(row, c + 1) = T{(unsigned short)(pair >> 16)};
}

/// Where a block that shares the keys of its rows leaves its part of row r, for `combine`.
template <class B> __device__ long long place_of_part(const Problem& problem, const Place<B>& at, int r) {
    const long long heads = (long long)at.split * problem.batch + at.sequence;
    return (heads * problem.heads + at.first_head + r % at.pack()) * problem.q_len + r / at.pack();
}

/// Lines 12 and 13, for the r-th row of this lane, if it is `wanted`: O = diag(l)^-1 O, L = m + ln l. Four lanes have a row: they
/// exchange numbers until each has eight channels side by side.
template <class B>
__device__ void put_own_row(
    const Problem& problem, const Splits& splits, const Place<B>& at, State<B>& state, int r, float m, float l, bool wanted) {
    const int lane = threadIdx.x % 4, row = at.own(r);
    if constexpr (B::PACKED) {
        const long long part = place_of_part(problem, at, row);
#pragma unroll
        for (int c = 0; c < D_V / 8; ++c) {
            float2* to = (float2*)(splits.o + part * D_V + 8 * c + 2 * lane);
            if (wanted) *to = make_float2(state.o.of_row(r, c, 0), state.o.of_row(r, c, 1));
        }
        if (wanted && lane == 0) splits.m[part] = m, splits.l[part] = l;
    } else {
        const Head<T> head = at.head_of(problem, 0);
        const bool in_chunks = head.o.in_chunks() && head.o.channels == D_V;
        const float factor = final_factor(m, l, head.sink);
#pragma unroll
        for (int c = 0; c < D_V / 8; c += 4) {
            unsigned x[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                x[i] = pair_from_f32<T>(state.o.of_row(r, c + i, 0) * factor, state.o.of_row(r, c + i, 1) * factor);
            }
            if (in_chunks) {
                exchange(x);
                if (wanted) store_global(head.o.at(row) + 8 * (c + lane), make_uint4(x[0], x[1], x[2], x[3]));
            } else if (wanted) {
                for (int i = 0; i < 4; ++i) put_pair(head.o, row, 8 * (c + i) + 2 * lane, x[i]);
            }
        }
        if (wanted && lane == 0) head.store_lse(row, log_sum_exp(m, l));
    }
}

/// Computes a row again, with care, by the whole warp.
template <class B>
__device__ void put_careful_row(const Problem& problem, const Splits& splits, const Place<B>& at, int row) {
    const int lane = threadIdx.x % LANES;
    const Range seen = at.visible(row), here = {max(seen.start, at.begin), min(seen.end, at.end)};
    const Head<T> head = at.head_of(problem, row);
    const CarefulRow<D_V> found = careful_row<D_V>(head, row / at.pack(), here);
    const long long part = B::PACKED ? place_of_part(problem, at, row) : 0;
    const float factor = final_factor(found.m, found.l, head.sink);
    for (int x = 0; x < found.PAIRS; ++x) {
        const int c = 2 * (lane + x * LANES);
        const float low = found.o[x][0], high = found.o[x][1];
        if (!B::PACKED) put_pair(head.o, row, c, pair_from_f32<T>(low * factor, high * factor));
        else if (c < D_V) *(float2*)(splits.o + part * D_V + c) = make_float2(low, high);
    }
    if (lane != 0) return;
    if (!B::PACKED) head.store_lse(row, log_sum_exp(found.m, found.l));
    else splits.m[part] = found.m, splits.l[part] = found.l;
}

/// Lines 12 to 15, for the rows of a warp. `splits` are asked for where rows of several heads are packed.
template <class B>
__device__ void finish(const Problem& problem, const Place<B>& at, State<B>& state, const Splits& splits = {}) {
    unsigned again = 0;  // rows of the warp that are to be computed with care
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        const float l = sum_over<4>(state.l[r]);
        float square = 0.0f;  // of the row; not finite where a number of it is not
#pragma unroll
        for (int c = 0; c < D_V / 4; ++c) {
            const float x = state.o.of_row(r, c / 2, c % 2);
            square = fmaf(x, x, square);
        }
        const float most = LARGEST<T> * l;
        const bool careful = !(sum_over<4>(square) < most * most) || fabsf(state.m[r]) > FARTHEST;
        for (unsigned rows = __ballot_sync(ALL_LANES, careful && threadIdx.x % 4 == 0); rows; rows &= rows - 1) {
            again |= 1u << (r / 2 * 16 + r % 2 * 8 + (__ffs(rows) - 1) / 4);
        }
        put_own_row(problem, splits, at, state, r, state.m[r] * LN_2, l, !careful && at.own(r) < at.end_row);
    }
#pragma unroll 1
    for (; again; again &= again - 1) {
        const int row = at.row + at.of_warp() + __ffs(again) - 1;
        if (row < at.end_row) put_careful_row(problem, splits, at, row);
    }
}
