// Order between the two ways to shared memory: that of threads' loads and stores, and the async proxy, through which the copy
// engine and wgmma go. PTX ISA, "Memory Consistency Model: Proxies", "membar, fence".
#pragma once

/// What this thread has stored in shared memory before is there for the copy engine and wgmma, once who starts them has heard
/// of it by a barrier.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
