//! What a machine could reach at best, measured: the lines that speeds are held against.

mod products;

use super::results::rounded;
use device::{Device, DeviceError};
use rayon::ThreadPool;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Runs of a loop of products, of which the best counts.
pub(super) const RUNS: usize = 8;

/// What each of them takes.
pub(super) const RUN: Duration = Duration::from_millis(20);

/// Passes over memory, of which the best counts.
pub(super) const PASSES: usize = 3;

/// Bytes that a pass reads: more than any cache holds.
const BYTES: u64 = 1 << 30;

/// Places of memory that a thread reads in turn: more than one keep more lines under way.
const STREAMS: usize = 4;

/// Words of a cache line.
const LINE: usize = 8;

/// The ceilings of this machine on so many threads, all of them at work at once, or those of a device.
///
/// On a CPU they are those of vector units and memory. Tile units (AMX) are not asked; whoever uses them may pass the ceiling of
/// BF16. So may a decoding step that of reading, if a cache holds its keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Ceiling {
    /// Threads of a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// 10^9 floating-point operations a second of multiply-adds of f32 in the widest vectors, or on the CUDA cores, which are
    /// two operations a lane; where the CPU is not known to have them, of multiplications and additions.
    pub fma_gflops: f64,
    /// The same of products of BF16 pairs added to an f32, four operations a lane, where the CPU has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_gflops: Option<f64>,
    /// 10^9 bytes a second read from memory, by a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_gbps: Option<f64>,
    /// 10^9 bytes a second of a copy within a device's memory, of which half are read and half written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_gbps: Option<f64>,
}

/// Measures the ceilings on the threads of each of `pools`, in a second or so for each. Reads a buffer of 1 GiB, or of a
/// quarter of the `available` bytes of memory if that is less.
pub fn ceilings(pools: &[ThreadPool], available: u64) -> Vec<Ceiling> {
    // Filled by one thread, as the tensors of a case are: where memory is near to some cores, it is near to the same ones.
    let words = vec![1; (BYTES.min(available / 4) / 8) as usize];
    let ceiling = |pool: &ThreadPool| Ceiling {
        threads: Some(pool.current_num_threads()),
        fma_gflops: products_a_second(pool, products::fma()),
        bf16_gflops: products::bf16().map(|block| products_a_second(pool, block)),
        read_gbps: Some(bytes_a_second(pool, &words)),
        copy_gbps: None,
    };
    pools.iter().map(ceiling).collect()
}

/// Measures the ceilings of a device, in a second or so: see [`cuda_fa2::ceiling`].
///
/// # Errors
/// The kernels do not compile; the driver fails.
pub fn device_ceiling(device: &Device) -> Result<Ceiling, DeviceError> {
    let cuda_fa2::ceiling::Ceiling { flops, copied } = cuda_fa2::ceiling::ceiling(device)?;
    let (fma_gflops, copy_gbps) = (rounded(flops / 1e9), Some(rounded(copied / 1e9)));
    Ok(Ceiling { threads: None, fma_gflops, bf16_gflops: None, read_gbps: None, copy_gbps })
}

impl Ceiling {
    /// The ceiling of arithmetic on tensors of this type, as [`attention::DType`] prints it: 10^9 floating-point operations
    /// a second.
    pub fn gflops(&self, dtype: &str) -> f64 {
        self.bf16_gflops.filter(|_| dtype == "BF16").map_or(self.fma_gflops, |bf16| bf16.max(self.fma_gflops))
    }

    /// The ceiling of memory: 10^9 bytes a second.
    pub fn gbps(&self) -> Option<f64> {
        self.read_gbps.or(self.copy_gbps)
    }
}

/// 10^9 operations a second of the best of [`RUNS`].
fn products_a_second(pool: &ThreadPool, block: products::Block) -> f64 {
    let work = |_| {
        let (start, mut operations) = (Instant::now(), 0.0);
        while start.elapsed() < RUN {
            (block.compute)();
            operations += block.operations;
        }
        operations
    };
    best_of(RUNS, pool, work)
}

