// Special registers. PTX ISA, "Special Registers".
#pragma once

constexpr int LANES = 32;  // of a warp

/// The number of the thread, as threadIdx.x, and no compiler can tell that it is the same as elsewhere.
__device__ inline unsigned thread_index() {
    unsigned x;
    asm volatile("mov.u32 %0, %1;" : "=r"(x) : "r"(threadIdx.x));
    return x;
}
