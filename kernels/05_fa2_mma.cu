// FlashAttention-2 on tensor cores: Algorithm 1 of Dao (arXiv 2307.08691), with the work of section 3.3.
//
// A block of threads has a tile of rows. A warp has 16 or 32 of them from the first key to the last, and exchanges nothing with
// others. Q_i lies in shared memory, and two tiles of K and V in turn: one is worked on, the next is on its way. S, P and O stay
// in registers. Where tiles of rows are few, two groups of warps share the keys of one. Where queries are short, its rows are those
// of all heads that share a kv head, and several blocks share the keys; `fa2_mma_combine` joins what they find.
//
// Compile-time choices, set by the host: ELEMENT, f16 or bf16; HEAD_DIM, to which q, k and v are padded.
#include "ptx/barrier.cuh"
#include "tile/mma.cuh"
#include "tile/results.cuh"

using Long = Block<4, D <= 128 ? 2 : 1, D <= 64 ? 128 : D <= 128 ? 64 : 32>;
using Few = Block<4, Long::TILES, Long::KEYS, false, 2>;
using Fewer = Block<4, 1, Long::KEYS, false, 2>;
using Medium = Block<4, 1, D <= 128 ? 64 : 32>;
using Short = Block<4, 1, D <= 128 ? 64 : 32, true>;

// ANCHOR: weights
/// Lines 9 and 10 but for m: P~ = exp(S - m), l += rowsum(P~), O += P~ V, 16 keys at a time.
template <class B> __device__ void add_weighted_values(State<B>& state, Scores<B>& s, Halves<D> v, float scale) {
    add_p_v<T, B::KEYS / 8>(state.o, v, [&](int t, int n, unsigned (&a)[4]) { weights(state, s, t, n, scale, a); });
}
// ANCHOR_END: weights

// ANCHOR: join
/// Joins what two groups have found of their rows, by the rule of the online softmax: the first has it then. No warp reads tiles any
/// more when all have come here.
template <class B> __device__ void join(State<B>& state, float* shared, int group) {
    static_assert(B::GROUPS == 2);
    const int thread = threadIdx.x % B::THREADS;
    int place = 0;  // numbers of one kind lie side by side
    const auto next = [&]() -> float& { return shared[place++ * B::THREADS + thread]; };
    __syncthreads();
    if (group == 1) {
#pragma unroll
        for (int r = 0; r < B::OWN; ++r) {
            next() = state.m[r], next() = state.l[r];
#pragma unroll
            for (int c = 0; c < D_V / 4; ++c) next() = state.o.of_row(r, c / 2, c % 2);
        }
    }
    __syncthreads();
    if (group == 1) return;
#pragma unroll
    for (int r = 0; r < B::OWN; ++r) {
        const float other = next(), m = fmaxf(state.m[r], other), mine = ex2(state.m[r] - m), its = ex2(other - m);
        state.m[r] = m, state.l[r] = mine * state.l[r] + its * next();
#pragma unroll
        for (int c = 0; c < D_V / 4; ++c) {
            float& x = state.o.of_row(r, c / 2, c % 2);
            x = mine * x + its * next();
        }
    }
}
// ANCHOR_END: join

