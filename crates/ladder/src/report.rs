//! The page of `ladder climb --report`: the table, and charts over a sweep of N.

use crate::cli::ClimbArgs;
use crate::climb::Climb;
use crate::format;
use crate::input::{Input, Shape};
use crate::measure::{Measured, Row, measure};
use anyhow::{Context, Result, anyhow, ensure};
use attention::Problem;
use ladder::registry::RUNGS;
use plotters::prelude::*;
use plotters::style::RGBColor;
use std::fmt::Write;
use std::fs::{self, OpenOptions};
use std::path::Path;

/// The smallest N of the sweep; each next one is twice as long.
const SHORTEST: usize = 64;

/// The sweep goes at least this far, and as far as the climb's own N.
const LONGEST: usize = 1024;

/// Stands for the page's text colour, which a browser chooses by its light or dark scheme. No series has it.
const INK: RGBColor = RGBColor(1, 2, 3);

/// Hues apart for most eyes, of a lightness that reads on white and on black.
const SERIES: [RGBColor; 6] = [
    RGBColor(213, 94, 0),
    RGBColor(136, 120, 220),
    RGBColor(0, 145, 110),
    RGBColor(40, 130, 200),
    RGBColor(200, 90, 150),
    RGBColor(150, 130, 20),
];

/// All rungs at one N.
struct Point {
    n: usize,
    rows: Vec<Row>,
}

/// A line of a chart.
struct Series {
    color: RGBColor,
    /// The width of the line through its points.
    width: u32,
    /// The radius of the dot at each point.
    dot: u32,
    points: Vec<(f64, f64)>,
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
    let existed = path.exists();
    // A FIFO would wait for a reader, a device keeps nothing.
    ensure!(!existed || path.is_file(), "{}: found no regular file, wanted one or none", path.display());
    OpenOptions::new().append(true).create(true).open(path).with_context(|| path.display().to_string())?;
    if !existed {
        fs::remove_file(path).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Measures the sweep and writes the page; returns what checks failed on the way.
pub(crate) fn write(path: &Path, climb: &Climb, problem: &Problem, args: &ClimbArgs) -> Result<Vec<String>> {
    let (mut points, mut failures) = (Vec::new(), Vec::new());
    let longest = longest(problem);
    let mut n = SHORTEST;
    while n <= longest {
        let shape = shape(problem, n);
        let input = Input::random(shape, problem.options().mask, args.score);
        let rows = measure(&input.problem()?, args.machine.settings())?;
        failures.extend(rows.iter().filter_map(Row::failure).map(|failure| format!("N = {n}: {failure}")));
        points.push(Point { n, rows });
        n *= 2;
    }
    let page = page(climb, problem, args, &points)?;
    fs::write(path, page).with_context(|| path.display().to_string())?;
    Ok(failures)
}

fn page(climb: &Climb, problem: &Problem, args: &ClimbArgs, points: &[Point]) -> Result<String> {
    let speed = series(points, |m| m.gflops);
    let memory = series(points, |m| m.peak_extra as f64);
    let counted = series(points, |m| m.traffic.total() as f64).into_iter().map(|line| Series { width: 0, ..line });
    let predicted = series(points, |m| m.formula).into_iter().map(|line| Series { width: 1, dot: 0, ..line });
    let traffic = counted.chain(predicted).collect();
    let mut html = String::from(HEAD);
    writeln!(html, "<p>{}</p>", escape(&climb.used))?;
    html.push_str(&table(climb));
    for line in climb.legend(args) {
        writeln!(html, "<p>{}</p>", escape(&line))?;
    }
    writeln!(
        html,
        "<h2>Over the length of the sequence</h2>\n<p>Random F32 data: one sequence of N queries and N keys, {} query \
         heads on {} kv heads, d {}, mask {}, {} threads. Every point was checked before it was timed.</p>\n<p>",
        problem.heads(),
        problem.kv_heads(),
        problem.d(),
        format::mask(problem.options().mask),
        climb.threads,
    )?;
    for (rung, color) in RUNGS.iter().zip(SERIES.iter().cycle()) {
        let RGBColor(r, g, b) = color;
        writeln!(html, "<span class=key><i style=\"background:rgb({r},{g},{b})\"></i>{}</span>", rung.name)?;
    }
    html.push_str("</p>\n");
    for (title, lines, unit) in [
        ("Speed in GFLOP/s", speed, format::three_digits as fn(f64) -> String),
        ("Memory beyond inputs and outputs", memory, format::bytes),
        ("HBM traffic: counted (dots) and by the formula (lines)", traffic, format::bytes),
    ] {
        writeln!(html, "<h3>{title}</h3>\n{}", chart(title, &lines, unit)?)?;
    }
    html.push_str("</body>\n</html>\n");
    Ok(html)
}

fn table(climb: &Climb) -> String {
    let row = |tag: &str, cells: &[String]| {
        let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell).replace("\n/", "/")));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = climb.cells().iter().map(|cells| row("td", cells)).collect();
    format!("<div class=wide><table>\n{}{rows}</table></div>\n", row("th", &Climb::COLUMNS.map(String::from)))
}

