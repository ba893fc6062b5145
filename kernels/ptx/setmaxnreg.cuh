// How many registers a warpgroup has. PTX ISA, "Miscellaneous Instructions: setmaxnreg".
//
// A kernel that does this has launch bounds: else the compiler knows no number of registers to start from, and ignores it (notice
// C7508).
#pragma once

/// Gives registers back: `COUNT` are left to each thread, a multiple of 8. All warps of the warpgroup do it.
template <int COUNT> __device__ inline void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/// Waits until others have given back enough, and takes `COUNT` registers a thread.
template <int COUNT> __device__ inline void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
