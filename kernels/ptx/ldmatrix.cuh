// Loads of 8 x 8 matrices of 16-bit numbers from shared memory, in the layout of mma.sync. PTX ISA, "Warp Level Matrix
// Instructions: ldmatrix".
#pragma once

/// Loads four matrices. Lanes 8 m to 8 m + 7 give the addresses of the rows of matrix m, 16 bytes each; register m of lane l
/// is numbers 2 (l % 4) and the next of its row l / 4.
__device__ inline void ldmatrix_x4(unsigned (&matrices)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
        : "r"(row)
        : "memory");
}

/// The same, each matrix transposed: register m of lane l is of its column l / 4.
__device__ inline void ldmatrix_x4_trans(unsigned (&matrices)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
        : "r"(row)
        : "memory");
}
