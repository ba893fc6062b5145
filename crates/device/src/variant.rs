//! Variants of kernel files, and what a compiler needs of them.

use crate::DeviceError;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Names and texts of the folder `kernels`, in order of names.
static FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// What has Triton compile the Python files.
const TRITON: &str = "triton/compile.py";

/// The names of all files of the folder `kernels`, "tile/problem.cuh".
pub fn files() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// The text of a file of the folder `kernels`, as it was when this program was built.
pub fn file(name: &str) -> Option<&'static str> {
    FILES.binary_search_by(|(file, _)| (*file).cmp(name)).ok().map(|place| FILES[place].1)
}

/// One way to compile a file of the folder `kernels`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The file, "05_naive.cu".
    pub file: &'static str,
    /// What sets it apart from the file's other variants, "f16".
    pub name: &'static str,
    /// Macros: names and values.
    pub defines: &'static [(&'static str, &'static str)],
    /// The least architecture, "sm_80", or the only one, "sm_90a".
    pub arch: &'static str,
    /// The kernels in it that are launched: name, threads of a block, bytes of dynamic shared memory.
    pub kernels: &'static [(&'static str, u32, u32)],
}

impl Variant {
    /// The name of its prebuilt file, "05_naive.f16.sm_80.ptx".
    pub fn ptx_name(&self) -> String {
        let stem = self.file.trim_end_matches(".cu").trim_end_matches(".py").replace('/', "_");
        format!("{stem}.{}.{}.ptx", self.name, self.arch)
    }

    /// Whether it is a Python file, "triton/fa2.py", which Triton compiles: its prebuilt PTX is all that can be loaded of it.
    pub fn is_triton(&self) -> bool {
        self.file.ends_with(".py")
    }

    /// What is compiled; of a Python file, with the one that has Triton compile it.
    ///
    /// # Errors
    /// The folder `kernels` has no such file.
    pub fn source(&self) -> Result<Source<'static>, DeviceError> {
        let text =
            file(self.file).ok_or_else(|| DeviceError::value("kernel file", self.file, "one of the folder kernels"))?;
        let mut source = Source::new(self.file, text, self.defines, file);
        if self.is_triton() {
            source.headers.extend(file(TRITON).map(|text| (TRITON, text)));
        }
        Ok(source)
    }

    /// The architecture to compile it for on a device of that compute capability: the device's own, "sm_90".
    ///
    /// # Errors
    /// The device is older; or it is not the one for which the variant is, whose instructions no other has.
    pub fn arch_on(&self, (major, minor): (u32, u32)) -> Result<String, DeviceError> {
        let own = format!("sm_{major}{minor}");
        let fits = match self.arch.strip_suffix('a') {
            Some(only) => only == own,
            None => self
                .arch
                .trim_start_matches("sm_")
                .parse()
                .is_ok_and(|least: u64| least <= 10 * u64::from(major) + u64::from(minor)),
        };
        if !fits {
            let wanted =
                if self.arch.ends_with('a') { self.arch.to_string() } else { format!("{} or newer", self.arch) };
            return Err(DeviceError::value(format!("device for {}", self.ptx_name()), own, wanted));
        }
        Ok(if self.arch.ends_with('a') { self.arch.into() } else { own })
    }
}

/// A file with the headers that it includes, directly or through others, and its macros.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    /// The file's name.
    pub name: &'a str,
    /// Its text.
    pub text: &'a str,
    /// Names and texts of the headers, in order of names.
    pub headers: Vec<(&'a str, &'a str)>,
    /// Whether it includes a file, directly or through the headers, that is not among them.
    pub includes_others: bool,
    /// Macros: names and values.
    pub defines: &'a [(&'a str, &'a str)],
}

impl<'a> Source<'a> {
    /// A file with the headers that `header` has; others are left for the compiler to find.
    pub fn new(
        name: &'a str,
        text: &'a str,
        defines: &'a [(&'a str, &'a str)],
        header: impl Fn(&str) -> Option<&'a str>,
    ) -> Self {
        let mut headers: Vec<(&str, &str)> = Vec::new();
        let mut includes_others = false;
        let mut unread = vec![text];
        while let Some(text) = unread.pop() {
            for included in text.lines().filter_map(included) {
                match quoted(included).and_then(|name| Some((name, header(name)?))) {
                    Some(own) if headers.contains(&own) => {}
                    Some(own) => {
                        headers.push(own);
                        unread.push(own.1);
                    }
                    None => includes_others = true,
                }
            }
        }
        headers.sort_unstable();
        Source { name, text, headers, includes_others, defines }
    }

    /// SHA-256, in hexadecimal, of all that decides what is compiled: texts, macros, and the compiler's options.
    pub fn hash(&self, options: &[String]) -> String {
        let mut hash = Sha256::new();
        // Lengths before texts, so that no two lists run into one.
        let mut add = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        let pairs = [(self.name, self.text)].into_iter().chain(self.headers.iter().copied());
        for (name, text) in pairs.chain(self.defines.iter().copied()) {
            add(name);
            add(text);
        }
        options.iter().for_each(|option| add(option));
        hexadecimal(&hash.finalize())
    }
}

