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

/// Two lanes, of which `odd` has the odd number, exchange: x of this one and y of the other are one lane's afterwards.
__device__ inline void exchange(unsigned& x, unsigned& y, int step) {
    const bool odd = threadIdx.x & step;
    const unsigned got = __shfl_xor_sync(ALL_LANES, odd ? x : y, step);
    (odd ? x : y) = got;
}

/// Of four lanes side by side, lane i gives its j-th number to lane j, and has there then what lane j gave it.
__device__ inline void exchange(unsigned& x0, unsigned& x1, unsigned& x2, unsigned& x3) {
    exchange(x0, x1, 1), exchange(x2, x3, 1);
    exchange(x0, x2, 2), exchange(x1, x3, 2);
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

/// Where queries are short: for the rows of this lane that are `wanted`, a part of O and of l, and m, for `combine`.
template <class B>
__device__ void put_parts(
    const Problem& problem, const Splits& splits, const Place<B>& at, State<B>& state, const float (&l)[B::OWN], unsigned wanted) {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        if (!(wanted >> r & 1)) continue;
        const long long part = place_of_part(problem, at, at.own(r));
#pragma unroll
        for (int c = 0; c < D_V / 8; ++c) {
            float2* to = (float2*)(splits.o + part * D_V + 8 * c + 2 * lane);
            *to = make_float2(state.o.of_row(r, c, 0), state.o.of_row(r, c, 1));
        }
        if (lane == 0) splits.m[part] = state.m[r] * LN_2, splits.l[part] = l[r];
    }
}

/// Lines 12 and 13, for the rows of this lane that are `wanted`: O = diag(l)^-1 O, L = m + ln l. Four lanes have a row: they
/// exchange numbers until each has eight channels side by side.
template <class B>
__device__ void put_rows(const Problem& problem, const Place<B>& at, State<B>& state, const float (&l)[B::OWN], unsigned wanted) {
    const int lane = threadIdx.x % 4;
    const Head<T> head = at.head_of(problem, 0);
    const bool in_chunks = head.o.in_chunks() && head.o.channels == D_V;
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        const int row = at.own(r);
        const bool is_wanted = wanted >> r & 1;
        const float m = state.m[r] * LN_2, factor = final_factor(m, l[r], head.sink);
        if (is_wanted && lane == 0) head.store_lse(row, log_sum_exp(m, l[r]));
        unsigned x[D_V / 8];
#pragma unroll
        for (int c = 0; c < D_V / 8; ++c) {
            x[c] = pair_from_f32<T>(state.o.of_row(r, c, 0) * factor, state.o.of_row(r, c, 1) * factor);
        }
        if (in_chunks) {
            T* to = head.o.at(row) + 8 * lane;
#pragma unroll
            for (int c = 0; c < D_V / 8; c += 4) {
                exchange(x[c], x[c + 1], x[c + 2], x[c + 3]);
                if (is_wanted) store_global(to + 8 * c, make_uint4(x[c], x[c + 1], x[c + 2], x[c + 3]));
            }
        } else if (is_wanted) {
#pragma unroll
            for (int c = 0; c < D_V / 8; ++c) put_pair(head.o, row, 8 * c + 2 * lane, x[c]);
        }
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
    float l[B::OWN];
    unsigned wanted = 0, careful = 0;  // rows of this lane, a bit each
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        l[r] = sum_over<4>(state.l[r]);
        float square = 0.0f;  // of the row; not finite where a number of it is not
#pragma unroll
        for (int c = 0; c < D_V / 4; ++c) {
            const float x = state.o.of_row(r, c / 2, c % 2);
            square = fmaf(x, x, square);
        }
        const float most = LARGEST<T> * l[r];
        const bool is_careful = !(sum_over<4>(square) < most * most) || fabsf(state.m[r]) > FARTHEST;
        const bool is_there = at.own(r) < at.end_row;
        wanted |= (unsigned)(is_there && !is_careful) << r, careful |= (unsigned)(is_there && is_careful) << r;
    }
    if constexpr (B::PACKED) put_parts(problem, splits, at, state, l, wanted);
    else put_rows(problem, at, state, l, wanted);
    if (!__any_sync(ALL_LANES, careful)) return;
#pragma unroll 1
    for (int row = 0; row < B::ROWS_OF_WARP; ++row) {
        const int r = row / 16 * 2 + row / 8 % 2, lane = row % 8 * 4;  // that have numbers of it
        if (__shfl_sync(ALL_LANES, careful >> r & 1, lane)) put_careful_row(problem, splits, at, at.row + at.of_warp() + row);
    }
}
