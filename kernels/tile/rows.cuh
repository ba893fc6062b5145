// Rows of S, P and O in fragments of tensor cores, as the kernels of FlashAttention-2 and FlashAttention-3 have them: which rows
// and keys a block has, options and masks, the online softmax, results.
//
// A warp has tiles of 16 rows, of which a lane has some numbers of two rows each, and exchanges nothing with others. How products
// get there is for each kernel.
//
// Lines are those of Algorithm 1 of FlashAttention-2 (Dao, arXiv 2307.08691).
//
// Compile-time choices, set by the host: ELEMENT, f16 or bf16; HEAD_DIM, to which q and k are padded, and HEAD_DIM_V, to which v is,
// if not to the same.
#pragma once
#include "tile/careful.cuh"
#include "tile/halves.cuh"

using T = ELEMENT;
#ifndef HEAD_DIM_V
#define HEAD_DIM_V HEAD_DIM
#endif
constexpr int D = HEAD_DIM, D_V = HEAD_DIM_V;

/// A block of `WARPS` warps with rows, each with `TILES` times 16 of them, that takes `KEYS` keys at a time: or of as many groups of
/// such warps, which have the same rows, and take tiles of keys in turn.
template <int WARPS_, int TILES_, int KEYS_, bool PACKED_ = false, int GROUPS_ = 1> struct Block {
    static constexpr int WARPS = WARPS_, TILES = TILES_, KEYS = KEYS_, GROUPS = GROUPS_;
    static constexpr bool PACKED = PACKED_;  // whether its rows are of all heads that share a kv head
    static constexpr int THREADS = WARPS * LANES, ROWS_OF_WARP = 16 * TILES, ROWS = WARPS * ROWS_OF_WARP;  // of a group
    static constexpr int OWN = 2 * TILES;  // rows of which a lane has numbers
};

/// What a warp has of 16 `TILES` rows and 8 `N` columns, in registers. Of 16 x 8 numbers a lane has [0] and [1] in row lane / 4,
/// from column 2 (lane % 4) on, and [2] and [3] in the row 8 further down.
template <int TILES, int N> struct Accumulators {
    float x[TILES][N][4];

    /// The e-th number of column tile n in the r-th row of this lane.
    __device__ float& of_row(int r, int n, int e) { return x[r / 2][n][r % 2 * 2 + e]; }
};

// ANCHOR: place
/// Lines 1 to 3: the rows and keys of a block, the same for all of its threads. Row r is row r / pack() of head
/// first_head + r % pack().
template <class B> struct Place {
    int split, group, sequence, first_head;
    int row, end_row;  // rows from `row` to before `end_row`
    Sight sight;
    Range any;         // keys that a row sees at least
    Range whole;       // a tile of keys that begins from its start to its end, this one too, is seen in full by all rows
    int begin, end;    // keys of this block, in tiles

    Place() = default;  // for one in shared memory

    /// Tile `tile` of the rows of the `heads`-th pack of heads, that of sequence 0 first, and the `split_`-th share of its keys.
    __device__ void init(const Problem& problem, int tile, int heads, int split_ = 0, int splits = 1) {
        split = split_, group = problem.group;
        const int packs = problem.heads / pack();
        sequence = heads / packs, first_head = heads % packs * pack();
        const Sequence lengths = problem.sequence(sequence);
        sight = {lengths.q_len, lengths.k_len, problem.options.left, problem.options.right};
        row = tile * B::ROWS, end_row = min(row + B::ROWS, sight.q_len * pack());

        const Range first = visible(row), last = visible(end_row - 1);
        any = {first.start, last.end}, whole = {last.start, first.end - B::KEYS};
        begin = any.start / B::KEYS * B::KEYS, end = any.end;
        if (!B::PACKED) return;
        const int share = ((end - begin + B::KEYS - 1) / B::KEYS + splits - 1) / splits * B::KEYS;
        begin += split * share, end = min(end, begin + share);
    }
    __device__ int pack() const { return B::PACKED ? group : 1; }
    __device__ Head<T> head_of(const Problem& problem, int r) const { return {problem, sequence, first_head + r % pack()}; }
    /// The first row of this thread's warp, counted from `row`.
    __device__ int of_warp() const {
        const int warp = thread_index() / LANES;
        return (B::GROUPS > 1 ? warp % B::WARPS : warp) * B::ROWS_OF_WARP;
    }
    /// The r-th row of which this lane has numbers.
    __device__ int own(int r) const { return row + of_warp() + r / 2 * 16 + r % 2 * 8 + thread_index() % LANES / 4; }
    /// The keys that row r sees; of a row behind the last, those of the last.
    __device__ Range visible(int r) const { return sight.visible(min(r / pack(), sight.q_len - 1)); }
};
// ANCHOR_END: place

constexpr float LN_2 = 0.6931471805599453f;

/// m before any score, and finite: what it takes from a score of -inf is -inf. A row that ends with it has seen no key, or only
/// scores that are less, and is computed with care.
constexpr float LOWEST = -0x1.fffffep127f;

/// What a warp knows of its rows. A lane has its share of their numbers of O, its share of l, and m times log2(e).
template <class B> struct State {
    Accumulators<B::TILES, D_V / 8> o = {};
    float m[B::OWN], l[B::OWN] = {};
};

template <class B> using Scores = Accumulators<B::TILES, B::KEYS / 8>;

