//! What kernels moved through the memory of a GPU, as `ncu`, NVIDIA's profiler, has read it from the device's counters.
//!
//! Either form of its CSV is taken, a metric a line or a launch a line (`--page raw`), with whatever else the profiler and
//! the program that it ran have printed before and between. Lines of other kernels are passed over. A file that is cut off, or
//! that says one thing twice, is refused.

use attention::Traffic;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The metrics that are looked for: bytes read and bytes written.
pub const METRICS: [&str; 2] = ["dram__bytes_read.sum", "dram__bytes_write.sum"];

/// The column by which the header is known.
const KERNEL: &str = "Kernel Name";

/// The column that tells the form with a metric a line.
const METRIC: &str = "Metric Name";

/// The most bytes of a file, far more than a profile of every case has.
const LARGEST: u64 = 64 << 20;

/// The most bytes of a line, far more than every metric of ncu's takes. Longer ones are none of its lines.
const LONGEST_LINE: usize = 1 << 20;

/// One launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The kernel's name, without its parameters.
    pub kernel: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
}

/// A launch, and what it moved.
type Measured = (Launch, Traffic);

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

/// Reads a file, and returns for each call the sum over its launches. A call is told by its launches in the order in which
/// they run; calls follow each other in the order of the file.
///
/// # Errors
/// [`NcuError::File`]; [`NcuError::Foreign`] if it is no CSV of ncu's with both metrics, or one of other calls.
pub fn read(path: &Path, calls: &[Vec<Launch>]) -> Result<Vec<Traffic>, NcuError> {
    let failed = |error| NcuError::File { path: path.into(), error };
    let foreign = |why: String| NcuError::Foreign { path: path.into(), why };
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(foreign("it is no regular file".into()));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > LARGEST {
        return Err(foreign(format!("found more than {LARGEST} bytes, wanted the CSV of ncu")));
    }
    launches(&String::from_utf8_lossy(&bytes)).and_then(|launches| sums(&launches, calls)).map_err(foreign)
}

/// The sums over the launches of each call.
fn sums(launches: &[Measured], calls: &[Vec<Launch>]) -> Result<Vec<Traffic>, String> {
    let ours = |(found, _): &&Measured| calls.iter().flatten().any(|wanted| wanted.kernel == found.kernel);
    let mut launches = (1..).zip(launches.iter().filter(ours));
    let mut sums = Vec::new();
    for call in calls {
        let mut sum = Traffic::default();
        for wanted in call {
            let next = launches.next();
            let (number, (found, moved)) = next.ok_or_else(|| format!("found no more launches, wanted {wanted}"))?;
            if found != wanted {
                return Err(format!("launch {number}: found {found}, wanted {wanted}"));
            }
            sum.add(1, moved.read.into(), moved.written.into());
        }
        sums.push(sum);
    }
    match launches.next() {
        Some((number, (found, _))) => Err(format!("launch {number}: found {found}, wanted none: all calls are done")),
        None => Ok(sums),
    }
}

/// The launches of a CSV, in its order.
fn launches(text: &str) -> Result<Vec<Measured>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| line.len() <= LONGEST_LINE);
    let named = lines.by_ref().filter(|(_, line)| line.contains(KERNEL));
    let header = named.filter_map(|(_, line)| fields(line)).find(|fields| fields.iter().any(|field| field == KERNEL));
    let header = header.ok_or_else(|| format!("found no line with {KERNEL:?}, wanted the CSV of ncu"))?;
    let columns = Columns::of(&header)?;
    let row = |(number, line): (u64, &str)| fields(line).ok_or(format!("line {number}: a quote is not closed"));
    let fits = |row: &Result<Vec<String>, String>| row.as_ref().map_or(true, |row| row.len() == header.len());
    let mut rows = lines.map(row).filter(fits);
    let mut found = BTreeMap::new();
    if header.iter().any(|field| field == METRIC) {
        let [name, unit, value] =
            [column(&header, METRIC)?, column(&header, "Metric Unit")?, column(&header, "Metric Value")?];
        for row in rows {
            let row = row?;
            if let Some(metric) = METRICS.iter().position(|metric| *metric == row[name]) {
                columns.place(&mut found, &row, metric, [&row[value], &row[unit]])?;
            }
        }
    } else {
        let metrics = [column(&header, METRICS[0])?, column(&header, METRICS[1])?];
        let units = rows.next().ok_or("found no launches, wanted at least one")??;
        for row in rows {
            let row = row?;
            for (metric, &column) in metrics.iter().enumerate() {
                columns.place(&mut found, &row, metric, [&row[column], &units[column]])?;
            }
        }
    }
    found.into_iter().map(|(number, launch)| whole(number, launch)).collect()
}

