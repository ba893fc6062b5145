//! Any text is a module or an error.

use super::*;
use proptest::{prelude::*, sample::Index};

/// What the reader promises of a text, whatever it is.
fn holds(text: &str) -> Result<(), TestCaseError> {
    match read(text) {
        Ok(module) => {
            let with_bytes = module.variables.iter().filter_map(|v| v.init.as_ref().map(|init| (v.bytes, init.len())));
            for (bytes, initial) in with_bytes {
                prop_assert_eq!(bytes, initial as u64);
            }
        }
        Err(error) => {
            prop_assert!(error.line >= 1 && error.line as usize <= text.lines().count().max(1), "{}", error);
            prop_assert!(error.what.starts_with("found ") && error.what.contains(", wanted "), "{}", error);
            prop_assert!(error.what.len() < 400, "{}", error);
        }
    }
    Ok(())
}

#[test]
fn nesting_is_limited() {
    for (deep, reads) in [(64, true), (65, false), (1_000_000, false)] {
        let text = format!("{HEAD}.entry k() {}{}", "{".repeat(deep), "}".repeat(deep));
        assert_eq!(read(&text).is_ok(), reads, "{deep}");
    }
    let text = format!("{HEAD}.entry k() {}", "{\n".repeat(65));
    assert_eq!(read(&text).unwrap_err().to_string(), "PTX line 68: found `{`, wanted braces at most 64 deep");
}

#[test]
fn dimensions_are_limited() {
    for (dimensions, reads) in [(64, true), (65, false), (1_000_000, false)] {
        let (open, close) = ("{".repeat(dimensions), "}".repeat(dimensions));
        let text = format!("{HEAD}.global .b8 x{} = {open}1{close};", "[1]".repeat(dimensions));
        assert_eq!(read(&text).is_ok(), reads, "{dimensions}");
    }
}

#[test]
fn long_runs_of_one_word_end() {
    for word in ["(", "[", "{", "-", "+", "@", "!", "a:", ".a", "0", "a,", ";", "/*", "*/", "\"", ".loc 1 1 1 ", "::"] {
        for head in ["", HEAD, &format!("{HEAD}.entry k() {{ "), &format!("{HEAD}.entry k() {{ op ")] {
            holds(&format!("{head}{}", word.repeat(100_000))).unwrap();
        }
    }
}

/// A change of a text: cut out, written twice, or changed places with another part.
#[derive(Clone, Debug)]
enum Edit {
    Delete,
    Duplicate,
    Swap,
    Truncate,
}

fn edits() -> impl Strategy<Value = Vec<(Edit, Index, Index)>> {
    let edit = prop_oneof![
        4 => Just(Edit::Delete),
        4 => Just(Edit::Duplicate),
        4 => Just(Edit::Swap),
        1 => Just(Edit::Truncate)
    ];
    prop::collection::vec((edit, any::<Index>(), any::<Index>()), 1..6)
}

/// The parts of a text, edited.
fn edited<T: Clone>(mut parts: Vec<T>, edits: &[(Edit, Index, Index)]) -> Vec<T> {
    for (edit, one, other) in edits {
        if parts.is_empty() {
            break;
        }
        let (one, other) = (one.index(parts.len()), other.index(parts.len()));
        match edit {
            Edit::Delete => drop(parts.remove(one)),
            Edit::Duplicate => parts.insert(other, parts[one].clone()),
            Edit::Swap => parts.swap(one, other),
            Edit::Truncate => parts.truncate(one),
        }
    }
    parts
}

/// The text of small real files, of which every form that they have is a large part.
fn real_file() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        repository_file("kernels/prebuilt/05_ceiling.f32.sm_80.ptx"),
        repository_file("kernels/prebuilt/05_fa1.f32.sm_80.ptx"),
        repository_file("crates/device/tests/hopper.sm_90.ptx"),
        repository_file("crates/device/tests/probe.sm_80.ptx"),
        format!(
            "{HEAD}.file 1 \"x\"\n.section .debug_str {{\n.b8 1, 2\n}}\n.global .u16 x[2][3] = {{{{1}}, {{4, 5, 6}}}};\n\
             .entry k(.param .u64 .ptr .global .align 16 p) .maxntid 32, 1, 1 {{\n.reg .b32 %r<4>;\n\
             .loc 1 35 9, function_name $L, inlined_at 1 51 5\n@!p op {{a, b}}, [c+8], [m, {{x, y}}], (d), !p, p|q, x+4;\n}}"
        ),
    ])
}

/// Words of PTX.
const WORDS: [&str; 58] = [
    ".entry",
    ".func",
    ".global",
    ".shared",
    ".extern",
    ".param",
    ".reg",
    ".align",
    ".b8",
    ".b32",
    ".f32",
    ".v4",
    ".pred",
    ".ptr",
    ".maxntid",
    ".loc",
    ".file",
    ".section",
    ".debug_str",
    ".pragma",
    "function_name",
    "inlined_at",
    "k",
    "%r",
    "%tid.x",
    "_",
    "$L",
    "add.f32",
    "bra",
    "ret",
    "call.uni",
    "0",
    "1",
    "-1",
    "64",
    "0x7",
    "1099511627776",
    "67108864",
    "0f3F800000",
    "1.5",
    "\"x\"",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    ",",
    ";",
    ":",
    "@",
    "!",
    "|",
    "+",
    "=",
    "\n",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn files_with_other_bytes(text in real_file(), edits in edits(), byte in any::<u8>(), at in any::<Index>()) {
        let mut bytes = edited(text.into_bytes(), &edits);
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        holds(&String::from_utf8_lossy(&bytes))?;
    }

    #[test]
    fn files_with_other_words(text in real_file(), edits in edits()) {
        let words: Vec<&str> = text.split_inclusive(|c: char| !c.is_alphanumeric()).collect();
        holds(&edited(words, &edits).concat())?;
    }

    #[test]
    fn words_in_any_order(head in 0_usize..3, words in prop::collection::vec(prop::sample::select(&WORDS[..]), 0..60)) {
        let head = ["", HEAD, ".version 8.0 .target sm_80 .entry k() { "][head];
        holds(&format!("{head}{}", words.join(" ")))?;
    }

    #[test]
    fn any_text(text in any::<String>()) {
        holds(&text)?;
        holds(&format!("{HEAD}{text}"))?;
    }
}
