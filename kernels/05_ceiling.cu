// What the multipliers of the card do at best: independent f32 multiply-adds in registers, and nothing else.

constexpr int CHAINS = 16;  // of each thread, more than the latency of a multiply-add asks for

/// Each thread does `CHAINS * steps` multiply-adds. `x` and `y` come from outside so that none is done at compile time.
extern "C" __global__ void __launch_bounds__(256) fma_ceiling(float* out, int steps, float x, float y) {
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
