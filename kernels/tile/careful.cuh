// One row again, straight from the definition: for the few whose numbers fast arithmetic cannot hold.
#pragma once
#include "tile/softmax.cuh"

/// What a warp finds of a row: m, l, and O without its last division, of which a lane has channels 2 lane and 2 lane + 1, then
/// those 64 further, and so on.
template <int CHANNELS> struct CarefulRow {
    static constexpr int PAIRS = (CHANNELS + 2 * LANES - 1) / (2 * LANES);
    float m, l, o[PAIRS][2];
};

/// Row `i` over `keys`, all of which the mask lets it see, if any. Scores are those of [`Head::visible_score`], also where q . k
/// overflows, s - m comes before any factor, and a weight of 0 adds nothing, whatever its value is.
template <int CHANNELS, class T> __device__ CarefulRow<CHANNELS> careful_row(const Head<T>& head, int i, Range keys) {
    const int lane = threadIdx.x % LANES;
    CarefulRow<CHANNELS> row = {NEG_INFINITY};
#pragma unroll 1
    for (int j0 = keys.start; j0 < keys.end; j0 += LANES) {
        const int j = j0 + lane;
        float s = NEG_INFINITY;
        if (j < keys.end && !head.bias_hides(i, j)) {
            float dot = 0.0f;
#pragma unroll 1
            for (int c = 0; c < head.q.channels; ++c) dot = fmaf(to_f32(head.q(i, c)), to_f32(head.k(j, c)), dot);
            s = head.visible_score(dot, i, j);
        }
        const float m = fmaxf(row.m, max_over<LANES>(s)), rescale = weight(row.m, m), p = weight(s, m);
        if (!__any_sync(ALL_LANES, p != 0.0f)) continue;  // m is what it was
        row.m = m, row.l = row.l * rescale + sum_over<LANES>(p);
        for (auto& pair : row.o) pair[0] *= rescale, pair[1] *= rescale;
#pragma unroll 1
        for (int n = 0; n < min(LANES, keys.end - j0); ++n) {
            const float p_n = __shfl_sync(ALL_LANES, p, n);
            for (int x = 0; x < 2 * row.PAIRS; ++x) {
                float& o = row.o[x / 2][x % 2];
                o = add_weighted(o, p_n, head.v.get(j0 + n, 2 * (lane + x / 2 * LANES) + x % 2));
            }
        }
    }
    return row;
}
