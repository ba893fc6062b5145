// Matrix products on CUDA cores: a sum of outer products, accumulated in registers.
//
// C = A B with A stored by columns and B by rows, both in shared memory as f32: step k reads the k-th column of A and the
// k-th row of B, and each thread adds the outer product of its share of the two to its own small block of C. A block of
// 8 x 8 does 64 multiply-adds for 16 numbers read, which is what lets the multipliers, not shared memory, set the pace.
#pragma once

// ANCHOR: swizzled
/// A matrix in shared memory, `W` f32 a row, in groups of 4 whose order within a row changes every `SAME` rows. So threads
/// that write one column of many rows, as a transposed load does, meet few bank conflicts, and a row is still read 16 bytes
/// at a time.
template <int W> struct Swizzled {
    static constexpr int WIDTH = W, SAME = 8;
    float* data;

    /// The group of 4 that holds columns 4 g to 4 g + 3 of row r.
    __device__ float* group(int r, int g) const { return data + r * W + ((g ^ (r / SAME % 8)) * 4); }
    __device__ float& operator()(int r, int c) const { return group(r, c / 4)[c % 4]; }
};
// ANCHOR_END: swizzled

/// A matrix in shared memory as it is, `W` f32 a row, in groups of 4: for rows that are written as they are read.
template <int W> struct Plain {
    static constexpr int WIDTH = W;
    float* data;

    __device__ float* group(int r, int g) const { return data + r * W + g * 4; }
    __device__ float& operator()(int r, int c) const { return data[r * W + c]; }
};

/// Reads `N` numbers that lie one behind the other, N being 1, 2 or 4, at an address that is a multiple of their size.
template <int N> __device__ void read(float (&to)[N], const float* from) {
    struct alignas(4 * N) Numbers {
        float x[N];
    } numbers = *(const Numbers*)from;
    for (int n = 0; n < N; ++n) to[n] = numbers.x[n];
}

/// The columns of a thread: `RUN` side by side, then the next `RUN` behind those of the other lanes of its `TX`.
template <int TX, int RUN> __device__ inline int first_column(int tx, int run) { return (run * TX + tx) * RUN; }

// ANCHOR: product
/// C += A B over `STEPS` rows of both: `a` holds A by columns, `b` B by rows. A thread has 8 rows of C, from 8 ty on, and `N`
/// columns, of [`first_column`]. `add(c, x, y)` is c + x y.
template <int TX, int RUN, int STEPS, int N, class A, class B, class Add>
__device__ void add_product(float (&c)[8][N], A a, B b, int ty, int tx, Add add) {
#pragma unroll 1
    for (int k0 = 0; k0 < STEPS; k0 += A::SAME) {  // steps of one order find their addresses at once
        const float *a_at[2], *b_at[N / RUN];
        for (int g = 0; g < 2; ++g) a_at[g] = a.group(k0, 2 * ty + g);
        for (int g = 0; g < N / RUN; ++g) b_at[g] = &b(k0, first_column<TX, RUN>(tx, g));
#pragma unroll
        for (int k = 0; k < A::SAME; ++k) {
            float x[2][4], y[N / RUN][RUN];
            for (int g = 0; g < 2; ++g) read(x[g], a_at[g] + k * A::WIDTH);
            for (int g = 0; g < N / RUN; ++g) read(y[g], b_at[g] + k * B::WIDTH);
            for (int r = 0; r < 8; ++r) {
                for (int n = 0; n < N; ++n) c[r][n] = add(c[r][n], x[r / 4][r % 4], y[n / RUN][n % RUN]);
            }
        }
    }
}
// ANCHOR_END: product

/// Stores a thread's block of a matrix by columns, 8 numbers a column: what [`add_product`] reads as A.
template <int TX, int RUN, int N, class A> __device__ void write_columns(A to, const float (&c)[8][N], int ty, int tx) {
    for (int n = 0; n < N; ++n) {
        const int column = first_column<TX, RUN>(tx, n / RUN) + n % RUN;
        for (int g = 0; g < 2; ++g) {
            const int r = 4 * g;
            *(float4*)to.group(column, 2 * ty + g) = make_float4(c[r][n], c[r + 1][n], c[r + 2][n], c[r + 3][n]);
        }
    }
}

/// Reads back what [`write_columns`] stored.
template <int TX, int RUN, int N, class A> __device__ void read_columns(float (&c)[8][N], A from, int ty, int tx) {
    for (int n = 0; n < N; ++n) {
        const int column = first_column<TX, RUN>(tx, n / RUN) + n % RUN;
        for (int r = 0; r < 8; ++r) c[r][n] = from.group(column, 2 * ty + r / 4)[r % 4];
    }
}
