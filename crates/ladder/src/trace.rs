//! `ladder trace`: what the warpgroups of a block did, and when, by marks that a kernel keeps.

#[cfg(test)]
mod example;
mod perfetto;
mod summary;
mod svg;
mod timeline;

use crate::benchmark;
use crate::cli;
use crate::devices::{DeviceArgs, Want};
use crate::page;
use anyhow::{Context, Result, anyhow, ensure};
use attention::{DType, Mask, Options, Problem};
use clap::Args;
use clap::builder::PossibleValuesParser;
use cuda_fa2::{CudaRung, Plan, Target, Track};
use device::{Device, DeviceError};
use ladder::bench::{Case, Resident, device_cases, median};
use ladder::registry;
use std::fs;
use std::path::PathBuf;
use timeline::Timeline;

/// Marks of a warpgroup that there is room for.
const MOST: u32 = 1 << 16;

/// Launches that are timed with marks and without.
const RUNS: usize = 9;

#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// The rung
    #[arg(value_name = "RUNG", value_parser = PossibleValuesParser::new(["fa3"]))]
    pub(crate) rung: String,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Queries and keys of a sequence [default: 4096; on a simulated device 256]
    #[arg(long, value_parser = cli::count)]
    pub(crate) n: Option<usize>,
    /// Channels of a head
    #[arg(long, default_value_t = 128, value_parser = cli::count)]
    pub(crate) d: usize,
    /// Query heads, and as many key and value heads [default: 16; on a simulated device 1]
    #[arg(long, value_parser = cli::count)]
    pub(crate) heads: Option<usize>,
    /// Sequences [default: 4; on a simulated device 1]
    #[arg(long, value_parser = cli::count)]
    pub(crate) batch: Option<usize>,
    /// Which keys a query sees: full, causal, or window:L,R with L keys before and R after its own, negative for no
    /// limit [default: full]
    #[arg(long, value_parser = cli::mask)]
    pub(crate) mask: Option<Mask>,
    /// Element type, f16 or bf16
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = cli::dtype)]
    pub(crate) dtype: DType,
    /// The block, from 0 up, whose warpgroups keep marks
    #[arg(long, value_name = "B", default_value_t = 0)]
    pub(crate) block: u32,
    /// On a simulated device, the order in which warps run: 0 is one after another, as far as each gets; any other draws one
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Run the kernel as it was after this step of its making, from 2 up
    #[arg(long, value_name = "N", value_parser = cli::count)]
    pub(crate) step: Option<usize>,
    /// Draw the timeline: the beginning of the block, and the end of its first tile of rows
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) svg: Option<PathBuf>,
    /// How many tiles of keys each window of the picture is wide
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = cli::count)]
    pub(crate) tiles: usize,
    /// Write the timeline in the trace event format, which ui.perfetto.dev opens
    #[arg(long, value_name = "FILE.json")]
    pub(crate) perfetto: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn main(args: &TraceArgs) -> Result<bool> {
    args.device.check(std::slice::from_ref(&args.rung), Want::Results)?;
    let rung = registry::device_rung(&args.rung).with_context(|| format!("found {}, wanted a rung", args.rung))?;
    let step = args.step.map(|number| rung.step(number)).transpose().map_err(|error| anyhow!("--{error}"))?;
    let device = args.device.open()?.context("found no --device, wanted one")?;
    let case = case(args);
    benchmark::check_fit_on_device(&case, &[rung], &device)?;
    let plan = rung.plan(
        &case.shape(),
        &Options { mask: case.mask, ..Options::default() },
        Target::from(device.attributes()),
    )?;
    let blocks = plan.launches().last().map_or(0, |(_, grid, _)| grid[0]);
    ensure!(args.block < blocks, "--block: found {}, wanted less than {blocks}, which the launch has", args.block);
    args.svg.iter().chain(&args.perfetto).try_for_each(|path| page::check_writable(path))?;
    if let Device::Simulated(simulator) = &device {
        simulator.set_schedule(args.seed);
    }
    let build = || {
        let rung = rung.build(&device)?;
        Ok(if let Some((place, _)) = step { rung.at_step(place) } else { rung })
    };
    let owned = case.build();
    let captured = capture(build, &owned.problem(), &plan, args.block)?;
    let timeline = Timeline::new(&captured.tracks, args.device.is_simulated())?;
    let title = {
        let step = step.map_or(String::new(), |(_, step)| format!(", step {}", step.name));
        format!("{}{step} on {}, block {}: {case}", args.rung, device.name(), args.block)
    };
    for (path, text) in [
        (&args.perfetto, perfetto::json(&timeline, &title).to_string()),
        (&args.svg, svg::draw(&timeline, &title, args.tiles)),
    ] {
        if let Some(path) = path {
            fs::write(path, text).with_context(|| path.display().to_string())?;
        }
    }
    cli::print(&if args.json {
        json(&timeline, title, captured.times)
    } else {
        text(&timeline, title, captured.times)
    })?;
    Ok(true)
}

/// The answer for people: milliseconds are of launches without marks and with them.
fn text(timeline: &Timeline, title: String, times: Option<[f64; 2]>) -> String {
    let mut lines = vec![title, summary::table(timeline), String::new()];
    lines.extend(summary::lines(timeline));
    lines.extend(
        times.map(|[plain, marked]| {
            format!("A launch takes {plain:.4} ms, and {marked:.4} ms with marks in one block.")
        }),
    );
    lines.join("\n")
}

/// The same for programs.
fn json(timeline: &Timeline, title: String, times: Option<[f64; 2]>) -> String {
    let mut value = summary::json(timeline);
    value["title"] = title.into();
    value["ms"] = times.map(|[plain, _]| plain).into();
    value["ms_with_marks"] = times.map(|[_, marked]| marked).into();
    value.to_string()
}

/// What is asked for; what is left open is as large as `bench` has it, and small on a simulated device.
fn case(args: &TraceArgs) -> Case {
    let simulated = args.device.is_simulated();
    let [full, _] = device_cases(args.n.unwrap_or(if simulated { 256 } else { 4096 }));
    let (batch, heads) = if simulated { (1, 1) } else { (full.batch, full.heads) };
    let heads = args.heads.unwrap_or(heads);
    Case {
        dtype: args.dtype,
        d: args.d,
        mask: args.mask.unwrap_or(Mask::Full),
        batch: args.batch.unwrap_or(batch),
        heads,
        kv_heads: heads,
        ..full
    }
}

/// What was kept of a launch, and the milliseconds of launches without marks and with them.
struct Captured {
    tracks: Vec<Track>,
    times: Option<[f64; 2]>,
}

/// Launches the rung with marks, once it has run before, and checks that they change nothing that it computes.
fn capture(
    build: impl Fn() -> Result<CudaRung, DeviceError>,
    problem: &Problem,
    plan: &Plan,
    block: u32,
) -> Result<Captured> {
    let (plain, marked) = (build()?, build()?.with_marks(plan, block, MOST)?);
    let resident = Resident::new(vec![&plain, &marked], problem, 1)?;
    ensure!(resident.output(0)? == resident.output(1)?, "found other results with marks, wanted the same bits");
    let times = match plain.device() {
        Device::Simulated(_) => None,
        Device::Cuda(_) => Some(times(&resident)?),
        _ => None,
    };
    Ok(Captured { tracks: marked.marks()?, times })
}

/// The medians of launches without marks and with them, one after the other; the last is one with.
fn times(resident: &Resident) -> Result<[f64; 2]> {
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        for (place, times) in all.iter_mut().enumerate() {
            times.push(resident.once(place)?);
        }
    }
    Ok(all.map(median))
}
