//! How many blocks a multiprocessor holds at once, by the published rules.
