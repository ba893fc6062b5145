//! `ladder compare`: saved results as a table, and as charts.

mod charts;

use crate::cli::{self, CompareArgs};
use crate::{format, page};
use anyhow::{Context, Result, bail};
use comfy_table::Cell;
use ladder::bench::{Ceiling, Results, Row, Shape};
use ladder::registry::{RUNGS, device_rung};
use std::collections::HashMap;
use std::fs;

pub(crate) fn main(args: &CompareArgs) -> Result<bool> {
    if let Some(path) = args.report.as_ref().filter(|path| args.files.contains(path)) {
        bail!("--report {}: found one of the results, wanted a file for the page", path.display());
    }
    let read = args.files.iter().map(|path| Ok((path.display().to_string(), Results::read(path)?)));
    let files = read.collect::<Result<Vec<_>>>()?;
    let comparison = Comparison::new(files.iter().map(|(name, results)| (Some(name.as_str()), results)).collect());
    if let Some(path) = &args.report {
        page::check_writable(path)?;
        fs::write(path, charts::html(&comparison)?).with_context(|| path.display().to_string())?;
    }
    cli::print(&comparison.text())?;
    Ok(true)
}

/// Results of one or several occasions, row beside row.
pub(crate) struct Comparison<'a> {
    /// The results, with the name of the file that they come from.
    files: Vec<(Option<&'a str>, &'a Results)>,
    /// Everyone on every shape, in the order of first appearance, in each file that has them.
    entries: Vec<Vec<Option<&'a Row>>>,
}

