// Matrix instructions of Hopper that do not overlap: the accumulator is touched between them, so the compiler adds waits.

extern "C" __global__ void __launch_bounds__(128) touched(float* y, unsigned long long a, unsigned long long b, int n) {
    float d0 = y[0], d1 = y[1], d2 = y[2], d3 = y[3];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int i = 0; i < n; i++) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
                     : "l"(a), "l"(b));
        d0 += 1.f;
    }
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
    y[0] = d0 + d1 + d2 + d3;
}
