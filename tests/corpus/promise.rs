//! What the PTX ISA promises of results that it leaves open: the true number and how far from it they may be.
//!
//! Sections "Floating Point Instructions" and "Half Precision Floating Point Instructions" for approximations. For `mma` the ISA
//! says that products are exact and that the order and precision of the sum are not specified, "at least single precision" for
//! an accumulator in f32; the bound here is an ulp of the largest term for each addition.

use crate::compare::{input, integer};
use crate::form::Program;
use crate::values::{Draw, Format};
use std::collections::HashMap;

/// A number and the error allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    truth: f64,
    error: f64,
    /// Whether subnormal results are 0.
    flushes: bool,
}

impl Promise {
    /// Whether bits that differ from those of the device are as good.
    pub(crate) fn holds(self, format: Format, recorded: Option<u64>, got: u64) -> bool {
        if self.truth.is_nan() || format.is_nan(got) {
            return self.truth.is_nan() && format.is_nan(got) && recorded.is_none();
        }
        let signs_of_zero = recorded.is_some_and(|bits| format.is_zero(bits) && format.is_zero(got));
        let flushed = !(self.flushes && format.is_subnormal(got));
        let value = format.value(got);
        if value.is_infinite() {
            let beyond = self.truth.abs() + self.error > format.value(format.infinity() - 1);
            return beyond && value.signum() == self.truth.signum();
        }
        !signs_of_zero && flushed && (value == self.truth || (value - self.truth).abs() <= self.error)
    }
}

/// Whether the results of a program are open within bounds.
pub(crate) fn is_of(program: &Program) -> bool {
    let opcode = program.body.split_whitespace().next().unwrap_or_default();
    let approximate = opcode.contains(".approx") || opcode.starts_with("div.full");
    approximate || opcode.starts_with("mma") && program.inputs.iter().any(|column| column.draw == Draw::Unit)
}

/// The promise of each output, tuple and half of an element. Where there is none, any number is right.
pub(crate) fn of(program: &Program) -> HashMap<(usize, usize, u32), Promise> {
    if !is_of(program) {
        HashMap::new()
    } else if program.body.starts_with("mma") {
        products(program)
    } else {
        approximations(program)
    }
}

fn approximations(program: &Program) -> HashMap<(usize, usize, u32), Promise> {
    let opcode = program.body.split_whitespace().next().unwrap_or_default();
    let (format, halves) = Format::of(&program.outputs[0].ty).expect("approximations are numbers");
    let flushes = opcode.contains(".ftz");
    let tuples = (0..program.count).flat_map(|i| (0..halves).map(move |half| (i, half)));
    let promise = |(i, half): (usize, u32)| {
        let x = (0..program.inputs.len()).map(|k| {
            let bits = part(integer(input(program, k, i)), format, half);
            let x = format.value(bits);
            if flushes && format.is_subnormal(bits) { x * 0.0 } else { x }
        });
        let (mut truth, error) = approximation(opcode, &x.collect::<Vec<_>>(), format)?;
        // A subnormal result is rounded too, or is none.
        let mut error = error + format.least();
        if flushes && truth.abs() < format.value(1 << format.fraction) {
            (truth, error) = (truth * 0.0, 0.0);
        }
        Some(((0, i, half), Promise { truth, error, flushes }))
    };
    tuples.filter_map(promise).collect()
}

fn part(bits: u64, format: Format, half: u32) -> u64 {
    bits >> (16 * half) & (u64::MAX >> (64 - format.bits()))
}

