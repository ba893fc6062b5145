//! A simulated GPU: the PTX of kernels, run on the CPU by the crate `ptx-sim`.
//!
//! A launch runs when it is put into a stream, to its end, on the calling thread, while the device is locked. So a stream has
//! nothing to wait for, and what a kernel does wrong shows at the launch. Calls that a GPU refuses in a capture are refused
//! here too: what passes here can be captured there.

mod memory;
mod module;
mod stream;

pub(crate) use memory::Buffer;
pub(crate) use module::{Kernel, Module};
pub(crate) use stream::{Event, Graph, Stream, no_clock};

use crate::{Attributes, DeviceError};
use ptx_sim::{Counters, LaunchError, Memory, MemoryError, PtxError, Schedule};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use stream::Capture;

/// Instructions of all warps after which a launch is taken to hang, where nothing else is said: some ten minutes.
const STEPS: u64 = 1 << 30;

/// As Hopper, where that decides what a kernel may be, with the memory of a host.
const ATTRIBUTES: Attributes = Attributes {
    compute_capability: (9, 0),
    multiprocessors: 1,
    threads_per_block: 1024,
    shared_per_block: 227 << 10,
    l2_bytes: 0,
    memory_bytes: 4 << 30,
    driver: 0,
};

/// A simulated GPU. A clone is the same device.
#[derive(Clone, Debug)]
pub struct Simulator(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    memory: Memory,
    schedule: Schedule,
    /// Of each kernel that was launched, in the order of their first launches.
    counters: Vec<(String, Counters)>,
    /// How many streams were made.
    streams: u64,
    /// Of the streams that are captured.
    captures: Vec<Capture>,
}

impl Simulator {
    pub(crate) fn new() -> Self {
        Simulator(Arc::new(Mutex::new(State {
            memory: Memory::new(ATTRIBUTES.memory_bytes as u64),
            schedule: Schedule { seed: 0, steps: STEPS },
            counters: Vec::new(),
            streams: 0,
            captures: Vec::new(),
        })))
    }

    /// Sets the order in which warps run and copies land: every launch from now on takes the one that this seed draws, so that
    /// the seed under which a kernel failed makes it fail again. Seed 0, a new device's, draws nothing: one warp runs after
    /// another, as far as each gets.
    pub fn set_schedule(&self, seed: u64) {
        self.lock().schedule.seed = seed;
    }

    /// Sets after how many instructions of all its warps a launch is taken to hang, and ends with an error: 2^30 on a new
    /// device, which take some ten minutes.
    pub fn set_step_limit(&self, steps: u64) {
        self.lock().schedule.steps = steps;
    }

    /// What the launches of each kernel have done together since the last call, or since the device was made: its name and
    /// what was counted, in the order of first launches. One that failed is not counted.
    pub fn take_counters(&self) -> Vec<(String, Counters)> {
        std::mem::take(&mut self.lock().counters)
    }

    pub(crate) fn name(&self) -> &str {
        "simulated GPU"
    }

    pub(crate) fn attributes(&self) -> &Attributes {
        &ATTRIBUTES
    }

    pub(crate) fn memory_free(&self) -> usize {
        self.lock().memory.free_bytes() as usize
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device for a call that waits for it on a GPU: if a stream of this thread is captured, such a call fails and spoils
    /// the capture.
    fn idle(&self) -> Result<MutexGuard<'_, State>, DeviceError> {
        let mut state = self.lock();
        let thread = thread::current().id();
        match state.captures.iter_mut().find(|capture| capture.thread == thread) {
            Some(capture) => Err(capture.spoil()),
            None => Ok(state),
        }
    }
}

impl PartialEq for Simulator {
    /// Whether both are the same device.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl From<MemoryError> for DeviceError {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Full { bytes, free } => DeviceError::Memory { bytes: bytes as usize, free: free as usize },
            other => DeviceError::Simulated { report: other.to_string() },
        }
    }
}

impl From<PtxError> for DeviceError {
    fn from(error: PtxError) -> Self {
        DeviceError::Simulated { report: error.to_string() }
    }
}

impl From<LaunchError> for DeviceError {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::Shape { kernel, what, found, wanted } => {
                DeviceError::value(format!("{kernel}: {what}"), found, wanted)
            }
            LaunchError::Fault(fault) => DeviceError::Simulated { report: fault.to_string() },
        }
    }
}
