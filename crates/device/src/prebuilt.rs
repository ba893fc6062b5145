//! PTX that is compiled already, for machines with a driver alone.
//!
//! Its first lines carry the hash of all that it was compiled from. A file whose hash is another is refused, so that no kernel
//! runs whose sources have changed since. What follows the hash is believed; `ladder kernels --check` compiles it anew.

use crate::nvrtc::ptx_options;
use crate::{DeviceError, Variant, variant};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::borrow::Cow;
use std::io::{Read, Write};

/// The longest text that is kept as it is, to be read: longer ones are packed by gzip.
const LONGEST: usize = 512 << 10;

/// The longest text that is unpacked.
const MOST: u64 = 64 << 20;

/// The version of PTX that a file says it is of: 8.0 has all that is used, and drivers from 525 (CUDA 12.0) on take it. They
/// refuse a file of a version that is newer than they are, which is what a compiler writes, whatever it uses.
const VERSION: &str = ".version 8.0";

/// The prebuilt PTX of a variant.
///
/// # Errors
/// There is none, or it was compiled from other sources than those that are here.
pub fn ptx(variant: &Variant) -> Result<Cow<'static, str>, DeviceError> {
    let refuse = |why| DeviceError::Prebuilt { file: variant.ptx_name(), why };
    let name = format!("prebuilt/{}", variant.ptx_name());
    let text: Cow<str> = if let Some(text) = variant::file(&name) {
        text.into()
    } else {
        let packed = variant::packed(&format!("{name}.gz")).ok_or_else(|| refuse("not there"))?;
        unpacked(packed).map_err(|_| refuse("it is no packed text"))?.into()
    };
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

/// The name and the bytes of a file with this text: packed, if it is long.
pub fn file(variant: &Variant, text: &str) -> (String, Vec<u8>) {
    if text.len() <= LONGEST {
        return (variant.ptx_name(), text.into());
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(text.as_bytes()).expect("a list grows");
    (format!("{}.gz", variant.ptx_name()), packed.finish().expect("a list grows"))
}

/// The text of a packed file.
///
/// # Errors
/// It is none, or longer than any that is packed.
pub fn unpacked(packed: &[u8]) -> std::io::Result<String> {
    let mut text = String::new();
    GzDecoder::new(packed).take(MOST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST {
        return Err(std::io::Error::other("more than 64 MiB"));
    }
    Ok(text)
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

#[cfg(test)]
mod tests {
    use super::*;

    const VARIANT: Variant = Variant { file: "05_x.cu", name: "f16", defines: &[], arch: "sm_80", kernels: &[] };

    #[test]
    fn a_long_text_is_packed_and_a_short_one_is_kept() {
        let (short, long) = ("x".repeat(LONGEST), "x".repeat(LONGEST + 1));
        assert_eq!(file(&VARIANT, &short), ("05_x.f16.sm_80.ptx".into(), short.into_bytes()));
        let (name, packed) = file(&VARIANT, &long);
        assert_eq!(name, "05_x.f16.sm_80.ptx.gz");
        assert!(packed.len() < LONGEST / 100);
        assert_eq!(unpacked(&packed).unwrap(), long);
        assert!(unpacked(&packed[..packed.len() / 2]).is_err() && unpacked(b"text").is_err());
        let (_, bomb) = file(&VARIANT, &"x".repeat(MOST as usize + 1));
        assert!(unpacked(&bomb).is_err());
    }
}
