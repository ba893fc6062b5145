//! The one error type: which call or setting, what was found, what was wanted.

use ptx_sim::TilingError;
use thiserror::Error;

/// Why something was not done on a device. All but [`Driver`](DeviceError::Driver), [`Simulated`](DeviceError::Simulated) and
/// [`Compile`](DeviceError::Compile) come before any work is done.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DeviceError {
    /// A part of CUDA is not on this machine, or not usable.
    #[error("{what}: {why}")]
    Missing {
        /// The part: "CUDA driver", "CUDA device", "NVRTC", "CUDA headers", or "compiled kernels", where neither a compiler nor
        /// prebuilt PTX is there.
        what: &'static str,
        /// What was found, and what to do.
        why: String,
    },
    /// An argument holds a value out of range.
    #[error("{name}: found {found}, wanted {wanted}")]
    Value {
        /// The argument's name.
        name: String,
        /// Its value.
        found: String,
        /// The values that would do.
        wanted: String,
    },
    /// Memory of the device could not be had.
    #[error("device memory: found {free} bytes free, wanted {bytes}")]
    Memory {
        /// How much was asked for.
        bytes: usize,
        /// How much is free.
        free: usize,
    },
    /// A call of the driver failed. What a kernel did wrong shows at a later call: an address out of range ends the context.
    #[error("{call}: {name}: {message}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// The name of its answer, "CUDA_ERROR_ILLEGAL_ADDRESS".
        name: String,
        /// What the driver says about it; for PTX that it cannot assemble, the assembler's words.
        message: String,
    },
    /// A simulated device cannot read PTX, or a kernel did on it what no kernel may do.
    #[error("{report}")]
    Simulated {
        /// What is wrong and where, in some lines.
        report: String,
    },
    /// A kernel's source does not compile.
    #[error("{file}: does not compile: {log}")]
    Compile {
        /// The file.
        file: String,
        /// The compiler's words.
        log: String,
    },
    /// The prebuilt PTX of a variant is not there, or was compiled from other sources than those that are.
    #[error("kernels/prebuilt/{file}: {why}; `ladder kernels` compiles it")]
    Prebuilt {
        /// The file.
        file: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl DeviceError {
    pub(crate) fn value(name: impl Into<String>, found: impl ToString, wanted: impl ToString) -> Self {
        DeviceError::Value { name: name.into(), found: found.to_string(), wanted: wanted.to_string() }
    }

    /// Two that belong together are of different devices.
    pub(crate) fn other_device(what: &str, owner: &str) -> Self {
        DeviceError::value(what, "one of another device", format!("one of the {owner}'s"))
    }

    /// A captured stream is asked for what must be done at once.
    pub(crate) fn captured() -> Self {
        DeviceError::value("stream", "one that is captured", "one that does its work")
    }

    /// A module has no kernel of that name.
    pub(crate) fn unknown_kernel(name: &str) -> Self {
        DeviceError::value("kernel", name, "one that the module has")
    }
}

impl From<TilingError> for DeviceError {
    fn from(TilingError { argument, found, wanted }: TilingError) -> Self {
        DeviceError::value(format!("tensor map: {argument}"), found, wanted)
    }
}
