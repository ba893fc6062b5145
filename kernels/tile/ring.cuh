// A ring of stages in shared memory that a producer fills and consumers empty, each when the other has done.
#pragma once
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"

// ANCHOR: ring
/// The barriers of a ring. Phase n of `full` is over when the stage has been filled n + 1 times, phase n of `empty` when it has been
/// read as often.
template <int STAGES> struct Ring {
    unsigned long long full_[STAGES], empty_[STAGES];

    /// For one producer that announces its bytes, and that many threads that say when they have read. One thread does it.
    __device__ void init(int readers) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(full(stage), 1);
            mbarrier_init(empty(stage), readers);
        }
    }
    __device__ unsigned full(int stage) const { return shared_address(&full_[stage]); }
    __device__ unsigned empty(int stage) const { return shared_address(&empty_[stage]); }
};

/// Whose turn it is: a stage, and the parity of the phase in which it is filled. Who fills it waits for `empty` of the phase before,
/// whose parity is the other one; who reads it waits for `full` of this one.
template <int STAGES> struct Turn {
    static_assert((STAGES & STAGES - 1) == 0, "so that turns may wrap around");
    unsigned number = 0;

    __device__ int stage() const { return number % STAGES; }
    __device__ unsigned parity() const { return number / STAGES % 2; }
    __device__ Turn before() const { return {number - 1}; }
    __device__ void next() { ++number; }
};
// ANCHOR_END: ring
