// What the tests of this crate launch. Each kernel asks one thing of the layer that loads and launches it.

#include "probe.cuh"

// Grid, block and every kind of argument: x[i] = x[i] * factor + offset + pair.first - pair.second.
extern "C" __global__ void affine(float* x, unsigned count, float factor, int offset, const Pair pair) {
    unsigned long long i = linear();
    if (i < count) {
        x[i] = x[i] * factor + float(offset) + pair.first - float(pair.second);
    }
}

// Dynamic shared memory after static: each block writes all of the `bytes` it was given and hands back their sum, so that too
// little of it is seen.
extern "C" __global__ void fill_shared(unsigned* sums, unsigned bytes) {
    extern __shared__ unsigned char dynamic[];
    __shared__ unsigned sum;
    if (threadIdx.x == 0) {
        sum = 0;
    }
    for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) {
        dynamic[i] = 1;
    }
    __syncthreads();
    unsigned own = 0;
    for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) {
        own += dynamic[bytes - 1 - i];
    }
    atomicAdd(&sum, own);
    __syncthreads();
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
    }
}

// Time between a read and a write: adds 1 to what stood there some clocks before.
extern "C" __global__ void slow_add(volatile unsigned* x, unsigned clocks) {
    unsigned before = *x;
    long long start = clock64();
    while (clock64() - start < clocks) {
    }
    *x = before + 1;
}
