//! How a rung is judged.
//!
//! [`judge`] is the one error rule, against the oracle of [`attention`]; [`check`] applies it to a problem drawn by
//! [`problems`]. [`check_by_hand`] takes a problem that can be worked by hand, [`update_is_the_listings`] the rows of
//! one tile. [`assert_caught`] proves that a check rejects a wrong variant. [`pack`] reads conformance packs, [`files`]
//! tensor files. None of it knows a rung: whoever judges hands one in.

mod alone;
mod by_hand;
mod check;
pub mod files;
mod judge;
mod layout;
mod owned;
pub mod pack;
mod paging;
pub mod problems;
mod rows;
mod wrong;

pub use alone::alone;
pub use by_hand::{
    Also, ByHand, RowTruth, all_close, all_shown, by_hand, by_hand_with_nan, channels, check_by_hand, close, config,
    must, scores_with_nan, shown, unwritten,
};
pub use check::{check, check_against, forward_on_canaries};
pub use judge::{Verdict, Worst, judge, judge_against, worst, worst_element};
pub use layout::Layout;
pub use owned::{OwnedBatch, OwnedPages, OwnedProblem, Values};
pub use rows::{Row, assert_guards_that_drop_nan_are_caught, rows, update_is_the_listings, update_keeps_nan};
pub use wrong::{Faulty, Variant, assert_caught, assert_control_passes, assert_fault_caught};
