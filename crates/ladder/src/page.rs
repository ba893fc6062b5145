//! What HTML pages are made of: their head, tables, keys of colours, and charts.

use anyhow::{Context, Result, anyhow, ensure};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::RGBColor;
use std::fs::{self, OpenOptions};
use std::ops::Range;
use std::path::Path;

/// Stands for the page's text colour, which a browser chooses by its light or dark scheme. No series has it.
const INK: RGBColor = RGBColor(1, 2, 3);

/// Hues apart for most eyes, of a lightness that reads on white and on black.
const SERIES: [RGBColor; 11] = [
    RGBColor(213, 94, 0),
    RGBColor(136, 120, 220),
    RGBColor(0, 145, 110),
    RGBColor(40, 130, 200),
    RGBColor(200, 90, 150),
    RGBColor(150, 130, 20),
    RGBColor(120, 120, 120),
    RGBColor(170, 40, 40),
    RGBColor(20, 160, 190),
    RGBColor(110, 160, 40),
    RGBColor(170, 110, 70),
];

/// A line of a chart.
pub(crate) struct Series {
    pub(crate) color: RGBColor,
    /// The width of the line through its points.
    pub(crate) width: u32,
    /// The radius of the dot at each point.
    pub(crate) dot: u32,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Ranges of x and y.
pub(crate) type Extent = (Range<f64>, Range<f64>);

/// A range that becomes an axis, linear or logarithmic.
trait Axis: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>> {}
impl<T: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>> Axis for T {}

/// Whether the page can be written, before the work for it is done.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    let existed = path.exists();
    // A FIFO would wait for a reader, a device keeps nothing.
    ensure!(!existed || path.is_file(), "{}: found no regular file, wanted one or none", path.display());
    OpenOptions::new().append(true).create(true).open(path).with_context(|| path.display().to_string())?;
    if !existed {
        fs::remove_file(path).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The page's beginning, up to its first heading.
pub(crate) fn head(title: &str) -> String {
    let title = escape(title);
    format!("{HEAD}<title>flash-ladder: {title}</title>\n{STYLE}</head>\n<body>\n<h1>{title}</h1>\n")
}

/// The page's end.
pub(crate) const END: &str = "</body>\n</html>\n";

/// A table that scrolls sideways where the window is narrow.
pub(crate) fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let row = |tag: &str, cells: &[String]| {
        let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell).replace("\n/", "/")));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = rows.iter().map(|cells| row("td", cells)).collect();
    format!("<div class=wide><table>\n{}{rows}</table></div>\n", row("th", header))
}

/// Which colour is whose, in a paragraph of its own.
pub(crate) fn key<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let colors = names.into_iter().zip(colors()).map(|(name, RGBColor(r, g, b))| {
        format!("<span class=key><i style=\"background:rgb({r},{g},{b})\"></i>{}</span>\n", escape(name))
    });
    format!("<p>{}</p>\n", colors.collect::<String>())
}

/// The colours of as many series as there may be.
pub(crate) fn colors() -> impl Iterator<Item = RGBColor> {
    SERIES.iter().copied().cycle()
}

/// The smallest box round all points, as ranges of x and y; `None` round none.
pub(crate) fn extent<'a>(lines: impl IntoIterator<Item = &'a Series>) -> Option<Extent> {
    let points = lines.into_iter().flat_map(|line| &line.points);
    points
        .map(|&(x, y)| (x..x, y..y))
        .reduce(|(x, y), (u, v)| (x.start.min(u.start)..x.end.max(u.end), y.start.min(v.start)..y.end.max(v.end)))
}

/// One chart of sizes over N with both axes logarithmic, as an SVG element. Points outside `extent` are not shown.
pub(crate) fn chart(title: &str, lines: &[Series], unit: fn(f64) -> String, extent: Extent) -> Result<String> {
    let (mut x, y) = extent;
    if x.start == x.end {
        // An axis needs a length.
        x = x.start / 2.0..x.end * 2.0;
    }
    let y = y.start / 1.5..y.end * 1.5;
    drawn(title, "N", lines, unit, (x.log_scale().base(2.0), y.log_scale().base(2.0)))
}

/// One chart of what happened step by step, with both axes linear and y from 0, as an SVG element.
pub(crate) fn timeline(title: &str, lines: &[Series], unit: fn(f64) -> String, extent: Extent) -> Result<String> {
    let (x, y) = extent;
    // Axes need a length.
    drawn(title, "step", lines, unit, (x.start..x.end.max(x.start + 1.0), 0.0..(1.1 * y.end).max(1.0)))
}

fn drawn<X: Axis, Y: Axis>(
    title: &str,
    x_name: &str,
    lines: &[Series],
    unit: fn(f64) -> String,
    axes: (X, Y),
) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, x_name, lines, unit, axes).map_err(|error| anyhow!("cannot draw the chart: {error}"))?;
    let RGBColor(r, g, b) = INK;
    let svg = svg.replace(&format!("\"#{r:02X}{g:02X}{b:02X}\""), "\"currentColor\"");
    Ok(svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{}\" ", escape(title)), 1))
}

fn draw<X: Axis, Y: Axis>(
    svg: &mut String,
    x_name: &str,
    lines: &[Series],
    unit: fn(f64) -> String,
    (x, y): (X, Y),
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, (760, 360)).into_drawing_area();
    let mut chart =
        ChartBuilder::on(&root).margin(12).x_label_area_size(44).y_label_area_size(84).build_cartesian_2d(x, y)?;
    let text = ("sans-serif", 15).into_font().color(&INK);
    chart
        .configure_mesh()
        .x_desc(x_name)
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

/// Text as HTML shows it.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const HEAD: &str = "<!doctype html>
<html lang=en>
<head>
<meta charset=utf-8>
<meta name=viewport content=\"width=device-width\">
";

const STYLE: &str = "<style>
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
";
