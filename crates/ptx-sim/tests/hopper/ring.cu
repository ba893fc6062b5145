// Two kernels that a compiler has made PTX of, for the forms that it writes. compiled.rs says how.

using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;

struct alignas(64) TensorMap {
    char bytes[128];
};

__device__ u32 shared(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ void init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(barrier)), "r"(arrivals));
}

__device__ void arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared(barrier)) : "memory");
}

__device__ void arrive_and_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(barrier)), "r"(bytes) : "memory");
}

__device__ void wait(u64* barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
        "@over bra end;\n"
        "bra again;\n"
        "end:\n"
        "}" ::"r"(shared(barrier)), "r"(parity) : "memory");
}

__device__ bool is_over(u64* barrier, u32 parity) {
    u32 over;
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, over;\n"
        "}" : "=r"(over) : "r"(shared(barrier)), "r"(parity) : "memory");
    return over;
}

__device__ void load(void* to, const TensorMap* map, u64* barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared(to)), "l"(map), "r"(x), "r"(y), "r"(shared(barrier)),
        "l"(0x1000000000000000ull) : "memory");
}

__device__ void store(const void* from, const TensorMap* map, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
                 "r"(y), "r"(shared(from)) : "memory");
}

__device__ bool elected() {
    u32 elected;
    asm volatile(
        "{\n"
        ".reg .pred elected;\n"
        "elect.sync _|elected, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, elected;\n"
        "}" : "=r"(elected));
    return elected;
}

__device__ void fence_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

constexpr int STAGES = 2;
constexpr int ROWS = 16;
constexpr int COLUMNS = 64;
constexpr int CONSUMERS = 128;

// One thread has tiles of 16 x 64 halves loaded into a ring; a warpgroup adds 1 to each half and has them stored.
extern "C" __global__ void __launch_bounds__(2 * CONSUMERS, 1)
    ring(const __grid_constant__ TensorMap in, const __grid_constant__ TensorMap out, int tiles) {
    __shared__ __align__(1024) u16 stage[STAGES][ROWS * COLUMNS];
    __shared__ __align__(1024) u16 result[ROWS * COLUMNS];
    __shared__ u64 full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&in) : "memory");
        for (int s = 0; s < STAGES; s++) {
            init(&full[s], 1);
            init(&empty[s], CONSUMERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x < 32 && elected()) {
            for (int tile = 0; tile < tiles; tile++) {
                int s = tile % STAGES;
                wait(&empty[s], tile / STAGES % 2 ^ 1);
                arrive_and_expect(&full[s], sizeof stage[s]);
                load(stage[s], &in, &full[s], 0, tile * ROWS);
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    int thread = threadIdx.x - CONSUMERS;
    for (int tile = 0; tile < tiles; tile++) {
        int s = tile % STAGES;
        while (!is_over(&full[s], tile / STAGES % 2)) {
        }
        u16 mine[8];
        for (int i = 0; i < 8; i++) {
            mine[i] = stage[s][thread * 8 + i];
        }
        fence_proxy();
        __syncwarp();
        if (thread % 32 == 0) {
            arrive(&empty[s]);
        }
        if (thread == 0) {
            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        }
        asm volatile("bar.sync 1, 128;" ::: "memory");
        for (int i = 0; i < 8; i++) {
            result[thread * 8 + i] = mine[i] + 1;
        }
        fence_proxy();
        asm volatile("bar.sync 1, 128;" ::: "memory");
        if (thread == 0) {
            store(result, &out, 0, tile * ROWS);
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
    }
    if (thread == 0) {
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}

// A warp has 512 bytes loaded and multiplies each word by 3, with states in place of parities.
extern "C" __global__ void __launch_bounds__(32, 1) line(const u32* in, u32* out) {
    extern __shared__ __align__(128) u32 memory[];
    __shared__ u64 full;
    if (threadIdx.x == 0) {
        init(&full, 32);
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    u64 state;
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared(memory)),
                     "l"(in), "r"(512), "r"(shared(&full)) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %0, [%1], %2;"
                     : "=l"(state) : "r"(shared(&full)), "r"(512) : "memory");
    } else {
        asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(shared(&full)) : "memory");
    }
    u32 over = 0;
    while (!over) {
        asm volatile(
            "{\n"
            ".reg .pred over;\n"
            "mbarrier.try_wait.shared::cta.b64 over, [%1], %2, %3;\n"
            "selp.u32 %0, 1, 0, over;\n"
            "}" : "=r"(over) : "r"(shared(&full)), "l"(state), "r"(1000) : "memory");
    }
    for (int i = 0; i < 4; i++) {
        memory[threadIdx.x * 4 + i] *= 3;
    }
    fence_proxy();
    __syncwarp();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out), "r"(shared(memory)), "r"(512)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
        asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared(&full)) : "memory");
    }
}
