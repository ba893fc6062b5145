//! How many blocks a multiprocessor holds at once, by the rules that NVIDIA publishes (cuda_occupancy.h), without a device.

/// Threads of a warp.
const WARP: u32 = 32;
/// Registers are given to a warp in pieces of so many.
const REGISTER_UNIT: u32 = 256;
/// The parts of a multiprocessor, each with a quarter of its registers and its warps.
const PARTS: u32 = 4;
/// Registers of a multiprocessor.
const REGISTERS: u32 = 65536;
/// Warps of a multiprocessor, at most.
const WARPS: u32 = 64;
/// Blocks of a multiprocessor, at most.
const BLOCKS: u32 = 32;
/// Shared memory that the system takes for itself of each block's, in bytes.
const RESERVED: u32 = 1024;
/// Shared memory is given in pieces of so many bytes.
const SHARED_UNIT: u32 = 128;

/// Blocks of so many threads that a multiprocessor of compute capability 8.0 or 9.0 holds at once, each with so many registers
/// a thread and bytes of shared memory, static and dynamic together; 0 where none fits. `None` for other architectures, whose
/// limits are others.
pub fn blocks_per_multiprocessor(arch: &str, threads: u32, registers: u32, shared_bytes: u32) -> Option<u32> {
    let shared = match arch {
        "sm_80" => 164 << 10,
        "sm_90" | "sm_90a" => 228 << 10,
        _ => return None,
    };
    // What is beyond a multiprocessor does not fit, however far it is beyond.
    let shared_bytes = shared_bytes.min(shared);
    let warps = threads.div_ceil(WARP).clamp(1, WARPS + 1);
    let registers_of_warp = (registers.clamp(1, REGISTERS) * WARP).next_multiple_of(REGISTER_UNIT);
    // A block is let in only if it would fit with as many warps in each part.
    let fits = registers_of_warp * warps.next_multiple_of(PARTS) <= REGISTERS && shared_bytes <= shared - RESERVED;
    let by_registers = REGISTERS / PARTS / registers_of_warp * PARTS / warps;
    let by_shared = shared / (shared_bytes + RESERVED).next_multiple_of(SHARED_UNIT);
    Some(if fits { BLOCKS.min(WARPS / warps).min(by_registers).min(by_shared) } else { 0 })
}

/// Warps that so many blocks are, of those that a multiprocessor can hold: 1 where all of them.
pub fn share_of_warps(blocks: u32, threads: u32) -> f64 {
    f64::from(blocks) * f64::from(threads.div_ceil(WARP)) / f64::from(WARPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers, bytes of shared memory, threads, and blocks as a program with cuda_occupancy.h of CUDA 13.0 tells them, with
    /// the attributes of an A100 and an H100 and all of the cache given to shared memory.
    const TOLD: &[(&str, u32, u32, u32, u32)] = &[
        ("sm_80", 16, 1024, 256, 8),
        ("sm_80", 16, 100000, 128, 1),
        ("sm_80", 32, 0, 64, 32),
        ("sm_80", 32, 17408, 1024, 2),
        ("sm_80", 32, 166912, 256, 1),
        ("sm_80", 40, 1024, 128, 12),
        ("sm_80", 40, 100000, 64, 1),
        ("sm_80", 40, 232448, 1024, 0),
        ("sm_80", 72, 17408, 256, 3),
        ("sm_80", 72, 166912, 128, 1),
        ("sm_80", 128, 1024, 64, 8),
        ("sm_80", 128, 49152, 1024, 0),
        ("sm_80", 128, 232448, 256, 0),
        ("sm_80", 168, 17408, 128, 3),
        ("sm_80", 168, 166912, 64, 1),
        ("sm_80", 255, 0, 1024, 0),
        ("sm_80", 255, 49152, 256, 1),
        ("sm_80", 255, 232448, 128, 0),
        ("sm_90", 16, 17408, 64, 12),
        ("sm_90", 16, 100000, 1024, 2),
        ("sm_90", 32, 0, 256, 8),
        ("sm_90", 32, 49152, 128, 4),
        ("sm_90", 32, 232448, 64, 1),
        ("sm_90", 40, 1024, 1024, 1),
        ("sm_90", 40, 100000, 256, 2),
        ("sm_90", 72, 0, 128, 7),
        ("sm_90", 72, 49152, 64, 4),
        ("sm_90", 72, 166912, 1024, 0),
        ("sm_90", 128, 1024, 256, 2),
        ("sm_90", 128, 100000, 128, 2),
        ("sm_90", 168, 0, 64, 6),
        ("sm_90", 168, 17408, 1024, 0),
        ("sm_90", 168, 166912, 256, 1),
        ("sm_90", 255, 1024, 128, 2),
        ("sm_90", 255, 100000, 64, 2),
        ("sm_90", 255, 232448, 1024, 0),
    ];

    #[test]
    fn blocks_are_those_of_nvidias_own_header() {
        for &(arch, registers, shared, threads, blocks) in TOLD {
            let found = blocks_per_multiprocessor(arch, threads, registers, shared);
            assert_eq!(found, Some(blocks), "{arch}: {registers} registers, {shared} bytes, {threads} threads");
        }
        for (threads, registers, shared) in
            [(32, 1 << 27, 0), (32, u32::MAX, 0), (u32::MAX, 16, 0), (32, 16, u32::MAX), (u32::MAX, u32::MAX, u32::MAX)]
        {
            assert_eq!(blocks_per_multiprocessor("sm_80", threads, registers, shared), Some(0));
        }
        assert_eq!(share_of_warps(u32::MAX, 64), f64::from(u32::MAX) / 32.0);
        assert_eq!(blocks_per_multiprocessor("sm_86", 128, 32, 0), None);
        assert_eq!(share_of_warps(6, 128), 0.375);
    }
}
