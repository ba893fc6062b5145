// The table of sequences on its way to the device: as arguments of a kernel, in pieces, for who may not wait for a copy.

constexpr int THREADS = 256;
constexpr int WORDS = 1000;  // 200 sequences; with place and count no more than the 4096 bytes that arguments may have

/// A piece of the table.
struct Piece {
    int words[WORDS];
};

/// Writes the first `count` words of a piece from `to` on.
extern "C" __global__ void __launch_bounds__(THREADS) put_table(int* to, int count, const __grid_constant__ Piece piece) {
    for (int i = threadIdx.x; i < count; i += THREADS) to[i] = piece.words[i];
}
