//! Work recorded once and launched many times.

use super::driver::{Handle, call};
use super::{Gpu, Stream};
use crate::DeviceError;
use cudarc::driver::sys;

/// What a stream was given in a [capture](Stream::capture).
#[derive(Debug)]
pub struct Graph {
    gpu: Gpu,
    graph: Handle<sys::CUgraphExec_st>,
}

impl Stream {
    /// See [`Stream::capture`](crate::Stream::capture).
    pub(crate) fn capture<E: From<DeviceError>>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        self.gpu.bind()?;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        {
            let _turn = self.turn();
            // SAFETY: the stream is live.
            unsafe { call!(cuStreamBeginCapture_v2(self.stream.0, mode)) }?;
        }
        let done = work();
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
    /// See [`Graph::launch`](crate::Graph::launch).
    pub(crate) fn launch(&self, stream: &Stream) -> Result<(), DeviceError> {
        if stream.gpu != self.gpu {
            return Err(DeviceError::other_device("stream", "graph"));
        }
        let _turn = stream.turn();
        if stream.is_captured()? {
            return Err(DeviceError::captured());
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