/// 10^9 bytes a second of the best of [`PASSES`] in which each thread reads its share of `words`.
fn bytes_a_second(pool: &ThreadPool, words: &[u64]) -> f64 {
    let share = words.len() / pool.current_num_threads();
    best_of(PASSES, pool, |thread| read(&words[thread * share..][..share]))
}

/// Reads `words` as [`STREAMS`] in turn, and returns how many bytes that were.
fn read(words: &[u64]) -> f64 {
    let length = words.len() / STREAMS;
    let [a, b, c, d]: [_; STREAMS] =
        std::array::from_fn(|stream| words[stream * length..][..length].chunks_exact(LINE));
    let (mut sums, mut lines) = ([0u64; LINE], 0);
    for (((a, b), c), d) in a.zip(b).zip(c).zip(d) {
        for (place, sum) in sums.iter_mut().enumerate() {
            *sum = sum.wrapping_add(a[place] ^ b[place]).wrapping_add(c[place] ^ d[place]);
        }
        lines += STREAMS;
    }
    // Without a use of the sums nothing would be read.
    black_box(sums);
    (lines * LINE * size_of::<u64>()) as f64
}

/// The best of so many runs of `work` on every thread of `pool`: what all did, over the time from the start of the first to
/// the end of the last, in 10^9 a second. `work` is told the number of its thread.
fn best_of(runs: usize, pool: &ThreadPool, work: impl Fn(usize) -> f64 + Sync) -> f64 {
    let run = |_| {
        let ready = Barrier::new(pool.current_num_threads());
        let parts = pool.broadcast(|thread| {
            ready.wait();
            let start = Instant::now();
            (work(thread.index()), start, Instant::now())
        });
        let done: f64 = parts.iter().map(|(done, ..)| done).sum();
        let start = parts.iter().map(|(_, start, _)| *start).min();
        let end = parts.iter().map(|(.., end)| *end).max();
        let seconds = start.zip(end).map_or(0.0, |(start, end)| (end - start).as_secs_f64());
        done / seconds / 1e9
    };
    rounded((0..runs).map(run).fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::{Ceiling, LINE, STREAMS, ceilings, read};
    use rayon::{ThreadPool, ThreadPoolBuilder};

    fn pool(threads: usize) -> ThreadPool {
        ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
    }

    #[test]
    fn ceilings_are_positive_and_more_threads_are_not_slower_by_half() {
        let pools = [pool(1), pool(2)];
        let measured_well = || {
            let found = ceilings(&pools, 1 << 28);
            let [one, two] = found[..] else { panic!("{found:?}") };
            assert_eq!((one.threads, two.threads), (Some(1), Some(2)));
            let speeds = |c: &Ceiling| [c.fma_gflops, c.bf16_gflops.unwrap_or(c.fma_gflops), c.gbps().unwrap()];
            // A core of any machine that this runs on does more than 10^8 of each in a second, and less than 10^13.
            let all = [speeds(&one), speeds(&two)].concat();
            assert!(all.iter().all(|speed| (0.1..1e4).contains(speed)), "{found:?}");
            speeds(&one).into_iter().zip(speeds(&two)).all(|(one, two)| two > one / 2.0)
        };
        // Two threads are slow while another program has one of their cores.
        assert!((0..5).any(|_| measured_well()));
    }

    #[test]
    fn a_thread_reads_whole_lines_of_each_stream() {
        let line = STREAMS * LINE;
        for (words, lines) in [(0, 0), (line - 1, 0), (line, 1), (3 * line + 5, 3)] {
            assert_eq!(read(&vec![7; words]), (lines * line * 8) as f64, "{words} words");
        }
    }

    #[test]
    fn a_type_has_the_greater_of_the_ceilings_of_its_instructions() {
        let ceiling = Ceiling { fma_gflops: 100.0, bf16_gflops: Some(150.0), ..Ceiling::default() };
        assert_eq!(["F32", "F16", "BF16"].map(|dtype| ceiling.gflops(dtype)), [100.0, 100.0, 150.0]);
        let slow = Ceiling { bf16_gflops: Some(50.0), ..ceiling };
        let none = Ceiling { bf16_gflops: None, ..ceiling };
        assert_eq!([slow, none].map(|ceiling| ceiling.gflops("BF16")), [100.0, 100.0]);
    }
}
