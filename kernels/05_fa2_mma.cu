// FlashAttention-2 on tensor cores: Algorithm 1 of Dao (arXiv 2307.08691), with the work of section 3.3.
//
// A block of threads has a tile of rows. A warp has 16 or 32 of them from the first key to the last, and exchanges nothing with
// others. Q_i lies in shared memory, and two tiles of K and V in turn: one is worked on, the next is on its way. S, P and O stay
// in registers. Where queries are short, the rows of a tile are those of all heads that share a kv head, and several blocks
// share the keys; `fa2_mma_combine` joins what they find.
//
// Compile-time choices, set by the host: ELEMENT, f16 or bf16; HEAD_DIM, to which q, k and v are padded.
#include "tile/careful.cuh"
#include "tile/mma.cuh"
#include "tile/splits.cuh"

using T = ELEMENT;
constexpr int D = HEAD_DIM;

/// A block of `WARPS` warps, each with `TILES` times 16 rows, that takes `KEYS` keys at a time.
template <int WARPS_, int TILES_, int KEYS_, bool PACKED_ = false> struct Block {
    static constexpr int WARPS = WARPS_, TILES = TILES_, KEYS = KEYS_;
    static constexpr bool PACKED = PACKED_;  // whether its rows are of all heads that share a kv head
    static constexpr int THREADS = WARPS * LANES, ROWS_OF_WARP = 16 * TILES, ROWS = WARPS * ROWS_OF_WARP;
    static constexpr int OWN = 2 * TILES;  // rows of which a lane has numbers
};
using Long = Block<4, D <= 128 ? 2 : 1, D <= 64 ? 128 : D <= 128 ? 64 : 32>;
using Medium = Block<4, 1, D <= 128 ? 64 : 32>;
using Short = Block<4, 1, D <= 128 ? 64 : 32, true>;

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

/// The rest of lines 9 and 10: P~ = exp(S - m), l += rowsum(P~), O += P~ V, 16 keys at a time.
template <class B> __device__ void add_weighted_values(State<B>& state, Scores<B>& s, Halves<D> v, float scale) {
    add_p_v<T, B::KEYS / 8>(state.o, v, [&](int t, int n, unsigned (&a)[4]) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            const int r = 2 * t + x % 2;
            const float low = ex2(fmaf(s.of_row(r, n + x / 2, 0), scale, -state.m[r]));
            const float high = ex2(fmaf(s.of_row(r, n + x / 2, 1), scale, -state.m[r]));
            state.l[r] += low + high;  // before they are rounded
            a[x] = pair_from_f32<T>(low, high);
        }
    });
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
template <class B, int COUNT, class PairAt>
__device__ void put_row(
    const Problem& problem, const Splits& splits, const Place<B>& at, Halves<D> gathered, int row, float m, float l, bool one,
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

/// Lines 12 to 15, for the rows of a warp.
template <class B>
__device__ void finish(
    const Problem& problem, const Splits& splits, const Place<B>& at, State<B>& state, Halves<D> gathered) {
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

template <class B, bool OPTIONS> __device__ void forward(const Problem& problem, const Splits& splits) {
    extern __shared__ __align__(128) unsigned char memory[];
    const Halves<D> q = {shared_address(memory)};
    const auto k = [&](int stage) { return Halves<D>{q.data + (B::ROWS + 2 * stage * B::KEYS) * D * 2}; };
    const auto v = [&](int stage) { return Halves<D>{k(stage).data + B::KEYS * D * 2}; };
    const auto start_to_load = [&](const Head<T>& head, int j0, int stage, Range wanted) {
        start_copy<B::KEYS, B::THREADS>(k(stage), head.k, j0, wanted);
        start_copy<B::KEYS, B::THREADS>(v(stage), head.v, j0, wanted);
        cp_async_commit();
    };

    // What all threads know alike lies in shared memory, for registers are short.
    __shared__ Place<B> at;
    int j0, end;
    bool has_rows;  // this warp
    {
        const Place<B> place(problem, splits.count);
        if (place.row >= place.end_row) return;
        j0 = place.begin, end = place.end, has_rows = place.row + place.of_warp() < place.end_row;
        // Line 4: load Q_i, and the first tile of keys, which takes longer, before it.
        if (j0 < end) {
            start_to_load(place.head, j0, 0, place.any);
            const Range rows = {place.row, place.end_row};
            const Rows<T>& one = place.head.q;
            if constexpr (B::PACKED) {
                const Packed<T> all = {one.data, one.row, one.channel, problem.q.head, one.channels, place.pack()};
                start_copy_of_some<B::THREADS>(q, all, place.row, (place.end_row - place.row + 15) / 16 * 16, rows);
            } else {
                start_copy<B::ROWS, B::THREADS>(q, one, place.row, rows);
            }
            cp_async_commit();
        }
        if (threadIdx.x == 0) at = place;
        if (j0 >= end) __syncthreads();  // else the loop has a barrier before anyone reads it
    }
    // Line 5: O = 0, l = 0, m = -inf, or nearly.
    State<B> state;
    for (float& m : state.m) m = LOWEST;

    const float scale = OPTIONS ? LOG2_E : problem.options.scale * LOG2_E;

    // ANCHOR: stream
    for (int stage = 0; j0 < end; j0 += B::KEYS, stage ^= 1) {  // line 6
        // Line 7: load K_j and V_j, which are on their way already, and send for the next.
        cp_async_wait<0>();
        __syncthreads();  // they are whole for all threads, and the tiles before them have been read by all
        if (j0 + B::KEYS < end) start_to_load(at.head, j0 + B::KEYS, stage ^ 1, {0, at.any.end});

        if (!has_rows) continue;  // it has helped to load
        // Line 8: S = Q_i K_j^T.
        Scores<B> s = {};
        add_q_kt<T>(s, q, at.of_warp(), k(stage));
        if (OPTIONS) apply_options(s, problem, at, j0);
        if (j0 < at.whole.start || j0 > at.whole.end) hide(s, at, j0);
        // Lines 9 and 10.
        move_max(state, s, scale);
        add_weighted_values(state, s, v(stage), scale);
    }
    // ANCHOR_END: stream
    finish(problem, splits, at, state, q);
}

#define KERNEL(NAME, BLOCK, OPTIONS, BLOCKS)                                                                             \
    extern "C" __global__ void __launch_bounds__(BLOCK::THREADS, BLOCKS)                                                 \
        NAME(const __grid_constant__ Problem problem, const __grid_constant__ Splits splits) {                           \
        forward<BLOCK, OPTIONS>(problem, splits);                                                                        \
    }
KERNEL(fa2_mma, Long, false, 2)
KERNEL(fa2_mma_medium, Medium, false, 1)
KERNEL(fa2_mma_options, Medium, true, 1)
KERNEL(fa2_mma_short, Short, false, 1)
KERNEL(fa2_mma_short_options, Short, true, 1)

extern "C" __global__ void __launch_bounds__(COMBINERS* LANES)
    fa2_mma_combine(const __grid_constant__ Problem problem, const __grid_constant__ Splits splits) {
    combine<T, D>(problem, splits);
}
