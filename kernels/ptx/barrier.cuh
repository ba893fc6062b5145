// Barriers of some of a block's warps, by number. PTX ISA, "Parallel Synchronization and Communication Instructions: bar, barrier".
//
// A block has 16, of which __syncthreads takes number 0.
#pragma once

/// Arrives at a barrier, and waits until `threads` of the block have, a multiple of 32: those that wait and those that do not.
__device__ inline void barrier_sync(unsigned number, unsigned threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/// Arrives, and goes on.
__device__ inline void barrier_arrive(unsigned number, unsigned threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
