// FlashAttention-3: Algorithms 1 and 2 of Shah et al. (arXiv 2407.08608): producer and consumers, each a warpgroup or more, a ring
// of tiles between them, and softmax beside products.
//
// A block of threads stays, and takes one tile of rows after the other. A consumer has 64 rows of it from the first key to the
// last, a warp 16, and exchanges nothing with others. Of the warpgroup that does not multiply, one warp finds the next tile of
// rows, one has tiles of Q, K and V copied by TMA as long as there is room, and one clears of V what no row sees; no consumer
// computes an address of K or V. Products are wgmma: K and V are read where they lie in shared memory, S, P and O stay in registers.
//
// Compile-time choices, set by the host: ELEMENT, f16 or bf16; HEAD_DIM and HEAD_DIM_V, to which q and k, and v, are padded;
// SCORE_OPTIONS, whether scores are more than the scale and a mask; and a row of the host's table: BLOCK_CONSUMERS, warpgroups
// that multiply; BLOCK_KEYS of a tile; BLOCK_STAGES of a ring; BLOCK_TURNS, whether consumers take turns; BLOCK_Q_IN_REGISTERS.
#include "ptx/barrier.cuh"
#include "ptx/fence.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/setmaxnreg.cuh"
#include "tile/jobs.cuh"
#include "tile/panels.cuh"
#include "tile/results.cuh"
#include "tile/ring.cuh"
#include "tile/trace.cuh"

constexpr int WARPGROUP = 128, THREADS = (BLOCK_CONSUMERS + 1) * WARPGROUP, READERS = 4 * BLOCK_CONSUMERS;  // warps that read
constexpr int PRODUCER_REGISTERS = BLOCK_CONSUMERS == 3 ? 32 : 24;  // of a thread
constexpr int CONSUMER_REGISTERS = BLOCK_CONSUMERS == 3 ? 160 : 240;
constexpr int STAGES = BLOCK_STAGES;
using B = Block<READERS, 1, BLOCK_KEYS>;

/// The tensors as the copy engine is told of them: [batch, heads, rows, channels].
struct Maps {
    TensorMap q, k, v;
};

/// The tiles of a block in shared memory.
struct Tiles {
    using Queries = Panels<D, B::ROWS>;
    using Keys = Panels<D, B::KEYS>;
    using Values = Panels<D_V, B::KEYS>;
    unsigned data;

    __device__ Queries q() const { return {data}; }
    __device__ Keys k(int stage) const { return {data + Queries::BYTES + stage * (Keys::BYTES + Values::BYTES)}; }
    __device__ Values v(int stage) const { return {k(stage).data + Keys::BYTES}; }
};

/// A tile of V of which rows see no more than the keys `seen`, counted from its first.
struct Partial {
    int stage;  // -1 behind the last
    Range seen;
};