/// What stands behind `#include` in a line.
fn included(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include").map(str::trim_start)
}

/// The name that stands in quotes.
fn quoted(included: &str) -> Option<&str> {
    included.strip_prefix('"')?.split_once('"').map(|(name, _)| name)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string grows");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VARIANT: Variant = Variant { file: "05_x.cu", name: "f16", defines: &[], arch: "sm_80", kernels: &[] };

    #[test]
    fn a_variant_runs_on_its_architecture_and_newer_ones_but_one_with_an_a_on_its_own_alone() {
        assert_eq!(VARIANT.ptx_name(), "05_x.f16.sm_80.ptx");
        assert_eq!(VARIANT.arch_on((8, 0)), Ok("sm_80".into()));
        assert_eq!(VARIANT.arch_on((12, 0)), Ok("sm_120".into()));
        assert_eq!(VARIANT.arch_on((u32::MAX, u32::MAX)), Ok("sm_42949672954294967295".into()));
        let hopper = Variant { arch: "sm_90a", ..VARIANT };
        assert_eq!(hopper.arch_on((9, 0)), Ok("sm_90a".into()));
        for (variant, device, words) in [
            (VARIANT, (7, 5), "device for 05_x.f16.sm_80.ptx: found sm_75, wanted sm_80 or newer"),
            (hopper, (10, 0), "device for 05_x.f16.sm_90a.ptx: found sm_100, wanted sm_90a"),
            (hopper, (8, 9), "device for 05_x.f16.sm_90a.ptx: found sm_89, wanted sm_90a"),
        ] {
            assert_eq!(variant.arch_on(device).unwrap_err().to_string(), words);
        }
        let triton = Variant { file: "triton/fa2.py", name: "f16.d64", ..VARIANT };
        assert_eq!(triton.ptx_name(), "triton_fa2.f16.d64.sm_80.ptx");
        assert!(triton.is_triton() && !VARIANT.is_triton());
        let absent = VARIANT.source().unwrap_err();
        assert_eq!(absent.to_string(), "kernel file: found 05_x.cu, wanted one of the folder kernels");
    }

    fn source<'a>(text: &'a str, headers: &'a [(&'a str, &'a str)], defines: &'a [(&'a str, &'a str)]) -> Source<'a> {
        let header = |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
        Source::new("a.cu", text, defines, header)
    }

    const TEXT: &str = "#include <cuda_fp16.h>\n  # include \"tile/b.cuh\"\n// #include \"c.cuh\"\n";
    const HEADERS: &[(&str, &str)] = &[
        ("c.cuh", "not included"),
        ("tile/b.cuh", "#include \"ptx/d.cuh\" // why"),
        ("ptx/d.cuh", "#include \"tile/b.cuh\""),
    ];

    #[test]
    fn headers_are_followed_through_headers_and_each_is_taken_once() {
        let names = source(TEXT, HEADERS, &[]).headers.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        assert_eq!(names, ["ptx/d.cuh", "tile/b.cuh"]);
    }

    #[test]
    fn a_file_that_is_not_among_the_headers_is_noticed_wherever_it_is_included() {
        let deep = [HEADERS[1], ("ptx/d.cuh", "#include<cuda_bf16.h>")];
        for (text, headers, others) in [
            (TEXT, HEADERS, true),
            (&TEXT["#include <cuda_fp16.h>\n".len()..], HEADERS, false),
            ("#include \"tile/b.cuh\"", &deep[..], true),
            ("#include \"cuda_fp16.h\"", HEADERS, true),
            ("#include HEADER", HEADERS, true),
            ("int include;", HEADERS, false),
        ] {
            assert_eq!(source(text, headers, &[]).includes_others, others, "{text}");
        }
    }

    #[test]
    fn a_hash_changes_with_whatever_decides_what_is_compiled() {
        let options = ["--std=c++17".to_string()];
        let plain = source(TEXT, HEADERS, &[("D", "64")]).hash(&options);
        assert_eq!(plain.len(), 64);
        assert_eq!(source(TEXT, &HEADERS[1..], &[("D", "64")]).hash(&options), plain, "a header that is not included");
        let deeper = [HEADERS[1], ("ptx/d.cuh", "#include \"tile/b.cuh\" ")];
        for other in [
            source(&TEXT[1..], HEADERS, &[("D", "64")]).hash(&options),
            source(TEXT, &deeper, &[("D", "64")]).hash(&options),
            source(TEXT, HEADERS, &[("D", "128")]).hash(&options),
            source(TEXT, HEADERS, &[("D6", "4")]).hash(&options),
            source(TEXT, HEADERS, &[]).hash(&options),
            source(TEXT, HEADERS, &[("D", "64")]).hash(&[]),
        ] {
            assert_ne!(other, plain);
        }
    }

    #[test]
    fn the_hash_is_sha_256() {
        // The published digest of the empty message.
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hexadecimal(&Sha256::digest([])), empty);
    }
}
