// Barriers in shared memory that count arrivals, and bytes that copies bring. PTX ISA, "Parallel Synchronization and
// Communication Instructions: mbarrier".
//
// A barrier has phases, of which the first is phase 0. A phase ends when as many threads have arrived as the barrier is for, and
// all bytes that were announced in it have come; the next begins at once. A barrier is 8 bytes at a multiple of 8.
#pragma once

/// Makes a barrier for that many arrivals a phase. Threads see it after a barrier of the block, copies after
/// [`fence_mbarrier_init`] too.
__device__ inline void mbarrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Shows barriers that this thread has made to the copy engine ("membar, fence").
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// Arrives. What this thread has done before is seen by who waits for the phase.
__device__ inline void mbarrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives, and announces bytes that copies will bring in this phase.
__device__ inline void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// Whether the phase of that parity is over, after a while of waiting. Parity 0 is that of phases 0, 2, 4 and so on; the phase
/// before phase 0, of parity 1, counts as over.
__device__ inline bool mbarrier_try_wait(unsigned barrier, unsigned parity) {
    unsigned over;
    asm volatile("{\n"
                 ".reg .pred over;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, over;\n"
                 "}"
        : "=r"(over)
        : "r"(barrier), "r"(parity)
        : "memory");
    return over;
}

/// Waits until the phase of that parity is over.
__device__ inline void mbarrier_wait(unsigned barrier, unsigned parity) {
    while (!mbarrier_try_wait(barrier, parity)) {}
}
