// Clocks. PTX ISA, "Special Registers: %clock, %clock64, %globaltimer".
#pragma once

/// The multiprocessor's clocks, of which all threads of a block see the same.
__device__ inline unsigned long long clock_now() {
    unsigned long long x;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(x)::"memory");
    return x;
}

/// Their lower half, which is read faster.
__device__ inline unsigned short_clock_now() {
    unsigned x;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(x)::"memory");
    return x;
}

/// Nanoseconds of a timer that all multiprocessors share, and that may stand still for up to a microsecond.
__device__ inline unsigned long long nanoseconds_now() {
    unsigned long long x;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(x)::"memory");
    return x;
}
