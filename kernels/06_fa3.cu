// FlashAttention-3: Algorithm 1 of Shah et al. (arXiv 2407.08608), the part of section 3.1: producer and consumers, each a
// warpgroup or more, and a ring of tiles between them.
//
// A block of threads has a tile of rows. A consumer has 64 of them from the first key to the last, a warp 16, and exchanges
// nothing with others. One warp has tiles of Q, K and V copied by TMA, as long as there is room, and computes nothing; no consumer
// computes an address of K or V. Products are wgmma: Q, K and V are read where they lie in shared memory, S, P and O stay in
// registers.
//
// Compile-time choices, set by the host: ELEMENT, f16 or bf16; HEAD_DIM, to which q, k and v are padded.
#include "ptx/fence.cuh"
#include "ptx/setmaxnreg.cuh"
#include "tile/panels.cuh"
#include "tile/ring.cuh"
#include "tile/rows.cuh"

constexpr int WARPGROUP = 128;                                // threads
constexpr int CONSUMERS = D == 64 ? 3 : 2;                    // warpgroups that multiply
constexpr int STAGES = D == 64 ? 4 : 2;                       // of a ring
constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 24;  // of a thread
constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 240;
using B = Block<4 * CONSUMERS, 1, D == 256 ? 64 : 128>;
constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP;

/// The tensors as the copy engine is told of them: [batch, heads, rows, channels].
struct Maps {
    TensorMap q, k, v;
};

/// The tiles of a block in shared memory.
struct Tiles {
    using Keys = Panels<D, B::KEYS>;
    unsigned data;

    __device__ Panels<D, B::ROWS> q() const { return {data}; }
    __device__ Keys k(int stage) const { return {data + q().BYTES + 2 * stage * Keys::BYTES}; }
    __device__ Keys v(int stage) const { return {k(stage).data + Keys::BYTES}; }
};

/// What else the threads of a block share.
struct Shared {
    Place<B> at;
    Ring<STAGES> k, v;
    unsigned long long q_full, landed;
};

// ANCHOR: producer
/// Starts to copy a tile, rows from `row` on of a head, and announces its bytes.
template <class Tile>
__device__ void start_to_load(
    Tile tile, unsigned barrier, const TensorMap& map, const Tensor& tensor, int row, int head, int batch) {
    mbarrier_arrive_expect_tx(barrier, tile.BYTES);
    // Along an axis of stride 0 the map has one place.
    tile.start_to_load(map, barrier, row, tensor.head ? head : 0, tensor.batch ? batch : 0);
}

/// Lines 4 to 10 of Algorithm 1: the warp that copies.
__device__ void produce(const Problem& problem, const Maps& maps, const Shared& shared, Tiles tiles) {
    const Place<B>& at = shared.at;
    const bool leads = threadIdx.x % LANES == 0;  // it starts all copies
    const Sequence sequence = problem.sequence(at.sequence);
    const int head = at.first_head, kv_head = head / problem.group, batch = sequence.batch;
    const auto start_to_load_k = [&](int stage, int j0) {
        start_to_load(tiles.k(stage), shared.k.full(stage), maps.k, problem.k, sequence.k_start + j0, kv_head, batch);
    };
    const auto start_to_load_v = [&](int stage, unsigned barrier, int j0) {
        start_to_load(tiles.v(stage), barrier, maps.v, problem.v, sequence.k_start + j0, kv_head, batch);
    };

    // Lines 4 and 5: load Q_i.
    const unsigned q_full = shared_address(&shared.q_full), landed = shared_address(&shared.landed);
    if (leads) start_to_load(tiles.q(), q_full, maps.q, problem.q, sequence.q_start + at.row, head, batch);
    Turn<STAGES> turn;
    unsigned landings = 0;
    for (int j0 = at.begin; j0 < at.end; j0 += B::KEYS, turn.next()) {  // line 6
        const int stage = turn.stage;
        mbarrier_wait(shared.k.empty(stage), turn.parity ^ 1);  // line 7: the stage has been read, or was never filled
        if (leads) start_to_load_k(stage, j0);                  // lines 8 and 9
        mbarrier_wait(shared.v.empty(stage), turn.parity ^ 1);
        if (j0 >= at.any.start && j0 + B::KEYS <= at.any.end) {
            if (leads) start_to_load_v(stage, shared.v.full(stage), j0);
            continue;
        }
        // What no row sees, before a window or behind the last key, may be NaN, which no weight makes 0: zeros take its place.
        if (leads) start_to_load_v(stage, landed, j0);
        mbarrier_wait(landed, landings++ % 2);
#pragma unroll 1
        for (int r = 0; r < B::KEYS; ++r) {
            if (j0 + r >= at.any.start && j0 + r < at.any.end) continue;
            for (int c = threadIdx.x % LANES; c < D / CHUNK; c += LANES) store_shared(tiles.v(stage).chunk(r, c), uint4{});
        }
        fence_proxy_async();  // wgmma sees the zeros of this lane
        __syncwarp();         // and of all
        if (leads) mbarrier_arrive(shared.v.full(stage));
    }
}
// ANCHOR_END: producer

