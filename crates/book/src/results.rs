//! Measured numbers, from the files under `book/results`.

use crate::PageError;
use crate::directive::Directive;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// What a row may hold, and the heading of its column in a table.
const COLUMNS: [(&str, &str); 20] = [
    ("who", "who"),
    ("dtype", "type"),
    ("head_dim", "d"),
    ("mask", "mask"),
    ("batch", "batch"),
    ("heads", "heads"),
    ("kv_heads", "kv heads"),
    ("q_len", "queries"),
    ("kv_len", "keys"),
    ("threads", "threads"),
    ("ms", "ms"),
    ("ms_burst", "ms (burst)"),
    ("tflops", "TFLOP/s"),
    ("tflops_burst", "TFLOP/s (burst)"),
    ("gbps", "GB/s"),
    ("ncu_read_bytes", "read, by ncu"),
    ("ncu_written_bytes", "written, by ncu"),
    ("counted_read_bytes", "read, counted"),
    ("counted_written_bytes", "written, counted"),
    ("formula_bytes", "moved, by the formula"),
];

/// How the names of numbers of bytes end.
const BYTES: &str = "_bytes";

/// Parts of a machine that are named by their kind alone, in the order in which they are told.
const MACHINE: [&str; 2] = ["cpu", "gpu"];

/// One file of results: `{"machine": {...}, "date", "commit", "method", "ceilings": [...], "rows": [{"who", "ms", ...}]}`.
/// Files from before there were ceilings have none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Results {
    machine: Map<String, Value>,
    date: String,
    commit: String,
    method: String,
    #[serde(default)]
    ceilings: Vec<Ceiling>,
    rows: Vec<Map<String, Value>>,
}

/// What the machine could reach at best on so many threads, or on its GPU.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ceiling {
    threads: Option<u64>,
    fma_gflops: f64,
    bf16_gflops: Option<f64>,
    read_gbps: Option<f64>,
    copy_gbps: Option<f64>,
}

impl Ceiling {
    /// That of memory.
    fn gbps(&self) -> Option<f64> {
        self.read_gbps.or(self.copy_gbps)
    }
}

/// `key=value` pairs that a row must have.
#[derive(Clone, Debug, Default)]
struct Conditions(Vec<(String, String)>);

impl Results {
    /// Reads and checks the file `name` in `folder`.
    pub(crate) fn load(folder: &Path, name: &str) -> Result<Self, PageError> {
        let wrong = |what: String| PageError::Results { path: name.into(), what };
        if !name.ends_with(".json") || name.contains(['/', '\\']) {
            return Err(wrong("wanted the name of a .json file in book/results".into()));
        }
        let text =
            fs::read_to_string(folder.join(name)).map_err(|error| PageError::File { path: name.into(), error })?;
        let results: Results = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        for (key, text) in [("date", &results.date), ("commit", &results.commit), ("method", &results.method)] {
            if text.trim().is_empty() {
                return Err(wrong(format!("`{key}` is empty")));
            }
        }
        if !MACHINE.iter().any(|part| results.machine.contains_key(*part)) {
            return Err(wrong("`machine` names neither a cpu nor a gpu".into()));
        }
        for (number, row) in (1..).zip(&results.rows) {
            if let Some(key) = row.keys().find(|key| heading(key).is_err()) {
                return Err(wrong(format!("row {number} has an unknown column `{key}`; wanted {}", names())));
            }
            if let Some((key, value)) = row.iter().find(|(_, value)| !value.is_number() && !value.is_string()) {
                return Err(wrong(format!("row {number}: `{key}` is {value}, wanted a number or a string")));
            }
        }
        Ok(results)
    }

    fn matching<'a>(&'a self, conditions: &'a Conditions) -> impl Iterator<Item = &'a Map<String, Value>> {
        self.rows.iter().filter(|row| conditions.hold(row))
    }

    /// The one row that matches.
    fn row(&self, file: &str, conditions: &Conditions) -> Result<&Map<String, Value>, PageError> {
        let rows: Vec<_> = self.rows.iter().filter(|row| conditions.hold(row)).collect();
        match rows.as_slice() {
            [row] => Ok(row),
            rows => Err(conditions.mismatch(file, rows.len(), "exactly one")),
        }
    }

