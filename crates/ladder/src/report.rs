//! The page of `ladder climb --report`: the table, and charts over a sweep of N.

use crate::cli::ClimbArgs;
use crate::climb::Climb;
use crate::format;
use crate::input::{Input, Shape};
use crate::measure::{Measured, Row, measure};
use crate::page::{self, Series};
use anyhow::{Context, Result};
use attention::Problem;
use device::Device;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The smallest N of the sweep; each next one is twice as long.
const SHORTEST: usize = 64;

/// The sweep goes at least this far, and as far as the climb's own N.
const LONGEST: usize = 1024;

/// All rungs at one N.
struct Point {
    n: usize,
    rows: Vec<Row>,
}

/// The longest N of the sweep.
fn longest(problem: &Problem) -> usize {
    problem.q().shape()[problem.q().shape().len() - 2].max(LONGEST)
}

/// The shape of the sweep at `n`: what of the problem's shape can vary with N alone.
fn shape(problem: &Problem, n: usize) -> Shape {
    Shape { batch: 1, heads: problem.heads(), kv_heads: problem.kv_heads(), n, d: problem.d() }
}

/// Whether the page can be written and the machine has memory for its sweep, before the work for it is done.
pub(crate) fn check(path: &Path, problem: &Problem) -> Result<()> {
    shape(problem, longest(problem)).check_memory()?;
    page::check_writable(path)
}

/// Measures the sweep and writes the page; returns what checks failed on the way.
pub(crate) fn write(
    path: &Path,
    climb: &Climb,
    problem: &Problem,
    args: &ClimbArgs,
    device: Option<&Device>,
) -> Result<Vec<String>> {
    let (mut points, mut failures) = (Vec::new(), Vec::new());
    let longest = longest(problem);
    // A simulated device has no speed, and its memory no length: its rungs have nothing to draw.
    let device = device.filter(|device| !matches!(device, Device::Simulated(_)));
    let mut n = SHORTEST;
    while n <= longest {
        let shape = shape(problem, n);
        let input = Input::random(shape, args.random_dtype(), problem.options().mask, args.problem.score);
        input.owned.try_problem()?;
        let rows = measure(&input.owned, args.machine.settings(), device);
        failures.extend(rows.iter().filter_map(Row::failure).map(|failure| format!("N = {n}: {failure}")));
        points.push(Point { n, rows });
        n *= 2;
    }
    let page = html(climb, problem, args, &points)?;
    fs::write(path, page).with_context(|| path.display().to_string())?;
    Ok(failures)
}

fn html(climb: &Climb, problem: &Problem, args: &ClimbArgs, points: &[Point]) -> Result<String> {
    let speed = series(points, |m| Some(m.time?.gflops));
    let memory = series(points, |m| Some(m.peak_extra as f64));
    let counted =
        series(points, |m| Some(m.traffic?.counted.total() as f64)).into_iter().map(|line| Series { width: 0, ..line });
    let predicted =
        series(points, |m| Some(m.traffic?.formula)).into_iter().map(|line| Series { width: 1, dot: 0, ..line });
    let traffic = counted.chain(predicted).collect();
    let mut html = page::head("A climb of the ladder");
    writeln!(html, "<p>{}</p>", page::escape(&climb.used))?;
    html.push_str(&page::table(&Climb::COLUMNS.map(String::from), &climb.cells()));
    for line in climb.legend(args).into_iter().chain(climb.remarks()) {
        writeln!(html, "<p>{}</p>", page::escape(&line))?;
    }
    writeln!(
        html,
        "<h2>Over the length of the sequence</h2>\n<p>Random {} data: one sequence of N queries and N keys, {} query \
         heads on {} kv heads, d {}, mask {}, {} threads. Every point was checked before it was timed.</p>",
        args.random_dtype(),
        problem.heads(),
        problem.kv_heads(),
        problem.d(),
        problem.options().mask,
        climb.threads,
    )?;
    html.push_str(&page::key(points.iter().take(1).flat_map(|point| &point.rows).map(|row| row.name)));
    for (title, lines, unit) in [
        ("Speed in GFLOP/s", speed, format::three_digits as fn(f64) -> String),
        ("Memory beyond inputs and outputs", memory, format::bytes),
        ("HBM traffic: counted (dots) and by the formula (lines)", traffic, format::bytes),
    ] {
        if let Some(extent) = page::extent(&lines) {
            writeln!(html, "<h3>{title}</h3>\n{}", page::chart(title, &lines, unit, extent)?)?;
        }
    }
    html.push_str(page::END);
    Ok(html)
}

/// A line for each rung: `value` over N. A logarithmic axis has no 0, so a rung that needs nothing sits at 1.
fn series(points: &[Point], value: fn(&Measured) -> Option<f64>) -> Vec<Series> {
    let line = |(place, color): (usize, _)| {
        let points = points.iter().filter_map(|point| {
            let measured = point.rows[place].result.as_ref().ok()?;
            Some((point.n as f64, value(measured)?.max(1.0)))
        });
        Series { color, width: 2, dot: 4, points: points.collect() }
    };
    let rungs = points.first().map_or(0, |point| point.rows.len());
    (0..rungs).zip(page::colors()).map(line).collect()
}
