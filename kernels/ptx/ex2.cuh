// 2^x. PTX ISA, "Floating Point Instructions: ex2".
#pragma once

/// 2^x to 2 units in the last place. Results below 2^-126 are 0; 2^-inf is 0, 2^NaN is NaN.
__device__ inline float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
