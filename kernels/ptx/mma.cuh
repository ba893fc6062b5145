// The matrix product of a warp. PTX ISA, "Warp Level Matrix Instructions: mma", "Matrix Fragments for mma.m16n8k16".
#pragma once
#include "ptx/cvt.cuh"

/// C += A B with A of 16 x 16 numbers, B of 16 x 8 and C of 16 x 8 in f32. With g = lane / 4 and t = lane % 4 a lane has, two
/// to a register: of A columns 2 t, 2 t + 1 of rows g and g + 8, then 8 columns further; of B rows 2 t, 2 t + 1 of column g, then
/// 8 rows further. Of C it has columns 2 t, 2 t + 1 of row g, then of row g + 8.
template <class T> __device__ void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

template <>
__device__ inline void mma_m16n8k16<f16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ inline void mma_m16n8k16<bf16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
