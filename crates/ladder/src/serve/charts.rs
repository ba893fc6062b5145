//! The page of `ladder serve-sim --report`: the table, and charts over the steps.

use super::Served;
use super::model::TOKEN_BYTES;
use super::scheduler::Sample;
use super::summary::Summary;
use crate::format;
use crate::page::{self, Series};
use anyhow::Result;
use std::fmt::Write;

pub(super) fn html(summary: &Summary) -> Result<String> {
    let mut html = page::head("Serving a trace");
    writeln!(html, "<p>{}</p>", page::escape(&summary.used()))?;
    html.push_str(&page::table(&Summary::COLUMNS.map(String::from), &summary.cells()));
    for line in Summary::LEGEND.into_iter().map(String::from).chain(summary.verdict()) {
        writeln!(html, "<p>{}</p>", page::escape(&line))?;
    }
    let bytes = |slots: usize| (slots * TOKEN_BYTES) as f64;
    let running = series(summary.served, 2, |sample| sample.running as f64);
    let held = series(summary.served, 2, |sample| bytes(sample.usage.held));
    let filled = series(summary.served, 1, |sample| bytes(sample.usage.filled));
    let memory = held.into_iter().chain(filled).collect();
    writeln!(html, "<h2>Step by step</h2>\n{}", page::key(summary.served.iter().map(|served| served.policy)))?;
    for (title, lines, unit) in [
        ("Requests at once", running, format::three_digits as fn(f64) -> String),
        ("Memory held (thick) and filled (thin)", memory, format::bytes),
    ] {
        if let Some(extent) = page::extent(&lines) {
            writeln!(html, "<h3>{title}</h3>\n{}", page::timeline(title, &lines, unit, extent)?)?;
        }
    }
    html.push_str(page::END);
    Ok(html)
}

/// A line for each policy: `value` over the steps.
fn series(served: &[Served], width: u32, value: impl Fn(&Sample) -> f64) -> Vec<Series> {
    let line = |(served, color): (&Served, _)| {
        let points = served.outcome.samples.iter().map(|sample| (sample.step as f64, value(sample)));
        Series { color, width, dot: 0, points: points.collect() }
    };
    served.iter().zip(page::colors()).map(line).collect()
}
