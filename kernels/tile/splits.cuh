// Rows whose keys are shared by several blocks, and how their parts become one.
#pragma once
#include "tile/softmax.cuh"

/// What blocks that share the keys of a row leave of it: for each, O without its last division, m and l.
struct Splits {
    float *o, *m, *l;  // [count, batch, heads, longest q_len, HEAD_DIM], and without channels
    int count;
};

// ANCHOR: combine
constexpr int COMBINERS = 8;  // warps that share the splits of a row
constexpr int FLIGHT = 4;     // splits of a warp that are loaded at once

/// Joins what the blocks have left of a row, by the rule of the online softmax: O = sum_s e^(m_s - m) O_s and l likewise, with
/// m the largest m_s. A warp does it for its share of the splits, then all for what the warps have found. A block has one row,
/// row i of head h of sequence b if its number is (b heads + h) q_len + i.
template <class T, int D> __device__ void combine(const Problem& problem, const Splits& splits) {
    __shared__ float of_warps[COMBINERS][D], m_of_warps[COMBINERS], l_of_warps[COMBINERS];
    const unsigned heads = blockIdx.x / problem.q_len;
    const int i = blockIdx.x % problem.q_len, lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const Head<T> head(problem, heads / problem.heads, heads % problem.heads);
    if (i >= head.q.len) return;
    const long long rows = (long long)problem.batch * problem.heads * problem.q_len;

    constexpr int PAIRS = (D + 2 * LANES - 1) / (2 * LANES);
    float m = NEG_INFINITY, l = 0.0f;
    float2 o[PAIRS] = {};
    for (int first = warp; first < splits.count; first += COMBINERS * FLIGHT) {
        float m_of[FLIGHT], l_of[FLIGHT], m_new = m;
        float2 o_of[FLIGHT][PAIRS] = {};
#pragma unroll
        for (int f = 0; f < FLIGHT; ++f) {
            const int split = first + f * COMBINERS;
            const long long row = split * rows + blockIdx.x;
            m_of[f] = split < splits.count ? splits.m[row] : NEG_INFINITY, l_of[f] = split < splits.count ? splits.l[row] : 0.0f;
            for (int x = 0; x < PAIRS; ++x) {
                const int c = 2 * (lane + x * LANES);
                if (split < splits.count && c < D) o_of[f][x] = *(const float2*)(splits.o + row * D + c);
            }
        }
#pragma unroll
        for (int f = 0; f < FLIGHT; ++f) m_new = fmaxf(m_new, m_of[f]);
        const float rescale = weight(m, m_new);
        m = m_new, l *= rescale;
        for (float2& pair : o) pair.x *= rescale, pair.y *= rescale;
#pragma unroll
        for (int f = 0; f < FLIGHT; ++f) {
            const float share = weight(m_of[f], m);
            l += share * l_of[f];
            for (int x = 0; x < PAIRS; ++x) {
                o[x].x = add_weighted(o[x].x, share, o_of[f][x].x), o[x].y = add_weighted(o[x].y, share, o_of[f][x].y);
            }
        }
    }
    for (int x = 0; x < PAIRS; ++x) {
        const int c = 2 * (lane + x * LANES);
        if (c < D) of_warps[warp][c] = o[x].x, of_warps[warp][c + 1] = o[x].y;
    }
    if (lane == 0) m_of_warps[warp] = m, l_of_warps[warp] = l;
    __syncthreads();  // what all warps have found is there

    m = NEG_INFINITY, l = 0.0f;
    float share[COMBINERS];
    for (float m_of : m_of_warps) m = fmaxf(m, m_of);
    for (int w = 0; w < COMBINERS; ++w) share[w] = weight(m_of_warps[w], m), l += share[w] * l_of_warps[w];
    const float factor = final_factor(m, l, head.sink);
    for (int c = threadIdx.x; c < problem.d_v; c += COMBINERS * LANES) {
        float sum = 0.0f;
        for (int w = 0; w < COMBINERS; ++w) sum = add_weighted(sum, share[w], of_warps[w][c]);
        head.o(i, c) = from_f32<T>(sum * factor);
    }
    if (threadIdx.x == 0) head.store_lse(i, log_sum_exp(m, l));
}
// ANCHOR_END: combine
