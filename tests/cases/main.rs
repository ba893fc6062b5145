//! Faults that users of other attention libraries reported, as small cases with their right values, and the rules about
//! masks, lengths, non-finite values, strides and errors that those reports taught.
//!
//! A test named `aNN_..` is the report of that number in a log of public faults. It takes its right value by hand or from
//! a definition written out in the test; where the report is about equality (a batch against itself alone, a view against
//! a copy), it compares bits, and where it is about long sums, the oracle. Each runs on the oracle and on every CPU rung,
//! with default tiles, with tiles of two keys, and with the keys split, into buffers that start as canaries; those about
//! blocks run on the block manager and its pool. `FLASH_LADDER_DEVICE=cuda` runs each on the rungs of the first GPU too, and
//! `FLASH_LADDER_DEVICE=sim` on those rungs on a simulated one.

mod common;
mod errors;
mod halves;
mod lengths;
mod masks;
mod merge;
mod mla;
mod non_finite;
mod options;
mod paged;
mod paged_manager;
mod strides;
