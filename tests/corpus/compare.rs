//! When outputs agree with those of the device.
//!
//! Bits must be the same, but for what the PTX ISA leaves open: which NaN comes of arithmetic in f64, and of `abs` and `neg`;
//! the error of approximations, and the order in which `mma` adds, within [bounds](crate::promise).

use crate::form::{Column, Program};
use crate::promise::{self, Promise};
use crate::values::Format;

/// How an output is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The same bits.
    Bits,
    /// The same bits, or both a NaN.
    Number(Format, u32),
    /// Within what is promised of the true number.
    Near(Format, u32),
}

/// Bytes of an element that are told one by one, at most.
const LONG: usize = 64;

/// Opcodes whose NaN the ISA leaves open in f64.
const ARITHMETIC: &[&str] = &["add", "sub", "mul", "fma", "div", "rcp", "sqrt", "min", "max", "cvt"];

pub(crate) fn rule(program: &Program, output: &Column) -> Rule {
    let Some((format, count)) = Format::of(&output.ty) else { return Rule::Bits };
    let opcode = program.body.split('.').next().unwrap_or_default();
    if promise::is_of(program) {
        Rule::Near(format, count)
    } else if ["abs", "neg"].contains(&opcode) || output.ty == "f64" && ARITHMETIC.contains(&opcode) {
        Rule::Number(format, count)
    } else {
        Rule::Bits
    }
}

/// Holds outputs against what the device had; without that, approximations against the truth alone. What differs first is
/// told.
pub(crate) fn agree(program: &Program, recorded: Option<&[u8]>, got: &[u8]) -> Result<(), String> {
    let promises = promise::of(program);
    let mut start = 0;
    for (k, column) in program.outputs.iter().enumerate() {
        let rule = rule(program, column);
        for i in 0..program.count {
            let place = start + i * column.bytes..start + (i + 1) * column.bytes;
            let (recorded, got) = (recorded.map(|all| &all[place.clone()]), &got[place]);
            let promised = |half: u32| promises.get(&(k, i, half)).copied();
            if !same(rule, recorded, got, promised) {
                let first = recorded.and_then(|had| had.iter().zip(got).position(|(had, got)| had != got)).unwrap_or(0);
                let (place, part) = if column.bytes > LONG {
                    (format!(", byte {first}"), first..first + 1)
                } else {
                    (String::new(), 0..column.bytes)
                };
                let had = recorded.map(|had| format!(", the device had {}", hexadecimal(&had[part.clone()])));
                let (from, had, got) = (inputs(program, i), had.unwrap_or_default(), hexadecimal(&got[part]));
                return Err(format!("{}: tuple {i}, {from}: d{k}{place} is {got}{had}", program.name));
            }
        }
        start += program.count * column.bytes;
    }
    Ok(())
}

/// Holds outputs against what arithmetic says of them.
pub(crate) fn is_true(program: &Program, got: &[u8]) -> Result<(), String> {
    let Some(truth) = &program.truth else { return Err(format!("{}: nothing is said of it", program.name)) };
    if truth.len() != got.len() {
        return Err(format!("{}: found {} bytes, wanted {}", program.name, got.len(), truth.len()));
    }
    let mut each = truth.iter().zip(got).enumerate();
    each.find(|(_, (wanted, got))| wanted != got).map_or(Ok(()), |(place, (wanted, got))| {
        Err(format!("{}: byte {place}: found {got:#04x}, wanted {wanted:#04x}", program.name))
    })
}

fn same(rule: Rule, recorded: Option<&[u8]>, got: &[u8], promised: impl Fn(u32) -> Option<Promise>) -> bool {
    let (format, count) = match rule {
        Rule::Bits => return recorded.is_none_or(|recorded| recorded == got),
        Rule::Number(format, count) | Rule::Near(format, count) => (format, count),
    };
    let part = |bytes: &[u8], half: u32| integer(bytes) >> (16 * half) & (u64::MAX >> (64 - format.bits()));
    (0..count).all(|half| {
        let (recorded, got) = (recorded.map(|bytes| part(bytes, half)), part(got, half));
        if recorded == Some(got) || recorded.is_some_and(|bits| format.is_nan(bits)) {
            return recorded == Some(got) || format.is_nan(got);
        }
        match rule {
            Rule::Near(..) => promised(half).is_none_or(|promise| promise.holds(format, recorded, got)),
            _ => recorded.is_none(),
        }
    })
}

/// Up to 8 bytes as a number.
pub(crate) fn integer(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte))
}

fn hexadecimal(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}

/// The inputs of a tuple, as text.
fn inputs(program: &Program, i: usize) -> String {
    let each = (0..program.inputs.len()).map(|k| match input(program, k, i) {
        long if long.len() > LONG => format!("a{k} of {} bytes", long.len()),
        bytes => format!("a{k} {}", hexadecimal(bytes)),
    });
    each.collect::<Vec<_>>().join(", ")
}

/// The bytes of input `k` of tuple `i`.
pub(crate) fn input(program: &Program, k: usize, i: usize) -> &[u8] {
    let before: usize = program.inputs[..k].iter().map(|column| program.count * column.bytes).sum();
    let bytes = program.inputs[k].bytes;
    &program.input[before + i * bytes..before + (i + 1) * bytes]
}
