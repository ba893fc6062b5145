//! The rung of chapter 6: FlashAttention-3 (Shah et al., arXiv 2407.08608), for Hopper alone.
//!
//! `06_fa3.cu` is the paper's sections 3.1 and 3.2. One warp of a block has the copy engine (TMA) bring tiles of K and V into a ring
//! of stages, and computes nothing; two or three warpgroups multiply them where they lie (`wgmma`), and copy nothing. Barriers that
//! count bytes and arrivals (mbarriers) tell each when the other has done. Softmax runs beside products: of the other warpgroups,
//! which take turns, and of the same one, whose next S is on its way while O is. A block stays, and takes one tile of rows after
//! the other; where they differ in work, whoever is free takes the next.
//!
//! [`FA3`] is an [`Algorithm`] as those of `cuda-fa2` are, and a rung is a [`cuda_fa2::CudaRung`] of it. It takes F16 and BF16, up to
//! 256 channels, padded to 64, 128, 192 (with 128 of v) or 256 by the copy engine; all masks and options; ragged batches, key
//! lengths and groups of heads. NaN, infinities, hidden keys and scores beyond 2^12 come out as on `cuda-fa2`, whose care for
//! such rows is this kernel's too. Results have the same bits in any batch.
//!
//! The copy engine asks for addresses of q, k and v that are multiples of 16 bytes, and for strides that are such multiples, above
//! 0 and below 2^40, or 0 along heads and batch: a launch on other tensors is refused with the tensor and the axis;
//! [`attention::Attention::forward_into`] copies them into such a layout. `wgmma` is of compute capability 9.0 alone, and a plan
//! for another device is refused.

mod plan;

pub use plan::{FA3, variants};

#[cfg(doc)]
use cuda_fa2::Algorithm;
