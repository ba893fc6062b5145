//! The traffic meter: bytes that an algorithm moves between slow memory ("HBM") and a fast memory of M bytes.
//!
//! A CPU has no scratchpad that a program fills by hand, so the numbers are *counted*, not measured: a rung calls
//! [`Meter::read`] where the paper's listing loads from HBM and [`Meter::write`] where it stores. The rung is generic
//! over its meter, and with [`NoMeter`] the calls vanish.
//!
//! What it does not do: model caches, or the re-reads inside one matrix product.

use crate::Problem;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Fast memory of a tiled rung unless told otherwise, in bytes: FlashAttention's paper speaks of "around 100KB".
pub const DEFAULT_FAST_MEMORY: usize = 100 * 1024;

/// Counts bytes. Called from several threads.
pub trait Meter: Sync {
    /// Bytes loaded from slow memory.
    fn read(&self, _bytes: usize) {}
    /// Bytes stored to slow memory.
    fn write(&self, _bytes: usize) {}
    /// Bytes of slow memory taken for an intermediate, beyond inputs and outputs.
    fn allocate(&self, _bytes: usize) {}
    /// Bytes of such memory given back.
    fn release(&self, _bytes: usize) {}
}

/// Counts nothing and costs nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMeter;

impl Meter for NoMeter {}

/// Counts everything.
#[derive(Debug, Default)]
pub struct TrafficMeter {
    read: AtomicU64,
    written: AtomicU64,
    held: AtomicU64,
    peak: AtomicU64,
}

/// What a meter counted, or what a formula predicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes loaded from slow memory.
    pub read: u64,
    /// Bytes stored to slow memory.
    pub written: u64,
}

impl Traffic {
    /// Bytes moved in both directions.
    pub fn total(&self) -> u64 {
        self.read + self.written
    }

    /// The least that any algorithm moves for `problem`: every attended input once, every result once. Values that lie
    /// in the keys' own memory are read with them.
    pub fn compulsory(problem: &Problem) -> Self {
        let mut traffic = Traffic::default();
        let [heads, kv_heads, d, d_v] = [problem.heads(), problem.kv_heads(), problem.d(), problem.d_v()].map(wide);
        let (size, lse) = (wide(problem.dtype().size()), wide(LSE_BYTES));
        for sequence in problem.sequences() {
            let [q_len, k_len] = [sequence.q.len(), sequence.k.len()].map(wide);
            let kv = if problem.values_are_keys() { d } else { d + d_v };
            traffic.add(1, size * (heads * q_len * d + kv_heads * k_len * kv), heads * q_len * (size * d_v + lse));
        }
        traffic
    }

    /// Counts `times` reads and writes of so many bytes, as large as they may be.
    pub fn add(&mut self, times: u128, read: u128, written: u128) {
        let bytes = |one: u128| u64::try_from(times.saturating_mul(one)).unwrap_or(u64::MAX);
        self.read = self.read.saturating_add(bytes(read));
        self.written = self.written.saturating_add(bytes(written));
    }
}

/// A length or a size in which no product of lengths overflows.
pub fn wide(x: usize) -> u128 {
    x as u128
}

/// Bytes of one lse, and of each of the m and l that a listing keeps in slow memory.
pub const LSE_BYTES: usize = size_of::<f32>();

impl TrafficMeter {
    /// The traffic so far.
    pub fn traffic(&self) -> Traffic {
        Traffic { read: self.read.load(Relaxed), written: self.written.load(Relaxed) }
    }

    /// The most bytes held at once for intermediates.
    pub fn peak_extra(&self) -> u64 {
        self.peak.load(Relaxed)
    }
}

impl Meter for TrafficMeter {
    fn read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Relaxed);
    }
    fn write(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Relaxed);
    }
    fn allocate(&self, bytes: usize) {
        let held = self.held.fetch_add(bytes as u64, Relaxed) + bytes as u64;
        self.peak.fetch_max(held, Relaxed);
    }
    fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes as u64, Relaxed);
    }
}

impl<M: Meter> Meter for &M {
    fn read(&self, bytes: usize) {
        (**self).read(bytes);
    }
    fn write(&self, bytes: usize) {
        (**self).write(bytes);
    }
    fn allocate(&self, bytes: usize) {
        (**self).allocate(bytes);
    }
    fn release(&self, bytes: usize) {
        (**self).release(bytes);
    }
}