/// A line for each rung: `value` over N. A logarithmic axis has no 0, so a rung that needs nothing sits at 1.
fn series(points: &[Point], value: fn(&Measured) -> f64) -> Vec<Series> {
    let line = |(place, color): (usize, &RGBColor)| {
        let points = points.iter().filter_map(|point| {
            let measured = point.rows[place].result.as_ref().ok()?;
            Some((point.n as f64, value(measured).max(1.0)))
        });
        Series { color: *color, width: 2, dot: 4, points: points.collect() }
    };
    (0..RUNGS.len()).zip(SERIES.iter().cycle()).map(line).collect()
}

/// One chart with both axes logarithmic, as an SVG element.
fn chart(title: &str, lines: &[Series], unit: fn(f64) -> String) -> Result<String> {
    let all = || lines.iter().flat_map(|line| &line.points);
    let least = |pick: fn(&(f64, f64)) -> f64| all().map(pick).fold(f64::INFINITY, f64::min);
    let most = |pick: fn(&(f64, f64)) -> f64| all().map(pick).fold(1.0, f64::max);
    let (x, y) = (least(|p| p.0)..most(|p| p.0), least(|p| p.1) / 1.5..most(|p| p.1) * 1.5);
    let mut svg = String::new();
    draw(&mut svg, lines, unit, (x, y)).map_err(|error| anyhow!("cannot draw the chart: {error}"))?;
    let RGBColor(r, g, b) = INK;
    let svg = svg.replace(&format!("\"#{r:02X}{g:02X}{b:02X}\""), "\"currentColor\"");
    Ok(svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{}\" ", escape(title)), 1))
}

fn draw(
    svg: &mut String,
    lines: &[Series],
    unit: fn(f64) -> String,
    (x, y): (std::ops::Range<f64>, std::ops::Range<f64>),
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, (760, 360)).into_drawing_area();
    let (x, y) = (x.log_scale().base(2.0), y.log_scale().base(2.0));
    let mut chart =
        ChartBuilder::on(&root).margin(12).x_label_area_size(44).y_label_area_size(84).build_cartesian_2d(x, y)?;
    let text = ("sans-serif", 15).into_font().color(&INK);
    chart
        .configure_mesh()
        .x_desc("N")
        .x_labels(16)
        .y_labels(8)
        .x_label_formatter(&|n| format!("{n:.0}"))
        .y_label_formatter(&|value| unit(*value))
        .label_style(text.clone())
        .axis_desc_style(text)
        .axis_style(INK.mix(0.6))
        .bold_line_style(INK.mix(0.15))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for line in lines {
        if line.width > 0 {
            let style = line.color.stroke_width(line.width);
            chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
        }
        if line.dot > 0 {
            chart.draw_series(line.points.iter().map(|&point| Circle::new(point, line.dot, line.color.filled())))?;
        }
    }
    root.present()?;
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const HEAD: &str = "<!doctype html>
<html lang=en>
<head>
<meta charset=utf-8>
<meta name=viewport content=\"width=device-width\">
<title>flash-ladder: a climb</title>
<style>
:root { color-scheme: light dark }
body { font: 16px/1.5 sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; white-space: nowrap }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent) }
th:first-child, td:first-child { text-align: left }
svg { max-width: 100%; height: auto }
.key { margin-right: 1.5rem; white-space: nowrap }
.key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; border-radius: 50% }
</style>
</head>
<body>
<h1>A climb of the ladder</h1>
";
