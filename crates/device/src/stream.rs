//! Streams, events on them, and work recorded once and launched many times.

// Nobody can check another library's handle.
#![allow(unsafe_code)]

use crate::{Device, DeviceError, cuda, simulated};

/// A queue of work: what is put into one runs in order, what is put into several may run at once. Dropped, it still finishes
/// what it was given. One of a simulated device does its work at once, when it is put in.
#[derive(Debug)]
pub enum Stream {
    /// Of a GPU.
    Cuda(cuda::Stream),
    /// Of a simulated device.
    Simulated(simulated::Stream),
}

/// A point in a stream, with its time, where the device has a clock.
#[derive(Debug)]
pub enum Event {
    /// Of a GPU.
    Cuda(cuda::Event),
    /// Of a simulated device.
    Simulated(simulated::Event),
}

/// What a stream was given in a [capture](Stream::capture), to be launched as one.
#[derive(Debug)]
pub enum Graph {
    /// Of a GPU.
    Cuda(cuda::Graph),
    /// Of a simulated device.
    Simulated(simulated::Graph),
}

impl Device {
    /// A stream that another library has made on this device, by its handle: a `CUstream`, which is a `cudaStream_t`; 0 is the
    /// default stream. Dropped, it leaves the stream to its owner.
    ///
    /// # Errors
    /// A simulated device has streams of its own alone.
    ///
    /// # Safety
    /// The handle is that of a stream in this device's primary context, which is not destroyed before what is returned here is
    /// dropped. No other thread begins or ends a capture of it while it is given work here.
    pub unsafe fn foreign_stream(&self, handle: u64) -> Result<Stream, DeviceError> {
        match self {
            // SAFETY: the caller's promise.
            Device::Cuda(gpu) => Ok(Stream::Cuda(unsafe { gpu.foreign_stream(handle) })),
            Device::Simulated(_) => {
                Err(DeviceError::value("stream", "one of another library", "one of the device's own"))
            }
        }
    }
}

impl Stream {
    /// Waits until all that it was given is done.
    ///
    /// # Errors
    /// It is captured; the driver fails: what a kernel did wrong on a GPU shows here.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        match self {
            Stream::Cuda(stream) => stream.synchronize(),
            Stream::Simulated(stream) => stream.synchronize(),
        }
    }

    /// Whether what it is given is [captured](Stream::capture), by whatever library.
    ///
    /// # Errors
    /// The driver fails.
    pub fn is_captured(&self) -> Result<bool, DeviceError> {
        match self {
            Stream::Cuda(stream) => stream.is_captured(),
            Stream::Simulated(stream) => Ok(stream.is_captured()),
        }
    }

    /// Marks the point that it has reached when all that it was given so far is done.
    ///
    /// # Errors
    /// The driver fails; the stream of a simulated device is captured.
    pub fn record(&self) -> Result<Event, DeviceError> {
        match self {
            Stream::Cuda(stream) => stream.record().map(Event::Cuda),
            Stream::Simulated(stream) => stream.record().map(Event::Simulated),
        }
    }

    /// Lets what it is given from now on wait for an event, of any stream.
    ///
    /// # Errors
    /// The event is of a GPU and the stream is not, or the other way round; the driver fails; the stream of a simulated device
    /// is captured.
    pub fn wait(&self, event: &Event) -> Result<(), DeviceError> {
        match (self, event) {
            (Stream::Cuda(stream), Event::Cuda(event)) => stream.wait(event),
            (Stream::Simulated(stream), Event::Simulated(event)) => stream.wait(event),
            _ => Err(DeviceError::other_device("event", "stream")),
        }
    }

    /// Records what `work` puts into the stream instead of doing it. Calls that wait for the device, allocate or free fail in
    /// `work`, and spoil the capture. Kernels launched in it are bound by the safety of [`launch`](crate::Kernel::launch) for as
    /// long as the graph may be launched.
    ///
    /// # Errors
    /// Those of `work`; it made a call that is not allowed in a capture; the driver fails.
    pub fn capture<E: From<DeviceError>>(&self, work: impl FnOnce(&Stream) -> Result<(), E>) -> Result<Graph, E> {
        match self {
            Stream::Cuda(stream) => stream.capture(|| work(self)).map(Graph::Cuda),
            Stream::Simulated(stream) => stream.capture(|| work(self)).map(Graph::Simulated),
        }
    }
}

impl Event {
    /// Waits for this event, and says how many milliseconds it came after an earlier one; the clock ticks every half
    /// microsecond.
    ///
    /// # Errors
    /// They are of two devices, or recorded in a capture, or of a simulated device, which has no clock; the driver fails, also
    /// over what a kernel did wrong.
    pub fn elapsed_ms(&self, since: &Event) -> Result<f32, DeviceError> {
        match (self, since) {
            (Event::Cuda(event), Event::Cuda(since)) => event.elapsed_ms(since),
            (Event::Simulated(_), _) | (_, Event::Simulated(_)) => Err(simulated::no_clock()),
        }
    }
}

impl Graph {
    /// Puts all of it into a stream. Not in a [capture](Stream::capture): what was recorded would outlive this graph, and with
    /// it what keeps its kernels.
    ///
    /// # Errors
    /// The stream is of another device, or captured; the driver fails; a kernel does wrong on a simulated device.
    pub fn launch(&self, stream: &Stream) -> Result<(), DeviceError> {
        match (self, stream) {
            (Graph::Cuda(graph), Stream::Cuda(stream)) => graph.launch(stream),
            (Graph::Simulated(graph), Stream::Simulated(stream)) => graph.launch(stream),
            _ => Err(DeviceError::other_device("stream", "graph")),
        }
    }
}
