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
using Long = Block<4, D <= 128 ? 2 : 1, D <= 64 ? 128 : D <= 96 ? 64 : D <= 128 ? 48 : 32>;
using Medium = Block<4, 1, D <= 128 ? 64 : 32>;
using Short = Block<1, 1, D <= 128 ? 64 : 32, true>;

// ANCHOR: place
/// Lines 1 to 3: the rows and keys of a block.
template <class B> struct Place {
    int split = 0, pack = 1, sequence, first_head;
    int row, end_row;  // row r is row r / pack of head first_head + r % pack

    __device__ Place(const Problem& problem, int splits) {
        unsigned block = block_index();
        if (B::PACKED) pack = problem.group, split = block % splits, block /= splits;
        // The last tiles of rows come first: under a causal mask they have the most keys.
        row = (problem.row_tiles - 1 - block % problem.row_tiles) * B::ROWS, block /= problem.row_tiles;
        const unsigned heads = problem.heads / pack;
        first_head = block % heads * pack, sequence = block / heads;
        end_row = min(row + B::ROWS, problem.sequence(sequence).q_len * pack);
    }
    __device__ Head<T> head(const Problem& problem, int r = 0) const { return {problem, sequence, first_head + r % pack}; }
    /// The first row of this thread's warp, counted from `row`.
    __device__ int of_warp() const { return thread_index() / LANES * B::ROWS_OF_WARP; }
    /// The r-th row of which this lane has numbers.
    __device__ int own(int r) const { return row + of_warp() + r / 2 * 16 + r % 2 * 8 + thread_index() % LANES / 4; }
};
// ANCHOR_END: place

/// The keys of a block: tiles from `begin` on to before `end`.
template <class B> struct Keys {
    Range any;    // keys that a row sees at least
    Range whole;  // tiles that begin here, from the start to the end and the end with it, are seen in full by all rows
    int begin, end;

    __device__ Keys(const Place<B>& at, const Head<T>& head, int splits) {
        const Range first = head.visible(at.row / at.pack), last = head.visible((at.end_row - 1) / at.pack);
        any = {first.start, last.end}, whole = {last.start, first.end - B::KEYS};
        begin = any.start / B::KEYS * B::KEYS, end = any.end;
        if (!B::PACKED) return;
        const int share = ((end - begin + B::KEYS - 1) / B::KEYS + splits - 1) / splits * B::KEYS;
        begin += at.split * share, end = min(end, begin + share);
    }
};

/// What a warp knows of its rows. A lane has its share of their numbers of O, its share of l, and m.
template <class B> struct State {
    Accumulators<B::TILES, D / 8> o = {};
    float m[B::OWN], l[B::OWN] = {};
};

template <class B> using Scores = Accumulators<B::TILES, B::KEYS / 8>;

/// Scores as the options make them.
template <class B> __device__ void apply_options(Scores<B>& s, const Problem& problem, const Place<B>& at, int j0) {
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        const int row = min(at.own(r), at.end_row - 1), i = row / at.pack;
        const Head<T> head = at.head(problem, row);
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
template <class B> __device__ void hide(Scores<B>& s, const Head<T>& head, const Place<B>& at, int j0) {
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        const Range keys = head.visible(min(at.own(r) / at.pack, head.q.len - 1));
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
/// where no m has moved. `scale` is of the scores, and of the power of two that takes the place of e.
template <class B> __device__ void move_max(State<B>& state, Scores<B>& s, float scale) {
    float m_new[B::OWN];
    bool moved = false;
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        float most = NEG_INFINITY;
#pragma unroll
        for (int n = 0; n < B::KEYS / 8; ++n) most = fmaxf(most, fmaxf(s.of_row(r, n, 0), s.of_row(r, n, 1)));
        most = max_over<4>(most);
        m_new[r] = (most - state.m[r]) * scale > SLACK ? most : state.m[r];
        moved |= m_new[r] != state.m[r];
    }
    if (!__any_sync(ALL_LANES, moved)) return;
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        const float rescale = m_new[r] == state.m[r] ? 1.0f : ex2((state.m[r] - m_new[r]) * scale);
        state.m[r] = m_new[r], state.l[r] *= rescale;
#pragma unroll
        for (int c = 0; c < D / 8; ++c) state.o.of_row(r, c, 0) *= rescale, state.o.of_row(r, c, 1) *= rescale;
    }
}

