// Rows of S, P and O in fragments of tensor cores, as the kernels of FlashAttention-2 and FlashAttention-3 have them: which rows
// and keys a block has, options and masks, the online softmax, results.
//
// A warp has tiles of 16 rows, of which a lane has some numbers of two rows each, and exchanges nothing with others. How products
// get there is for each kernel.
//
// Lines are those of Algorithm 1 of FlashAttention-2 (Dao, arXiv 2307.08691).
//
// Compile-time choices, set by the host: ELEMENT, f16 or bf16; HEAD_DIM, to which q, k and v are padded.
#pragma once
#include "tile/careful.cuh"
#include "tile/halves.cuh"
#include "tile/splits.cuh"

using T = ELEMENT;
constexpr int D = HEAD_DIM;

/// A block of `WARPS` warps with rows, each with `TILES` times 16 of them, that takes `KEYS` keys at a time.
template <int WARPS_, int TILES_, int KEYS_, bool PACKED_ = false> struct Block {
    static constexpr int WARPS = WARPS_, TILES = TILES_, KEYS = KEYS_;
    static constexpr bool PACKED = PACKED_;  // whether its rows are of all heads that share a kv head
    static constexpr int THREADS = WARPS * LANES, ROWS_OF_WARP = 16 * TILES, ROWS = WARPS * ROWS_OF_WARP;
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
    Head<T> head;      // the first
    Range any;         // keys that a row sees at least
    Range whole;       // a tile of keys that begins from its start to its end, this one too, is seen in full by all rows
    int begin, end;    // keys of this block, in tiles

    Place() = default;  // for one in shared memory

    __device__ Place(const Problem& problem, int splits) : split(0), group(problem.group) {
        unsigned block = blockIdx.x;
        if (B::PACKED) split = block % splits, block /= splits;
        // The last tiles of rows come first: under a causal mask they have the most keys.
        row = (problem.row_tiles - 1 - block % problem.row_tiles) * B::ROWS, block /= problem.row_tiles;
        const unsigned heads = problem.heads / pack();
        sequence = block / heads, first_head = block % heads * pack();
        head = head_of(problem, 0);
        end_row = min(row + B::ROWS, head.q.len * pack());

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
    __device__ int of_warp() const { return thread_index() / LANES * B::ROWS_OF_WARP; }
    /// The r-th row of which this lane has numbers.
    __device__ int own(int r) const { return row + of_warp() + r / 2 * 16 + r % 2 * 8 + thread_index() % LANES / 4; }
    /// The keys that row r sees; of a row behind the last, those of the last.
    __device__ Range visible(int r) const { return head.visible(min(r / pack(), head.q.len - 1)); }
};
// ANCHOR_END: place

constexpr float LN_2 = 0.6931471805599453f;

/// m before any score, and finite: what it takes from a score of -inf is -inf. A row that ends with it has seen no key, or only
/// scores that are less, and is computed with care.
constexpr float LOWEST = -0x1.fffffep127f;

/// What a warp knows of its rows. A lane has its share of their numbers of O, its share of l, and m times log2(e).
template <class B> struct State {
    Accumulators<B::TILES, D / 8> o = {};
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

/// -inf for keys that a row does not see.
template <class B> __device__ void hide(Scores<B>& s, const Place<B>& at, int j0) {
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        const Range keys = at.visible(at.own(r));
#pragma unroll
        for (int n = 0; n < B::KEYS / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int j = j0 + n * 8 + threadIdx.x % 4 * 2 + e;
                if (j < keys.start || j >= keys.end) s.of_row(r, n, e) = NEG_INFINITY;
            }
        }
    }
}

/// m may stay behind the largest score by this much, in powers of two, before O is rescaled. A weight of 2^8 is no less precise
/// than one of 1.
constexpr float SLACK = 8.0f;

// ANCHOR: softmax
/// Line 9, and the first half of line 10: m_new = max(m, rowmax(S)), l = e^(m - m_new) l, O = diag(e^(m - m_new)) O; nothing
/// where no m has moved. `scale` is of the scores, and makes e^x a power of two.
template <class B> __device__ void move_max(State<B>& state, Scores<B>& s, float scale) {
    float m_new[B::OWN];
    bool moved = false;
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        float most = NEG_INFINITY;
#pragma unroll
        for (int n = 0; n < B::KEYS / 8; ++n) most = fmaxf(most, fmaxf(s.of_row(r, n, 0), s.of_row(r, n, 1)));
        most = max_over<4>(most) * scale;
        m_new[r] = most - state.m[r] > SLACK ? most : state.m[r];
        moved |= m_new[r] != state.m[r];
    }
    if (!__any_sync(ALL_LANES, moved)) return;
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        const float rescale = ex2(state.m[r] - m_new[r]);
        state.m[r] = m_new[r], state.l[r] *= rescale;
#pragma unroll
        for (int c = 0; c < D / 8; ++c) state.o.of_row(r, c, 0) *= rescale, state.o.of_row(r, c, 1) *= rescale;
    }
}

