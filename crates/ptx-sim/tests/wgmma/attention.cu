// Attention of one head, d = 64, by one warpgroup a block: 64 queries against tiles of 128 keys. Compiled for the test beside it:
// nvcc -ptx -std=c++17 -gencode=arch=compute_90a,code=compute_90a attention.cu
#include "wgmma.cuh"

__device__ void commit_and_wait()
{
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}

__device__ int swizzled(int piece)
{
    return piece ^ (piece / 8 & 7);
}

extern "C" __global__ void __launch_bounds__(128, 1)
    attention(const uint4* q, const uint4* k, const uint4* v, float* out, int tiles)
{
    __shared__ __align__(1024) uint4 q_tile[512], k_tile[1024], v_tile[1024];
    const int thread = threadIdx.x;
    for (int i = thread; i < 512; i += 128)
        q_tile[swizzled(i)] = q[512 * blockIdx.x + i];
    float s[64], o[32] = {}, highest[2] = {-1e30f, -1e30f}, sum[2] = {};
    for (int tile = 0; tile < tiles; ++tile) {
        __syncthreads();
        for (int i = thread; i < 1024; i += 128) {
            k_tile[swizzled(i)] = k[1024 * tile + i];
            v_tile[swizzled(i)] = v[1024 * tile + i];
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        hold(s);
        fence();
#pragma unroll
        for (int step = 0; step < 4; ++step)
            multiply_128(s, descriptor(q_tile) + 2 * step, descriptor(k_tile) + 2 * step, step != 0);
        commit_and_wait();
        hold(s);
        unsigned p[8][4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = highest[half];
#pragma unroll
            for (int i = 0; i < 32; ++i)
                most = fmaxf(most, s[i / 2 * 4 + 2 * half + i % 2]);
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            const float scale = exp2f(highest[half] - most);
            highest[half] = most;
            sum[half] *= scale;
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                float& weight = s[i / 2 * 4 + 2 * half + i % 2];
                weight = exp2f(weight - most);
                sum[half] += weight;
            }
#pragma unroll
            for (int i = 0; i < 16; ++i)
                o[i / 2 * 4 + 2 * half + i % 2] *= scale;
        }
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            const __nv_bfloat162 pair = __floats2bfloat162_rn(s[2 * i], s[2 * i + 1]);
            p[i / 4][i % 4] = *reinterpret_cast<const unsigned*>(&pair);
        }
        hold(o);
        fence();
#pragma unroll
        for (int step = 0; step < 8; ++step)
            multiply_64(o, p[step], descriptor(v_tile) + 128 * step);
        commit_and_wait();
        hold(o);
    }
    out += 64 * 64 * blockIdx.x + (thread / 32 * 16 + thread % 32 / 4) * 64 + thread % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float total = sum[half];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
#pragma unroll
        for (int i = 0; i < 16; ++i)
            out[8 * 64 * half + i / 2 * 8 + i % 2] = o[i / 2 * 4 + 2 * half + i % 2] / total;
    }
}