/// The rest of lines 9 and 10: P~ = exp(S - m), l += rowsum(P~), O += P~ V, 16 keys at a time.
template <class B> __device__ void add_weighted_values(State<B>& state, Scores<B>& s, Halves<D> v, float scale) {
    float offset[B::OWN];
    for (int r = 0; r < B::OWN; ++r) offset[r] = state.m[r] == NEG_INFINITY ? 0.0f : -state.m[r] * scale;
    add_p_v<T, B::KEYS / 8>(state.o, v, [&](int t, int n, unsigned (&a)[4]) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            const int r = 2 * t + x % 2;
            const float low = ex2(fmaf(s.of_row(r, n + x / 2, 0), scale, offset[r]));
            const float high = ex2(fmaf(s.of_row(r, n + x / 2, 1), scale, offset[r]));
            state.l[r] += low + high;  // before they are rounded
            a[x] = pair_from_f32<T>(low, high);
        }
    });
}
// ANCHOR_END: softmax

/// Beyond this a score times log2(e), rounded, is off by enough to be seen in a weight.
constexpr float FARTHEST = 0x1p12f;

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
    const Head<T> head = at.head(problem, row);
    if constexpr (B::PACKED) {
        const long long heads = (long long)at.split * problem.batch + at.sequence;
        const long long index = (heads * problem.heads + at.first_head + row % at.pack) * problem.q_len + row / at.pack;
#pragma unroll
        for (int x = 0; x < COUNT; ++x) {
            const Pair pair = pair_at(x);
            if (pair.c < D) *(float2*)(splits.o + index * D + pair.c) = make_float2(pair.low, pair.high);
        }
        if (one) splits.m[index] = m, splits.l[index] = l;
    } else {
        // Lines 12 and 13: O = diag(l)^-1 O, L = m + ln l.
        const float factor = final_factor(m, l, head.sink);
#pragma unroll
        for (int x = 0; x < COUNT; ++x) {
            const Pair pair = pair_at(x);
            const unsigned to = gathered.chunk(row - at.row, pair.c / CHUNK) + pair.c % CHUNK * sizeof(T);
            if (pair.c < D) store_shared(to, pair_from_f32<T>(pair.low * factor, pair.high * factor));
        }
        if (one) head.store_lse(row, log_sum_exp(m, l));
    }
}

/// Lines 12 to 15, for the rows of a warp.
template <class B, bool OPTIONS>
__device__ void finish(const Problem& problem, const Splits& splits, State<B>& state, Halves<D> gathered) {
    const Place<B> at(problem, splits.count);
    const Head<T> head = at.head(problem);
    const int lane = threadIdx.x % LANES;
    unsigned again = 0;  // rows of the warp that are to be computed with care
    __syncwarp();        // no lane reads rows of Q any more: rows of O take their place
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        const float l = sum_over<4>(state.l[r]), m = OPTIONS ? state.m[r] : state.m[r] * head.scale;
        float nothing = l * 0.0f;  // or NaN, where a number is not finite
#pragma unroll
        for (int c = 0; c < D / 8; ++c) nothing += 0.0f * state.o.of_row(r, c, 0) + 0.0f * state.o.of_row(r, c, 1);
        nothing = sum_over<4>(nothing);
        const bool careful = nothing != 0.0f || (m != NEG_INFINITY && fabsf(m * LOG2_E) > FARTHEST);
        for (unsigned rows = __ballot_sync(ALL_LANES, careful && lane % 4 == 0); rows; rows &= rows - 1) {
            again |= 1u << (r / 2 * 16 + r % 2 * 8 + (__ffs(rows) - 1) / 4);
        }
        if (careful || at.own(r) >= at.end_row) continue;
        put_row<B, D / 8>(problem, splits, at, gathered, at.own(r), m, l, lane % 4 == 0, [&](int c) {
            return Pair{8 * c + lane % 4 * 2, state.o.of_row(r, c, 0), state.o.of_row(r, c, 1)};
        });
    }
    const Keys<B> keys(at, head, splits.count);
