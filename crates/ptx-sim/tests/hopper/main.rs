//! What sm_90 adds, in small: right programs run under every schedule, and each wrong variant of them ends in its fault.

mod bulk;
mod compiled;
mod hostile;
mod maps;
mod mbarrier;
mod program;
mod registers;
mod ring;
mod tensor;
