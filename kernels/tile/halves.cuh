// Matrices of 16-bit numbers in shared memory: how they lie there, and how they get there and back.
#pragma once
#include "ptx/cp_async.cuh"
#include "ptx/shared.cuh"
#include "ptx/special.cuh"
#include "tile/problem.cuh"

/// Numbers that are copied at once, 16 bytes: a row of the 8 x 8 matrices that ldmatrix reads.
constexpr int CHUNK = 8;

// ANCHOR: halves
/// A matrix of `WIDTH` numbers a row, in chunks whose order changes from row to row: the same chunk of eight neighbouring rows,
/// which ldmatrix reads at once, lies in eight different groups of four banks.
template <int WIDTH> struct Halves {
    static constexpr int CHUNKS = WIDTH / CHUNK;         // of a row
    static constexpr int RUN = CHUNKS % 8 == 0 ? 8 : 4;  // chunks that change places
    static_assert(CHUNKS % RUN == 0);
    unsigned data;  // an address in shared memory, a multiple of 128

    /// The address of chunk c of row r. Where a row ends in the middle of the banks, two rows fill them and share an order.
    __device__ unsigned chunk(int r, int c) const { return data + (r * CHUNKS + (c ^ r * RUN / 8 % RUN)) * 16; }

    /// The address of the chunk that lies `rows` rows below and `chunks` chunks behind the one at `at`. `rows` is a multiple of
    /// 8, and `chunks` of a power of two that is more than the place of the one at `at` within its run. Where both are
    /// known to the compiler, this is one operation or none.
    __device__ static unsigned beyond(unsigned at, int rows, int chunks) {
        return (at ^ chunks % RUN * 16) + (rows * CHUNKS + chunks / RUN * RUN) * 16;
    }
};
// ANCHOR_END: halves

/// The rows of all query heads that share a kv head, as one matrix: row r is row r / `heads` of head r % `heads`. So the keys
/// which rows see never go back.
template <class T> struct Packed {
    T* data;
    long long row, channel, head;
    int channels, heads;

    __device__ T* at(int r) const { return data + r / heads * row + r % heads * head; }
    __device__ bool in_chunks() const {
        return channel == 1 && (row | head) % CHUNK == 0 && (unsigned long long)data % 16 == 0;
    }
};

/// Starts to copy `count` rows of a matrix from `begin` on, by a group of `THREADS` threads. Rows outside `wanted` are zeros, and so are
/// channels behind the last.
template <int THREADS, int WIDTH, class Matrix>
__device__ void start_copy_of_some(Halves<WIDTH> to, Matrix from, int begin, int count, Range wanted) {
    const bool in_chunks = from.in_chunks();
#pragma unroll 1
    for (int x = thread_index() % THREADS; x < count * to.CHUNKS; x += THREADS) {
        const int r = x / to.CHUNKS, c = x % to.CHUNKS * CHUNK;
        const bool inside = begin + r >= wanted.start && begin + r < wanted.end;
        const int numbers = inside ? max(0, min(CHUNK, from.channels - c)) : 0;
        const auto* first = from.at(begin + r) + c * from.channel;
        if (in_chunks) {
            cp_async_16(to.chunk(r, c / CHUNK), first, 2 * numbers);
            continue;
        }
        unsigned pairs[CHUNK / 2] = {};
#pragma unroll
        for (int n = 0; n < CHUNK; ++n) {
            if (n < numbers) pairs[n / 2] |= (unsigned)first[n * from.channel].bits << n % 2 * 16;
        }
        store_shared(to.chunk(r, c / CHUNK), make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
    }
}

/// The same for `COUNT` rows, in fewer instructions where all are wanted and lie in chunks.
template <int COUNT, int THREADS, int WIDTH, class T>
__device__ void start_copy(Halves<WIDTH> to, Rows<T> from, int begin, Range wanted) {
    if (begin < wanted.start || begin + COUNT > wanted.end || from.channels != WIDTH || !from.in_chunks()) {
        start_copy_of_some<THREADS>(to, from, begin, COUNT, wanted);
        return;
    }
    // Threads that share a row. With eight rows at once or more, all chunks that a thread copies have one swizzle.
    constexpr int POWER = to.CHUNKS & -to.CHUNKS;  // of two
    constexpr int ACROSS = POWER < THREADS / 8 ? POWER : THREADS / 8, DOWN = THREADS / ACROSS;
    static_assert(COUNT % DOWN == 0 && DOWN % 8 == 0);
    const int r0 = thread_index() % THREADS / ACROSS, c0 = thread_index() % ACROSS;
    const unsigned to_first = to.chunk(r0, c0);
    const T* row = from.at(begin + r0) + c0 * CHUNK;
#pragma unroll
    for (int r = 0; r < COUNT; r += DOWN, row += DOWN * from.row) {
#pragma unroll
        for (int c = 0; c < to.CHUNKS; c += ACROSS) cp_async_16(to.beyond(to_first, r, c), row + c * CHUNK);
    }
}
