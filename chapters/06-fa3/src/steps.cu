// Each step of the exercise as a kernel of one block of THREADS threads, for its checks. What a step needs of others is
// here in another form: barriers that each have one phase, and so no parity.
#include "mine.cu"

constexpr int TILES = 7;             // that go through the ring
constexpr int MOST_ARRIVALS = 1000;  // that are tried

struct Bench {
    Ring ring;
    unsigned long long once_[TILES];  // a barrier for each tile

    __device__ unsigned once(int n) const { return shared_address(&once_[n]); }
};

/// Starts to copy tile `n`, whose bytes count at `barrier`.
__device__ void bring(Ring& ring, const TensorMap& matrix, int n, unsigned barrier) {
    mbarrier_arrive_expect_tx(barrier, TILE_BYTES);
    tma_load_4d(shared_address(ring.tile[n % STAGES]), matrix, barrier, 0, n * ROWS, 0, 0);
}

/// After how many arrivals phase 0 of each barrier is over: of full, then of empty.
extern "C" __global__ void __launch_bounds__(THREADS) step_1(int* arrivals) {
    __shared__ Ring ring;
    if (threadIdx.x == 0) init(ring);
    __syncthreads();
    if (threadIdx.x >= 2 * STAGES) return;
    const int stage = threadIdx.x % STAGES;
    const unsigned barrier = threadIdx.x < STAGES ? ring.full(stage) : ring.empty(stage);
    int count = 0;
    do {
        mbarrier_arrive(barrier);
        ++count;
    } while (!mbarrier_try_wait(barrier, 0) && count < MOST_ARRIVALS);
    arrivals[threadIdx.x] = count;
}

/// A tile copied to each stage, by a thread that has not made the barriers.
extern "C" __global__ void __launch_bounds__(THREADS) step_1_copies(const __grid_constant__ TensorMap matrix) {
    __shared__ Ring ring;
    if (threadIdx.x == 0) init(ring);
    __syncthreads();
    if (threadIdx.x != PRODUCER) return;
    for (int stage = 0; stage < STAGES; ++stage) bring(ring, matrix, stage, ring.full(stage));
    for (int stage = 0; stage < STAGES; ++stage) WAIT(ring.full(stage), 0);
}

/// Tile `n`, as it lies in its stage once the first phase of `full` is over.
extern "C" __global__ void __launch_bounds__(THREADS)
    step_2(const __grid_constant__ TensorMap matrix, float* found, int n) {
    __shared__ Ring ring;
    const int stage = n % STAGES;
    if (threadIdx.x == 0) mbarrier_init(ring.full(stage), 1), fence_mbarrier_init();
    __syncthreads();
    if (threadIdx.x == PRODUCER) fill(ring, matrix, n);
    if (threadIdx.x >= COLUMNS) return;
    WAIT(ring.full(stage), 0);
    for (int r = 0; r < ROWS; ++r) found[r * COLUMNS + threadIdx.x] = ring.tile[stage][r][threadIdx.x];
}

/// The sums of each of TILES tiles, by consumers that wait with wait_full. A tile is copied when that before it in its
/// stage has been read.
extern "C" __global__ void __launch_bounds__(THREADS) step_3(const __grid_constant__ TensorMap matrix, float* found) {
    __shared__ Bench bench;
    Ring& ring = bench.ring;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(ring.full(stage), 1);
        for (int n = 0; n < TILES; ++n) mbarrier_init(bench.once(n), COLUMNS);
        fence_mbarrier_init();
    }
    __syncthreads();
    for (int n = 0; n < TILES; ++n) {
        if (threadIdx.x == PRODUCER) {
            if (n >= STAGES) WAIT(bench.once(n - STAGES), 0);
            bring(ring, matrix, n, ring.full(n % STAGES));
        } else if (threadIdx.x < COLUMNS) {
            wait_full(ring, n);
            found[n * COLUMNS + threadIdx.x] = column_sum(ring, n % STAGES);
            fence_proxy_async();
            mbarrier_arrive(bench.once(n));
        }
    }
}

/// The sums of tile `n`, by consumers that say by have_read that they have read; then the next tile of its stage is
/// copied, once `empty` has ended its first phase, which takes so many arrivals.
extern "C" __global__ void __launch_bounds__(THREADS)
    step_4(const __grid_constant__ TensorMap matrix, float* found, int n, int arrivals) {
    __shared__ Bench bench;
    Ring& ring = bench.ring;
    const unsigned first = bench.once(0), second = bench.once(1), empty = ring.empty(n % STAGES);
    if (threadIdx.x == 0) {
        mbarrier_init(first, 1), mbarrier_init(second, 1), mbarrier_init(empty, arrivals);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x == PRODUCER) {
        bring(ring, matrix, n, first);
        WAIT(empty, 0);
        bring(ring, matrix, n + STAGES, second);
        WAIT(second, 0);
    } else if (threadIdx.x < COLUMNS) {
        WAIT(first, 0);
        found[threadIdx.x] = column_sum(ring, n % STAGES);
        have_read(ring, n);
    }
}

/// The sums of each of TILES tiles, which a producer has copied that waits with wait_empty. A tile is read when all
/// tiles have come that may come before that.
extern "C" __global__ void __launch_bounds__(THREADS) step_5(const __grid_constant__ TensorMap matrix, float* found) {
    __shared__ Bench bench;
    Ring& ring = bench.ring;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(ring.empty(stage), COLUMNS);
        for (int n = 0; n < TILES; ++n) mbarrier_init(bench.once(n), 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    for (int n = 0; n < TILES; ++n) {
        if (threadIdx.x == PRODUCER) {
            wait_empty(ring, n);
            bring(ring, matrix, n, bench.once(n));
        } else if (threadIdx.x < COLUMNS) {
            for (int last = n; last < min(n + STAGES, TILES); ++last) WAIT(bench.once(last), 0);
            found[n * COLUMNS + threadIdx.x] = column_sum(ring, n % STAGES);
            fence_proxy_async();
            mbarrier_arrive(ring.empty(n % STAGES));
        }
    }
}
