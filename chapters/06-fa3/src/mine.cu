// Chapter 6, the exercise: the barriers between a producer and its consumers, as in FlashAttention-3, Algorithm 1 of
// Shah et al. (arXiv 2407.08608), with sums in the place of attention.
//
// A matrix comes through shared memory in tiles of ROWS rows. One thread, the producer, has the copy engine (TMA) bring
// tile after tile, and reads nothing. The others, the consumers, read them and copy nothing: each adds up one column.
// There is room for two tiles, the stages of a ring. Tile n goes through stage n % STAGES, in round n / STAGES: while
// one stage is read, the other one is filled.
//
// Two barriers of each stage keep them apart. Phase r of `full` ends when the stage has been filled in round r, and
// phase r of `empty` when it has been read in round r. kernels/ptx/mbarrier.cuh says what a barrier is, tma.cuh and
// fence.cuh beside it what a copy and a fence are: what they have is all that you need, with `__syncwarp()`.
//
// Six functions are yours, in this order: init, fill, wait_full, have_read, wait_empty, sums. Put your code where TODO
// stands. `cargo run --release -- check 6` says how far you are, and `--hint` helps. It runs the kernel on a simulated
// GPU, and before it each step alone, in a kernel of steps.cu beside this file.
#include "ptx/fence.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/special.cuh"
#include "ptx/tma.cuh"

constexpr int STAGES = 2;
constexpr int ROWS = 8;                         // of a tile
constexpr int COLUMNS = 128;                    // of the matrix, and consumers: the first four warps of the block
constexpr int PRODUCER = COLUMNS;               // the number of the thread that copies, in a warp of its own
constexpr int THREADS = COLUMNS + LANES;        // of the block
constexpr int TILE_BYTES = 4 * ROWS * COLUMNS;  // 4 of each f32

/// Ends the kernel: here is something still to be written.
#define TODO(what) __trap()

/// Waits until the phase of that parity is over: `mbarrier_wait`, in a form that has a report name the line that waits.
#define WAIT(barrier, parity) do {} while (!mbarrier_try_wait(barrier, parity))

/// What the threads of the block share.
struct alignas(128) Ring {
    float tile[STAGES][ROWS][COLUMNS];
    unsigned long long full_[STAGES], empty_[STAGES];

    /// The barriers of a stage, as the functions of mbarrier.cuh and tma.cuh take them.
    __device__ unsigned full(int stage) const { return shared_address(&full_[stage]); }
    __device__ unsigned empty(int stage) const { return shared_address(&empty_[stage]); }
};

/// The sum of a consumer's column of the tile in a stage.
__device__ float column_sum(const Ring& ring, int stage) {
    float sum = 0.0f;
    for (int r = 0; r < ROWS; ++r) sum += ring.tile[stage][r][threadIdx.x];
    return sum;
}

/// Step 1. Makes the barriers of both stages. One thread does it; a `__syncthreads()` behind it shows them to all
/// others.
///
/// In a phase of `full` the producer arrives, once, and announces the bytes of the copy. In a phase of `empty` each
/// warp of consumers arrives once. The copy engine, which counts bytes at `full`, hears no `__syncthreads()`: it needs
/// a fence.
__device__ void init(Ring& ring) {
    TODO("step 1, init");
}

/// Step 2. Starts to copy tile `n` into its stage, which is free. The producer does it.
///
/// A copy arrives at no barrier. It only counts its bytes there, and `full` ends its phase when those that were
/// announced have come: so many must be announced as the copy brings. It always brings a whole tile, with zeros for
/// rows behind the last. The map has the matrix with channels x, rows y, and two axes more, of one place.
__device__ void fill(Ring& ring, const TensorMap& matrix, int n) {
    TODO("step 2, fill");
}

/// Step 3. Waits until tile `n` is in its stage. Every consumer does it, for one tile after another.
///
/// That is the phase of `full` whose number is the tile's round. A barrier is asked for a phase by its parity alone, 0
/// for phases 0, 2, 4 and so on, 1 for the others: it says that it is over if its present phase has the other one.
__device__ void wait_full(const Ring& ring, int n) {
    TODO("step 3, wait_full");
}

/// Step 4. Says that this warp has read tile `n`. Every consumer calls it, behind its last read.
///
/// One lane arrives at `empty` for its warp, and what it says must be true of all 32: lanes do not wait for each other
/// by themselves. And who read were threads, and who overwrites is the copy engine, which goes another way to shared
/// memory: between the two belongs a `fence_proxy_async()`.
__device__ void have_read(const Ring& ring, int n) {
    TODO("step 4, have_read");
}

/// Step 5. Waits until the stage of tile `n` is free. The producer does it, for one tile after another.
///
/// In round 0 nobody has anything to read, and the wait is over at once. In a later one it is for the phase of `empty`
/// of the round before.
__device__ void wait_empty(const Ring& ring, int n) {
    TODO("step 5, wait_empty");
}

/// Step 6. Stores the sum of each column of a matrix of `rows` rows to `out`. A block of THREADS threads.
///
/// Producer and consumers go through as many tiles as there are rows for, the last of which may be there in part. That
/// may be an odd number, and none: then nothing is copied, and the sums are 0. Shared memory is gone when the last
/// thread has ended, so that no copy may come after that: each must have been waited for.
extern "C" __global__ void __launch_bounds__(THREADS)
    sums(const __grid_constant__ TensorMap matrix, float* out, int rows) {
    __shared__ Ring ring;
    if (threadIdx.x == 0) init(ring);
    __syncthreads();

    TODO("step 6, sums");
}
