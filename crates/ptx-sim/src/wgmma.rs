//! The operands of `wgmma` in shared memory: what a matrix descriptor says, and where it puts each element.

mod descriptor;
mod layout;

pub(crate) use descriptor::Descriptor;
pub(crate) use layout::{Major, UNIT};