    /// The one number in `column` of the one row that matches.
    fn number(&self, file: &str, column: &str, conditions: &Conditions) -> Result<f64, PageError> {
        heading(column)?;
        let row = self.row(file, conditions)?;
        row.get(column).and_then(Value::as_f64).ok_or_else(|| PageError::Value {
            path: file.into(),
            column: column.into(),
            conditions: conditions.to_string(),
            found: row.get(column).map_or("absent".into(), Value::to_string),
        })
    }

    /// The percentage of its ceiling that the one row that matches reaches: of memory for a row in bytes a second, else of
    /// arithmetic in its type.
    fn share(&self, file: &str, conditions: &Conditions) -> Result<f64, PageError> {
        let row = self.row(file, conditions)?;
        let threads = row.get("threads").and_then(Value::as_u64);
        let ceiling = self.ceilings.iter().find(|ceiling| ceiling.threads == threads);
        let absent = || PageError::Ceiling { path: file.into(), conditions: conditions.to_string() };
        let ceiling = ceiling.ok_or_else(absent)?;
        if row.contains_key("gbps") {
            let memory = ceiling.gbps().ok_or_else(absent)?;
            return Ok(100.0 * self.number(file, "gbps", conditions)? / memory);
        }
        let pairs = ceiling.bf16_gflops.filter(|_| row.get("dtype").is_some_and(|dtype| dtype == "BF16"));
        let gflops = pairs.map_or(ceiling.fma_gflops, |pairs| pairs.max(ceiling.fma_gflops));
        Ok(100.0 * 1e3 * self.number(file, "tflops", conditions)? / gflops)
    }

    /// Machine, date, commit and method, for a reader of the text `page`.
    fn provenance(&self, page: &str) -> String {
        let told = MACHINE.iter().filter_map(|part| self.machine.get(*part)).map(text);
        let others = self.machine.iter().filter(|(key, _)| !MACHINE.contains(&key.as_str()));
        let others = others.map(|(key, value)| match key.as_str() {
            "threads" => format!("{} threads", text(value)),
            key => match (key.strip_suffix(BYTES), value.as_f64()) {
                (Some(what), Some(number)) => format!("{} of {}", bytes(number), what.replace('_', " ")),
                _ => format!("{} {}", key.replace('_', " "), text(value)),
            },
        });
        let machine: Vec<String> = told.chain(others).collect();
        let day = self.date.split_once('T').map_or(self.date.as_str(), |(day, _)| day);
        let (commit, method) = (&self.commit, self.method_for(page));
        escape(&format!("Measured on {}; {day}; commit {commit}. {method}.", machine.join(", ")))
    }

    /// The method without what it says of columns that the page does not show: a part between commas or semicolons that
    /// begins with the name of one.
    fn method_for(&self, page: &str) -> String {
        let mut kept = String::new();
        for part in self.method.trim_end_matches('.').split_inclusive([',', ';']) {
            let word = part.split_whitespace().next().unwrap_or_default();
            if heading(word).is_err() || page.contains(word) {
                kept.push_str(part);
            } else if part.ends_with(';') {
                // What follows stands apart from what came before.
                kept.truncate(kept.trim_end_matches([',', ';']).len());
                kept.push(';');
            }
        }
        let kept = kept.trim_end_matches([',', ';']);
        let mut letters = kept.chars();
        letters.next().map_or(String::new(), |first| first.to_uppercase().collect::<String>() + letters.as_str())
    }
}

impl Conditions {
    /// `key=value` words.
    fn parse(words: &[String], directive: Directive) -> Result<Self, PageError> {
        let pairs = words.iter().map(|word| {
            let (key, value) =
                word.split_once('=').ok_or_else(|| directive.wants(&format!("COLUMN=VALUE in place of `{word}`")))?;
            heading(key)?;
            Ok((key.to_owned(), value.to_owned()))
        });
        pairs.collect::<Result<_, _>>().map(Conditions)
    }

    fn hold(&self, row: &Map<String, Value>) -> bool {
        self.0.iter().all(|(key, wanted)| match row.get(key) {
            Some(Value::Number(found)) => wanted.parse().ok() == found.as_f64(),
            Some(Value::String(found)) => found == wanted,
            _ => false,
        })
    }

