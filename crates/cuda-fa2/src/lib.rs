//! The rungs of chapter 5: the algorithms of chapters 1, 3 and 4 as CUDA kernels.
//!
//! | rung | kernel file | what a block of threads does |
//! |---|---|---|
//! | `cuda-naive` | `05_naive.cu` | a tile of S, some rows of P, a tile of O: three kernels, S and P in device memory |
//! | `cuda-fa1` | `05_fa1.cu` | one head; O, l and m of its rows go through device memory at every tile of keys |
//! | `cuda-fa2-simt` | `05_fa2_simt.cu` | one tile of rows of one head, in registers from the first key to the last |
//! | `cuda-fa2` | `05_fa2_mma.cu` | the same on tensor cores, in F16 and BF16; short queries: part of the keys of all heads of a kv head |
//! | `triton-fa2` | `triton/fa2.py` | the same on tensor cores: a Triton kernel, compiled beforehand |
//!
//! A call has two halves. [`CudaRung::plan`] looks at shapes and options on the host: which variants of which kernels, tiles,
//! grids, the workspace. [`CudaRung::launch`] puts the kernels into a stream, for tensors that lie on the device.
//! [`Attention::forward_into`] is both between an upload and a download: whoever measures or has data on the device calls the
//! halves. Whoever may not wait for a copy has the table of sequences, if the plan has one, [written by a
//! kernel](CudaRung::put_sequences).
//!
//! A rung runs on any [`device::Device`], a GPU or a simulated one, and does not know which. What a GPU could reach at best is
//! measured by [`ceiling`], with kernels of its own; a simulated one has no clock.
//!
//! Arithmetic is f32, as on the CPU rungs, for F32 and F16 tensors. All options are taken. What is not, each rung refuses
//! before any work. NaN, infinities and hidden keys come out as on the CPU, but where a value is not finite and its weight too
//! small for f32: it may add nothing, or NaN. The sum of `|v_j|` of a row must fit f32, as on `fa2`, but on `cuda-naive`.
//!
//! `cuda-fa2` takes F16 and BF16, up to 256 channels, and rounds P to the tensors' type before `P V`, as
//! [`Attention::weights`] says. Rows whose scores go beyond 2^12 in powers of two, or whose results are not finite or near the
//! end of the type, are computed again in f32, one by one and slowly: they come out as on the other rungs. One thing does not.
//! Where scores are only scaled and masked, a key whose q . k falls below all of f32 on the way, which takes BF16 numbers of
//! some 1e19, counts as one of score -inf, though later channels might have brought it back. The last bits of a result depend on
//! the number of parts into which the keys of short queries are split, and on the size of tiles, and so on the batch:
//! [`CudaRung::with_target`] fixes both.
//!
//! `triton-fa2` takes and promises less: F16 and BF16, up to 128 channels, full and causal masks, and none of the other
//! options. It rounds P to the tensors' type before `P V`, as [`Attention::weights`] says. Products `q . k` must fit f32, and a
//! mean of values near the end of the type may come out infinite. A NaN or an infinity in a key or a value that one row sees may
//! spread to rows of the same tile that do not see it; what no row sees changes nothing.

mod algorithm;
pub mod ceiling;
mod fa1;
mod fa2_mma;
mod fa2_simt;
mod maps;
mod naive;
mod params;
mod plan;
mod rung;
mod steps;
mod table;
mod tensors;
mod trace;
mod triton;

pub use algorithm::{Algorithm, Call, FA1, FA2, FA2_SIMT, NAIVE, TRITON};
pub use fa2_mma::asks_for_options;
pub use maps::Mapped;
pub use plan::{Plan, Shape, Target, Tiles};
pub use rung::CudaRung;
pub use steps::{Step, texts};
pub use tensors::{DeviceTensor, Tensors, Uploaded};
pub use trace::Track;

use device::Variant;

/// Every variant of every kernel of this crate, as they are prebuilt.
pub fn variants() -> impl Iterator<Item = &'static Variant> {
    let of_rungs = naive::VARIANTS.iter().chain(&fa1::VARIANTS).chain(&fa2_simt::VARIANTS);
    of_rungs.chain(&fa2_mma::VARIANTS).chain(&triton::VARIANTS).chain(&ceiling::VARIANTS).chain(&table::VARIANTS)
}

#[cfg(doc)]
use attention::Attention;
