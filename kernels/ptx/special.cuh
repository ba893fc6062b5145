// Special registers. PTX ISA, "Special Registers".
#pragma once

/// The number of the block, as blockIdx.x, read anew each time: what is computed from it is computed where it is needed, and not
/// kept in registers until then.
__device__ inline unsigned block_index() {
    unsigned x;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    return x;
}

/// The number of the thread, as threadIdx.x, and no compiler can tell that it is the same as elsewhere.
__device__ inline unsigned thread_index() {
    unsigned x;
    asm volatile("mov.u32 %0, %1;" : "=r"(x) : "r"(threadIdx.x));
    return x;
}
