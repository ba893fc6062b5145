// What the card does at best: independent f32 multiply-adds in registers, and copies through its memory; and nothing else.

constexpr int THREADS = 256;
constexpr int CHAINS = 16;  // of each thread, more than the latency of a multiply-add asks for
constexpr int FLIGHT = 4;   // loads of a thread under way

/// Each thread does `CHAINS * steps` multiply-adds. `x` and `y` come from outside so that none is done at compile time.
extern "C" __global__ void __launch_bounds__(THREADS) fma_ceiling(float* out, int steps, float x, float y) {
    float chain[CHAINS];
    for (int c = 0; c < CHAINS; ++c) chain[c] = threadIdx.x + c;
#pragma unroll 8
    for (int step = 0; step < steps; ++step) {
        for (float& number : chain) number = number * x + y;
    }
    float sum = 0.0f;
    for (float number : chain) sum += number;
    out[(long long)blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

/// Each block copies `THREADS * FLIGHT` pieces of 16 bytes.
extern "C" __global__ void __launch_bounds__(THREADS) copy_ceiling(uint4* to, const uint4* from) {
    const long long first = (long long)blockIdx.x * THREADS * FLIGHT + threadIdx.x;
    uint4 piece[FLIGHT];
    for (int u = 0; u < FLIGHT; ++u) piece[u] = from[first + u * THREADS];
    for (int u = 0; u < FLIGHT; ++u) to[first + u * THREADS] = piece[u];
}