    fn mismatch(&self, file: &str, found: usize, wanted: &'static str) -> PageError {
        PageError::Rows { path: file.into(), found, conditions: self.to_string(), wanted }
    }
}

impl std::fmt::Display for Conditions {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let pairs: Vec<String> = self.0.iter().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&pairs.join(" "))
    }
}

/// `{{#result FILE COLUMN key=value ...}}`: one number. Returns it and the file.
pub(crate) fn result(folder: &Path, directive: Directive) -> Result<(String, String), PageError> {
    let words = words(directive)?;
    let [file, column, conditions @ ..] = words.as_slice() else {
        return Err(directive.wants("FILE COLUMN key=value ..., for example cpu-climb.json ms who=fa2 q_len=4096"));
    };
    let conditions = Conditions::parse(conditions, directive)?;
    let number = Results::load(folder, file)?.number(file, column, &conditions)?;
    let bytes_or_digits = if column.ends_with(BYTES) { bytes } else { three_digits };
    Ok((bytes_or_digits(number), file.clone()))
}

/// `{{#ratio FILE COLUMN key=value ... over key=value ...}}`: the quotient of two numbers. Conditions before `both`, if
/// that word is there, hold for the two. Returns the quotient and the file.
pub(crate) fn ratio(folder: &Path, directive: Directive) -> Result<(String, String), PageError> {
    let wants = || directive.wants("FILE COLUMN [key=value ... both] key=value ... over key=value ...");
    let words = words(directive)?;
    let [file, column, rest @ ..] = words.as_slice() else { return Err(wants()) };
    let (shared, rest) = split_at_word(rest, "both").unwrap_or((&[], rest));
    let (above, below) = split_at_word(rest, "over").ok_or_else(wants)?;
    let results = Results::load(folder, file)?;
    let number = |own: &[String]| {
        let conditions = Conditions::parse(&[shared, own].concat(), directive)?;
        results.number(file, column, &conditions)
    };
    Ok((three_digits(number(above)? / number(below)?), file.clone()))
}

/// `{{#share FILE key=value ...}}`: how many percent of its ceiling a row reaches. Returns the number and the file.
pub(crate) fn share(folder: &Path, directive: Directive) -> Result<(String, String), PageError> {
    let words = words(directive)?;
    let [file, conditions @ ..] = words.as_slice() else {
        return Err(directive.wants("FILE key=value ..., for example cpu-peers.json who=fa2-simd q_len=4096"));
    };
    let conditions = Conditions::parse(conditions, directive)?;
    let share = Results::load(folder, file)?.share(file, &conditions)?;
    Ok((three_digits(share), file.clone()))
}

/// `{{#ceiling FILE COLUMN [threads=N]}}`: what the machine could reach at best, of f32 arithmetic in `tflops` or of memory in
/// `gbps`, on so many threads of a CPU or on its GPU. Returns the number and the file.
pub(crate) fn ceiling(folder: &Path, directive: Directive) -> Result<(String, String), PageError> {
    let wants = || directive.wants("FILE tflops or FILE gbps, and threads=N for a CPU");
    let words = words(directive)?;
    let [file, column, rest @ ..] = words.as_slice() else { return Err(wants()) };
    let threads = match rest {
        [] => None,
        [word] => Some(word.strip_prefix("threads=").and_then(|number| number.parse().ok()).ok_or_else(wants)?),
        _ => return Err(wants()),
    };
    let results = Results::load(folder, file)?;
    let found = results.ceilings.iter().find(|ceiling| ceiling.threads == threads);
    let number = match column.as_str() {
        "tflops" => found.map(|ceiling| ceiling.fma_gflops / 1e3),
        "gbps" => found.and_then(Ceiling::gbps),
        _ => return Err(wants()),
    };
    let absent = || PageError::Ceiling { path: file.into(), conditions: directive.arguments.into() };
    Ok((three_digits(number.ok_or_else(absent)?), file.clone()))
}

