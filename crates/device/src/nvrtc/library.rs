//! The functions of the library.

// The library is C.
#![allow(unsafe_code)]

use super::Compiled;
use crate::{DeviceError, Source};
use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Display;
use std::path::{Path, PathBuf};

type Program = *mut c_void;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Texts = *const *const c_char;

/// Architectures, at most: NVIDIA has some tens.
const MOST_ARCHITECTURES: usize = 1000;
/// Bytes of a text or a cubin, at most.
const MOST_BYTES: usize = 256 << 20;

/// The library, loaded for the life of the process: its functions stay callable.
#[derive(Debug)]
pub(super) struct Library {
    create: unsafe extern "C" fn(*mut Program, *const c_char, *const c_char, c_int, Texts, Texts) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, Texts) -> c_int,
    log: (Size, Text),
    ptx: (Size, Text),
    cubin: (Size, Text),
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    count: unsafe extern "C" fn(*mut c_int) -> c_int,
    list: unsafe extern "C" fn(*mut c_int) -> c_int,
}

/// What is made of a source.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Ptx,
    Cubin,
}

impl Library {
    /// Loads the library, and says its version. It looks for its builtins by name alone, which a folder that the system does
    /// not know must have had loaded by their path before.
    pub(super) fn open(path: &Path, builtins: &[PathBuf]) -> Result<(Self, (u32, u32)), String> {
        for builtin in builtins {
            // SAFETY: loading a library runs its initialisers; NVIDIA's are made for that.
            if let Ok(library) = unsafe { libloading::Library::new(builtin) } {
                std::mem::forget(library);
            }
        }
        // SAFETY: as above.
        let library = unsafe { libloading::Library::new(path) }.map_err(with_source)?;
        // SAFETY: the names and types are those of nvrtc.h; the library is never unloaded, so that the functions stay.
        let (version, opened) = unsafe {
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = symbol(&library, "nvrtcVersion")?;
            let opened = Library {
                create: symbol(&library, "nvrtcCreateProgram")?,
                destroy: symbol(&library, "nvrtcDestroyProgram")?,
                compile: symbol(&library, "nvrtcCompileProgram")?,
                log: (symbol(&library, "nvrtcGetProgramLogSize")?, symbol(&library, "nvrtcGetProgramLog")?),
                ptx: (symbol(&library, "nvrtcGetPTXSize")?, symbol(&library, "nvrtcGetPTX")?),
                cubin: (symbol(&library, "nvrtcGetCUBINSize")?, symbol(&library, "nvrtcGetCUBIN")?),
                error: symbol(&library, "nvrtcGetErrorString")?,
                count: symbol(&library, "nvrtcGetNumSupportedArchs")?,
                list: symbol(&library, "nvrtcGetSupportedArchs")?,
            };
            (version, opened)
        };
        std::mem::forget(library);
        let (mut major, mut minor) = (0, 0);
        // SAFETY: it writes two numbers.
        opened.checked("nvrtcVersion", unsafe { version(&mut major, &mut minor) })?;
        Ok((opened, (major.max(0) as u32, minor.max(0) as u32)))
    }

    /// The numbers of the architectures that it makes machine code for.
    pub(super) fn architectures(&self) -> Result<Vec<c_int>, String> {
        let mut count = 0;
        // SAFETY: it writes one number.
        self.checked("nvrtcGetNumSupportedArchs", unsafe { (self.count)(&mut count) })?;
        let count = within("nvrtcGetNumSupportedArchs", count, MOST_ARCHITECTURES)?;
        let mut numbers = vec![0; count];
        // SAFETY: it writes as many numbers as it has just said.
        self.checked("nvrtcGetSupportedArchs", unsafe { (self.list)(numbers.as_mut_ptr()) })?;
        Ok(numbers)
    }

