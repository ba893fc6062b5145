//! Streams, and graphs of what they were given.

use super::{Simulator, State};
use crate::DeviceError;
use ptx_sim::Shape;
use std::thread::{self, ThreadId};

/// A stream: what is put into it is done at once, or recorded in a capture.
#[derive(Debug)]
pub struct Stream {
    pub(super) simulator: Simulator,
    number: u64,
}

/// A point in a stream: it has been reached when it is made.
#[derive(Debug)]
pub struct Event(());

/// Launches that were recorded in a capture.
#[derive(Debug)]
pub struct Graph {
    simulator: Simulator,
    launches: Vec<Launch>,
}

/// A kernel with its shape and the bytes of its arguments.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) kernel: ptx_sim::Kernel,
    pub(super) shape: Shape,
    pub(super) arguments: Vec<Vec<u8>>,
}

/// What has been recorded of a stream.
#[derive(Debug)]
pub(super) struct Capture {
    /// The stream's number.
    stream: u64,
    /// Where the capture began.
    pub(super) thread: ThreadId,
    launches: Vec<Launch>,
    /// Why there will be no graph.
    spoiled: Option<DeviceError>,
}

impl Simulator {
    pub(crate) fn stream(&self) -> Stream {
        let mut state = self.lock();
        state.streams += 1;
        Stream { simulator: self.clone(), number: state.streams }
    }
}

impl State {
    /// The capture of a stream, if it is captured.
    fn capture(&mut self, stream: u64) -> Option<&mut Capture> {
        self.captures.iter_mut().find(|capture| capture.stream == stream)
    }
}

impl Capture {
    /// Notes a call that is not allowed, and gives its error.
    pub(super) fn spoil(&mut self) -> DeviceError {
        let wanted = "one that captures no stream, for a call that waits for the device, allocates or frees";
        self.spoiled.insert(DeviceError::value("thread", "one that captures a stream", wanted)).clone()
    }
}

impl Launch {
    fn run(&self, state: &mut State) -> Result<(), DeviceError> {
        let arguments: Vec<&[u8]> = self.arguments.iter().map(Vec::as_slice).collect();
        let done = self.kernel.launch(&mut state.memory, self.shape, &arguments, state.schedule)?;
        match state.counters.iter_mut().find(|(name, _)| name == self.kernel.name()) {
            Some((_, counters)) => *counters += done,
            None => state.counters.push((self.kernel.name().into(), done)),
        }
        Ok(())
    }
}

impl Stream {
    /// See [`Stream::synchronize`](crate::Stream::synchronize).
    pub(crate) fn synchronize(&self) -> Result<(), DeviceError> {
        self.simulator.lock().capture(self.number).map_or(Ok(()), |capture| Err(capture.spoil()))
    }

    /// See [`Stream::is_captured`](crate::Stream::is_captured).
    pub(crate) fn is_captured(&self) -> bool {
        self.simulator.lock().capture(self.number).is_some()
    }

    /// See [`Stream::record`](crate::Stream::record).
    pub(crate) fn record(&self) -> Result<Event, DeviceError> {
        self.not_captured(&mut self.simulator.lock()).map(Event)
    }

    /// See [`Stream::wait`](crate::Stream::wait).
    pub(crate) fn wait(&self, Event(()): &Event) -> Result<(), DeviceError> {
        self.not_captured(&mut self.simulator.lock())
    }

    /// See [`Stream::capture`](crate::Stream::capture).
    pub(crate) fn capture<E: From<DeviceError>>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        {
            let mut state = self.simulator.lock();
            self.not_captured(&mut state)?;
            let (stream, thread) = (self.number, thread::current().id());
            state.captures.push(Capture { stream, thread, launches: Vec::new(), spoiled: None });
        }
        let done = work();
        let mut state = self.simulator.lock();
        let ended = state.captures.extract_if(.., |capture| capture.stream == self.number).next();
        drop(state);
        let Capture { launches, spoiled, .. } = ended.expect("it began above");
        done?;
        match spoiled {
            Some(error) => Err(error.into()),
            None => Ok(Graph { simulator: self.simulator.clone(), launches }),
        }
    }

    /// Runs a launch, or records it.
    pub(super) fn put(&self, launch: Launch) -> Result<(), DeviceError> {
        let mut state = self.simulator.lock();
        match state.capture(self.number) {
            Some(capture) => {
                capture.launches.push(launch);
                Ok(())
            }
            None => launch.run(&mut state),
        }
    }

    fn not_captured(&self, state: &mut State) -> Result<(), DeviceError> {
        state.capture(self.number).map_or(Ok(()), |_| Err(DeviceError::captured()))
    }
}

impl Graph {
    /// See [`Graph::launch`](crate::Graph::launch).
    pub(crate) fn launch(&self, stream: &Stream) -> Result<(), DeviceError> {
        if stream.simulator != self.simulator {
            return Err(DeviceError::other_device("stream", "graph"));
        }
        let mut state = self.simulator.lock();
        stream.not_captured(&mut state)?;
        self.launches.iter().try_for_each(|launch| launch.run(&mut state))
    }
}

/// The error of a question about time.
pub(crate) fn no_clock() -> DeviceError {
    DeviceError::value("event", "one of a simulated device, which has no clock", "one of a GPU")
}
