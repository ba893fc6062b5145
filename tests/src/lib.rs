//! What holds for the whole ladder; see the `[[test]]` targets.