    pub(super) fn compile(&self, source: &Source, options: &[String], kind: Kind) -> Result<Compiled, DeviceError> {
        let failed = |log: String| DeviceError::Compile { file: source.name.into(), log };
        let texts = |texts: &mut dyn Iterator<Item = &str>| {
            let texts = texts
                .map(|text| CString::new(text).map_err(|_| failed("found a zero byte in a text or a name".into())));
            texts.collect::<Result<Vec<CString>, DeviceError>>()
        };
        let own = texts(&mut [source.text, source.name].into_iter())?;
        let header_texts = texts(&mut source.headers.iter().map(|(_, text)| *text))?;
        let header_names = texts(&mut source.headers.iter().map(|(name, _)| *name))?;
        let options = texts(&mut options.iter().map(String::as_str))?;
        let [header_texts, header_names, options] =
            [&header_texts, &header_names, &options].map(|texts| pointers(texts));
        let mut made = Made { library: self, program: std::ptr::null_mut() };
        // SAFETY: every text ends with a 0 and lives until the end of this function, and each list is as long as said. It
        // writes one handle, which `made` destroys.
        self.checked("nvrtcCreateProgram", unsafe {
            let headers = header_texts.len() as c_int;
            let (texts, names) = (header_texts.as_ptr(), header_names.as_ptr());
            (self.create)(&mut made.program, own[0].as_ptr(), own[1].as_ptr(), headers, texts, names)
        })
        .map_err(failed)?;
        // SAFETY: the program was made above, and the list is as long as said.
        let compiled = unsafe { (self.compile)(made.program, options.len() as c_int, options.as_ptr()) };
        let log = made.text(self.log, "nvrtcGetProgramLog").map_err(failed)?;
        let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_string();
        self.checked("nvrtcCompileProgram", compiled)
            .map_err(|why| failed(if log.is_empty() { why } else { log.clone() }))?;
        let (functions, name) = match kind {
            Kind::Ptx => (self.ptx, "nvrtcGetPTX"),
            Kind::Cubin => (self.cubin, "nvrtcGetCUBIN"),
        };
        let mut code = made.text(functions, name).map_err(failed)?;
        if matches!(kind, Kind::Ptx) && code.last() == Some(&0) {
            code.pop();
        }
        Ok(Compiled { code, log })
    }

    /// An answer of one of the functions as a result.
    fn checked(&self, call: &str, answer: c_int) -> Result<(), String> {
        if answer == 0 {
            return Ok(());
        }
        // SAFETY: it takes any number and answers with a text of its own, which stays, or null.
        let text = unsafe { (self.error)(answer) };
        // SAFETY: it is such a text.
        let text = if text.is_null() { "unknown".into() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy() };
        Err(format!("{call}: {text}"))
    }
}

/// A program of the library, destroyed when dropped.
struct Made<'a> {
    library: &'a Library,
    program: Program,
}

impl Made<'_> {
    /// One of the program's texts.
    fn text(&self, (size, text): (Size, Text), call: &str) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the program is live, and one number is written.
        self.library.checked(call, unsafe { size(self.program, &mut bytes) })?;
        let mut found = vec![0u8; within(call, bytes, MOST_BYTES)?];
        // SAFETY: as many bytes are written as it has just said.
        self.library.checked(call, unsafe { text(self.program, found.as_mut_ptr().cast()) })?;
        Ok(found)
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: the library has made it, and it is destroyed once.
            unsafe { (self.library.destroy)(&mut self.program) };
        }
    }
}

/// A function of the library.
///
/// # Safety
/// It has that type, and is not called once the library is unloaded.
unsafe fn symbol<T: Copy>(library: &libloading::Library, name: &str) -> Result<T, String> {
    // SAFETY: the caller's.
    unsafe { library.get::<T>(name) }.map(|symbol| *symbol).map_err(with_source)
}

/// A size that the library has said.
fn within<T: Copy + Display + TryInto<usize>>(call: &str, found: T, most: usize) -> Result<usize, String> {
    let size = found.try_into().ok().filter(|&size| size <= most);
    size.ok_or_else(|| format!("{call}: found a size of {found}, wanted at most {most}"))
}

/// What failed, and why.
fn with_source(error: libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |why| format!("{error}: {why}"))
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_no_compiler_has_is_an_error() {
        assert_eq!(within("f", 1000, 1000), Ok(1000));
        assert_eq!(within("f", usize::MAX, 9), Err(format!("f: found a size of {}, wanted at most 9", usize::MAX)));
        assert_eq!(within("f", 10usize, 9), Err("f: found a size of 10, wanted at most 9".into()));
        assert_eq!(within("f", -1, 9), Err("f: found a size of -1, wanted at most 9".into()));
    }
}