/// Scores as the options make them.
template <class B> __device__ void apply_options(Scores<B>& s, const Problem& problem, const Place<B>& at, int j0) {
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        const int row = min(at.own(r), at.end_row - 1), i = row / at.pack();
        const Head<T> head = at.head_of(problem, row);
        const float* bias = head.bias ? head.bias + i * head.bias_row : nullptr;
        const int distance = i + head.k.len - head.q.len - j0;
#pragma unroll
        for (int n = 0; n < B::KEYS / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int j = n * 8 + threadIdx.x % 4 * 2 + e;
                float& x = s.of_row(r, n, e);
                x = isfinite(x) ? x * head.scale : x * 0.0f;  // NaN, for `careful_row` to see
                if (head.softcap > 0.0f) x = head.softcap * tanhf(x / head.softcap);
                x -= head.slope * abs(distance - j);
                if (bias && j0 + j < head.k.len) {
                    const float b = bias[(j0 + j) * head.bias_key];
                    x = b == NEG_INFINITY ? b : x + b;
                }
            }
        }
    }
}

/// Of the keys of a tile that this lane has numbers of, two of eight, those before key `end` of it: a bit each.
template <class B> __device__ unsigned bits_before(int end) {
    const int inside = max(0, min(B::KEYS, end)), rest = inside % 8 - threadIdx.x % 4 * 2;
    return (1ull << (inside / 8 * 2 + max(0, min(2, rest)))) - 1;
}

/// -inf for keys that a row does not see.
template <class B> __device__ void hide(Scores<B>& s, const Place<B>& at, int j0) {
    static_assert(B::KEYS / 4 <= 32, "a lane's keys are the bits of a number");
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        const Range keys = at.visible(at.own(r));
        const unsigned seen = bits_before<B>(keys.end - j0) & ~bits_before<B>(keys.start - j0);
#pragma unroll
        for (int x = 0; x < B::KEYS / 4; ++x) {
            float& score = s.of_row(r, x / 2, x % 2);
            score = seen >> x & 1 ? score : NEG_INFINITY;
        }
    }
}

/// m may stay behind the largest score by this much, in powers of two, before O is rescaled. A weight of 2^8 is no less precise
/// than one of 1.
constexpr float SLACK = 8.0f;

// ANCHOR: softmax
/// Line 9, and of line 10 what is not O: m_new = max(m, rowmax(S)), l = e^(m - m_new) l. `rescale` is what O is to be multiplied
/// by; whether one of the warp's is not 1. `scale` is of the scores, and makes e^x a power of two.
template <class B>
__device__ bool move_max(State<B>& state, Scores<B>& s, float scale, float (&rescale)[B::OWN]) {
    bool moved = false;
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        float most = NEG_INFINITY;
#pragma unroll
        for (int n = 0; n < B::KEYS / 8; ++n) most = fmaxf(most, fmaxf(s.of_row(r, n, 0), s.of_row(r, n, 1)));
        most = max_over<4>(most) * scale;
        const float m_new = most - state.m[r] > SLACK ? most : state.m[r];
        moved |= m_new != state.m[r];
        rescale[r] = ex2(state.m[r] - m_new);
        state.m[r] = m_new, state.l[r] *= rescale[r];
    }
    return __any_sync(ALL_LANES, moved);
}

/// The first half of line 10: O = diag(e^(m - m_new)) O.
template <class B> __device__ void rescale_o(State<B>& state, const float (&rescale)[B::OWN]) {
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
#pragma unroll
        for (int c = 0; c < D_V / 8; ++c) state.o.of_row(r, c, 0) *= rescale[r], state.o.of_row(r, c, 1) *= rescale[r];
    }
}

/// The rest of line 9, and what of line 10 needs no product, for two neighbouring keys, those of column tile n, and the r-th row of
/// this lane: P~ = exp(S - m), l += rowsum(P~) before they are rounded.
template <class B> __device__ float2 two_weights(State<B>& state, Scores<B>& s, int r, int n, float scale) {
    const float low = ex2(fmaf(s.of_row(r, n, 0), scale, -state.m[r]));
    const float high = ex2(fmaf(s.of_row(r, n, 1), scale, -state.m[r]));
    state.l[r] += low + high;
    return {low, high};
}

/// Weights of 16 rows, those of tile t, and of 16 keys from 8 n on, as A of the product with V.
template <class B>
__device__ void weights(State<B>& state, Scores<B>& s, int t, int n, float scale, unsigned (&a)[4]) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
        const float2 p = two_weights(state, s, 2 * t + x % 2, n + x / 2, scale);
        a[x] = pair_from_f32<T>(p.x, p.y);
    }
}
// ANCHOR_END: softmax

/// All weights, in place of S: for who has no room for P~ beside another one.
template <class B> __device__ void exponentiate(State<B>& state, Scores<B>& s, float scale) {
#pragma unroll
    for (int n = 0; n < B::KEYS / 8; ++n) {
#pragma unroll
        for (int r = 0; r < B::OWN; ++r) {
            const float2 p = two_weights(state, s, r, n, scale);
            s.of_row(r, n, 0) = p.x, s.of_row(r, n, 1) = p.y;
        }
    }
}

/// These as A of the product with V.
template <class B> __device__ void pack(unsigned (&p)[B::KEYS / 16][4], Scores<B>& s) {
#pragma unroll
    for (int n = 0; n < B::KEYS / 8; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r) p[n / 2][n % 2 * 2 + r] = pair_from_f32<T>(s.of_row(r, n, 0), s.of_row(r, n, 1));
    }
}