/// A property of a row that is no speed.
type Property = (&'static str, fn(&Row) -> String);

/// What a shape is made of.
const SHAPE: [Property; 9] = [
    ("dtype", |row| row.dtype.clone()),
    ("d", |row| row.head_dim.to_string()),
    ("mask", |row| row.mask.clone()),
    ("batch", |row| row.batch.to_string()),
    ("heads", |row| row.heads.to_string()),
    ("kv\nheads", |row| row.kv_heads.to_string()),
    ("q\nlen", |row| row.q_len.to_string()),
    ("kv\nlen", |row| row.kv_len.to_string()),
    ("thr.", |row| row.threads.map_or("-".into(), |threads| threads.to_string())),
];

/// A column of a single file, and its number in a row, if it has one.
type Column = (&'static str, fn(&Comparison, &Row) -> Option<String>);

/// Times.
const MS: Column = ("ms", |_, row| Some(format::three_digits(row.ms)));
const MS_BURST: Column = ("ms\nburst", |_, row| row.ms_burst.map(format::three_digits));

/// The speed of a CPU, and that of a device.
const GFLOPS: Column = ("GFLOP\n/s", |_, row| row.tflops.map(|tflops| format::three_digits(1e3 * tflops)));
const TFLOPS: Column = ("TFLOP\n/s", |_, row| row.tflops.map(format::three_digits));

/// Other speeds.
const GBPS: Column = ("GB/s", |_, row| row.gbps.map(format::three_digits));
const SHARE: Column =
    ("% of\nceiling", |all, row| all.files[0].1.share(row).map(|share| format::three_digits(100.0 * share)));
const BELOW: Column = ("x\nbelow", |all, row| all.below(row).map(|below| times(below.ms / row.ms)));

/// Bytes that a call moves.
const TRAFFIC: [Column; 5] = [
    ("read\nby ncu", |_, row| row.ncu_read_bytes.map(|bytes| format::bytes(bytes as f64))),
    ("written\nby ncu", |_, row| row.ncu_written_bytes.map(|bytes| format::bytes(bytes as f64))),
    ("read\ncounted", |_, row| row.counted_read_bytes.map(|bytes| format::bytes(bytes as f64))),
    ("written\ncounted", |_, row| row.counted_written_bytes.map(|bytes| format::bytes(bytes as f64))),
    ("moved\nformula", |_, row| row.formula_bytes.map(format::bytes)),
];

impl<'a> Comparison<'a> {
    /// Results that come from no file, alone.
    pub(crate) fn of_one(results: &'a Results) -> Self {
        Comparison::new(vec![(None, results)])
    }

    fn new(files: Vec<(Option<&'a str>, &'a Results)>) -> Self {
        let mut places: HashMap<(Shape, &str), usize> = HashMap::new();
        let mut entries: Vec<Vec<Option<&Row>>> = Vec::new();
        for (file, (_, results)) in files.iter().enumerate() {
            for row in &results.rows {
                let place = *places.entry((row.shape(), &row.who)).or_insert(entries.len());
                if place == entries.len() {
                    entries.push(vec![None; files.len()]);
                }
                entries[place][file] = Some(row);
            }
        }
        // Whoever a later file adds to a shape stands with the others of that shape.
        let mut shapes = HashMap::new();
        entries.sort_by_cached_key(|entry| {
            let next = shapes.len();
            *shapes.entry(any(entry).shape()).or_insert(next)
        });
        Comparison { files, entries }
    }

    /// The table, what its rows have in common, and where the numbers come from.
    pub(crate) fn text(&self) -> String {
        let (header, rows) = self.cells();
        let rows = rows.into_iter().map(|cells| cells.into_iter().map(Cell::new).collect());
        let table = format::table(header.iter().map(String::as_str), rows);
        [self.common(), table.to_string()].into_iter().chain(self.sources()).collect::<Vec<_>>().join("\n")
    }

    /// The properties in which entries differ, and those in which they agree.
    fn properties(&self) -> (Vec<Property>, Vec<Property>) {
        let first = any(&self.entries[0]);
        SHAPE.iter().copied().partition(|(_, value)| self.entries.iter().any(|entry| value(any(entry)) != value(first)))
    }

    /// The properties in which all entries agree.
    fn common(&self) -> String {
        let row = any(&self.entries[0]);
        let agreed = self.properties().1;
        let agreed = agreed.iter().map(|(name, value)| format!("{} {}", name.replace('\n', " "), value(row)));
        agreed.collect::<Vec<_>>().join(", ")
    }

    /// Headings, and a row for each entry.
    fn cells(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let differing = self.properties().0;
        let columns = self.columns();
        let speeds: Vec<String> = if self.files.len() == 1 {
            columns.iter().map(|(heading, _)| heading.to_string()).collect()
        } else {
            (0..self.files.len()).flat_map(headings).collect()
        };
        let header = ["who"].into_iter().chain(differing.iter().map(|(name, _)| *name)).map(String::from);
        let rows = self.entries.iter().map(|entry| {
            let row = any(entry);
            let mut cells = vec![row.who.clone()];
            cells.extend(differing.iter().map(|(_, value)| value(row)));
            if self.files.len() == 1 {
                cells.extend(columns.iter().map(|(_, value)| value(self, row).unwrap_or("-".into())));
            } else {
                cells.extend(side_by_side(entry));
            }
            cells
        });
        (header.chain(speeds).collect(), rows.collect())
    }

    /// The columns of a single file: those of speeds, and those of traffic that some row has.
    fn columns(&self) -> Vec<Column> {
        let of_device = |row: &Row| row.threads.is_none();
        let has = |column: &Column| self.entries.iter().any(|entry| (column.1)(self, any(entry)).is_some());
        let speed = if self.entries.iter().all(|entry| of_device(any(entry))) { TFLOPS } else { GFLOPS };
        let traffic = TRAFFIC.iter().copied().filter(has);
        [MS, MS_BURST, speed, GBPS, SHARE, BELOW].into_iter().chain(traffic).collect()
    }

    /// The rung below on the same shape.
    fn below(&self, row: &Row) -> Option<&Row> {
        let on_cpu = RUNGS.windows(2).find(|pair| pair[1].name == row.who).map(|pair| pair[0].name);
        let below = on_cpu.or_else(|| device_rung(&row.who)?.below)?;
        let mut rows = self.entries.iter().filter_map(|entry| entry[0]);
        rows.find(|other| other.who == below && other.shape() == row.shape())
    }

    /// Where the numbers of each file come from, and the ceilings of its machine; then how they were measured.
    fn sources(&self) -> Vec<String> {
        let source = |file: usize| match self.files[file] {
            (None, results) => source(results),
            (Some(name), results) if self.files.len() == 1 => format!("{name}: {}", source(results)),
            (Some(name), results) => format!("{}: {name}: {}", letter(file), source(results)),
        };
        let ceilings = |file: usize| {
            let ceilings = ceilings(self.files[file].1)?;
            Some(if self.files.len() == 1 { ceilings } else { format!("{}: {ceilings}", letter(file)) })
        };
        let lines = (0..self.files.len()).flat_map(|file| [Some(source(file)), ceilings(file)]);
        let mut lines: Vec<String> = lines.flatten().collect();
        for (_, results) in &self.files {
            let method = format!("{}.", results.method.trim_end_matches('.'));
            if !lines.contains(&method) {
                lines.push(method);
            }
        }
        lines
    }

    /// The name of a file, for results that come from one.
    fn name(&self, file: usize) -> &str {
        self.files[file].0.unwrap_or_default()
    }
}

/// An entry has a row in at least one file, and what is asked of it here is the same in all.
fn any<'a>(entry: &[Option<&'a Row>]) -> &'a Row {
    entry.iter().flatten().next().expect("an entry comes from a row")
}