/// What else the threads of a block share.
struct Shared {
    Jobs<B> jobs;
    Partial partial[2];
    Ring<1> q;
    Ring<2> partials;
    Ring<STAGES> k, v;
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

/// Lines 4 to 10 of Algorithm 1: the thread that copies.
__device__ void produce(const Problem& problem, const Maps& maps, Shared& shared, Tiles tiles) {
    Trace trace(BLOCK_CONSUMERS, true);  // its marks are nothing unless asked for
    Turn<2> job_turn, partial_turn;
    Turn<STAGES> turn;
    // The barrier at which the next partial tile is awaited by who clears it.
    const auto announce = [&](Partial partial) {
        mbarrier_wait(shared.partials.empty(partial_turn.stage()), partial_turn.parity() ^ 1);
        shared.partial[partial_turn.stage()] = partial;
        const unsigned barrier = shared.partials.full(partial_turn.stage());
        partial_turn.next();
        return barrier;
    };
    for (;; job_turn.next()) {
        const Job<B>& job = shared.jobs.wait(job_turn);
        const Place<B>& at = job.at;
        if (at.row < 0) break;
        trace.mark(Did::WAIT_FOR_JOB);
        const auto start_to_load_k = [&](Turn<STAGES> turn, int j0) {
            const int stage = turn.stage();
            mbarrier_wait(shared.k.empty(stage), turn.parity() ^ 1);  // line 7: it has been read, or was never filled
            trace.mark(Did::WAIT_TO_COPY_K);
            start_to_load(tiles.k(stage), shared.k.full(stage), maps.k, problem.k, job.k_row + j0, job.kv_head, job.batch);
        };
        if (at.begin < at.end) start_to_load_k(turn, at.begin);
        // Lines 4 and 5: load Q_i, once the one before has been read.
        mbarrier_wait(shared.q.empty(0), Turn<1>{job_turn.number}.parity() ^ 1);
        trace.mark(Did::WAIT_TO_COPY_Q);
        start_to_load(tiles.q(), shared.q.full(0), maps.q, problem.q, job.q_row, at.first_head, job.batch);
        for (int j0 = at.begin; j0 < at.end; j0 += B::KEYS, turn.next()) {  // line 6
            // Lines 8 and 9. Consumers ask for K_j+1 before V_j.
            if (j0 + B::KEYS < at.end) start_to_load_k({turn.number + 1}, j0 + B::KEYS);
            const int stage = turn.stage();
            mbarrier_wait(shared.v.empty(stage), turn.parity() ^ 1);
            trace.mark(Did::WAIT_TO_COPY_V);
            // Behind the tensor's end the copy engine writes zeros itself.
            const bool ends = at.any.end == at.sight.k_len && !problem.sequences;
            const Range seen = {at.any.start - j0, ends ? B::KEYS : at.any.end - j0};
            const bool whole = seen.start <= 0 && seen.end >= B::KEYS;
            const unsigned barrier = whole ? shared.v.full(stage) : announce({stage, seen});
            start_to_load(tiles.v(stage), barrier, maps.v, problem.v, job.k_row + j0, job.kv_head, job.batch);
        }
        mbarrier_arrive(shared.jobs.wanted());
        mbarrier_arrive(shared.jobs.ring.empty(job_turn.stage()));
    }
    mbarrier_arrive(announce({-1, {}}));
}

/// What no row sees of a tile of V, before a window or behind the last key, may be NaN, which no weight makes 0: zeros take its place.
/// One warp does it.
__device__ void clear_unseen(Shared& shared, Tiles tiles) {
    constexpr int CHUNKS = D_V / CHUNK;
    const int lane = threadIdx.x % LANES;
    for (Turn<2> turn;; turn.next()) {
        mbarrier_wait(shared.partials.full(turn.stage()), turn.parity());  // the tile is there
        const Partial partial = shared.partial[turn.stage()];
        if (partial.stage < 0) return;
#pragma unroll 1
        for (int x = lane; x < B::KEYS * CHUNKS; x += LANES) {
            const int r = x / CHUNKS;
            if (r >= partial.seen.start && r < partial.seen.end) continue;
            store_shared(tiles.v(partial.stage).chunk(r, x % CHUNKS), uint4{});
        }
        fence_proxy_async();  // wgmma sees the zeros of this lane
        __syncwarp();         // and of all
        if (lane == 0) mbarrier_arrive(shared.v.full(partial.stage)), mbarrier_arrive(shared.partials.empty(turn.stage()));
    }
}
// ANCHOR_END: producer

// ANCHOR: consumer
/// Q_i, for the rows of a warpgroup: where products find it.
struct Queries {
    unsigned a[BLOCK_Q_IN_REGISTERS ? D / 16 : 1][4];
    Tiles::Queries tile;
    int row;

    /// Takes it to registers, if that is where products find it. Whether its place in shared memory is free then.
    __device__ bool take() {
        if (!BLOCK_Q_IN_REGISTERS) return false;
        const int lane = threadIdx.x % LANES, of_warp = threadIdx.x / LANES * 16;
#pragma unroll
        for (int c = 0; c < D / 16; ++c) ldmatrix_x4(a[c], tile.chunk(of_warp + lane % 16, 2 * c + lane / 16));
        fence_proxy_async();  // the copy of the next Q_i comes behind this lane's loads
        __syncwarp();         // and those of all
        return true;
    }
};

/// S = Q_i K_j^T: lines 17 of Algorithm 1, 9 of Algorithm 2.
__device__ void start_q_kt(Scores<B>& s, Queries& q, Tiles::Keys k) {
    wgmma_hold(s.x[0]);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < D; c += 16) {
        if constexpr (BLOCK_Q_IN_REGISTERS) wgmma<T, false>(s.x[0], q.a[c / 16], k.along_rows(0, c), c > 0);
        else wgmma<T>(s.x[0], q.tile.along_rows(q.row, c), k.along_rows(0, c), c > 0);
    }
    wgmma_commit();
}

