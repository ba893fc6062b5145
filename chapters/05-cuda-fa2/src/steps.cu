// Each step of the exercise as a kernel, for its checks. Matrices lie as mine.cu has them.
#include "mine.cu"

/// A tile in device memory.
using Tile = const float (&)[KEYS][D];

__device__ Tile tile(const float* data) { return *(const float (*)[KEYS][D])data; }

/// A block of any number of threads: the end of the keys of row i, from thread i.
extern "C" __global__ void step_1(int* ends, int q_len, int k_len, bool causal) {
    ends[threadIdx.x] = visible(threadIdx.x, q_len, k_len, causal);
}

/// A block of ROWS threads: the tile that they load, numbers of it by one thread in the end.
extern "C" __global__ void __launch_bounds__(ROWS) step_2(float* loaded, const float* matrix, int len, int first) {
    __shared__ float to[KEYS][D];
    load(to, matrix, len, first);
    __syncthreads();
    for (int x = threadIdx.x; x < KEYS * D; x += ROWS) loaded[x] = to[x / D][x % D];
}

/// One thread: a row's scores.
extern "C" __global__ void step_3(float* to, const float* q, const float* k, float scale, int first, int end) {
    float q_i[D], s[KEYS];
    for (int c = 0; c < D; ++c) q_i[c] = q[c];
    scores(s, q_i, tile(k), scale, first, end);
    for (int j = 0; j < KEYS; ++j) to[j] = s[j];
}

/// One thread: a row's state, which is o, l and m one behind the other.
extern "C" __global__ void step_4(float* state, const float* s, const float* v) {
    float o[D], l = state[D], m = state[D + 1], s_j[KEYS];
    for (int c = 0; c < D; ++c) o[c] = state[c];
    for (int j = 0; j < KEYS; ++j) s_j[j] = s[j];
    update(o, l, m, s_j, tile(v));
    for (int c = 0; c < D; ++c) state[c] = o[c];
    state[D] = l, state[D + 1] = m;
}

/// One thread: a row's output, and behind it its lse, from its state.
extern "C" __global__ void step_5(float* to, const float* state) {
    float o[D];
    for (int c = 0; c < D; ++c) o[c] = state[c];
    finish(to, to + D, o, state[D], state[D + 1]);
}
