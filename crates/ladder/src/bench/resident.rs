//! Rungs on data that stays on their device.

// A launch cannot check its arguments.
#![allow(unsafe_code)]

use super::BenchError;
use attention::{Attention, AttentionError, Output, Problem};
use cuda_fa2::{CudaRung, Plan, Shape, Uploaded};
use device::{DeviceError, Graph, Stream};

/// A problem on a device, and rungs that are planned on it. All work in the same memory, one after the other.
pub struct Resident<'a, 'p> {
    problem: &'a Problem<'p>,
    rungs: Vec<&'a CudaRung>,
    plans: Vec<Plan>,
    stream: Stream,
    /// The same tensors, in as many places.
    copies: Vec<Uploaded>,
}

/// Calls of one rung, on one copy of the tensors after the other, that are launched as one. It lives no longer than the
/// tensors.
pub(super) struct Calls<'r, 'a, 'p> {
    resident: &'r Resident<'a, 'p>,
    place: usize,
    /// How many, and what they are captured in; a single one is launched as it is.
    pub(super) count: usize,
    graph: Option<Graph>,
}

impl<'a, 'p> Resident<'a, 'p> {
    /// Plans the problem for each of the rungs, and copies it to their device as often as told.
    ///
    /// # Errors
    /// [`BenchError::Rung`] names a rung that does not take the problem, [`BenchError::Device`] says what the device did.
    ///
    /// # Panics
    /// If there are no rungs or no copies.
    pub fn new(rungs: Vec<&'a CudaRung>, problem: &'a Problem<'p>, copies: usize) -> Result<Self, BenchError> {
        let shape = Shape::from(problem);
        let plan = |rung: &&CudaRung| rung.plan(&shape, problem.options()).map_err(|error| failed(rung, error));
        let plans = rungs.iter().map(plan).collect::<Result<Vec<_>, _>>()?;
        let shared = plans.first().expect("at least one rung").clone().sharing(&plans);
        let device = rungs[0].device();
        let copies = (0..copies).map(|_| Uploaded::new(device, problem, &shared)).collect::<Result<Vec<_>, _>>()?;
        assert!(!copies.is_empty(), "at least one copy");
        Ok(Resident { problem, rungs, plans, stream: device.stream()?, copies })
    }

    /// Launches the rung at `place` once, and returns what it wrote.
    ///
    /// # Errors
    /// [`BenchError::Device`]; [`BenchError::Rung`] if there is no memory for the results.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn output(&self, place: usize) -> Result<Output, BenchError> {
        let (rung, copy) = (self.rungs[place], &self.copies[0]);
        copy.clear()?;
        self.launch(place, 0)?;
        self.stream.synchronize()?;
        let output = Output::empty(self.problem).and_then(|mut output| {
            rung.download(copy, self.problem, &mut output.view_mut())?;
            Ok(output)
        });
        output.map_err(|error| failed(rung, error))
    }

    /// Launches the rung at `place` once, and returns the milliseconds that its kernels took.
    ///
    /// # Errors
    /// [`BenchError::Device`].
    ///
    /// # Panics
    /// If there is no such place.
    pub fn once(&self, place: usize) -> Result<f64, BenchError> {
        let start = self.stream.record()?;
        self.launch(place, 0)?;
        Ok(self.stream.record()?.elapsed_ms(&start)?.into())
    }

    /// So many calls of the rung at `place`, which has run before.
    pub(super) fn calls(&self, place: usize, count: usize) -> Result<Calls<'_, 'a, 'p>, BenchError> {
        let several = |_: &Stream| (0..count).try_for_each(|call| self.launch(place, call % self.copies.len()));
        let graph = (count > 1).then(|| self.stream.capture(several)).transpose()?;
        Ok(Calls { resident: self, place, count, graph })
    }

    /// What is computed.
    pub(super) fn problem(&self) -> &Problem<'p> {
        self.problem
    }

    /// Who computes it.
    pub(super) fn rungs(&self) -> &[&CudaRung] {
        &self.rungs
    }

    /// In how many places its tensors lie.
    pub(super) fn copies(&self) -> usize {
        self.copies.len()
    }

    /// The stream in which everything runs.
    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    fn launch(&self, place: usize, copy: usize) -> Result<(), DeviceError> {
        let (rung, tensors) = (self.rungs[place], self.copies[copy].tensors());
        // SAFETY: the tensors were uploaded from the problem that was planned, with its options and lengths and with a workspace
        // as large as that of any of the plans. They live as long as `self`, longer than any graph of it, and their memory
        // waits for the device when it is freed. All launches are in one stream, so that no two run at once.
        unsafe { rung.launch(&self.plans[place], tensors, &self.stream) }
    }
}

impl Calls<'_, '_, '_> {
    /// Puts all of them into the stream.
    pub(super) fn launch(&self) -> Result<(), BenchError> {
        let launched = match &self.graph {
            Some(graph) => graph.launch(&self.resident.stream),
            None => self.resident.launch(self.place, 0),
        };
        Ok(launched?)
    }
}

fn failed(rung: &CudaRung, error: AttentionError) -> BenchError {
    BenchError::Rung { who: rung.name(), error }
}