/// O += P~ V_j: lines 21 of Algorithm 1, 11 of Algorithm 2, but for the factor of O.
__device__ void start_p_v(Accumulators<1, D_V / 8>& o, unsigned (&p)[B::KEYS / 16][4], Tiles::Values v) {
    wgmma_hold(o.x[0]), wgmma_hold(p);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < B::KEYS; j += 16) wgmma<T, true>(o.x[0], p[j / 16], v.along_columns(j), true);
    wgmma_commit();
}

/// A warpgroup that multiplies: lines 13 to 25 of Algorithm 1, the loop as Algorithm 2 has it.
__device__ void consume(const Problem& problem, Shared& shared, Tiles tiles) {
    const int group = __shfl_sync(ALL_LANES, threadIdx.x / WARPGROUP, 0);  // the same in all lanes, as the compiler sees
    const bool leads = threadIdx.x % LANES == 0;                           // it tells others what its warp has read
    const float scale = SCORE_OPTIONS ? LOG2_E : problem.options.scale * LOG2_E;
    Trace trace(group, threadIdx.x % WARPGROUP == 0);  // its marks are nothing unless asked for
    const auto arrive = [&](unsigned barrier) {
        if (leads) mbarrier_arrive(barrier);
    };
    // At the tensor cores a warpgroup comes after the one before it, so that softmax of one runs beside products of others.
    const auto take_turn = [&] { if (BLOCK_TURNS) barrier_sync(1 + group, 2 * WARPGROUP), trace.mark(Did::WAIT_FOR_TURN); };
    const auto pass_turn = [&] { if (BLOCK_TURNS) barrier_arrive(1 + (group + 1) % BLOCK_CONSUMERS, 2 * WARPGROUP); };
    if (group == BLOCK_CONSUMERS - 1) pass_turn();  // the first is group 0's

    Turn<2> job_turn;
    Turn<STAGES> turn;  // of K; that of V is the one before
    for (;; job_turn.next()) {
        const Place<B>& at = shared.jobs.wait(job_turn).at;
        if (at.row < 0) return;
        trace.mark(Did::WAIT_FOR_JOB);
        // Line 13 (1): O = 0, l = 0, m = -inf, or nearly.
        State<B> state;
        for (float& m : state.m) m = LOWEST;
        const int end = at.end;
        const Range whole = at.whole;
        int j0 = at.begin;
        mbarrier_wait(shared.q.full(0), Turn<1>{job_turn.number}.parity());  // line 14 (1)
        if (j0 < end) {
            Scores<B> s;
            Queries q = {{}, tiles.q(), group * 64};
            unsigned p[B::KEYS / 16][4];
            float rescale[B::OWN];
            const auto wait_for_next_k = [&] {
                if (j0 + B::KEYS < end) mbarrier_wait(shared.k.full(turn.stage()), turn.parity());
                trace.mark(Did::WAIT_FOR_K);
            };
            // S is there, K_j has been read, and Q_i if it was the last.
            const auto release_k = [&] {
                wgmma_hold(s.x[0]);
                trace.mark(Did::WAIT_FOR_S);
                arrive(shared.k.empty(turn.stage()));
                turn.next();
                if (!BLOCK_Q_IN_REGISTERS && j0 + B::KEYS >= end) arrive(shared.q.empty(0));
            };
            // m, l, and P~ in place of S; whether O is to be rescaled.
            const auto softmax = [&](bool masked) {
                if (SCORE_OPTIONS) apply_options(s, problem, at, j0);
                if (masked) hide(s, at, j0);
                const bool moved = move_max(state, s, scale, rescale);
                exponentiate(state, s, scale);
                trace.mark(Did::SOFTMAX, s.x[0]);
                return moved;
            };
            const auto wait_for_o = [&](Turn<STAGES> v_turn) {
                wgmma_wait<0>();
                wgmma_hold(state.o.x[0]);
                trace.mark(Did::WAIT_FOR_O);
                arrive(shared.v.empty(v_turn.stage()));
            };
            const auto step = [&](bool masked) {
                const Turn<STAGES> v_turn = turn.before();
                take_turn();
                start_q_kt(s, q, tiles.k(turn.stage()));  // line 9 (2)
                trace.mark(Did::START_S);
                mbarrier_wait(shared.v.full(v_turn.stage()), v_turn.parity());
                trace.mark(Did::WAIT_FOR_V);
                start_p_v(state.o, p, tiles.v(v_turn.stage()));  // line 11 (2), of the tile before
                trace.mark(Did::START_O);
                pass_turn();
                wgmma_wait<1>();  // line 12 (2)
                release_k();
                const bool moved = softmax(masked);  // line 13 (2)
                wgmma_hold(s.x[0]);
                wait_for_next_k();   // a branch: the compiler moves no exponential behind the wait
                wait_for_o(v_turn);  // line 14 (2)
                pack<B>(p, s);
                if (moved) rescale_o(state, rescale);
                trace.mark(Did::PACK);
            };

            if (q.take()) arrive(shared.q.empty(0));
            mbarrier_wait(shared.k.full(turn.stage()), turn.parity());
            trace.mark(Did::WAIT_FOR_Q);
            take_turn();
            start_q_kt(s, q, tiles.k(turn.stage()));  // line 4 (2)
            trace.mark(Did::START_S);
            pass_turn();
            wgmma_wait<0>();
            release_k();
            softmax(SCORE_OPTIONS || j0 < whole.start || j0 > whole.end);  // line 6 (2)
            wait_for_next_k();
            pack<B>(p, s);
            trace.mark(Did::PACK);
            j0 += B::KEYS;
            // Line 7 (2). Tiles that all rows see in full need no look at what is hidden.
            if constexpr (!SCORE_OPTIONS) {
#pragma unroll 1
                for (; j0 < min(end, whole.start); j0 += B::KEYS) step(true);
#pragma unroll 1
                for (; j0 < end && j0 <= whole.end; j0 += B::KEYS) step(false);
            }
#pragma unroll 1
            for (; j0 < end; j0 += B::KEYS) step(true);

            const Turn<STAGES> v_turn = turn.before();
            mbarrier_wait(shared.v.full(v_turn.stage()), v_turn.parity());
            trace.mark(Did::WAIT_FOR_V);
            start_p_v(state.o, p, tiles.v(v_turn.stage()));  // line 19 (2)
            trace.mark(Did::START_O);
            wait_for_o(v_turn);
        } else {
            arrive(shared.q.empty(0));
        }
        finish(problem, at, state);  // lines 24 and 25 (1)
        trace.mark(Did::FINISH);
        __syncwarp();  // all lanes have read where they are
        arrive(shared.jobs.ring.empty(job_turn.stage()));
    }
}
// ANCHOR_END: consumer

