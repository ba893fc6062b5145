//! Work recorded once and launched many times.

use super::driver::{Handle, call};
use super::{Gpu, Stream};
use crate::DeviceError;
use cudarc::driver::sys;

/// What a stream was given in a [capture](Stream::capture), to be launched as one.
#[derive(Debug)]
pub struct Graph {
    gpu: Gpu,
    graph: Handle<sys::CUgraphExec_st>,
}

impl Stream {
    /// Records what `work` puts into the stream instead of doing it. Calls that wait for the device, allocate or free fail in
    /// `work`, and spoil the capture. Kernels launched in it are bound by the safety of [`launch`](super::Kernel::launch) for as
    /// long as the graph may be launched.
    ///
    /// # Errors
    /// Those of `work`; the driver fails, as it does after a call that is not allowed in a capture.
    pub fn capture<E: From<DeviceError>>(&self, work: impl FnOnce(&Stream) -> Result<(), E>) -> Result<Graph, E> {
        self.gpu.bind()?;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        {
            let _turn = self.turn();
            // SAFETY: the stream is live.
            unsafe { call!(cuStreamBeginCapture_v2(self.stream.0, mode)) }?;
        }
        let done = work(self);
        // The capture ends whatever became of the work: the stream can be used again.
        let mut recorded = std::ptr::null_mut();
        // SAFETY: the driver writes one handle, or null.
        let ended = self.gpu.bind().and_then(|()| unsafe { call!(cuStreamEndCapture(self.stream.0, &mut recorded)) });
        let mut graph = std::ptr::null_mut();
        // SAFETY: the graph was just recorded, and the driver writes one handle, which is destroyed once, in `drop`.
        let mut make = || unsafe { call!(cuGraphInstantiateWithFlags(&mut graph, recorded, 0)) };
        let made = done.and_then(|()| ended.and_then(|()| make()).map_err(E::from));
        if !recorded.is_null() {
            // SAFETY: it is destroyed once; what was made from it does not need it.
            let _ = unsafe { call!(cuGraphDestroy(recorded)) };
        }
        made.map(|()| Graph { gpu: self.gpu.clone(), graph: Handle(graph) })
    }
}

impl Graph {
    /// Puts all of it into a stream. Not in a [capture](Stream::capture): what was recorded would outlive this graph, and with
    /// it what keeps its kernels.
    ///
    /// # Errors
    /// The stream is of another device, or captured; the driver fails.
    pub fn launch(&self, stream: &Stream) -> Result<(), DeviceError> {
        if stream.gpu != self.gpu {
            return Err(DeviceError::value("stream", "one of another device", "one of the graph's"));
        }
        self.gpu.bind()?;
        let _turn = stream.turn();
        let mut status = 0u32;
        // SAFETY: the stream is live, and the driver writes one number of 32 bits.
        unsafe { call!(cuStreamIsCapturing(stream.stream.0, (&raw mut status).cast())) }?;
        if status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32 {
            return Err(DeviceError::value("stream", "one that is captured", "one that does its work"));
        }
        // SAFETY: both are live, and of one context.
        unsafe { call!(cuGraphLaunch(self.graph.0, stream.stream.0)) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: `capture` has made it. A failure leaves nothing to do.
        let _ = self.gpu.idle().and_then(|()| unsafe { call!(cuGraphExecDestroy(self.graph.0)) });
    }
}
