//! `ladder climb`: every rung on one input, in one table.

use crate::cli::{self, ClimbArgs};
use crate::devices::Want;
use crate::input::{Input, check_problem_memory};
use crate::measure::{Measured, Moved, RUNS, Row, Time, measure};
use crate::{format, report};
use anyhow::{Context, Result, ensure};
use attention::{AttentionError, DType, Traffic};
use comfy_table::Cell;
use ladder::registry::{self, RUNGS};
use serde_json::{Value, json};

pub(crate) fn main(args: &ClimbArgs) -> Result<bool> {
    let device = args.device.open()?;
    let input = Input::from_args(&args.problem, args.device.is_simulated(), args.random_dtype())?;
    let problem = input.owned.try_problem().with_context(|| input.label.clone())?;
    check_problem_memory(&problem)?;
    let settings = args.machine.settings();
    if let Some(path) = &args.report {
        // Better to hear now than after the climb that the page cannot be written.
        report::check(path, &problem)?;
    }
    let rows = measure(&input.owned, settings, device.as_ref());
    ensure!(
        rows.iter().any(|row| row.refusal().is_none()),
        "{}: found {} tensors, wanted a type that some rung supports",
        input.label,
        problem.dtype()
    );
    let climb = Climb {
        used: input.describe(&problem),
        threads: rayon::current_num_threads(),
        compulsory: Traffic::compulsory(&problem),
        rows,
        simulated: args.device.is_simulated(),
        not_run: args.device.not_run(Want::Results),
    };
    let mut failures: Vec<String> = climb.rows.iter().filter_map(Row::failure).collect();
    cli::print(&if args.json { climb.json(args).to_string() } else { climb.text(args) })?;
    if let Some(path) = &args.report {
        failures.extend(report::write(path, &climb, &problem, args, device.as_ref())?);
    }
    for failure in &failures {
        cli::complain(&format!("failed: {failure}"));
    }
    Ok(failures.is_empty())
}

impl ClimbArgs {
    /// The type of random data: one that rungs of a device take.
    pub(crate) fn random_dtype(&self) -> DType {
        if self.device.is_some() { DType::F16 } else { DType::F32 }
    }
}

/// The result of a climb.
pub(crate) struct Climb {
    /// What input was used, for people.
    pub(crate) used: String,
    pub(crate) threads: usize,
    /// What every algorithm must move.
    pub(crate) compulsory: Traffic,
    pub(crate) rows: Vec<Row>,
    /// Whether the device of those that ran on one is simulated.
    simulated: bool,
    /// Which rungs have no row, and why.
    not_run: Option<String>,
}

impl Climb {
    /// The headings of the table.
    pub(crate) const COLUMNS: [&'static str; 10] = [
        "rung",
        "error\n/tol",
        "vs\nbelow",
        "time",
        "thr.",
        "GFLOP\n/s",
        "x\nnaive",
        "extra\nmemory",
        "HBM\ncounted",
        "HBM\nformula",
    ];

    /// The cells of the table, a row for each rung that takes the input.
    pub(crate) fn cells(&self) -> Vec<Vec<String>> {
        self.rows.iter().filter(|row| row.refusal().is_none()).map(|row| self.row_cells(row)).collect()
    }

    /// What is not in the table, a line for each kind: what a device makes of the columns, with the times of kernels alone,
    /// and which rungs are missing and why.
    pub(crate) fn remarks(&self) -> impl Iterator<Item = String> {
        let refusals = self.rows.iter().filter_map(Row::refusal).map(|why| format!("not in the table: {why}."));
        let simulated = self.simulated.then(|| {
            "on the simulated GPU nothing is timed: it checks every memory access, and has no clock. vs below is against the \
             same algorithm on the CPU, extra memory is the kernels'. `ladder sim RUNG` counts what the kernels do."
                .into()
        });
        self.kernels().or(simulated).into_iter().chain(refusals).chain(self.not_run.clone())
    }

    /// The times of kernels alone, if there are any.
    fn kernels(&self) -> Option<String> {
        let kernels = self.rows.iter().filter_map(|row| {
            let seconds = row.result.as_ref().ok()?.time?.kernel_seconds?;
            Some(format!("{} {}", row.name, format::seconds(seconds)))
        });
        let kernels = kernels.collect::<Vec<_>>().join(", ");
        let on_device = format!(
            "on a device, time and GFLOP/s are of the whole call, with copies to it and back, vs below is against the same \
             algorithm on the CPU, extra memory is the kernels'. Kernels alone: {kernels}."
        );
        Some(on_device).filter(|_| !kernels.is_empty())
    }

