//! Memory: counted as it is allocated, and what the machine has left.

use peak_alloc::PeakAlloc;
use sysinfo::System;

/// Counts every allocation of the process.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Runs `work` and returns, with its result, the most bytes that were allocated at once beyond those before it.
pub(crate) fn peak_extra<T>(work: impl FnOnce() -> T) -> (T, usize) {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let result = work();
    (result, ALLOCATOR.peak_usage().saturating_sub(before))
}

/// Bytes that this process can still have: the machine's, or its container's where that is less. Where the system does
/// not say, there is no limit.
pub(crate) fn available() -> u64 {
    let mut system = System::new();
    system.refresh_memory();
    if system.total_memory() == 0 {
        return u64::MAX;
    }
    // A container's "free" memory leaves out what the page cache would give back, so only what is held counts.
    let container = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory.saturating_sub(limits.rss));
    system.available_memory().min(container)
}
