//! What kernels do wrong with `wgmma`: each fault is found at its line, and the right program beside it runs.