/// Nothing is taken: runs before a launch that counts.
extern "C" __global__ void __launch_bounds__(1) fa3_start(
    const __grid_constant__ Problem, const __grid_constant__ Maps, const __grid_constant__ Schedule schedule) {
    *schedule.next = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) fa3(
    const __grid_constant__ Problem problem, const __grid_constant__ Maps maps, const __grid_constant__ Schedule schedule) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const Tiles tiles = {shared_address(memory)};
    __shared__ Shared shared;
    if (threadIdx.x == 0) {  // line 1 (1)
        shared.jobs.init(READERS + 1), shared.partials.init(1);
        shared.q.init(READERS), shared.k.init(READERS), shared.v.init(READERS);
        fence_mbarrier_init();
    }
    __syncthreads();  // the barriers are there
    if (threadIdx.x / WARPGROUP == BLOCK_CONSUMERS) {  // line 2 (1)
        setmaxnreg_dec<PRODUCER_REGISTERS>();          // line 3 (1)
        const int thread = threadIdx.x % WARPGROUP, warp = thread / LANES;
        if (thread == 0) shared.jobs.find(problem, schedule);
        if (thread == LANES) produce(problem, maps, shared, tiles);
        if (warp == 2) clear_unseen(shared, tiles);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();  // line 12 (1)
        consume(problem, shared, tiles);
    }
}
