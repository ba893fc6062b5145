//! What a kernel did wrong, and where.

use std::fmt;

/// The kind of what a kernel did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// Two accesses to one place, at least one of them a write, with nothing that orders them.
    Race,
    /// An access to where an asynchronous copy is under way, or a write to where one reads.
    InFlight,
    /// An access by the generic proxy and then one by the async proxy, with no proxy fence between them.
    ProxyFence,
    /// A write to an operand in shared memory of a `wgmma` that was not waited for.
    Operand,
    /// An access to a register of a `wgmma` that was not waited for.
    Fragment,
    /// No `wgmma.fence` between an access to a register and a `wgmma` that has it.
    WgmmaFence,
    /// A matrix descriptor that has what it may not have.
    Descriptor,
    /// An access to no memory of the kernel's.
    OutOfBounds,
    /// An address that is no multiple of the size of the access.
    Misaligned,
    /// A read of memory that nobody wrote.
    Uninitialised,
    /// Lanes or warps that should come to one instruction together, and do not.
    Divergence,
    /// A barrier used against its rules.
    Barrier,
    /// An `mbarrier` used against its rules.
    Mbarrier,
    /// A tensor map that is none, or a copy that does not fit it.
    TensorMap,
    /// Registers that change hands against the rules.
    Registers,
    /// All that is left waits for something that cannot come.
    Deadlock,
    /// The kernel gave up by itself.
    Trap,
    /// More instructions than the launch allows.
    StepLimit,
}

/// What a kernel did wrong, and where. It prints as a report of a few lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind.
    pub kind: FaultKind,
    /// The kernel.
    pub kernel: String,
    /// What happened, in words.
    pub what: String,
    /// Where it happened.
    pub at: Option<Site>,
    /// What it conflicts with, in words, and where that happened.
    pub earlier: Option<(String, Site)>,
    /// What the others were doing: who waits for what.
    pub others: Vec<String>,
}

/// An instruction of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The line of CUDA, if the PTX tells it.
    pub source: Option<SourceLine>,
    /// The line of the PTX, from 1.
    pub ptx_line: u32,
    /// Opcode and modifiers.
    pub instruction: String,
    /// The block, along x, y and z.
    pub block: [u32; 3],
    /// The warp in its block.
    pub warp: u32,
    /// The lane, where it is one alone.
    pub lane: Option<u32>,
}

/// A line of CUDA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// File and line of the call, where the line is of a function that was inlined.
    pub called_at: Option<(String, u32)>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.kernel, self.kind, self.what)?;
        if let Some(site) = &self.at {
            write!(f, "\n  at {site}")?;
        }
        if let Some((what, site)) = &self.earlier {
            write!(f, "\n  {what} at {site}")?;
        }
        self.others.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultKind::Race => "race",
            FaultKind::InFlight => "copy in flight",
            FaultKind::ProxyFence => "missing proxy fence",
            FaultKind::Operand => "operand in use",
            FaultKind::Fragment => "fragment in use",
            FaultKind::WgmmaFence => "missing wgmma.fence",
            FaultKind::Descriptor => "matrix descriptor",
            FaultKind::OutOfBounds => "out of bounds",
            FaultKind::Misaligned => "misaligned address",
            FaultKind::Uninitialised => "uninitialised memory",
            FaultKind::Divergence => "divergence",
            FaultKind::Barrier => "barrier",
            FaultKind::Mbarrier => "mbarrier",
            FaultKind::TensorMap => "tensor map",
            FaultKind::Registers => "registers",
            FaultKind::Deadlock => "deadlock",
            FaultKind::Trap => "trap",
            FaultKind::StepLimit => "step limit",
        })
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(source) = &self.source {
            write!(f, "{source}, ")?;
        }
        let [x, y, z] = self.block;
        write!(f, "PTX line {}, {}, block ({x}, {y}, {z}), warp {}", self.ptx_line, self.instruction, self.warp)?;
        self.lane.map_or(Ok(()), |lane| write!(f, ", lane {lane}"))
    }
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        self.called_at.as_ref().map_or(Ok(()), |(file, line)| write!(f, " (called at {file}:{line})"))
    }
}

impl std::error::Error for Fault {}
