// The online softmax of one row, and reductions over the lanes that share a row.
#pragma once
#include "ptx/ex2.cuh"
#include "ptx/special.cuh"
#include "tile/problem.cuh"

constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;

/// The weight e^(s - m) of a score against a reference no smaller than it; 0 for a score of -inf.
///
/// The difference comes before the factor log2(e): s = m gives 1 exactly, however large they are. With every score -inf so
/// far m is -inf too, and s - m would be NaN; a NaN score stays NaN.
__device__ inline float weight(float s, float m) { return ex2((s - (m == NEG_INFINITY ? 0.0f : m)) * LOG2_E); }

// ANCHOR: max_over
/// The largest x of `SHARE` neighbouring lanes, a power of two. A NaN is left out.
template <int SHARE> __device__ float max_over(float x) {
    for (int step = SHARE / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}
// ANCHOR_END: max_over

/// The sum of x over `SHARE` neighbouring lanes, in the same order in each.
template <int SHARE> __device__ float sum_over(float x) {
    for (int step = SHARE / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

/// What o is multiplied by at the end, 1 / l with the share of a sink in it, for a row of largest score m and sum of
/// weights l; 0 for a row that saw no key. No sink is -inf.
__device__ inline float final_factor(float m, float l, float sink) {
    return l == 0.0f ? 0.0f : __fdividef(1.0f, l + (sink == NEG_INFINITY ? 0.0f : expf(sink - m)));
}

/// ln sum_j e^(s_j), without the sink; -inf for a row that saw no key.
__device__ inline float log_sum_exp(float m, float l) { return l == 0.0f ? NEG_INFINITY : m + logf(l); }

/// o + p v. A hidden key has weight 0, but 0 * NaN is NaN, and what a row must not see may hold anything: it adds nothing.
__device__ inline float add_weighted(float o, float p, float v) { return p == 0.0f ? o : fmaf(p, v, o); }