#pragma unroll 1
    for (; again; again &= again - 1) {
        const int row = at.row + at.of_warp() + __ffs(again) - 1;
        if (row >= at.end_row) continue;
        const Range seen = head.visible(row / at.pack);
        const Range here = {max(seen.start, keys.begin), min(seen.end, keys.end)};
        const CarefulRow<D> found = careful_row<D>(at.head(problem, row), row / at.pack, here);
        put_row<B, found.PAIRS>(problem, splits, at, gathered, row, found.m, found.l, lane == 0, [&](int x) {
            return Pair{2 * (lane + x * LANES), found.o[x][0], found.o[x][1]};
        });
    }
    if constexpr (!B::PACKED) {
        __syncwarp();  // the rows of the warp are whole
        copy_back<B::ROWS_OF_WARP>(head.o, gathered, at.of_warp(), at.row + at.of_warp(), at.end_row);
    }
}

/// What each tile of keys asks for and is the same for all threads: in shared memory, for registers are short.
struct Shared {
    Rows<T> k, v;
    Range whole;
};

template <class B, bool OPTIONS> __device__ void forward(const Problem& problem, const Splits& splits) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Shared shared;
    const Halves<D> q = {shared_address(memory)};
    const auto k = [&](int stage) { return Halves<D>{q.data + (B::ROWS + 2 * stage * B::KEYS) * D * 2}; };
    const auto v = [&](int stage) { return Halves<D>{k(stage).data + B::KEYS * D * 2}; };
    const auto start_to_load = [&](const Rows<T>& k_rows, const Rows<T>& v_rows, int j0, int stage, Range wanted) {
        start_copy<B::KEYS, B::THREADS>(k(stage), k_rows, j0, wanted);
        start_copy<B::KEYS, B::THREADS>(v(stage), v_rows, j0, wanted);
        cp_async_commit();
    };

    const Place<B> at(problem, splits.count);
    if (at.row >= at.end_row) return;
    const Head<T> head = at.head(problem);
    const Keys<B> keys(at, head, splits.count);
    // Lines 4 and 5: load Q_i; O = 0, l = 0, m = -inf.
    if (keys.begin < keys.end) {
        if constexpr (B::PACKED) {
            const Rows<T>& one = head.q;
            const Packed<T> rows = {one.data, one.row, one.channel, problem.q.head, one.channels, at.pack};
            start_copy_of_some<B::ROWS, B::THREADS>(q, rows, at.row, {at.row, at.end_row});
        } else {
            start_copy<B::ROWS, B::THREADS>(q, head.q, at.row, {at.row, at.end_row});
        }
        start_to_load(head.k, head.v, keys.begin, 0, keys.any);
    }
    if (threadIdx.x == 0) shared = {head.k, head.v, keys.whole};
    State<B> state;
    for (float& m : state.m) m = NEG_INFINITY;
    const float scale = OPTIONS ? LOG2_E : head.scale * LOG2_E;

    // ANCHOR: stream
    for (int j0 = keys.begin, stage = 0; j0 < keys.end; j0 += B::KEYS, stage ^= 1) {  // line 6
        // Line 7: load K_j and V_j, which are on their way already, and send for the next.
        cp_async_wait<0>();
        __syncthreads();  // they are whole for all threads, and the tiles before them have been read by all
        if (j0 + B::KEYS < keys.end) {
            start_to_load(shared.k, shared.v, j0 + B::KEYS, stage ^ 1, {0, keys.any.end});
        }
        // Line 8: S = Q_i K_j^T.
        Scores<B> s = {};
        add_q_kt<T>(s, q, at.of_warp(), k(stage));
        if (OPTIONS) apply_options(s, problem, at, j0);
        if (j0 < shared.whole.start || j0 > shared.whole.end) hide(s, head, at, j0);
        // Lines 9 and 10.
        move_max(state, s, scale);
        add_weighted_values(state, s, v(stage), scale);
    }
    // ANCHOR_END: stream
    finish<B, OPTIONS>(problem, splits, state, q);
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
