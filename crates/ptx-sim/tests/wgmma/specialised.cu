// Attention of one head, d = 64, with a warp that copies and two warpgroups that multiply, 64 queries each, and the second product
// of a tile beside the first one of the next. Compiled for the test beside it:
// nvcc -ptx -std=c++17 -gencode=arch=compute_90a,code=compute_90a specialised.cu
#include <cuda_bf16.h>

using Descriptor = unsigned long long;

// S += A B with A and B in shared memory, both K-major; S is 64 x 128.
__device__ void multiply_128(float (&d)[64], Descriptor a, Descriptor b, int adds)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{ %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63 }, %64, %65, p, 1, 1, 0, 0; }\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                   "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]) : "l"(a), "l"(b), "r"(adds));
}

// O += P V with P in registers and V in shared memory, N-major; O is 64 x 64.
__device__ void multiply_64(float (&d)[32], const unsigned (&a)[4], Descriptor b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{ %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 }, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ void wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

// Nothing that has these registers moves over this.
template <int N> __device__ void hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; ++i)
        asm volatile("" : "+f"(d[i])::"memory");
}

// Rows of 128 bytes, eight of them 1024 bytes, swizzled.
__device__ Descriptor descriptor(const void* from)
{
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(from));
    return (address & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

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