// ANCHOR: consumer
/// Line 17: S = Q_i K_j^T, for the rows of this warpgroup.
__device__ void multiply_q_kt(Scores<B>& s, Panels<D, B::ROWS> q, int row, Tiles::Keys k) {
    wgmma_hold(s.x[0]);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < D; c += 16) wgmma<T>(s.x[0], q.along_rows(row, c), k.along_rows(0, c), c > 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(s.x[0]);
}

/// Line 21, but for the factor of O: O += P~ V_j.
__device__ void add_p_v(Accumulators<1, D / 8>& o, unsigned (&p)[B::KEYS / 16][4], Tiles::Keys v) {
    wgmma_hold(o.x[0]), wgmma_hold(p);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < B::KEYS; j += 16) wgmma<T>(o.x[0], p[j / 16], v.along_columns(j));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(o.x[0]);
}

/// Lines 13 to 25: a warpgroup that multiplies.
template <bool OPTIONS>
__device__ void consume(const Problem& problem, const Shared& shared, Tiles tiles) {
    const Place<B>& at = shared.at;
    const int group = threadIdx.x / WARPGROUP;
    const bool leads = threadIdx.x % LANES == 0;  // it tells the producer what its warp has read
    const float scale = OPTIONS ? LOG2_E : problem.options.scale * LOG2_E;
    // Line 13: O = 0, l = 0, m = -inf, or nearly.
    State<B> state;
    for (float& m : state.m) m = LOWEST;

    mbarrier_wait(shared_address(&shared.q_full), 0);  // line 14
    Turn<STAGES> turn;
    for (int j0 = at.begin; j0 < at.end; j0 += B::KEYS, turn.next()) {  // line 15
        const int stage = turn.stage;
        Scores<B> s;
        mbarrier_wait(shared.k.full(stage), turn.parity);  // line 16
        multiply_q_kt(s, tiles.q(), group * 64, tiles.k(stage));
        if (leads) mbarrier_arrive(shared.k.empty(stage));  // line 22, of K_j

        if (OPTIONS) apply_options(s, problem, at, j0);
        if (j0 < at.whole.start || j0 > at.whole.end) hide(s, at, j0);
        // Lines 18 and 19, and the factor of O that stands in line 21.
        move_max(state, s, scale);
        unsigned p[B::KEYS / 16][4];
#pragma unroll
        for (int n = 0; n < B::KEYS / 16; ++n) weights(state, s, 0, 2 * n, scale, p[n]);

        mbarrier_wait(shared.v.full(stage), turn.parity);  // line 20
        add_p_v(state.o, p, tiles.v(stage));
        if (leads) mbarrier_arrive(shared.v.empty(stage));  // line 22, of V_j
    }
    // Lines 24 and 25. No other warp reads this warp's rows of Q: rows of O take their place.
    finish(problem, at, state, tiles.q());
}
// ANCHOR_END: consumer

template <bool OPTIONS> __device__ void forward(const Problem& problem, const Maps& maps) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const Tiles tiles = {shared_address(memory)};
    __shared__ Shared shared;
    const Place<B> place(problem, 1);
    if (place.row >= place.end_row) return;
    if (threadIdx.x == 0) {
        shared.at = place;
        // Line 1.
        shared.k.init(4 * CONSUMERS), shared.v.init(4 * CONSUMERS);
        mbarrier_init(shared_address(&shared.q_full), 1), mbarrier_init(shared_address(&shared.landed), 1);
        fence_mbarrier_init();
    }
    __syncthreads();  // the barriers are there
    if (threadIdx.x / WARPGROUP == CONSUMERS) {  // line 2
        setmaxnreg_dec<PRODUCER_REGISTERS>();  // line 3
        if (threadIdx.x / LANES == 4 * CONSUMERS) produce(problem, maps, shared, tiles);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();  // line 12
        consume<OPTIONS>(problem, shared, tiles);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fa3(const __grid_constant__ Problem problem, const __grid_constant__ Maps maps) {
    forward<false>(problem, maps);
}
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fa3_options(const __grid_constant__ Problem problem, const __grid_constant__ Maps maps) {
    forward<true>(problem, maps);
}
