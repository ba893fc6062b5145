//! `ladder kernels`: every kernel compiled, what it takes, and the prebuilt PTX written or checked. No GPU is needed.

mod prebuilt;
mod sass;

use crate::cli::{self, KernelsArgs};
use crate::format;
use anyhow::{Result, bail};
use comfy_table::Cell;
use device::nvrtc::{self, Nvrtc};
use device::{DeviceError, Variant, assembly, occupancy};
use ladder::kernels;
use rayon::prelude::*;
use sass::{Counts, Tools};
use serde_json::{Value, json};

/// The architectures for which kernels are compiled, unless one is asked for: those of an A100 and an H100.
const ARCHITECTURES: [(u32, u32); 2] = [(8, 0), (9, 0)];

pub(crate) fn main(args: &KernelsArgs) -> Result<bool> {
    let compiler = Nvrtc::find();
    let mut failures = if args.check { prebuilt::failures() } else { Vec::new() };
    let root = if args.check { None } else { Some(prebuilt::root()?) };
    let answer = match &compiler {
        Ok(nvrtc) => {
            let report = Report::new(nvrtc, args, &mut failures)?;
            let files = prebuilt::compiled(nvrtc, &report.tools, &mut failures);
            let mut written = None;
            match root {
                None => failures.extend(prebuilt::differences(&files)),
                Some(root) if failures.is_empty() => written = Some(prebuilt::write(&root, &files)?),
                Some(_) => {}
            }
            if args.json { report.json(&failures).to_string() } else { report.text(written) }
        }
        Err(missing) if args.json && args.check => {
            json!({ "nvrtc": null, "kernels": [], "left_out": [missing.to_string()], "failures": failures }).to_string()
        }
        Err(missing) if args.check => format!("no kernel was compiled: {missing}"),
        Err(missing) => return Err(missing.clone().into()),
    };
    cli::print(&answer)?;
    for failure in &failures {
        cli::complain(&format!("failed: {failure}"));
    }
    Ok(failures.is_empty())
}

/// What all kernels take.
struct Report {
    nvrtc: String,
    tools: Tools,
    rows: Vec<Row>,
}

/// What one kernel takes on one architecture.
struct Row {
    variant: &'static Variant,
    arch: String,
    /// Threads of a block, and its dynamic shared memory in bytes.
    threads: u32,
    dynamic_bytes: u32,
    usage: assembly::Usage,
    /// Blocks that a multiprocessor holds, where the rules for its architecture are known.
    blocks: Option<u32>,
    /// How often some instructions stand in its machine code, where there is a program to read it.
    counts: Option<Counts>,
}

