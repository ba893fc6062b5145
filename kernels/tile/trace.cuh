// When the threads of a block do what, for `ladder trace`: of one block, one thread of each warpgroup keeps marks. Where TRACE is not
// defined, how many of them a thread has room for, they are nothing.
#pragma once
#include "ptx/clock.cuh"
#include "ptx/wgmma.cuh"

/// What a thread has done or waited for when it sets a mark, since the mark before. The host counts them in this order.
enum class Did {
    WAIT_FOR_JOB,
    // Who copies: a stage is empty, and its copy starts.
    WAIT_TO_COPY_Q,
    WAIT_TO_COPY_K,
    WAIT_TO_COPY_V,
    // Who multiplies.
    WAIT_FOR_Q,  // and for the first K
    WAIT_FOR_TURN,
    START_S,
    WAIT_FOR_V,
    START_O,
    WAIT_FOR_S,
    SOFTMAX,
    WAIT_FOR_K,
    WAIT_FOR_O,
    PACK,  // P~, and the factor of O
    FINISH,
};

#ifdef TRACE
/// The marks of a thread, and two moments on both clocks, by which one is told in the other.
struct Track {
    unsigned long long clock[2], nanoseconds[2];
    unsigned count, unused;  // how many marks were set, of which the first TRACE were kept
    uint2 marks[TRACE];      // the clock, and what was done
};

/// Where the block of that number has its tracks.
__device__ struct {
    Track* tracks;
    unsigned block;
} traced;

/// Tells the kernels of this module: runs before them.
extern "C" __global__ void __launch_bounds__(1) trace_to(Track* tracks, unsigned block) { traced = {tracks, block}; }

/// Keeps marks from now on until it ends.
class Trace {
    Track* track = nullptr;
    unsigned count = 0;

public:
    __device__ Trace(int number, bool keeps) {
        if (!keeps || blockIdx.x != traced.block) return;
        track = &traced.tracks[number];
        track->clock[0] = clock_now(), track->nanoseconds[0] = nanoseconds_now();
    }
    __device__ ~Trace() {
        if (!track) return;
        track->clock[1] = clock_now(), track->nanoseconds[1] = nanoseconds_now(), track->count = count;
    }
    __device__ void mark(Did what) {
        if (!track) return;
        const unsigned clock = short_clock_now();
        if (count < TRACE) track->marks[count] = {clock, unsigned(what)};
        ++count;
    }
    /// A mark behind whatever makes these numbers.
    template <int TILES> __device__ void mark(Did what, float (&x)[TILES][4]) { wgmma_hold(x), mark(what); }
};
#else
struct Trace {
    __device__ Trace(int, bool) {}
    __device__ void mark(Did) {}
    template <int TILES> __device__ void mark(Did, float (&)[TILES][4]) {}
};
#endif
