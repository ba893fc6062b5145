// Copies from device to shared memory that no register and no thread waits for. PTX ISA, "Data Movement and Conversion
// Instructions: Asynchronous copy: Non-bulk copy".
#pragma once

/// Copies 16 bytes from device memory to an address in shared memory; both are multiples of 16.
__device__ inline void cp_async_16(unsigned to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/// Copies 16 bytes to an address in shared memory: the first `bytes` from device memory, which alone are read, and zeros.
/// Both addresses are multiples of 16.
__device__ inline void cp_async_16(unsigned to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/// Makes a group of this thread's copies since the last.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `PENDING` of this thread's latest groups are under way. What it has copied itself is there then; other
/// threads see it after a barrier.
template <int PENDING> __device__ inline void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