impl Report {
    fn new(nvrtc: &'static Nvrtc, args: &KernelsArgs, failures: &mut Vec<String>) -> Result<Self> {
        if let Some((major, minor)) = args.arch.filter(|(major, minor)| !nvrtc.knows(&format!("sm_{major}{minor}"))) {
            bail!("--arch: found sm_{major}{minor}, wanted one that NVRTC {} knows", nvrtc::available()?);
        }
        let architectures = args.arch.map_or(ARCHITECTURES.to_vec(), |one| vec![one]);
        let mut report = Report { nvrtc: nvrtc::available()?, tools: Tools::find(nvrtc.path()), rows: Vec::new() };
        let each: Vec<(&'static Variant, String)> = kernels::of_nvrtc()
            .flat_map(|variant| {
                architectures.iter().filter_map(move |&device| Some((variant, variant.arch_on(device).ok()?)))
            })
            .collect();
        let compile = |(variant, arch): &(&'static Variant, String)| {
            let rows = rows(nvrtc, &report.tools, variant, arch);
            rows.map_err(|error| format!("{} for {arch}: {error}", name(variant)))
        };
        for compiled in each.par_iter().map(compile).collect::<Vec<_>>() {
            match compiled {
                Ok((rows, notices)) => {
                    report.rows.extend(rows);
                    failures.extend(notices);
                }
                Err(error) => failures.push(error),
            }
        }
        failures.extend(report.rows.iter().filter_map(Row::failure));
        Ok(report)
    }

    /// The table, what the machine code has, and what was `written`.
    fn text(&self, written: Option<String>) -> String {
        let header = [
            "kernel",
            "arch",
            "threads",
            "regs",
            "static\nshared",
            "dynamic\nshared",
            "stack",
            "spills",
            "blocks\n/ SM",
            "% of\nwarps",
        ];
        let table = format::table(header, self.rows.iter().map(Row::cells)).to_string();
        let counts = self.rows.iter().filter_map(|row| {
            let counts = row.counts.as_ref()?.iter().map(|(name, count)| format!("{name} {count}"));
            Some(format!("{} {}: {}", row.name(), row.arch, counts.collect::<Vec<_>>().join(", ")))
        });
        let left_out = self.tools.left_out();
        let lines = [table, format!("NVRTC {}", self.nvrtc)].into_iter().chain(counts).chain(left_out).chain(written);
        lines.collect::<Vec<_>>().join("\n")
    }

    fn json(&self, failures: &[String]) -> Value {
        json!({
            "nvrtc": self.nvrtc,
            "kernels": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "left_out": self.tools.left_out().collect::<Vec<_>>(),
            "failures": failures,
        })
    }
}

/// A variant for people, "05_naive.f16".
fn name(variant: &Variant) -> String {
    format!("{}.{}", variant.file.trim_end_matches(".cu"), variant.name)
}

/// Compiles a variant for an architecture: what its kernels take, and what the compiler notes of them.
fn rows(nvrtc: &Nvrtc, tools: &Tools, variant: &'static Variant, arch: &str) -> Result<(Vec<Row>, Vec<String>)> {
    let compiled = nvrtc.cubin(&variant.source()?, arch)?;
    let notices = assembly::serialised(&compiled.log).into_iter();
    let notices = notices.map(|notice| format!("{} for {arch}: {notice}", name(variant))).collect();
    let usages = assembly::usage(&compiled.log);
    let counts = tools.counts(&compiled.code)?;
    let row = |&(kernel, threads, dynamic_bytes): &(&str, u32, u32)| {
        let usage = usages.iter().find(|usage| usage.kernel == kernel).cloned();
        let usage = usage.ok_or_else(|| DeviceError::Value {
            name: format!("{}: kernel", name(variant)),
            found: kernel.into(),
            wanted: "one of the file's".into(),
        })?;
        let shared = usage.shared_bytes.saturating_add(dynamic_bytes);
        let blocks = occupancy::blocks_per_multiprocessor(arch, threads, usage.registers, shared);
        let counts = counts.as_ref().map(|counts| counts.get(kernel).cloned().unwrap_or_default());
        Ok(Row { variant, arch: arch.into(), threads, dynamic_bytes, usage, blocks, counts })
    };
    Ok((variant.kernels.iter().map(row).collect::<Result<_>>()?, notices))
}

impl Row {
    fn name(&self) -> String {
        format!("{} {}", name(self.variant), self.usage.kernel)
    }

    /// What must not be: registers kept in memory, or a block that fits no multiprocessor.
    fn failure(&self) -> Option<String> {
        let usage = &self.usage;
        let local = |name| self.counts.as_ref().and_then(|counts| counts.get(name)).copied().unwrap_or(0);
        let (loads, stores) = (local("LDL"), local("STL"));
        let what = if usage.spill_bytes + usage.stack_bytes > 0 || loads + stores > 0 {
            format!(
                "{} bytes of spills, a stack of {} bytes, {loads} LDL and {stores} STL, wanted none",
                usage.spill_bytes, usage.stack_bytes
            )
        } else if self.blocks == Some(0) {
            let shared = usage.shared_bytes.saturating_add(self.dynamic_bytes);
            format!("no block of {} threads, {} registers and {shared} bytes fits", self.threads, usage.registers)
        } else {
            return None;
        };
        Some(format!("{} for {}: {what}", self.name(), self.arch))
    }

    fn share(&self) -> Option<f64> {
        self.blocks.map(|blocks| occupancy::share_of_warps(blocks, self.threads))
    }

    fn cells(&self) -> Vec<Cell> {
        let usage = &self.usage;
        let known = |value: Option<String>| value.unwrap_or("-".into());
        let mut cells = vec![Cell::new(self.name()), Cell::new(&self.arch)];
        let numbers = [
            self.threads,
            usage.registers,
            usage.shared_bytes,
            self.dynamic_bytes,
            usage.stack_bytes,
            usage.spill_bytes,
        ];
        cells.extend(numbers.map(Cell::new));
        cells.push(Cell::new(known(self.blocks.map(|blocks| blocks.to_string()))));
        cells.push(Cell::new(known(self.share().map(|share| format!("{:.0}", 100.0 * share)))));
        cells
    }

    fn json(&self) -> Value {
        json!({
            "variant": name(self.variant),
            "kernel": self.usage.kernel,
            "arch": self.arch,
            "threads": self.threads,
            "registers": self.usage.registers,
            "static_shared_bytes": self.usage.shared_bytes,
            "dynamic_shared_bytes": self.dynamic_bytes,
            "stack_bytes": self.usage.stack_bytes,
            "spill_bytes": self.usage.spill_bytes,
            "blocks_per_multiprocessor": self.blocks,
            "share_of_warps": self.share(),
            "instructions": self.counts,
        })
    }
}