/// The headings of one of several files.
fn headings(file: usize) -> Vec<String> {
    let ms = format!("{}\nms", letter(file));
    if file == 0 { vec![ms] } else { vec![ms, format!("{}\nx {}", letter(file), letter(0))] }
}

/// The times of an entry in each of several files, and how many times as fast as in the first.
fn side_by_side(entry: &[Option<&Row>]) -> Vec<String> {
    let mut cells = vec![optional(entry[0].map(|row| row.ms))];
    for row in &entry[1..] {
        cells.push(optional(row.map(|row| row.ms)));
        cells.push(entry[0].zip(*row).map_or("-".into(), |(first, row)| times(first.ms / row.ms)));
    }
    cells
}

fn optional(number: Option<f64>) -> String {
    number.map_or("-".into(), format::three_digits)
}

fn times(factor: f64) -> String {
    format!("{}x", format::three_digits(factor))
}

/// What a file is called in headings: A, B, ... and numbers after Z.
fn letter(file: usize) -> String {
    let letter = u8::try_from(file).ok().filter(|&file| file < 26).map(|file| char::from(b'A' + file));
    letter.map_or_else(|| (file + 1).to_string(), String::from)
}

/// Machine, date and commit of some results.
fn source(results: &Results) -> String {
    let machine = &results.machine;
    let parts = [
        machine.cpu.clone(),
        machine.threads.map(|threads| format!("{threads} threads")),
        machine.memory_bytes.map(|bytes| format::bytes(bytes as f64)),
        machine.gpu.clone(),
        machine.driver.as_ref().map(|driver| format!("driver {driver}")),
        machine.cuda.as_ref().map(|cuda| format!("CUDA {cuda}")),
        machine.nvrtc.as_ref().map(|nvrtc| format!("NVRTC {nvrtc}")),
        machine.clocks.clone(),
        Some(results.date.clone()),
        Some(results.commit.as_ref().map_or("commit unknown".into(), |commit| format!("commit {commit}"))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What the machine of some results could reach at best, if that was measured.
fn ceilings(results: &Results) -> Option<String> {
    let ceiling = |ceiling: &Ceiling| {
        let Ceiling { threads, fma_gflops, bf16_gflops, read_gbps, copy_gbps } = *ceiling;
        let bf16 = bf16_gflops.map_or(String::new(), |bf16| format!(" ({} in BF16 pairs)", format::three_digits(bf16)));
        let who = match threads {
            Some(1) => "1 thread: ".into(),
            Some(threads) => format!("{threads} threads: "),
            None => String::new(),
        };
        let fma = format::three_digits(fma_gflops);
        let read = read_gbps.map(|read| format!("{} GB/s", format::three_digits(read)));
        let copied =
            copy_gbps.map(|copied| format!("{} GB/s read and written in copies", format::three_digits(copied)));
        [Some(format!("{who}{fma} GFLOP/s{bf16}")), read, copied].into_iter().flatten().collect::<Vec<_>>().join(", ")
    };
    let ceilings: Vec<String> = results.ceilings.iter().map(ceiling).collect();
    (!ceilings.is_empty()).then(|| format!("ceilings: {}", ceilings.join("; ")))
}
