#pragma once

// A struct by value, with padding at its end.
struct Pair {
    double first;
    int second;
};

__device__ __forceinline__ unsigned long long linear() {
    return (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
}
