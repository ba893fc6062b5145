//! Streams, and events on them.

use super::Gpu;
use super::driver::{Handle, call};
use crate::DeviceError;
use cudarc::driver::sys;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A queue of work.
#[derive(Debug)]
pub struct Stream {
    pub(super) gpu: Gpu,
    pub(super) stream: Handle<sys::CUstream_st>,
    /// Held where a capture begins, and where none may begin.
    turn: Mutex<()>,
    /// Whether it is another library's, which destroys it.
    foreign: bool,
}

/// A point in a stream, with its time.
#[derive(Debug)]
pub struct Event {
    gpu: Gpu,
    event: Handle<sys::CUevent_st>,
}

impl Gpu {
    pub(crate) fn stream(&self) -> Result<Stream, DeviceError> {
        self.bind()?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the driver writes one handle. It is destroyed once, in `drop`.
        unsafe { call!(cuStreamCreate(&mut stream, flags)) }?;
        Ok(Stream { gpu: self.clone(), stream: Handle(stream), turn: Mutex::new(()), foreign: false })
    }

    /// See [`Device::foreign_stream`](crate::Device::foreign_stream).
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn foreign_stream(&self, handle: u64) -> Stream {
        let stream = std::ptr::with_exposed_provenance_mut(handle as usize);
        Stream { gpu: self.clone(), stream: Handle(stream), turn: Mutex::new(()), foreign: true }
    }
}

impl Stream {
    /// See [`Stream::synchronize`](crate::Stream::synchronize).
    pub(crate) fn synchronize(&self) -> Result<(), DeviceError> {
        self.gpu.bind()?;
        // SAFETY: the stream is live.
        unsafe { call!(cuStreamSynchronize(self.stream.0)) }
    }

    /// See [`Stream::record`](crate::Stream::record).
    pub(crate) fn record(&self) -> Result<Event, DeviceError> {
        self.gpu.bind()?;
        let mut event = std::ptr::null_mut();
        // SAFETY: the driver writes one handle. It is destroyed once, in `drop`.
        unsafe { call!(cuEventCreate(&mut event, sys::CUevent_flags_enum::CU_EVENT_DEFAULT as u32)) }?;
        let event = Event { gpu: self.gpu.clone(), event: Handle(event) };
        // SAFETY: both are live, and of this context.
        unsafe { call!(cuEventRecord(event.event.0, self.stream.0)) }?;
        Ok(event)
    }

    /// See [`Stream::wait`](crate::Stream::wait).
    pub(crate) fn wait(&self, event: &Event) -> Result<(), DeviceError> {
        self.gpu.bind()?;
        // An event of a capture takes the stream into it.
        let _turn = self.turn();
        // SAFETY: both are live.
        unsafe { call!(cuStreamWaitEvent(self.stream.0, event.event.0, 0)) }
    }

    /// See [`Stream::is_captured`](crate::Stream::is_captured).
    pub(crate) fn is_captured(&self) -> Result<bool, DeviceError> {
        self.gpu.bind()?;
        let mut status = 0u32;
        // SAFETY: the stream is live, and the driver writes one number of 32 bits.
        unsafe { call!(cuStreamIsCapturing(self.stream.0, (&raw mut status).cast())) }?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32)
    }

    /// Until this is dropped, no capture of the stream begins on another thread.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Event {
    /// See [`Event::elapsed_ms`](crate::Event::elapsed_ms).
    pub(crate) fn elapsed_ms(&self, since: &Event) -> Result<f32, DeviceError> {
        self.gpu.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events are live, and the driver writes one number.
        unsafe {
            call!(cuEventSynchronize(self.event.0))?;
            call!(cuEventElapsedTime(&mut milliseconds, since.event.0, self.event.0))?;
        }
        Ok(milliseconds)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.foreign {
            // SAFETY: `stream` has made it. A failure leaves nothing to do.
            let _ = self.gpu.bind().and_then(|()| unsafe { call!(cuStreamDestroy_v2(self.stream.0)) });
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: `record` has made it. A failure leaves nothing to do.
        let _ = self.gpu.bind().and_then(|()| unsafe { call!(cuEventDestroy_v2(self.event.0)) });
    }
}
