// Stores by an address in shared memory. PTX ISA, "Data Movement and Conversion Instructions: st".
#pragma once

/// The address in shared memory of what a pointer points to.
__device__ inline unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

/// Stores 4 bytes at a multiple of 4.
__device__ inline void store_shared(unsigned to, unsigned x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

/// Stores 16 bytes at a multiple of 16.
__device__ inline void store_shared(unsigned to, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
