//! What kernels moved through the memory of a GPU, as `ncu`, NVIDIA's profiler, has read it from the device's counters.
//!
//! Either form of its CSV is taken, a metric a line or a launch a line (`--page raw`), with whatever else the profiler and
//! the program that it ran have printed before and between. Lines of other kernels are passed over.

use attention::Traffic;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};
use thiserror::Error;

/// The metrics that are looked for: bytes read and bytes written.
pub const METRICS: [&str; 2] = ["dram__bytes_read.sum", "dram__bytes_write.sum"];

/// One launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Launch {
    /// The kernel's name, without its parameters.
    kernel: String,
    /// What it moved.
    moved: Traffic,
}

/// Why a file of ncu's cannot be used.
#[derive(Debug, Error)]
pub enum NcuError {
    /// The system refuses.
    #[error("{}: {error}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It does not hold what is looked for.
    #[error("{}: {why}", path.display())]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// What gives it away.
        why: String,
    },
}

/// Reads a file, and returns for each call the sum over its kernels. A call is told by the names of its kernels in the order
/// in which they run; calls follow each other in the order of the file.
///
/// # Errors
/// [`NcuError::File`]; [`NcuError::Foreign`] if it is no CSV of ncu's with both metrics, or one of other calls.
pub fn read(path: &Path, calls: &[Vec<&str>]) -> Result<Vec<Traffic>, NcuError> {
    let bytes = fs::read(path).map_err(|error| NcuError::File { path: path.into(), error })?;
    let launches = launches(&String::from_utf8_lossy(&bytes));
    launches.and_then(|launches| sums(&launches, calls)).map_err(|why| NcuError::Foreign { path: path.into(), why })
}

/// The sums over the launches of each call.
fn sums(launches: &[Launch], calls: &[Vec<&str>]) -> Result<Vec<Traffic>, String> {
    let ours = |launch: &&Launch| calls.iter().flatten().any(|kernel| *kernel == launch.kernel);
    let mut launches = (1..).zip(launches.iter().filter(ours));
    let mut sums = Vec::new();
    for kernels in calls {
        let mut sum = Traffic::default();
        for wanted in kernels {
            let (number, launch) = launches.next().ok_or_else(|| format!("found no more launches, wanted {wanted}"))?;
            if launch.kernel != *wanted {
                return Err(format!("launch {number}: found {}, wanted {wanted}", launch.kernel));
            }
            sum.add(1, launch.moved.read.into(), launch.moved.written.into());
        }
        sums.push(sum);
    }
    match launches.next() {
        Some((number, launch)) => {
            Err(format!("launch {number}: found {}, wanted none: all calls are done", launch.kernel))
        }
        None => Ok(sums),
    }
}

/// The launches of a CSV, in its order.
fn launches(text: &str) -> Result<Vec<Launch>, String> {
    let mut lines = text.lines().map(fields);
    let header = lines.by_ref().find(|fields| fields.iter().any(|field| field == "Kernel Name"));
    let header = header.ok_or("found no line with \"Kernel Name\", wanted the CSV of ncu")?;
    let column = |name: &str| header.iter().position(|field| field == name);
    let wanted = |name: &str| column(name).ok_or_else(|| format!("found no column {name:?}, wanted the CSV of ncu"));
    let (id, kernel) = (wanted("ID")?, wanted("Kernel Name")?);
    let rows: Vec<Vec<String>> = lines.filter(|fields| fields.len() == header.len()).collect();
    let mut found: BTreeMap<u64, Partial> = BTreeMap::new();
    let mut place = |row: &[String], metric: usize, value: &str, unit: &str| {
        let number = row[id].parse().map_err(|_| format!("found {:?} as ID, wanted a number", row[id]))?;
        let launch = found.entry(number).or_insert_with(|| (row[kernel].clone(), [None; 2]));
        let bytes = bytes(value, unit).map_err(|why| format!("ID {number}: {}: {why}", METRICS[metric]))?;
        launch.1[metric] = Some(bytes);
        Ok::<_, String>(())
    };
    if let Some(name) = column("Metric Name") {
        let (unit, value) = (wanted("Metric Unit")?, wanted("Metric Value")?);
        for row in &rows {
            if let Some(metric) = METRICS.iter().position(|metric| *metric == row[name]) {
                place(row, metric, &row[value], &row[unit])?;
            }
        }
    } else {
        let columns = [wanted(METRICS[0])?, wanted(METRICS[1])?];
        let (units, rows) = rows.split_first().ok_or("found no launches, wanted at least one")?;
        for row in rows {
            for (metric, &column) in columns.iter().enumerate() {
                place(row, metric, &row[column], &units[column])?;
            }
        }
    }
    found.into_iter().map(|(number, launch)| whole(number, launch)).collect()
}

/// A kernel's name, and of each metric the bytes, if it has been met.
type Partial = (String, [Option<u64>; 2]);

fn whole(number: u64, (kernel, bytes): Partial) -> Result<Launch, String> {
    let kernel = kernel.split(['(', '<']).next().unwrap_or_default().trim().to_string();
    match bytes {
        [Some(read), Some(written)] => Ok(Launch { kernel, moved: Traffic { read, written } }),
        _ => Err(format!("ID {number}: {kernel}: found one of {} alone, wanted both", METRICS.join(" and "))),
    }
}

/// The fields of a line of CSV: quoted or not, a quote in quotes is doubled.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut quoted) = (vec![String::new()], false);
    let mut letters = line.trim_end().chars().peekable();
    while let Some(letter) = letters.next() {
        let field = fields.last_mut().expect("there is always one");
        match letter {
            '"' if quoted && letters.next_if_eq(&'"').is_some() => field.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            letter => field.push(letter),
        }
    }
    fields
}

/// A number of bytes in the unit that ncu has chosen.
fn bytes(value: &str, unit: &str) -> Result<u64, String> {
    let units = [("byte", 1.0), ("kbyte", 1e3), ("mbyte", 1e6), ("gbyte", 1e9), ("tbyte", 1e12)];
    let factor = units.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)).map(|(_, factor)| factor);
    let factor = factor.ok_or_else(|| format!("found the unit {unit:?}, wanted byte, Kbyte, Mbyte or Gbyte"))?;
    let number = number(value).map(|number| number * factor).filter(|bytes| (0.0..=1e18).contains(bytes));
    number.map(|bytes| bytes.round() as u64).ok_or_else(|| format!("found {value:?}, wanted a number of bytes"))
}

/// A number that may have commas between thousands, and nowhere else.
fn number(text: &str) -> Option<f64> {
    let (whole, _) = text.split_once('.').unwrap_or((text, ""));
    let mut groups = whole.split(',');
    let first = groups.next()?;
    let grouped = groups.clone().next().is_none() || (1..=3).contains(&first.len());
    let well = grouped && groups.all(|group| group.len() == 3) && !text[whole.len()..].contains(',');
    text.replace(',', "").parse().ok().filter(|_| well)
}

#[cfg(test)]
mod tests;