template <class B, bool OPTIONS> __device__ void forward(const Problem& problem, const Splits& splits) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int group = B::GROUPS > 1 ? threadIdx.x / B::THREADS : 0;
    const Halves<D> q = {shared_address(memory)};
    const auto k = [&](int stage) { return Halves<D>{q.data + (B::ROWS + 2 * (2 * group + stage) * B::KEYS) * D * 2}; };
    const auto v = [&](int stage) { return Halves<D>{k(stage).data + B::KEYS * D * 2}; };
    const auto start_to_load = [&](const Rows<T>& k_rows, const Rows<T>& v_rows, int j0, int stage, Range wanted) {
        start_copy<B::KEYS, B::THREADS>(k(stage), k_rows, j0, wanted);
        start_copy<B::KEYS, B::THREADS>(v(stage), v_rows, j0, wanted);
        cp_async_commit();
    };

    const auto sync_group = [&] {
        if (B::GROUPS > 1) barrier_sync(1 + group, B::THREADS);
        else __syncthreads();
    };

    // What all threads know alike lies in shared memory, for registers are short.
    __shared__ Place<B> at;
    __shared__ Rows<T> k_rows, v_rows;
    int j0, end;
    bool has_rows;  // this warp
    {
        const unsigned share = B::PACKED ? blockIdx.x / splits.count : blockIdx.x, split = B::PACKED ? blockIdx.x % splits.count : 0;
        // The last tiles of rows come first: under a causal mask they have the most keys.
        const int tile = problem.row_tiles - 1 - share % problem.row_tiles;
        Place<B> place;
        place.init(problem, tile, share / problem.row_tiles, split, splits.count);
        if (place.row >= place.end_row) return;
        j0 = place.begin + group * B::KEYS, end = place.end, has_rows = place.row + place.of_warp() < place.end_row;
        const Head<T> head = place.head_of(problem, 0);
        // Line 4: load Q_i, and the first tile of keys, which takes longer, before it.
        if (place.begin < end) {
            if (j0 < end) start_to_load(head.k, head.v, j0, 0, place.any);
            const Range rows = {place.row, place.end_row};
            const Rows<T>& one = head.q;
            if constexpr (B::PACKED) {
                const Packed<T> all = {one.data, one.row, one.channel, problem.q.head, one.channels, place.pack()};
                start_copy_of_some<B::THREADS>(q, all, place.row, (place.end_row - place.row + 15) / 16 * 16, rows);
            } else {
                constexpr int SHARE = B::ROWS / B::GROUPS;
                const Halves<D> of_group = {q.data + group * SHARE * D * 2};
                start_copy<SHARE, B::THREADS>(of_group, one, place.row + group * SHARE, rows);
            }
            cp_async_commit();
        }
        if (threadIdx.x == 0) at = place, k_rows = head.k, v_rows = head.v;
        if (B::GROUPS > 1) cp_async_wait<0>();  // for a part of Q that others read
        if (B::GROUPS > 1 || j0 >= end) __syncthreads();  // else the loop has a barrier before anyone reads
    }
    // Line 5: O = 0, l = 0, m = -inf, or nearly.
    State<B> state;
    for (float& m : state.m) m = LOWEST;

    const float scale = OPTIONS ? LOG2_E : problem.options.scale * LOG2_E;

    // ANCHOR: stream
    constexpr int STEP = B::GROUPS * B::KEYS;
    for (int stage = 0; j0 < end; j0 += STEP, stage ^= 1) {  // line 6
        // Line 7: load K_j and V_j, which are on their way already, and send for the next.
        cp_async_wait<0>();
        sync_group();  // they are whole for all its threads, and the tiles before them have been read by all
        if (j0 + STEP < end) start_to_load(k_rows, v_rows, j0 + STEP, stage ^ 1, {0, at.any.end});

        if (!has_rows) continue;  // it has helped to load
        // Line 8: S = Q_i K_j^T.
        Scores<B> s = {};
        add_q_kt<T>(s, q, at.of_warp(), k(stage));
        if (OPTIONS) apply_options(s, problem, at, j0);
        if (j0 < at.whole.start || j0 > at.whole.end) hide(s, at, j0);
        // Lines 9 and 10.
        float rescale[B::OWN];
        if (move_max(state, s, scale, rescale)) rescale_o(state, rescale);
        add_weighted_values(state, s, v(stage), scale);
    }
    // ANCHOR_END: stream
    if constexpr (B::GROUPS > 1) join(state, (float*)memory, group);
    if (group == 0) finish(problem, at, state, splits);
}

#define KERNEL(NAME, BLOCK, OPTIONS, BLOCKS)                                                                             \
    extern "C" __global__ void __launch_bounds__(BLOCK::GROUPS * BLOCK::THREADS, BLOCKS)                                 \
        NAME(const __grid_constant__ Problem problem, const __grid_constant__ Splits splits) {                           \
        forward<BLOCK, OPTIONS>(problem, splits);                                                                        \
    }
KERNEL(fa2_mma, Long, false, 2)
KERNEL(fa2_mma_few, Few, false, 1)
KERNEL(fa2_mma_fewer, Fewer, false, 1)
KERNEL(fa2_mma_options, Medium, true, 1)
KERNEL(fa2_mma_short, Short, false, 1)
KERNEL(fa2_mma_short_options, Short, true, 1)

extern "C" __global__ void __launch_bounds__(COMBINERS* LANES)
    fa2_mma_combine(const __grid_constant__ Problem problem, const __grid_constant__ Splits splits) {
    combine<T, D>(problem, splits);
}
