//! A simulated GPU: runs the PTX of a kernel on the CPU, and reports what the kernel does wrong.
//!
//! Most who read about kernels have no GPU to run them on. And a GPU hides most of what can be wrong with one: two threads that
//! race mostly come in the same order, memory that nobody wrote mostly holds zeros, a barrier too few costs nothing until the
//! day when a warp is late. Here each of those ends the launch with a [`Fault`], which names the lines.
//!
//! ```
//! use ptx_sim::{FaultKind, LaunchError, Memory, Module, Schedule, Shape};
//!
//! // Each thread stores its number in shared memory, and fetches that of the thread 32 further on.
//! let ptx = |between: &str| format!("
//!     .version 8.0
//!     .target sm_80
//!     .address_size 64
//!     .entry rotate(.param .u64 out) {{
//!         .reg .b32 %r<5>; .reg .b64 %d<3>; .shared .b32 numbers[64];
//!         mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; st.shared.u32 [%r1], %r0;
//!         {between}
//!         xor.b32 %r2, %r1, 128; ld.shared.u32 %r3, [%r2];
//!         ld.param.u64 %d0, [out]; cvt.u64.u32 %d1, %r1; add.s64 %d2, %d0, %d1; st.global.u32 [%d2], %r3;
//!         ret;
//!     }}");
//! let run = |text: &str| {
//!     let mut memory = Memory::new(1 << 20);
//!     let kernel = Module::load(text, &mut memory).unwrap().kernel("rotate").unwrap();
//!     let out = memory.alloc(4 * 64).unwrap();
//!     let shape = Shape { grid: [1, 1, 1], block: [64, 1, 1], shared_bytes: 0 };
//!     let schedule = Schedule { seed: 1, steps: 1000 };
//!     kernel.launch(&mut memory, shape, &[&out.to_le_bytes()], schedule)
//! };
//! assert_eq!(run(&ptx("bar.sync 0;")).unwrap().instructions["bar.sync"], 2);
//! let Err(LaunchError::Fault(fault)) = run(&ptx("")) else { panic!("no fault") };
//! assert!(matches!(fault.kind, FaultKind::Race | FaultKind::Uninitialised), "{fault}");
//! ```
//!
//! # What is simulated
//!
//! - **A reader** for the PTX that nvcc, NVRTC and Triton write for sm_80, with what chapter 5's kernels and the next ones on
//!   tensor cores use, and for sm_90a. Anything else is an error that names its line: no instruction and no modifier is
//!   skipped that could matter.
//! - **Hopper's asynchrony**, for clusters of one block: `mbarrier` objects with their phases, arrivals and bytes; bulk copies
//!   (`cp.async.bulk`) and copies of boxes of tensors of 1 to 5 dimensions (`cp.async.bulk.tensor`), whose maps [`Tiling`]
//!   makes; `setmaxnreg`, of whole warpgroups and from what other ones gave back; `elect.sync`. Loads land when the schedule
//!   says, in any order, at the latest when all wait. Who waits for a phase that cannot end is a deadlock, whose report says
//!   how many arrivals and bytes are missing.
//! - **Arithmetic**, bit for bit as an H200 has it in a corpus of small programs, one or more for each form of an instruction:
//!   every rounding mode, `.ftz`, `.sat`, NaN. Where the ISA leaves a result open it is within the ISA's bound, not the
//!   hardware's bits: `ex2.approx` and its like, the order of the sums of `mma` and `wgmma`, and which NaN it is in f64 and
//!   after `abs` and `neg`.
//! - **Threads**: 32 lanes a warp, which come apart at branches and go their own ways (PTX ISA, "Independent Thread
//!   Scheduling"), and meet where paths meet or where a `.sync` instruction or a barrier wants them.
//! - **Memory**: every access is checked for bounds, alignment and initialisation, and for races. `cp.async` copies land when
//!   the schedule says, at the latest when they are waited for.
//! - **Warpgroups** (sm_90a): `wgmma` of f16 and bf16, with sums in f32 or f16, all shapes m64nNk16, A in registers or in shared
//!   memory, both operands along K or along M and N, in each swizzle of a matrix descriptor. The four warps meet at each of its
//!   instructions. A product is computed when the schedule says, at the latest when it is waited for.
//!
//! # The memory model
//!
//! It is that of the PTX ISA, "Memory Consistency Model", as far as programs without data races go, which is all that a kernel
//! should be: for those, every order of instructions that respects causality gives the same result, and one order is enough
//! to run. The order is drawn from a seed ([`Schedule`]): which warp runs, for how many instructions, which of its groups of
//! lanes, which block comes when, and when copies land. Whether two accesses race is decided by happens-before ("Causality
//! order"), not by the order that was drawn:
//!
//! - **Program order** orders what a thread does. Lanes of one warp are threads like others: nothing but `bar.warp.sync`, or a
//!   barrier, orders their memory; `shfl`, `vote` and the like do not.
//! - **Barriers** (`bar`, `barrier`): who waits is ordered after all who have come. `bar.arrive` orders in one direction.
//! - **Atomics and fences** ("Release and Acquire Patterns"): a release, or a relaxed write after a fence, is ordered before
//!   the acquire, or the relaxed read before a fence, that reads it. Scopes are not told apart, and what one thread learns of
//!   another *block* all threads of its own count as knowing: some races between blocks can be missed, none is made up.
//! - **Two proxies** ("Proxies"): what bulk copies do is of the async proxy. An access by the generic proxy and then one by the
//!   async proxy to the same byte, of which one writes, need a `fence.proxy.async` of that memory somewhere between the two in
//!   the chain that orders them: that of a writer before a barrier will do, and that of the thread that issues the copy. The
//!   other way none is needed, as who has waited for a copy sees it. `mbarrier.init` needs its fence too, of either kind.
//!   Between different blocks no fence is asked for.
//! - **Phases** ("mbarrier"): an arrival releases, and a wait that succeeds acquires what was released in the phases that are
//!   over. A load is ordered before those who have seen the phase that it completes, and before nobody else: until then it
//!   conflicts with every access to where it goes. It counts in the phase in which it was issued, and a phase that would end
//!   without it is a fault. A store conflicts with writes to its source until `wait_group.read`, and with all accesses to its
//!   destination until `wait_group`. A block must not end before its shared memory is free of copies.
//! - **Asynchronous copies** ("Asynchronous Operations", "Non-bulk copy"): from issue until the wait for their group, they
//!   conflict with every access to where they go, by whatever thread, and with every write to where they come from. After it
//!   they are accesses of the thread that waited.
//! - **Products** ("Asynchronous Warpgroup Level Matrix Instructions"): a `wgmma` reads its operands in shared memory by the async
//!   proxy, from issue until a thread of the warpgroup has waited for its group and who writes there knows of that. All
//!   threads of the warps that read a place must know that it was written: of A those of the warp whose 16 rows they are, of B
//!   all. Its registers, accumulators and fragments of A, are neither read nor written until the wait. And between a thread's
//!   access to a register and the next `wgmma` that has it stands a `wgmma.fence`.
//! - Strong accesses (`.volatile`, `.relaxed`, atomics) do not race with each other. Mixed sizes count byte by byte. Equal
//!   values that one instruction of a warp stores to one place are no race.
//!
//! # What is not
//!
//! - No time, no caches, no occupancy: [`Counters`] count what a kernel asks for, and nothing says how long it would take.
//!   `%clock`, `%clock64` and `%globaltimer` count the instructions of the block, one for each of a warp: an order of what its
//!   threads did.
//! - What a racy program does beyond its first race, and so every weak-memory effect.
//! - Blocks run one after another: kernels whose blocks wait for each other end as a deadlock or at the step limit.
//! - Of bulk copies those between blocks, multicast, reductions, `im2col`, and tensor maps with an interleave, element strides
//!   or rows narrower than their swizzle; of `mbarrier` what is `.relaxed`, and arrivals by `cp.async`; and
//!   `griddepcontrol`: refused by name.
//! - Which registers a thread has before the first `setmaxnreg`, an assembler decides: here as many as the block's threads can
//!   have each, but no more than the kernel asks for.
//! - The NaN for elements outside of a tensor is one of many: which one a device has is not published.
//! - Where `wgmma` has an operand is as the ISA tells, its base offset too; it is not in the corpus of what an H200 did.
//! - Registers that are read before they are written hold 0, and nobody says so.
//! - A `shfl` that reads a lane outside its mask, which the ISA leaves open, gives what that lane has.
//! - Arithmetic in f64 rounds to nearest alone. Textures, surfaces, functions that call themselves, calls through pointers,
//!   `printf`, clusters of more than one block, and `wgmma` of other types or of sparse matrices are refused.

mod clock;
mod counters;
mod error;
mod exec;
mod fault;
mod float;
mod fragments;
mod lanes;
mod launch;
mod lower;
mod memory;
mod program;
mod ptx;
mod races;
mod tensor_map;
mod wgmma;

pub use counters::{Counters, Flops, Global, Shared};
pub use error::PtxError;
pub use fault::{Fault, FaultKind, Site, SourceLine};
pub use launch::{Kernel, LaunchError, Module, Schedule, Shape};
pub use memory::{Memory, MemoryError};
pub use tensor_map::{Element, OutOfBoundsFill, Swizzle, Tiling, TilingError};
