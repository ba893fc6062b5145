// Copies of boxes of a tensor by the copy engine, TMA. PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy:
// Bulk and Tensor copy".
#pragma once

/// What the copy engine is told of a tensor: the host encodes it (`cuTensorMapEncodeTiled`), no kernel reads it.
struct alignas(128) TensorMap {
    char bytes[128];
};

/// Starts to copy the box whose first element is (x, y, z, w), the innermost axis first, to a multiple of 128 in shared memory. What
/// lies outside the tensor comes as zeros. All bytes of the box count at `barrier`, once they are there. One thread does it.
__device__ inline void tma_load_4d(unsigned to, const TensorMap& map, unsigned barrier, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
        : "memory");
}