/// The rest of line 9, and what of line 10 needs no product: P~ = exp(S - m), l += rowsum(P~). Of 16 rows, those of tile t, and of
/// 16 keys from 8 n on, as A of the product with V.
template <class B>
__device__ void weights(State<B>& state, Scores<B>& s, int t, int n, float scale, unsigned (&a)[4]) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
        const int r = 2 * t + x % 2;
        const float low = ex2(fmaf(s.of_row(r, n + x / 2, 0), scale, -state.m[r]));
        const float high = ex2(fmaf(s.of_row(r, n + x / 2, 1), scale, -state.m[r]));
        state.l[r] += low + high;  // before they are rounded
        a[x] = pair_from_f32<T>(low, high);
    }
}
// ANCHOR_END: softmax

/// Beyond this a score times log2(e), rounded, is off by enough to be seen in a weight. A row of such scores is computed with
/// care. So is one of numbers that are not finite, or so large that rounded weights might take a mean of values beyond them.
constexpr float FARTHEST = 0x1p12f;
static_assert(-LOWEST > FARTHEST);

/// Channels c and c + 1 of a row of O.
struct Pair {
    int c;
    float low, high;
};

/// Writes a row: O and lse, or what `fa2_mma_combine` makes them of. Lanes have `COUNT` pairs of channels each, and `one` of them
/// writes the rest. Rows of O gather in shared memory, to be written in whole chunks.
template <class B, int COUNT, class Matrix, class PairAt>
__device__ void put_row(
    const Problem& problem, const Splits& splits, const Place<B>& at, Matrix gathered, int row, float m, float l, bool one,
    PairAt pair_at) {
    if constexpr (B::PACKED) {
        const long long heads = (long long)at.split * problem.batch + at.sequence;
        const long long index = (heads * problem.heads + at.first_head + row % at.pack()) * problem.q_len + row / at.pack();
#pragma unroll
        for (int x = 0; x < COUNT; ++x) {
            const Pair pair = pair_at(x);
            if (pair.c < D) *(float2*)(splits.o + index * D + pair.c) = make_float2(pair.low, pair.high);
        }
        if (one) splits.m[index] = m, splits.l[index] = l;
    } else {
        // Lines 12 and 13: O = diag(l)^-1 O, L = m + ln l.
        const float factor = final_factor(m, l, at.head.sink);
#pragma unroll
        for (int x = 0; x < COUNT; ++x) {
            const Pair pair = pair_at(x);
            const unsigned to = gathered.chunk(row - at.row, pair.c / CHUNK) + pair.c % CHUNK * sizeof(T);
            if (pair.c < D) store_shared(to, pair_from_f32<T>(pair.low * factor, pair.high * factor));
        }
        if (one) at.head.store_lse(row, log_sum_exp(m, l));
    }
}

/// Lines 12 to 15, for the rows of a warp. `splits` are asked for where rows of several heads are packed.
template <class B, class Matrix>
__device__ void finish(
    const Problem& problem, const Place<B>& at, State<B>& state, Matrix gathered, const Splits& splits = {}) {
    const int lane = threadIdx.x % LANES;
    unsigned again = 0;  // rows of the warp that are to be computed with care
    __syncwarp();        // no lane reads rows of Q any more: rows of O take their place
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        const float l = sum_over<4>(state.l[r]), m = state.m[r] * LN_2;
        float square = 0.0f;  // of the row; not finite where a number of it is not
#pragma unroll
        for (int c = 0; c < D / 4; ++c) {
            const float x = state.o.of_row(r, c / 2, c % 2);
            square = fmaf(x, x, square);
        }
        const float most = LARGEST<T> * l;
        const bool careful = !(sum_over<4>(square) < most * most) || fabsf(state.m[r]) > FARTHEST;
        for (unsigned rows = __ballot_sync(ALL_LANES, careful && lane % 4 == 0); rows; rows &= rows - 1) {
            again |= 1u << (r / 2 * 16 + r % 2 * 8 + (__ffs(rows) - 1) / 4);
        }
        if (careful || at.own(r) >= at.end_row) continue;
        put_row<B, D / 8>(problem, splits, at, gathered, at.own(r), m, l, lane % 4 == 0, [&](int c) {
            return Pair{8 * c + lane % 4 * 2, state.o.of_row(r, c, 0), state.o.of_row(r, c, 1)};
        });
    }
#pragma unroll 1
    for (; again; again &= again - 1) {
        const int row = at.row + at.of_warp() + __ffs(again) - 1;
        if (row >= at.end_row) continue;
        const Range seen = at.visible(row), here = {max(seen.start, at.begin), min(seen.end, at.end)};
        const CarefulRow<D> found = careful_row<D>(at.head_of(problem, row), row / at.pack(), here);
        put_row<B, found.PAIRS>(problem, splits, at, gathered, row, found.m, found.l, lane == 0, [&](int x) {
            return Pair{2 * (lane + x * LANES), found.o[x][0], found.o[x][1]};
        });
    }
    if constexpr (!B::PACKED) {
        __syncwarp();  // the rows of the warp are whole
        copy_back<B::ROWS_OF_WARP>(at.head.o, gathered, at.of_warp(), at.row + at.of_warp(), at.end_row);
    }
}
