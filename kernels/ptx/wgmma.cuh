// The matrix product of a warpgroup, four warps from a multiple of four on. PTX ISA, "Asynchronous Warpgroup Level Matrix
// Instructions: wgmma".
//
// It is under way while the warps go on, so four more instructions belong to it: [`wgmma_fence`] before it, where threads have
// written its registers, [`wgmma_commit`] and [`wgmma_wait`] behind, and [`wgmma_hold`] for the compiler.
#pragma once
#include "ptx/cvt.cuh"

/// What wgmma is told of a matrix in shared memory, as `tile/panels.cuh` makes it.
using Descriptor = unsigned long long;

/// Orders what the warp has done with registers of a product before it. Asked for before the first product, and wherever a
/// thread has written registers of the next one; not between products that add to the same registers.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Makes a group of this warp's products since the last.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most `PENDING` of this warp's latest groups are under way: no other has registers or shared memory in use.
template <int PENDING> __device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/// Ties the registers of C to this place: the compiler, which does not know that a product writes them until the wait, moves
/// nothing that has to do with them over it.
template <int TILES> __device__ inline void wgmma_hold(float (&c)[TILES][4]) {
#pragma unroll
    for (int n = 0; n < TILES; ++n) {
        asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
    }
}

/// The same for an A in registers, of `TILES` products: it is written before the fence.
template <int TILES> __device__ inline void wgmma_hold(unsigned (&a)[TILES][4]) {
#pragma unroll
    for (int n = 0; n < TILES; ++n) {
        asm volatile("" : "+r"(a[n][0]), "+r"(a[n][1]), "+r"(a[n][2]), "+r"(a[n][3])::"memory");
    }
}

/// C += A B, or C = A B if not `add`, with A of 64 x 16 numbers, B of 16 x N and C of 64 x N in f32, N = 64, 128 or 256. Warp w of
/// the warpgroup has rows 16 w to 16 w + 15 of C, 8 columns of them in each c[n], as after `mma_m16n8k16`. A and B lie in shared
/// memory: the 16 numbers of a row of A, and of a column of B, side by side.
template <class T, int TILES> __device__ void wgmma(float (&c)[TILES][4], Descriptor a, Descriptor b, bool add);

/// The same with A in registers, those of each warp as `mma_m16n8k16` wants them. B has 16 numbers of a column side by side, or if
/// `ACROSS` 64 numbers of a row.
template <class T, bool ACROSS, int TILES>
__device__ void wgmma(float (&c)[TILES][4], const unsigned (&a)[4], Descriptor b, bool add);

// Registers of C: ten in the text of an instruction, and those of 8 columns as its operands.
#define TEN(T) "%" #T "0, %" #T "1, %" #T "2, %" #T "3, %" #T "4, %" #T "5, %" #T "6, %" #T "7, %" #T "8, %" #T "9, "
#define TEXT_64 TEN() TEN(1) TEN(2) "%30, %31"
#define TEXT_128 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63"
#define TEXT_256                                                                                                         \
    TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11)                                 \
    "%120, %121, %122, %123, %124, %125, %126, %127"
#define C_8(N) "+f"(c[N][0]), "+f"(c[N][1]), "+f"(c[N][2]), "+f"(c[N][3])
#define C_32(N) C_8(N), C_8(N + 1), C_8(N + 2), C_8(N + 3)
#define C_64 C_32(0), C_32(4)
#define C_128 C_64, C_32(8), C_32(12)
#define C_256 C_128, C_32(16), C_32(20), C_32(24), C_32(28)

// R0 and up are the numbers of the operands behind those of C, `END` is what stands behind B: scales, and what is transposed.
#define WGMMA_TEXT(N, TYPE, A, B, ADD, END)                                                                              \
    "{\n"                                                                                                                \
    ".reg .pred add;\n"                                                                                                  \
    "setp.ne.b32 add, %" #ADD ", 0;\n"                                                                                   \
    "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TEXT_##N "}, " A ", %" #B ", add, 1, 1, " END ";\n" \
    "}"
#define WGMMA_OF_REGISTERS(N, T, TYPE, ACROSS, END, R0, R1, R2, R3, R4, R5)                                              \
    template <>                                                                                                          \
    __device__ inline void wgmma<T, ACROSS>(float (&c)[N / 8][4], const unsigned (&a)[4], Descriptor b, bool add) {      \
        asm volatile(WGMMA_TEXT(N, TYPE, "{%" #R0 ", %" #R1 ", %" #R2 ", %" #R3 "}", R4, R5, END)                        \
            : C_##N                                                                                                      \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));                                        \
    }
#define WGMMA(N, T, TYPE, R0, R1, R2, R3, R4, R5)                                                                        \
    template <> __device__ inline void wgmma<T>(float (&c)[N / 8][4], Descriptor a, Descriptor b, bool add) {            \
        asm volatile(WGMMA_TEXT(N, TYPE, "%" #R0, R1, R2, "0, 0") : C_##N : "l"(a), "l"(b), "r"((int)add));              \
    }                                                                                                                    \
    WGMMA_OF_REGISTERS(N, T, TYPE, false, "0", R0, R1, R2, R3, R4, R5)                                                   \
    WGMMA_OF_REGISTERS(N, T, TYPE, true, "1", R0, R1, R2, R3, R4, R5)
WGMMA(64, f16, "f16", 32, 33, 34, 35, 36, 37)
WGMMA(64, bf16, "bf16", 32, 33, 34, 35, 36, 37)
WGMMA(128, f16, "f16", 64, 65, 66, 67, 68, 69)
WGMMA(128, bf16, "bf16", 64, 65, 66, 67, 68, 69)
WGMMA(256, f16, "f16", 128, 129, 130, 131, 132, 133)
WGMMA(256, bf16, "bf16", 128, 129, 130, 131, 132, 133)
#undef WGMMA
#undef WGMMA_OF_REGISTERS
#undef WGMMA_TEXT
#undef C_256
#undef C_128
#undef C_64
#undef C_32
#undef C_8
#undef TEXT_256
#undef TEXT_128
#undef TEXT_64
#undef TEN
