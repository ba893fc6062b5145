// Stores to device memory. PTX ISA, "Data Movement and Conversion Instructions: st".
#pragma once

/// Stores 16 bytes at a multiple of 16, at once.
__device__ inline void store_global(void* to, uint4 x) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
