//! The one error type: which tensor or option, what was found, what was wanted.

use crate::DType;
use thiserror::Error;

/// Why a problem or an output was refused. Every error comes before any work is done, but for two: where a rung finds no
/// [`Memory`] for an intermediate, other heads may have been written; and a [`Device`] may fail at any time.
///
/// [`Memory`]: AttentionError::Memory
/// [`Device`]: AttentionError::Device
#[derive(Clone, Debug, Error, PartialEq)]
pub enum AttentionError {
    /// A tensor has the wrong rank or lengths.
    #[error("{tensor}: found shape {found:?}, wanted {wanted}")]
    Shape {
        /// The tensor's name.
        tensor: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that would do.
        wanted: String,
    },
    /// A tensor has the wrong element type.
    #[error("{tensor}: found dtype {found}, wanted {wanted}")]
    DType {
        /// The tensor's name.
        tensor: &'static str,
        /// Its element type.
        found: DType,
        /// The element type that would do.
        wanted: String,
    },
    /// An option or a list of lengths holds a value out of range.
    #[error("{name}: found {found}, wanted {wanted}")]
    Value {
        /// The option's name.
        name: &'static str,
        /// Its value.
        found: String,
        /// The values that would do.
        wanted: String,
    },
    /// The rung cannot do what was asked, though the problem is sound.
    #[error("{rung} does not support {what}")]
    Unsupported {
        /// The rung's name.
        rung: &'static str,
        /// What it cannot do.
        what: String,
    },
    /// Memory for a result or an intermediate could not be had.
    #[error("{what}: found no memory for it, wanted {bytes} bytes")]
    Memory {
        /// What the memory was for.
        what: &'static str,
        /// How much was asked for.
        bytes: u128,
    },
    /// The device on which a rung runs failed.
    #[error("{rung}: {what}")]
    Device {
        /// The rung's name.
        rung: &'static str,
        /// What the device said.
        what: String,
    },
}

impl AttentionError {
    /// Refuses a tensor of the shape `found`.
    ///
    /// # Errors
    /// [`AttentionError::Shape`], always.
    pub fn shape<T>(tensor: &'static str, found: &[usize], wanted: impl ToString) -> Result<T, Self> {
        Err(AttentionError::Shape { tensor, found: found.to_vec(), wanted: wanted.to_string() })
    }

    /// Refuses the value `found` of an option.
    ///
    /// # Errors
    /// [`AttentionError::Value`], always.
    pub fn value<T>(name: &'static str, found: impl ToString, wanted: impl ToString) -> Result<T, Self> {
        Err(AttentionError::Value { name, found: found.to_string(), wanted: wanted.to_string() })
    }
}
