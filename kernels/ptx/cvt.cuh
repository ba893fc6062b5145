// Conversions between element types and f32. PTX ISA, "Data Movement and Conversion Instructions: cvt".
#pragma once

/// An IEEE half, as its bits: no arithmetic is done in it.
struct f16 {
    unsigned short bits;
};

/// A bfloat16, the upper half of an f32, as its bits.
struct bf16 {
    unsigned short bits;
};

/// The largest finite number of a type of 16 bits.
template <class T> constexpr float LARGEST = 65504.0f;
template <> constexpr float LARGEST<bf16> = 0x1.fep127f;

__device__ inline float to_f32(float x) { return x; }

/// Widens a half, exactly.
__device__ inline float to_f32(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

/// Widens a bfloat16, exactly.
__device__ inline float to_f32(bf16 x) { return __builtin_bit_cast(float, (unsigned)x.bits << 16); }

template <class T> __device__ T from_f32(float x);

template <> __device__ inline float from_f32<float>(float x) { return x; }

/// Rounds to the nearest half, to even at a tie: the one rounding of a result.
template <> __device__ inline f16 from_f32<f16>(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

template <> __device__ inline bf16 from_f32<bf16>(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

/// Two numbers rounded at once, the first in the lower half of the register.
template <class T> __device__ unsigned pair_from_f32(float low, float high);

template <> __device__ inline unsigned pair_from_f32<f16>(float low, float high) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

template <> __device__ inline unsigned pair_from_f32<bf16>(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
