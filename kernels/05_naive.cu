// Attention as the formula has it: S = Q K^T, P = softmax(S), O = P V, with S and P in device memory.
//
// Three kernels, one a line of Algorithm 0 in Dao et al. (arXiv 2205.14135). P takes the place of S. Each matrix product is
// the textbook one: a block of threads makes a TILE x TILE piece of the result from tiles of its two factors in shared
// memory, and a thread makes four numbers of it.
//
// Compile-time choice, set by the host: ELEMENT, float or f16.
#include "tile/softmax.cuh"

constexpr int TILE = 32;              // rows and columns of a tile, a lane a column
constexpr int WARPS = 8;              // of a block
constexpr int STEPS = TILE / WARPS;   // rows of a tile that a thread works on: y, y + WARPS, ...
constexpr int TILES_A_SUM = 8;        // tiles of keys whose sum is one term of O: a sum of many terms would lose digits
constexpr int STRIDE = TILE + 1;      // one more than the 32 banks: a column lies in as many banks as a row

static_assert(TILE == LANES);

using Tile = float[TILE][STRIDE];

/// S, then P: f32 [batch, heads, q_len, k_len] of the longest lengths.
struct Scores {
    float* data;
    int q_len, k_len;

    __device__ float* row(const Problem& problem, int sequence, int head, int i) const {
        return data + (((long long)sequence * problem.heads + head) * q_len + i) * k_len;
    }
};

/// Which tile of which head a block works on, when every head has `rows` x `columns` tiles.
struct Place {
    int sequence, head, row, column;

    __device__ Place(const Problem& problem, int rows, int columns) {
        unsigned block = blockIdx.x;
        column = block % columns * TILE, block /= columns;
        row = block % rows * TILE, block /= rows;
        head = block % problem.heads, sequence = block / problem.heads;
    }
};

/// Copies rows `first..` and channels `column..` of a matrix to shared memory, zeros where it ends.
template <class T> __device__ void load(Tile& tile, const Rows<T>& from, int first, int column) {
    for (int y = threadIdx.y; y < TILE; y += WARPS) tile[y][threadIdx.x] = from.get(first + y, column + threadIdx.x);
}

// ANCHOR: scores
/// Line 1: S = Q K^T, scaled and masked. With more than two blocks in a multiprocessor some registers would go to memory.
extern "C" __global__ void __launch_bounds__(TILE* WARPS, 2) naive_scores(const __grid_constant__ Problem problem, Scores s) {
    __shared__ Tile q, k;
    const Place at(problem, problem.row_tiles, (s.k_len + TILE - 1) / TILE);
    const Head<ELEMENT> head(problem, at.sequence, at.head);
    if (at.row >= head.q.len || at.column >= head.k.len) return;

    float dot[STEPS] = {};
    for (int c = 0; c < problem.d; c += TILE) {
        load(q, head.q, at.row, c);
        load(k, head.k, at.column, c);
        __syncthreads();  // the tiles of Q and K are whole
        for (int x = 0; x < TILE; ++x) {
            for (int n = 0; n < STEPS; ++n) dot[n] += q[threadIdx.y + n * WARPS][x] * k[threadIdx.x][x];
        }
        __syncthreads();  // Q and K have been read, and may be overwritten
    }
    const int j = at.column + threadIdx.x;
    for (int n = 0; n < STEPS; ++n) {
        const int i = at.row + threadIdx.y + n * WARPS;
        if (i < head.q.len && j < head.k.len) s.row(problem, at.sequence, at.head, i)[j] = head.score(dot[n], i, j);
    }
}
// ANCHOR_END: scores

// ANCHOR: softmax
/// Line 2: P = softmax(S), a warp a row: its largest score, the sum of its weights, the weights over their sum.
extern "C" __global__ void __launch_bounds__(TILE* WARPS) naive_softmax(const __grid_constant__ Problem problem, Scores s) {
    const long long index = (long long)blockIdx.x * WARPS + threadIdx.y;
    const int i = index % s.q_len;
    const long long heads = index / s.q_len;
    if (heads >= (long long)problem.batch * problem.heads) return;
    const int sequence = heads / problem.heads, h = heads % problem.heads;
    const Head<ELEMENT> head(problem, sequence, h);
    if (i >= head.q.len) return;

    float* row = s.row(problem, sequence, h, i);
    float m = NEG_INFINITY, l = 0.0f;
    for (int j = threadIdx.x; j < head.k.len; j += LANES) m = fmaxf(m, row[j]);
    m = max_over<LANES>(m);
    for (int j = threadIdx.x; j < head.k.len; j += LANES) l += weight(row[j], m);
    l = sum_over<LANES>(l);
    const float factor = final_factor(m, l, head.sink);
    for (int j = threadIdx.x; j < head.k.len; j += LANES) row[j] = weight(row[j], m) * factor;
    if (threadIdx.x == 0) head.store_lse(i, log_sum_exp(m, l));
}
// ANCHOR_END: softmax

/// Line 3: O = P V.
extern "C" __global__ void __launch_bounds__(TILE* WARPS) naive_output(const __grid_constant__ Problem problem, Scores s) {
    __shared__ Tile weights, v;
    const Place at(problem, problem.row_tiles, (problem.d_v + TILE - 1) / TILE);
    const Head<ELEMENT> head(problem, at.sequence, at.head);
    if (at.row >= head.q.len) return;
    const Rows<float> all = {s.row(problem, at.sequence, at.head, 0), s.k_len, 1, head.q.len, head.k.len};

    float o[STEPS] = {}, run[STEPS] = {};
    for (int j = 0; j < head.k.len; j += TILE) {
        load(weights, all, at.row, j);
        load(v, head.v, j, at.column);
        __syncthreads();  // the tiles of P and V are whole
        for (int y = 0; y < TILE; ++y) {
            for (int n = 0; n < STEPS; ++n) {
                run[n] = add_weighted(run[n], weights[threadIdx.y + n * WARPS][y], v[y][threadIdx.x]);
            }
        }
        if (j / TILE % TILES_A_SUM == TILES_A_SUM - 1 || j + TILE >= head.k.len) {
            for (int n = 0; n < STEPS; ++n) o[n] += run[n], run[n] = 0.0f;
        }
        __syncthreads();  // P and V have been read, and may be overwritten
    }
    const int c = at.column + threadIdx.x;
    for (int n = 0; n < STEPS; ++n) {
        const int i = at.row + threadIdx.y + n * WARPS;
        if (i < head.q.len && c < problem.d_v) head.o(i, c) = from_f32<ELEMENT>(o[n]);
    }
}
