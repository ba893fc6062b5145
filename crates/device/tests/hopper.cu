// Clusters, and a tile that Hopper's copy engine moves by a tensor map.

// Each block writes its place in its cluster.
extern "C" __global__ void cluster_rank(unsigned* ranks) {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        ranks[blockIdx.x] = rank;
    }
}

struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

// One tile of ROWS x COLUMNS floats, whose first element stands at (row, column) of the tensor.
constexpr unsigned ROWS = 4, COLUMNS = 8;

extern "C" __global__ void tile(const __grid_constant__ TensorMap map, float* out, int row, int column) {
    __shared__ alignas(128) float rows[ROWS * COLUMNS];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned to = unsigned(__cvta_generic_to_shared(rows)), at = unsigned(__cvta_generic_to_shared(&barrier));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(unsigned(sizeof(rows))) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                     "l"(&map), "r"(column), "r"(row), "r"(at)
                     : "memory");
    }
    __syncthreads();
    unsigned done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(at)
                     : "memory");
    }
    if (threadIdx.x < ROWS * COLUMNS) {
        out[threadIdx.x] = rows[threadIdx.x];
    }
}
