//! What the assembler says of the kernels that it makes.

/// What one kernel takes, by the assembler's report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The kernel's name.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The stack of a thread in local memory, in bytes: spilled registers, and arrays that are indexed at run time.
    pub stack_bytes: u32,
    /// Spilled registers of a thread, written and read, in bytes.
    pub spill_bytes: u32,
}

/// What each kernel takes, from the [log](crate::nvrtc::Compiled::log) of a cubin.
pub fn usage(log: &str) -> Vec<Usage> {
    let mut kernels: Vec<Usage> = Vec::new();
    // A function that a kernel calls has a paragraph of its own.
    let mut of_kernel = false;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or_default();
            kernels.push(Usage { kernel: name.into(), ..Usage::default() });
        } else if let (Some((_, name)), Some(kernel)) = (line.split_once("Function properties for "), kernels.last()) {
            of_kernel = name.trim() == kernel.kernel;
        } else if let Some(kernel) = kernels.last_mut().filter(|_| of_kernel) {
            let number = |unit: &str| {
                let before = line.split_once(unit)?.0.trim_end();
                before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok()
            };
            kernel.registers = number("registers").unwrap_or(kernel.registers);
            kernel.shared_bytes = number("bytes smem").unwrap_or(kernel.shared_bytes);
            kernel.stack_bytes = number("bytes stack frame").unwrap_or(kernel.stack_bytes);
            let spills = number("bytes spill stores").zip(number("bytes spill loads"));
            let spilled = spills.map_or(0, |(stores, loads)| stores.saturating_add(loads));
            kernel.spill_bytes = kernel.spill_bytes.saturating_add(spilled);
        }
    }
    kernels
}

/// The notices C75xx of a log: that the compiler has put waits between matrix instructions of Hopper (`wgmma`), which then no
/// longer overlap.
pub fn serialised(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains("(C75")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Said by NVRTC 13.0, but for the numbers of spills.
    const LOG: &str = "\
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the wgmma pipeline in the function 'calls'
ptxas info    : 24 bytes gmem
ptxas info    : Compiling entry function 'calls' for 'sm_90'
ptxas info    : Function properties for calls
ptxas         .     32 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 18 registers, used 0 barriers, 32 bytes cumulative stack size
ptxas info    : Compile time = 11.124 ms
ptxas info    : Function properties for _Z6calleef
ptxas         .     64 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function 'k1' for 'sm_90'
ptxas info    : Function properties for k1
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compile time = 4.526 ms
";

    #[test]
    fn a_log_tells_what_each_kernel_takes_and_what_is_serialised() {
        let calls =
            Usage { kernel: "calls".into(), registers: 18, stack_bytes: 32, spill_bytes: 20, ..Usage::default() };
        let k1 = Usage { kernel: "k1".into(), registers: 14, shared_bytes: 1024, ..Usage::default() };
        assert_eq!(usage(LOG), [calls, k1]);
        assert_eq!(serialised(LOG), [LOG.lines().next().unwrap()]);
        assert_eq!(usage("no report"), []);
    }
}
