// Conversions between element types and f32. PTX ISA, "Data Movement and Conversion Instructions: cvt".
#pragma once

/// An IEEE half, as its bits: no arithmetic is done in it.
struct f16 {
    unsigned short bits;
};

__device__ inline float to_f32(float x) { return x; }

/// Widens a half, exactly.
__device__ inline float to_f32(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

template <class T> __device__ T from_f32(float x);

template <> __device__ inline float from_f32<float>(float x) { return x; }

/// Rounds to the nearest half, to even at a tie: the one rounding of a result.
template <> __device__ inline f16 from_f32<f16>(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
