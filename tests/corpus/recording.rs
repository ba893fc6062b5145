//! What a device gave, on disk: the outputs of all programs one behind the other, packed by gzip, and a list of the programs.

use crate::form::Program;
use crate::run::Runner;
use device::Device;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::Path;
use std::time::{SystemTime, SystemTimeError};

/// The files, in a folder: the list, and the outputs.
const LIST: &str = "h200.tsv";
const OUTPUTS: &str = "h200.bin.gz";

/// Outputs of programs.
pub(crate) struct Recording {
    outputs: Vec<u8>,
    /// By name: the hash of the program that was run, and where its outputs are.
    programs: HashMap<String, (u64, Range<usize>)>,
}

impl Recording {
    pub(crate) fn read(folder: &Path) -> Result<Self, String> {
        let path = |name: &str| folder.join(name);
        let told = |error: std::io::Error| format!("{}: {error}", folder.display());
        let list = std::fs::read_to_string(path(LIST)).map_err(told)?;
        let (packed, mut outputs) = (std::fs::read(path(OUTPUTS)).map_err(told)?, Vec::new());
        GzDecoder::new(&packed[..]).read_to_end(&mut outputs).map_err(told)?;
        let mut programs = HashMap::new();
        let mut end = 0;
        for line in list.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            let broken = || format!("{LIST}: found {line:?}, wanted a hash, a number of bytes and a name");
            let [hash, bytes, name] = fields[..] else { return Err(broken()) };
            let hash = u64::from_str_radix(hash, 16).map_err(|_| broken())?;
            let start = end;
            end += bytes.parse::<usize>().map_err(|_| broken())?;
            programs.insert(name.to_string(), (hash, start..end));
        }
        if outputs.len() != end {
            return Err(format!("{OUTPUTS}: found {} bytes, wanted {end}", outputs.len()));
        }
        Ok(Recording { outputs, programs })
    }

    /// What the device gave for a program.
    pub(crate) fn of(&self, program: &Program) -> Result<&[u8], String> {
        match self.programs.get(&program.name) {
            Some((hash, place)) if *hash == program.hash() => Ok(&self.outputs[place.clone()]),
            Some(_) => Err(format!("{}: recorded from another text or other inputs", program.name)),
            None => Err(format!("{}: not recorded", program.name)),
        }
    }
}

/// Writes what the device gives, twice the same. A program that does not load, or gives something else the second time, is
/// left out and named. After one that breaks the device nothing is written.
pub(crate) fn record(
    device: &Result<Device, String>,
    programs: &[&Program],
    folder: &Path,
) -> Result<(), Box<dyn Error>> {
    let device = device.as_ref().map_err(String::as_str)?;
    let (runner, driver) = (Runner::new(device)?, device.attributes().driver);
    let (major, minor, date) = (driver / 1000, driver % 1000 / 10, today()?);
    let head = format!("{}, driver of CUDA {major}.{minor}, {date}, {} programs", device.name(), programs.len());
    let mut draft = Draft { list: format!("# {head}\n"), outputs: Vec::new() };
    let faults = runner.check_each(programs, |program| {
        let first = runner.run(program)?;
        if runner.run(program)? != first {
            return Err(format!("{}: two runs differ", program.name));
        }
        draft.add(program, &first);
        Ok(())
    })?;
    draft.write(folder)?;
    println!("{head}, {} written to {}", programs.len() - faults.len(), folder.display());
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

/// The date in UTC, "2026-11-30".
fn today() -> Result<String, SystemTimeError> {
    // Counted from a first of March, so that leap days end a year; 146097 days are 400 years.
    let days = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs() / 86400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (year, day) = (400 * era + year + month / 10, day - (153 * month + 2) / 5 + 1);
    Ok(format!("{year}-{:02}-{day:02}", (month + 2) % 12 + 1))
}

/// Programs and their outputs, to be written.
struct Draft {
    list: String,
    outputs: Vec<u8>,
}

impl Draft {
    fn add(&mut self, program: &Program, outputs: &[u8]) {
        let line = writeln!(self.list, "{:016x}\t{}\t{}", program.hash(), outputs.len(), program.name);
        line.expect("a string takes any text");
        self.outputs.extend(outputs);
    }

    fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join(LIST), &self.list)?;
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&self.outputs)?;
        std::fs::write(folder.join(OUTPUTS), packed.finish()?)
    }
}