/// `{{#results FILE columns=a,b,c where key=value ...}}`: a table of the matching rows and where they come from, which is
/// told in full once on a page: not again for a file in `explained`.
pub(crate) fn table(
    folder: &Path,
    directive: Directive,
    page: &str,
    explained: &HashSet<String>,
) -> Result<(String, String), PageError> {
    let wants = || directive.wants("FILE columns=COLUMN,COLUMN,... [where key=value ...]");
    let words = words(directive)?;
    let [file, columns, rest @ ..] = words.as_slice() else { return Err(wants()) };
    let columns: Vec<&str> = columns.strip_prefix("columns=").ok_or_else(wants)?.split(',').collect();
    let conditions = match rest {
        [] => &[],
        [word, conditions @ ..] if word == "where" => conditions,
        _ => return Err(wants()),
    };
    let conditions = Conditions::parse(conditions, directive)?;
    let results = Results::load(folder, file)?;
    let rows: Vec<_> = results.matching(&conditions).collect();
    if rows.is_empty() {
        return Err(conditions.mismatch(file, 0, "at least one"));
    }
    let mut markdown = String::from("<figure class=\"results\">\n\n|");
    let mut rule = String::from("|");
    for column in &columns {
        let heading = heading(column)?;
        if !rows.iter().any(|row| row.contains_key(*column)) {
            let missing = format!("no row that matches `{conditions}` has `{column}`");
            return Err(PageError::Results { path: file.clone(), what: missing });
        }
        let numeric = rows.iter().filter_map(|row| row.get(*column)).all(Value::is_number);
        let _ = write!(markdown, " {heading} |");
        rule.push_str(if numeric { "--:|" } else { ":--|" });
    }
    let _ = writeln!(markdown, "\n{rule}");
    for row in rows {
        let cell = |column: &&str| match row.get(*column) {
            None => "–".into(),
            Some(value) => {
                value.as_f64().filter(|_| column.ends_with(BYTES)).map_or_else(|| escape(&text(value)), bytes)
            }
        };
        let cells = columns.iter().map(cell);
        let _ = writeln!(markdown, "| {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    let from = if explained.contains(file) { "From the same run.".into() } else { results.provenance(page) };
    let _ = writeln!(markdown, "\n<figcaption>\n\n{from}\n\n</figcaption>\n</figure>");
    Ok((markdown, file.clone()))
}

/// `{{#provenance FILE}}`: where the numbers of a file come from.
pub(crate) fn provenance(folder: &Path, directive: Directive, page: &str) -> Result<(String, String), PageError> {
    let words = words(directive)?;
    let [file] = words.as_slice() else { return Err(directive.wants("FILE, for example cpu-climb.json")) };
    let results = Results::load(folder, file)?;
    Ok((format!("<div class=\"provenance\">\n\n{}\n\n</div>\n", results.provenance(page)), file.clone()))
}

fn split_at_word<'a>(words: &'a [String], word: &str) -> Option<(&'a [String], &'a [String])> {
    let place = words.iter().position(|found| found == word)?;
    Some((&words[..place], &words[place + 1..]))
}

/// The arguments, split at spaces outside double quotes: `who="a peer"` is one word.
fn words(directive: Directive) -> Result<Vec<String>, PageError> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in directive.arguments.chars().chain([' ']) {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
            c => word.push(c),
        }
    }
    if quoted { Err(directive.wants("a closing quote")) } else { Ok(words) }
}

fn heading(column: &str) -> Result<&'static str, PageError> {
    let known = COLUMNS.iter().find(|(name, _)| *name == column).map(|(_, heading)| *heading);
    known.ok_or_else(|| PageError::UnknownColumn { found: column.into(), wanted: names() })
}

fn names() -> String {
    COLUMNS.map(|(name, _)| name).join(", ")
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_f64().map_or(number.to_string(), three_digits),
        other => other.to_string(),
    }
}

/// Whole numbers as they are; others with three significant digits, but never rounded before the point.
fn three_digits(number: f64) -> String {
    if number == number.trunc() {
        return format!("{number:.0}");
    }
    let digits_before_point = number.abs().log10().floor() as i32 + 1;
    format!("{number:.*}", (3 - digits_before_point).clamp(0, 9) as usize)
}

/// Bytes in the largest binary unit that leaves at least one.
fn bytes(number: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (number.max(1.0).log2() / 10.0).floor().min(4.0);
    format!("{} {}", three_digits(number / 1024f64.powf(unit)), units[unit as usize])
}

/// Text that Markdown and HTML leave as it is.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '$' | '<' | '>' | '&' | '#' => {
                let _ = write!(escaped, "&#{};", u32::from(c));
            }
            '\n' => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}
