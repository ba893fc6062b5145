//! The page of `ladder compare --report`: the table, and charts of speed over the number of keys.

use super::{Comparison, any, letter};
use crate::format;
use crate::page::{self, Series};
use anyhow::Result;
use ladder::bench::Row;
use std::fmt::Write;

/// The chart of everything that differs in lengths alone, once for each file.
struct Panel<'a> {
    title: String,
    entries: Vec<&'a [Option<&'a Row>]>,
}

pub(super) fn html(comparison: &Comparison) -> Result<String> {
    let mut html = page::head("Measured speeds");
    writeln!(html, "<p>{}</p>", page::escape(&comparison.common()))?;
    let (header, rows) = comparison.cells();
    html.push_str(&page::table(&header, &rows));
    for line in comparison.sources() {
        writeln!(html, "<p>{}</p>", page::escape(&line))?;
    }
    let everyone = everyone(comparison);
    writeln!(html, "<h2>Over the number of keys</h2>\n{}", page::key(everyone.iter().copied()))?;
    let files = comparison.files.len();
    for panel in panels(comparison) {
        let lines: Vec<Vec<Series>> = (0..files).map(|file| panel.lines(&everyone, file)).collect();
        // One scale for all files, so that their charts can be held beside each other.
        let Some(extent) = page::extent(lines.iter().flatten()) else { continue };
        writeln!(html, "<h3>{}</h3>", page::escape(&panel.title))?;
        for (file, lines) in lines.iter().enumerate().filter(|(_, lines)| !lines.is_empty()) {
            let title = if files > 1 { format!("{}: {}", letter(file), panel.title) } else { panel.title.clone() };
            if files > 1 {
                writeln!(html, "<h4>{}: {}</h4>", letter(file), page::escape(comparison.name(file)))?;
            }
            html.push_str(&page::chart(&title, lines, format::three_digits, extent.clone())?);
        }
    }
    html.push_str(page::END);
    Ok(html)
}

/// Who was measured, in the order of first appearance, which is that of the colours.
fn everyone<'a>(comparison: &Comparison<'a>) -> Vec<&'a str> {
    let mut everyone: Vec<&str> = Vec::new();
    for entry in &comparison.entries {
        let who = &any(entry).who;
        if !everyone.contains(&who.as_str()) {
            everyone.push(who);
        }
    }
    everyone
}

fn panels<'a>(comparison: &'a Comparison) -> Vec<Panel<'a>> {
    let differing = comparison.properties().0;
    let mut panels: Vec<Panel> = Vec::new();
    for entry in &comparison.entries {
        let row = any(entry);
        let lengths = if row.q_len == row.kv_len { "q len = kv len".into() } else { format!("q len {}", row.q_len) };
        let others = differing.iter().filter(|(name, _)| !name.ends_with("\nlen"));
        let others = others.map(|(name, value)| format!("{} {}", name.replace('\n', " "), value(row)));
        let title = others.chain([lengths]).collect::<Vec<_>>().join(", ");
        match panels.iter_mut().find(|panel| panel.title == title) {
            Some(panel) => panel.entries.push(entry),
            None => panels.push(Panel { title, entries: vec![entry] }),
        }
    }
    for panel in &mut panels {
        panel.title = format!("{}: {}", if panel.in_bytes() { "GB/s" } else { "GFLOP/s" }, panel.title);
    }
    panels
}

impl Panel<'_> {
    /// Whether bytes are what counts.
    fn in_bytes(&self) -> bool {
        self.entries.iter().all(|entry| any(entry).gbps.is_some())
    }

    /// The speeds of everyone in one file, for those who have any.
    fn lines(&self, everyone: &[&str], file: usize) -> Vec<Series> {
        let speed = |row: &Row| if self.in_bytes() { row.gbps } else { row.tflops.map(|tflops| 1e3 * tflops) };
        let line = |(who, color): (&&str, _)| {
            let rows = self.entries.iter().filter_map(|entry| entry[file]).filter(|row| row.who == *who);
            let mut points: Vec<_> = rows.filter_map(|row| Some((row.kv_len as f64, speed(row)?))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series { color, width: 2, dot: 4, points }
        };
        everyone.iter().zip(page::colors()).map(line).filter(|line| !line.points.is_empty()).collect()
    }
}
