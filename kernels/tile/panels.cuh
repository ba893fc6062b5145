// Matrices of 16-bit numbers in shared memory as Hopper's copy engine writes them and its tensor cores read them.
#pragma once
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/halves.cuh"

// ANCHOR: descriptor
/// What wgmma is told of a matrix in shared memory ("Matrix Descriptor"), here one whose rows of 128 bytes are mixed as a copy with
/// the 128-byte swizzle leaves them. `leading` and `stride` are bytes from one piece of it to the next: which, the callers say.
__device__ inline Descriptor descriptor(unsigned address, unsigned leading, unsigned stride) {
    const auto sixteens = [](unsigned bytes) { return (Descriptor)(bytes % (1 << 18) / 16); };
    return sixteens(address)          // bits 0 to 13
        | sixteens(leading) << 16     // bits 16 to 29
        | sixteens(stride) << 32      // bits 32 to 45
        | (Descriptor)1 << 62;        // bits 62 and 63: rows of 128 bytes. The others are 0: the swizzle begins at 1024 bytes
}
// ANCHOR_END: descriptor

// ANCHOR: panels
/// `ROWS` rows of `WIDTH` numbers, in panels of 64 columns, one behind the other: what one copy brings. A row of a panel is 128
/// bytes, eight chunks, of which chunk c of row r lies in place c ^ r % 8. So eight rows have the same chunk in all 32 banks.
template <int WIDTH, int ROWS_> struct Panels {
    static constexpr int ROWS = ROWS_, CHUNKS = WIDTH / CHUNK, COLUMNS = 64, COUNT = WIDTH / COLUMNS;
    static constexpr int ROW_BYTES = COLUMNS * 2, PANEL_BYTES = ROWS * ROW_BYTES, BYTES = COUNT * PANEL_BYTES;
    static constexpr int EIGHT_ROWS = 8 * ROW_BYTES;  // after which the swizzle begins again
    static_assert(WIDTH % COLUMNS == 0 && ROWS % 8 == 0);
    unsigned data;  // an address in shared memory, a multiple of 1024

    /// The address of chunk c of row r.
    __device__ unsigned chunk(int r, int c) const {
        return data + c / 8 * PANEL_BYTES + r * ROW_BYTES + (c ^ r) % 8 * 16;
    }

    /// Rows from r on, a multiple of 8, and 16 columns from c on, a multiple of 16, as A of a product, or transposed as B: numbers
    /// of a row are multiplied with each other. Eight rows further is `stride`; `leading` is not asked for.
    __device__ Descriptor along_rows(int r, int c) const {
        return descriptor(data + c / COLUMNS * PANEL_BYTES + r * ROW_BYTES + c % COLUMNS * 2, 16, EIGHT_ROWS);
    }

    /// 16 rows from r on, a multiple of 16, and all columns, as B of a product: numbers of a column are multiplied with each
    /// other. Eight rows further is `stride`, 64 columns further `leading`.
    __device__ Descriptor along_columns(int r) const { return descriptor(data + r * ROW_BYTES, PANEL_BYTES, EIGHT_ROWS); }

    /// Starts to copy all of it: rows from `row` on of a head. Rows and columns outside the tensor come as zeros.
    __device__ void start_to_load(const TensorMap& map, unsigned barrier, int row, int head, int batch) const {
        for (int p = 0; p < COUNT; ++p) tma_load_4d(data + p * PANEL_BYTES, map, barrier, p * COLUMNS, row, head, batch);
    }
};
// ANCHOR_END: panels