    fn row_cells(&self, row: &Row) -> Vec<String> {
        let mut cells = vec![row.name.to_string()];
        match &row.result {
            Ok(m) => cells.extend([
                format!("{:.3}", m.truth.ratio()),
                m.below.as_ref().map_or("-".into(), |(_, below)| format!("{:.3}", below.ratio())),
                m.time.map_or("-".into(), |time| format::seconds(time.seconds)),
                if on_device(row) { "-".into() } else { self.threads.to_string() },
                m.time.map_or("-".into(), |time| format::three_digits(time.gflops)),
                self.times_naive(m).map_or("-".into(), |times| format!("{}x", format::three_digits(times))),
                format::bytes(m.peak_extra as f64),
                m.traffic.map_or("-".into(), |moved| format::bytes(moved.counted.total() as f64)),
                m.traffic.map_or("-".into(), |moved| format::bytes(moved.formula)),
            ]),
            // What it is stands in the failures.
            Err(_) => cells.push("FAIL".into()),
        }
        cells.resize(Self::COLUMNS.len(), String::new());
        cells
    }

    /// How many times as fast as the lowest rung.
    fn times_naive(&self, measured: &Measured) -> Option<f64> {
        let naive = self.rows.first()?.result.as_ref().ok()?;
        Some(naive.time?.seconds / measured.time?.seconds)
    }

    /// What the columns mean.
    pub(crate) fn legend(&self, args: &ClimbArgs) -> [String; 4] {
        let in_pages = RUNGS.iter().filter(|rung| rung.page.is_some()).map(|rung| rung.name);
        [
            "error/tol: worst error of o and lse against the f64 oracle over its tolerance, vs below: against the rung before, \
             over both tolerances. Up to 1 is rounding; in F16 and BF16 the one rounding of o makes most of it."
                .into(),
            format!(
                "time: median of {RUNS} runs (fewer if slow), in thr. threads. GFLOP/s: 2(d + d_v) for each visible query-key \
                 pair. extra memory: the heap's peak beyond inputs and outputs, f32 copies included; it grows with threads."
            ),
            format!(
                "HBM: not measured but counted: bytes that the algorithm moves between slow memory and {} of fast memory, and \
                 its formula. Reading every input once and writing every result once is {}.",
                format::bytes(args.machine.settings().fast_memory as f64),
                format::bytes(self.compulsory.total() as f64)
            ),
            format!("{}: the same keys and values in pages of 16, in random order.", in_pages.collect::<Vec<_>>().join(", ")),
        ]
    }

    fn text(&self, args: &ClimbArgs) -> String {
        let rows = self.cells().into_iter().map(|cells| cells.into_iter().map(Cell::new).collect());
        let table = format::table(Self::COLUMNS, rows);
        let lines: Vec<String> = self.legend(args).into_iter().chain(self.remarks()).collect();
        format!("{}\n{table}\n{}", self.used, lines.join("\n"))
    }

    fn json(&self, args: &ClimbArgs) -> Value {
        let rung = |row: &Row| {
            let threads = (!on_device(row)).then_some(self.threads);
            let mut value = json!({ "rung": row.name, "chapter": row.chapter, "threads": threads });
            match &row.result {
                Err(AttentionError::Unsupported { what, .. }) => {
                    value["unsupported"] = json!(format!("does not support {what}"));
                }
                Err(error) => value["error"] = json!(error.to_string()),
                Ok(m) => {
                    value["error_over_tol"] = json!(m.truth.ratio());
                    value["o_error_over_tol"] = json!(m.truth.o.ratio);
                    value["lse_error_over_tol"] = json!(m.truth.lse.ratio);
                    value["below_over_tol"] = json!(m.below.as_ref().map(|(_, below)| below.ratio()));
                    if let Some(Time { seconds, kernel_seconds, runs, gflops }) = m.time {
                        value["seconds"] = json!(seconds);
                        if let Some(seconds) = kernel_seconds {
                            value["kernel_seconds"] = json!(seconds);
                        }
                        value["runs"] = json!(runs);
                        value["gflops"] = json!(gflops);
                        value["times_naive"] = json!(self.times_naive(m));
                    }
                    value["peak_extra_bytes"] = json!(m.peak_extra);
                    if let Some(Moved { counted, formula }) = m.traffic {
                        value["hbm_bytes"] = json!(counted.total());
                        value["hbm_read_bytes"] = json!(counted.read);
                        value["hbm_written_bytes"] = json!(counted.written);
                        value["formula_bytes"] = json!(formula);
                    }
                }
            }
            value
        };
        json!({
            "input": self.used,
            "threads": self.threads,
            "compulsory_bytes": self.compulsory.total(),
            "fast_memory": args.machine.settings().fast_memory,
            "not_run": self.not_run,
            "passed": self.rows.iter().all(|row| row.failure().is_none()),
            "rungs": self.rows.iter().map(rung).collect::<Vec<_>>(),
        })
    }
}

fn on_device(row: &Row) -> bool {
    registry::device_rung(row.name).is_some()
}
