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

/// Joins what the blocks have left of a row: O = sum_s e^(m_s - m) O_s / sum_s e^(m_s - m) l_s with m the largest m_s.
/// A block does it for one row: row i of head h of sequence b if its number is (b heads + h) q_len + i.
template <class T, int D> __device__ void combine(const Problem& problem, const Splits& splits) {
    __shared__ float sums[COMBINERS][D];
    const unsigned heads = blockIdx.x / problem.q_len;
    const int i = blockIdx.x % problem.q_len, lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const Head<T> head(problem, heads / problem.heads, heads % problem.heads);
    if (i >= head.q.len) return;
    const long long rows = (long long)problem.batch * problem.heads * problem.q_len;

    float m = NEG_INFINITY, l = 0.0f;
    for (int s = lane; s < splits.count; s += LANES) m = fmaxf(m, splits.m[s * rows + blockIdx.x]);
    m = max_over<LANES>(m);
    for (int s = lane; s < splits.count; s += LANES) {
        l += weight(splits.m[s * rows + blockIdx.x], m) * splits.l[s * rows + blockIdx.x];
    }
    l = sum_over<LANES>(l);

    constexpr int PAIRS = (D + 2 * LANES - 1) / (2 * LANES);
    float o[PAIRS][2] = {};
#pragma unroll 4
    for (int s = warp; s < splits.count; s += COMBINERS) {
        const long long row = s * rows + blockIdx.x;
        const float share = weight(splits.m[row], m);
        for (int x = 0; x < PAIRS; ++x) {
            const int c = 2 * (lane + x * LANES);
            const float2 pair = c < D ? *(const float2*)(splits.o + row * D + c) : float2{};
            o[x][0] = add_weighted(o[x][0], share, pair.x), o[x][1] = add_weighted(o[x][1], share, pair.y);
        }
    }
    for (int x = 0; x < PAIRS; ++x) {
        const int c = 2 * (lane + x * LANES);
        if (c < D) sums[warp][c] = o[x][0], sums[warp][c + 1] = o[x][1];
    }
    __syncthreads();  // the sums of all warps are there
    const float factor = final_factor(m, l, head.sink);
    for (int c = threadIdx.x; c < problem.d_v; c += COMBINERS * LANES) {
        float sum = 0.0f;
        for (int w = 0; w < COMBINERS; ++w) sum += sums[w][c];
        head.o(i, c) = from_f32<T>(sum * factor);
    }
    if (threadIdx.x == 0) head.store_lse(i, log_sum_exp(m, l));
}
// ANCHOR_END: combine