/// The place of the one column of that name.
fn column(header: &[String], name: &str) -> Result<usize, String> {
    let mut places = (0..header.len()).filter(|&place| header[place] == name);
    match (places.next(), places.next()) {
        (Some(place), None) => Ok(place),
        (None, _) => Err(format!("found no column {name:?}, wanted the CSV of ncu")),
        _ => Err(format!("found the column {name:?} twice, wanted it once")),
    }
}

/// A launch, and of each metric the bytes, if it has been met.
type Partial = (Launch, [Option<u64>; 2]);

/// Where a row says which launch it is of.
struct Columns {
    id: usize,
    kernel: usize,
    grid: usize,
    block: usize,
}

impl Columns {
    fn of(header: &[String]) -> Result<Self, String> {
        let place = |name| column(header, name);
        let (grid, block) = (place("Grid Size")?, place("Block Size")?);
        Ok(Columns { id: place("ID")?, kernel: place(KERNEL)?, grid, block })
    }

    /// Puts a metric of a row, a value and its unit, to what is known of its launch.
    fn place(
        &self,
        found: &mut BTreeMap<u64, Partial>,
        row: &[String],
        metric: usize,
        [value, unit]: [&str; 2],
    ) -> Result<(), String> {
        let id = row[self.id].parse().map_err(|_| format!("found {:?} as ID, wanted a number", row[self.id]))?;
        let size = |text: &str| size(text).ok_or(format!("ID {id}: found {text:?}, wanted a size such as (32, 8, 1)"));
        let kernel = row[self.kernel].split(['(', '<']).next().unwrap_or_default().trim().into();
        let launch = Launch { kernel, grid: size(&row[self.grid])?, block: size(&row[self.block])? };
        let (first, moved) = found.entry(id).or_insert_with(|| (launch.clone(), [None; 2]));
        if *first != launch {
            return Err(format!("ID {id}: found {launch} after {first}, wanted one launch"));
        }
        let bytes = bytes(value, unit).map_err(|why| format!("ID {id}: {}: {why}", METRICS[metric]))?;
        match moved[metric].replace(bytes) {
            Some(_) => Err(format!("ID {id}: found {} twice, wanted it once", METRICS[metric])),
            None => Ok(()),
        }
    }
}

fn whole(id: u64, (launch, bytes): Partial) -> Result<Measured, String> {
    match bytes {
        [Some(read), Some(written)] => Ok((launch, Traffic { read, written })),
        _ => Err(format!("ID {id}: {}: found one of {} alone, wanted both", launch.kernel, METRICS.join(" and "))),
    }
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Launch { kernel, grid: [x, y, z], block: [bx, by, bz] } = self;
        write!(f, "{kernel} of ({x}, {y}, {z}) blocks of ({bx}, {by}, {bz}) threads")
    }
}

/// The size of a grid or of a block, "(32, 8, 1)".
fn size(text: &str) -> Option<[u32; 3]> {
    let sides = text.strip_prefix('(')?.strip_suffix(')')?.split(',').map(|side| side.trim().parse().ok());
    sides.collect::<Option<Vec<u32>>>()?.try_into().ok()
}

/// The fields of a line of CSV: quoted or not, a quote in quotes is doubled. `None` if a quote is not closed.
fn fields(line: &str) -> Option<Vec<String>> {
    let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.trim_end().chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.next_if_eq(&'"').is_some() => field.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(std::mem::take(&mut field)),
            letter => field.push(letter),
        }
    }
    fields.push(field);
    Some(fields).filter(|_| !quoted)
}

/// A number of bytes in the unit that ncu has chosen.
fn bytes(value: &str, unit: &str) -> Result<u64, String> {
    let units = [("byte", 1.0), ("kbyte", 1e3), ("mbyte", 1e6), ("gbyte", 1e9), ("tbyte", 1e12)];
    let factor = units.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)).map(|(_, factor)| factor);
    let factor = factor.ok_or_else(|| format!("found the unit {unit:?}, wanted byte, Kbyte, Mbyte or Gbyte"))?;
    let number = number(value).map(|number| number * factor).filter(|bytes| (0.0..=1e18).contains(bytes));
    number.map(|bytes| bytes.round() as u64).ok_or_else(|| format!("found {value:?}, wanted a number of bytes"))
}

/// A number of digits, with commas between all thousands or none, and perhaps a fraction.
fn number(text: &str) -> Option<f64> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let (first, thousands) = whole.split_once(',').map_or((whole, None), |(first, rest)| (first, Some(rest)));
    let mut groups = thousands.into_iter().flat_map(|rest| rest.split(','));
    let grouped = thousands.is_none() || first.len() <= 3;
    let well = grouped && groups.all(|group| digits(group) && group.len() == 3) && digits(first) && digits(fraction);
    text.replace(',', "").parse().ok().filter(|_| well)
}

#[cfg(test)]
mod tests;
