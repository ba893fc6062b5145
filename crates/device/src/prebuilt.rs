//! PTX that is compiled already, for machines with a driver alone.
//!
//! Its first lines carry the hash of all that it was compiled from. A file whose hash is another is refused, so that no kernel
//! runs that is not the one to be read.

use crate::nvrtc::ptx_options;
use crate::{DeviceError, Variant, variant};

/// The version of PTX that a file says it is of: 8.0 has all that is used, and drivers from 525 (CUDA 12.0) on take it. They
/// refuse a file of a version that is newer than they are, which is what a compiler writes, whatever it uses.
const VERSION: &str = ".version 8.0";

/// The prebuilt PTX of a variant.
///
/// # Errors
/// There is none, or it was compiled from other sources than those that are here.
pub fn ptx(variant: &Variant) -> Result<&'static str, DeviceError> {
    let refuse = |why| DeviceError::Prebuilt { file: variant.ptx_name(), why };
    let text = variant::file(&format!("prebuilt/{}", variant.ptx_name())).ok_or_else(|| refuse("not there"))?;
    if text.starts_with(&head(variant)?) {
        Ok(text)
    } else {
        Err(refuse("its sources have changed since it was compiled"))
    }
}

/// A prebuilt file, of the PTX that [NVRTC](crate::nvrtc::Nvrtc::ptx) makes of the variant for its own architecture.
///
/// # Errors
/// The folder `kernels` has no such file.
pub fn text(variant: &Variant, ptx: &str) -> Result<String, DeviceError> {
    Ok(format!("{}{}", head(variant)?, lowered(ptx)))
}

/// PTX that says that it is of the lowest version that has what it uses. The assembler knows whether that is so.
pub fn lowered(ptx: &str) -> String {
    // A hint, younger than 8.0, about bytes that a load brings and nobody uses.
    let lines = ptx.trim_end().lines().filter(|line| !line.trim_start().starts_with(".pragma \"used_bytes_mask"));
    let lines = lines.map(|line| if line.starts_with(".version ") { VERSION } else { line });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The first lines.
fn head(variant: &Variant) -> Result<String, DeviceError> {
    let options = if variant.is_triton() { vec![variant.ptx_name()] } else { ptx_options(variant.arch) };
    let hash = variant.source()?.hash(&options);
    Ok(format!("// {}\n// sources {hash}\n", variant.ptx_name()))
}
