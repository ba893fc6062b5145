//! Memory, and who touched it.