/// The true number and the error that the ISA allows; none where it promises nothing.
fn approximation(opcode: &str, x: &[f64], format: Format) -> Option<(f64, f64)> {
    use std::f64::consts::PI;
    let name = opcode.split('.').next().unwrap_or_default();
    let ulp = |truth: f64| 2f64.powi((truth.abs().log2().floor() as i32).saturating_sub(format.fraction as i32));
    let single = format.fraction == 23;
    let half = format.fraction == 10;
    let relative = |truth: f64, power: f64| Some((truth, truth.abs() * 2f64.powf(power)));
    match name {
        "ex2" if single => relative(x[0].exp2(), -22.0),
        "ex2" => relative(x[0].exp2(), if half { -9.9 } else { -7.0 }),
        "lg2" if (0.5..2.0).contains(&x[0]) => Some((x[0].log2(), 2f64.powi(-22))),
        "lg2" => relative(x[0].log2(), -22.0),
        "sin" | "cos" => {
            let error = match x[0].abs() {
                far if far > 100.0 * PI && far.is_finite() => return None,
                some if some > 2.0 * PI => -14.7,
                _ => -20.5,
            };
            Some((if name == "sin" { x[0].sin() } else { x[0].cos() }, 2f64.powf(error)))
        }
        "tanh" if single => relative(x[0].tanh(), -11.0),
        "tanh" => Some((x[0].tanh(), 2f64.powf(if half { -10.987 } else { -8.0 }))),
        "rcp" => Some((1.0 / x[0], ulp(1.0 / x[0]))),
        "sqrt" => relative(x[0].sqrt(), -23.0),
        "rsqrt" => relative(1.0 / x[0].sqrt(), -22.9),
        "div" => quotient(opcode, x[0], x[1]).map(|truth| (truth, 2.0 * ulp(truth))),
        _ => panic!("no bound for {opcode}"),
    }
}

/// `div.full` has all quotients, `div.approx` those by numbers from 2^-126 to 2^126; by a larger one, a finite number gives 0
/// and infinity no number.
fn quotient(opcode: &str, a: f64, b: f64) -> Option<f64> {
    let size = b.abs();
    if opcode.starts_with("div.full") || !size.is_finite() || size == 0.0 {
        return Some(a / b);
    }
    if size > 2f64.powi(126) {
        return Some(if a.is_finite() { a / b * 0.0 } else { f64::NAN });
    }
    (size >= 2f64.powi(-126)).then_some(a / b)
}

/// D = AB + C of each warp, of the shapes m16n8k8 and m16n8k16. Sections "Matrix Fragments for mma.m16n8k8" and "m16n8k16".
fn products(program: &Program) -> HashMap<(usize, usize, u32), Promise> {
    let depth = if program.body.contains("m16n8k16") { 16 } else { 8 };
    let (format, halves) = Format::of(&program.outputs[0].ty).expect("the product has numbers");
    let mut promises = HashMap::new();
    for warp in 0..program.count / 32 {
        let mut a = vec![[0.0; 16]; 16];
        let mut b = vec![[0.0; 8]; 16];
        let mut c = [[0.0; 8]; 16];
        for lane in 0..32 {
            let elements = elements(program, 32 * warp + lane);
            let (row, pair) = (lane / 4, 2 * (lane % 4));
            for (e, &x) in elements[..depth / 2].iter().enumerate() {
                a[row + 8 * (e / 2 % 2)][pair + e % 2 + 8 * (e / 4)] = x;
            }
            for (e, &x) in elements[depth / 2..][..depth / 4].iter().enumerate() {
                b[pair + e % 2 + 8 * (e / 2)][row] = x;
            }
            for (e, &x) in elements[depth / 2 + depth / 4..].iter().enumerate() {
                c[row + 8 * (e / 2)][pair + e % 2] = x;
            }
        }
        for (lane, e) in (0..32).flat_map(|lane| (0..4).map(move |e| (lane, e))) {
            let (i, j) = (lane / 4 + 8 * (e / 2), 2 * (lane % 4) + e % 2);
            let terms: Vec<f64> = (0..depth).map(|k| a[i][k] * b[k][j]).chain([c[i][j]]).collect();
            let truth: f64 = terms.iter().sum();
            let largest = terms.iter().fold(0.0, |most: f64, term| most.max(term.abs()));
            let mut error = (depth + 1) as f64 * 2f64.powi(-23) * largest;
            if format.fraction == 10 {
                error += truth.abs() * 2f64.powi(-10);
            }
            let half = e as u32 % halves;
            let promise = Promise { truth, error, flushes: false };
            promises.insert((e / halves as usize, 32 * warp + lane, half), promise);
        }
    }
    promises
}

/// The numbers of all inputs of a tuple, in order.
fn elements(program: &Program, i: usize) -> Vec<f64> {
    let each = program.inputs.iter().enumerate().flat_map(|(k, column)| {
        let (format, count) = Format::of(&column.ty).expect("a matrix has numbers");
        (0..count).map(move |half| format.value(part(integer(input(program, k, i)), format, half)))
    });
    each.collect()
}
