//! What kernels did, counted, beside what formulas say.

use crate::format;
use attention::Traffic;
use comfy_table::Cell;
use device::{Counters, Flops, Global};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::iter;

/// Instructions that a line names: the most frequent ones.
const NAMED: usize = 5;

/// What can be said of a call beforehand.
pub(super) struct Formula {
    /// Operations of both products, for each visible pair.
    pub(super) flops: f64,
    /// Bytes that the algorithm moves, if that is counted on the CPU.
    pub(super) moved: Option<Traffic>,
    /// The least that any algorithm moves.
    pub(super) compulsory: Traffic,
}

/// A quantity: its name, how it is told of some counters, and what a formula says of a call.
type Quantity = (&'static str, fn(&Counters) -> String, Option<String>);

/// A column for each kernel, for all of them if they are several, and for what formulas say.
pub(super) fn table(kernels: &[(String, Counters)], formula: &Formula) -> String {
    let mut all = Counters::default();
    kernels.iter().for_each(|(_, counters)| all += counters.clone());
    let mut columns: Vec<(&str, &Counters)> =
        kernels.iter().map(|(name, counters)| (name.as_str(), counters)).collect();
    if kernels.len() > 1 {
        columns.push(("all", &all));
    }
    let header = iter::once("").chain(columns.iter().map(|(name, _)| *name)).chain(["formula"]);
    let rows = quantities(&all, formula).into_iter().map(|(name, told, formula)| {
        let cells = iter::once(name.into()).chain(columns.iter().map(|(_, counters)| told(counters)));
        cells.chain([formula.unwrap_or_default()]).map(Cell::new).collect()
    });
    format::table(header, rows).to_string()
}

/// The rows of the table, without units that do nothing.
fn quantities(all: &Counters, formula: &Formula) -> Vec<Quantity> {
    let moved = |part: fn(Traffic) -> u64| formula.moved.map(|moved| bytes(part(moved)));
    let units: [Quantity; 5] = [
        ("  on f32 units", |one| count(one.flops.f32), None),
        ("  on f64 units", |one| count(one.flops.f64), None),
        ("  on f16 units", |one| count(one.flops.f16), None),
        ("  on tensor cores", |one| count(one.flops.tensor), None),
        ("special functions", |one| count(one.flops.special), None),
    ];
    let mut quantities: Vec<Quantity> = vec![
        ("warp instructions", |one| count(instructions_of(one)), None),
        ("FLOP", |one| count(flops_of(one.flops)), Some(format::count(formula.flops))),
    ];
    quantities.extend(units.into_iter().filter(|(_, told, _)| told(all) != count(0)));
    quantities.extend([
        ("global, read", (|one| bytes(one.global_reads.bytes)) as fn(&Counters) -> String, moved(|moved| moved.read)),
        ("  sectors", |one| count(one.global_reads.sectors), None),
        ("  bytes a sector", |one| a_sector(one.global_reads), None),
        ("global, written", |one| bytes(one.global_writes.bytes), moved(|moved| moved.written)),
        ("  sectors", |one| count(one.global_writes.sectors), None),
        ("  bytes a sector", |one| a_sector(one.global_writes), None),
        ("shared memory", |one| bytes(one.shared.bytes), None),
        ("  passes", |one| count(one.shared.passes), None),
        ("  bank conflicts", |one| count(one.shared.conflicts), None),
    ]);
    quantities
}

/// A kernel's launch, and what most of its instructions are.
pub(super) fn instructions(kernel: &str, grid: [u32; 3], block: Option<[u32; 3]>, counters: &Counters) -> String {
    let product = |sizes: [u32; 3]| sizes.iter().map(|&size| u64::from(size)).product::<u64>();
    let mut instructions: Vec<(&String, &u64)> = counters.instructions.iter().collect();
    instructions.sort_by_key(|(_, count)| Reverse(**count));
    let all = instructions_of(counters) as f64;
    let share = |(name, count): &(&String, &u64)| format!("{name} {:.0}%", 100.0 * **count as f64 / all);
    let named: Vec<String> = instructions.iter().take(NAMED).map(share).collect();
    let threads = block.map_or(String::new(), |block| format!(", each of {} threads", product(block)));
    format!("{kernel}: blocks {}{threads}; {}", product(grid), named.join(", "))
}

/// What the table's words mean.
pub(super) fn legend(formula: &Formula, on_cpu: &str, fast_memory: u32) -> String {
    let moved = formula.moved.map_or(String::new(), |_| {
        format!("; the bytes that {on_cpu} moves with {} of fast memory", bytes(fast_memory.into()))
    });
    format!(
        "counted: what lanes do and ask for, before any cache. A sector is 32 bytes: with fewer bytes of it asked for, some are \
         moved in vain; with more, lanes share them. Bank conflicts are passes beyond the least.\n\
         formula: 2(d + d_v) FLOP for each visible query-key pair, while a kernel works on hidden pairs of its tiles too, \
         and on scores{moved}. Reading every input once and writing every result once is {}.",
        bytes(formula.compulsory.total())
    )
}

/// All that was counted of a kernel.
pub(super) fn json(kernel: &str, counters: &Counters) -> Value {
    let Counters { instructions, flops, global_reads, global_writes, shared } = counters;
    let global =
        |global: &Global| json!({ "bytes": global.bytes, "sectors": global.sectors, "requests": global.requests });
    json!({
        "kernel": kernel,
        "warp_instructions": instructions_of(counters),
        "instructions": instructions,
        "flops": {
            "f32": flops.f32,
            "f64": flops.f64,
            "f16": flops.f16,
            "tensor": flops.tensor,
            "special": flops.special,
        },
        "global_reads": global(global_reads),
        "global_writes": global(global_writes),
        "shared": {
            "bytes": shared.bytes,
            "requests": shared.requests,
            "passes": shared.passes,
            "bank_conflicts": shared.conflicts,
        },
    })
}

impl Formula {
    pub(super) fn json(&self) -> Value {
        json!({
            "flops": self.flops,
            "read_bytes": self.moved.map(|moved| moved.read),
            "written_bytes": self.moved.map(|moved| moved.written),
            "compulsory_bytes": self.compulsory.total(),
        })
    }
}

fn instructions_of(counters: &Counters) -> u64 {
    counters.instructions.values().sum()
}

/// Additions and multiplications, on whatever unit.
fn flops_of(Flops { f32, f64, f16, tensor, special: _ }: Flops) -> u64 {
    f32 + f64 + f16 + tensor
}

fn count(x: u64) -> String {
    format::count(x as f64)
}

fn bytes(x: u64) -> String {
    format::bytes(x as f64)
}

fn a_sector(global: Global) -> String {
    if global.sectors == 0 { "-".into() } else { format::three_digits(global.bytes as f64 / global.sectors as f64) }
}
