//! Numbers and names as people read them.

use comfy_table::{Cell, CellAlignment, ContentLineStyle, LineStyle, Table, TableStyle};
use std::env;
use std::io::{self, IsTerminal};

/// A line under the header and another between columns: a climb fits 80 columns, and copies well.
const STYLE: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction('│'))
    .header_separator(LineStyle::none().fill('─').junction('┼'))
    .content_lines(ContentLineStyle::none().junction('│'));

/// Whether an answer may have colours: only on a terminal, and not where NO_COLOR is set.
pub(crate) fn colors() -> bool {
    io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A table whose first column is names and whose others are numbers.
pub(crate) fn table<'a>(header: impl IntoIterator<Item = &'a str>, rows: impl IntoIterator<Item = Vec<Cell>>) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_header(header).add_rows(rows);
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 0));
        column.set_cell_alignment(if place == 0 { CellAlignment::Left } else { CellAlignment::Right });
    }
    table
}

/// Bytes in the largest binary unit that leaves at least one.
pub(crate) fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{} {}", three_digits(value), units[unit]) }
}

/// A time in the largest unit that leaves at least one.
pub(crate) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{} s", three_digits(s)),
        s if s >= 1e-3 => format!("{} ms", three_digits(s * 1e3)),
        s => format!("{} us", three_digits(s * 1e6)),
    }
}

/// How many, exactly below 10,000, else in the largest unit that leaves at least one.
pub(crate) fn count(x: f64) -> String {
    match x {
        x if x < 1e4 => format!("{x:.0}"),
        x if x < 1e6 => format!("{} k", three_digits(x / 1e3)),
        x if x < 1e9 => format!("{} M", three_digits(x / 1e6)),
        x if x < 1e12 => format!("{} G", three_digits(x / 1e9)),
        x => format!("{} T", three_digits(x / 1e12)),
    }
}

/// A number with about three digits that count.
pub(crate) fn three_digits(x: f64) -> String {
    match x.abs() {
        a if a >= 1e15 => format!("{x:.2e}"),
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}
