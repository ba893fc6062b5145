// Attention of one head, d = 64, with a warp that copies and two warpgroups that multiply, 64 queries each, and the second product
// of a tile beside the first one of the next. Compiled for the test beside it:
// nvcc -ptx -std=c++17 -gencode=arch=compute_90a,code=compute_90a specialised.cu
#include "wgmma.cuh"

__device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ void wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

struct alignas(64) Map {
    char bytes[128];
};

__device__ unsigned shared_address(const void* of) { return static_cast<unsigned>(__cvta_generic_to_shared(of)); }

__device__ void init(unsigned long long* barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ void expect(unsigned long long* barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ void arrive(unsigned long long* barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ void wait_for(unsigned long long* barrier, int parity)
{
    asm volatile("{ .reg .pred p; $L_again%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra $L_again%=; }" ::"r"(
                     shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

__device__ void load(void* to, const Map& map, int row, unsigned long long* barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                     shared_address(to)),
                 "l"(&map), "r"(0), "r"(row), "r"(shared_address(barrier))
                 : "memory");
}

struct Softmax {
    float highest[2] = {-1e30f, -1e30f}, sum[2] = {}, scale[2];

    // S becomes weights, and then P.
    __device__ void operator()(float (&s)[64])
    {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = highest[half];
#pragma unroll
            for (int i = 0; i < 32; ++i)
                most = fmaxf(most, s[i / 2 * 4 + 2 * half + i % 2]);
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            scale[half] = exp2f(highest[half] - most);
            highest[half] = most;
            sum[half] *= scale[half];
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                float& weight = s[i / 2 * 4 + 2 * half + i % 2];
                weight = exp2f(weight - most);
                sum[half] += weight;
            }
        }
    }
};

__device__ void round_to(unsigned (&p)[8][4], const float (&s)[64])
{
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(s[2 * i], s[2 * i + 1]);
        p[i / 4][i % 4] = *reinterpret_cast<const unsigned*>(&pair);
    }
}

__device__ void scores(float (&s)[64], const void* q, const void* k)
{
#pragma unroll
    for (int step = 0; step < 4; ++step)
        multiply_128(s, descriptor(q) + 2 * step, descriptor(k) + 2 * step, step != 0);
    commit();
}

__device__ void output(float (&o)[32], const unsigned (&p)[8][4], const void* v)
{
#pragma unroll
    for (int step = 0; step < 8; ++step)
        multiply_64(o, p[step], descriptor(v) + 128 * step);
    commit();
}

extern "C" __global__ void __launch_bounds__(384, 1) attention(const __grid_constant__ Map q, const __grid_constant__ Map k,
                                                               const __grid_constant__ Map v, float* out, int tiles)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ unsigned long long q_full, full[2], empty[2];
    unsigned char *q_tile = memory, *k_tile = memory + 16384, *v_tile = memory + 49152;
    const int thread = threadIdx.x % 128, group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        init(&q_full, 1);
        for (int stage = 0; stage < 2; ++stage) {
            init(&full[stage], 1);
            init(&empty[stage], 2);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (thread == 0) {
            expect(&q_full, 16384);
            load(q_tile, q, 128 * blockIdx.x, &q_full);
            for (int tile = 0; tile < tiles; ++tile) {
                const int stage = tile % 2;
                wait_for(&empty[stage], ~(tile / 2) & 1);
                expect(&full[stage], 32768);
                load(k_tile + 16384 * stage, k, 128 * tile, &full[stage]);
                load(v_tile + 16384 * stage, v, 128 * tile, &full[stage]);
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    q_tile += 8192 * (group - 1);
    float s[64], o[32] = {};
    unsigned p[8][4];
    Softmax softmax;
    wait_for(&q_full, 0);
    wait_for(&full[0], 0);
    hold(s);
    fence();
    scores(s, q_tile, k_tile);
    wait<0>();
    hold(s);
    softmax(s);
    round_to(p, s);
    for (int tile = 1; tile < tiles; ++tile) {
        wait_for(&full[tile % 2], tile / 2 & 1);
        hold(s);
        hold(o);
        fence();
        scores(s, q_tile, k_tile + 16384 * (tile % 2));
        output(o, p, v_tile + 16384 * ((tile - 1) % 2));
        wait<1>();
        hold(s);
        softmax(s);
        wait<0>();
        hold(o);
        if (thread == 0)
            arrive(&empty[(tile - 1) % 2]);
#pragma unroll
        for (int i = 0; i < 32; ++i)
            o[i] *= softmax.scale[i / 2 % 2];
        round_to(p, s);
    }
    hold(o);
    fence();
    output(o, p, v_tile + 16384 * ((tiles - 1) % 2));
    wait<0>();
    hold(o);
    out += 64 * 64 * (2 * blockIdx.x + group - 1) + (thread / 32 * 16 + thread % 32 / 4) * 64 + thread % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float total = softmax.sum[half];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
#pragma unroll
        for (int i = 0; i < 16; ++i)
            out[8 * 64 * half + i / 2 * 8 + i % 2] = o[i / 2 * 4 + 2 * half + i % 2] / total;
    }
}
