//! The command line: what can be asked, and how an answer leaves.

use crate::devices::{self, DeviceArgs};
use crate::{benchmark, check, climb, compare, compile, conform, doctor, run, serve, sim, trace};
use anyhow::{Context, Result, anyhow};
use attention::{DEFAULT_FAST_MEMORY, DType, Mask};
use clap::builder::PossibleValuesParser;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use ladder::registry::{RUNGS, Settings};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;

/// More threads than any machine this runs on has cores; beyond it, starting them is what fails.
const MAX_THREADS: usize = 1024;

/// Progressive attention, rung by rung. Without a verb it climbs.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    climb: ClimbArgs,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run every rung on one input: check it, time it, count its traffic
    Climb(ClimbArgs),
    /// Run one rung on tensors from a file
    Run(RunArgs),
    /// Run rungs on a conformance pack
    Conform(ConformArgs),
    /// Run a rung of the GPU on a simulated one: check every memory access and the result, count what each kernel does
    Sim(SimArgs),
    /// Draw what the warpgroups of a block do, and when, by marks that a rung's kernel keeps
    Trace(trace::TraceArgs),
    /// Measure rungs against the ones below them
    Bench(BenchArgs),
    /// Show saved results of `bench`, side by side
    Compare(CompareArgs),
    /// Run a chapter's checks on your solution of its exercise, in friendly words
    Check(CheckArgs),
    /// Serve a trace of requests with contiguous, paged and shared keys and values
    ServeSim(ServeArgs),
    /// Compile the kernels for GPUs, say what each takes, and write their prebuilt PTX if nothing is wrong with them
    Kernels(KernelsArgs),
    /// Say what this machine has and what will run on it
    Doctor(DoctorArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ClimbArgs {
    #[command(flatten)]
    pub(crate) problem: ProblemArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Write a page with the table and charts of speed, memory and traffic over N
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a rung is run on: the embedded layer, unless a file or a shape is given.
#[derive(Args, Debug)]
pub(crate) struct ProblemArgs {
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,
    /// Take q, k and v (and what `run` takes) from this safetensors file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["n", "d", "heads", "kv_heads", "batch"])]
    pub(crate) input: Option<PathBuf>,
    /// Which keys a query sees: full, causal, or window:L,R with L keys before and R after its own, negative for no
    /// limit [default: causal for the embedded layer, else full]
    #[arg(long, value_parser = mask)]
    pub(crate) mask: Option<Mask>,
    #[command(flatten)]
    pub(crate) score: ScoreArgs,
}

/// The shape of seeded random data. Any of these takes the place of the embedded layer.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ShapeArgs {
    /// Queries and keys of a sequence [default: 1024; on a simulated device 128]. Any of --n, --d, --heads, --kv-heads and
    /// --batch asks for random data instead of the embedded layer, F16 with a device and else F32; of the layer a simulated
    /// device takes the first tokens
    #[arg(long, value_parser = count)]
    pub(crate) n: Option<usize>,
    /// Channels of a head [default: 64]
    #[arg(long, value_parser = count)]
    pub(crate) d: Option<usize>,
    /// Query heads [default: 4; on a simulated device 1]
    #[arg(long, value_parser = count)]
    pub(crate) heads: Option<usize>,
    /// Key and value heads [default: as many as query heads]
    #[arg(long, value_parser = count)]
    pub(crate) kv_heads: Option<usize>,
    /// Sequences [default: 1]
    #[arg(long, value_parser = count)]
    pub(crate) batch: Option<usize>,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ScoreArgs {
    /// Factor of q . k [default: 1/sqrt(d)]
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) scale: Option<f64>,
    /// Soft cap of the scaled score, 0 for off
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) softcap: f64,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MachineArgs {
    /// Fast memory that a tiled rung may fill
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_FAST_MEMORY)]
    fast_memory: usize,
    #[command(flatten)]
    threads: ThreadArgs,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ThreadArgs {
    /// Threads [default: one for each core]
    #[arg(long, value_parser = threads)]
    threads: Option<usize>,
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The rung, or the oracle
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(devices::all_names()))]
    pub(crate) rung: String,
    /// A safetensors file with q, k and v of rank 4, or of rank 3 for one sequence, or of rank 3 packed with
    /// cu_seqlens_q and cu_seqlens_k (or cu_seqlens for both); it may hold k_lens, bias, sinks and alibi_slopes
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) input: PathBuf,
    /// Write o and lse to this file
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) output: Option<PathBuf>,
    /// Which keys a query sees: full, causal, or window:L,R with L keys before and R after its own, negative for no
    /// limit
    #[arg(long, default_value = "full", value_parser = mask)]
    pub(crate) mask: Mask,
    #[command(flatten)]
    pub(crate) score: ScoreArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Print one JSON object instead of the summary
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ConformArgs {
    /// The folder with manifest.json and the cases
    pub(crate) dir: PathBuf,
    /// Only this rung, or form of a layer; may be given several times [default: every rung, every form, and the oracle; with
    /// --device every rung that runs there]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(conform::names()))]
    pub(crate) rung: Vec<String>,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Print one JSON object instead of the lines
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SimArgs {
    /// The rung
    #[arg(value_name = "RUNG", value_parser = PossibleValuesParser::new(devices::names()))]
    pub(crate) rung: String,
    /// The order in which warps run: 0 is one after another, as far as each gets; any other draws one
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Run in so many orders, that of the seed and those of the numbers after it
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = count)]
    pub(crate) schedules: usize,
    /// Run the kernel of cuda-fa2 or fa3 as it was after this step of its making, from 1 up, which NVRTC compiles
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) step: Option<usize>,
    #[command(flatten)]
    pub(crate) problem: ProblemArgs,
    #[command(flatten)]
    pub(crate) threads: ThreadArgs,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Only the rungs of this chapter and the ones below them; may be given several times [default: every rung]
    #[arg(long, value_name = "N", value_parser = chapter, conflicts_with_all = ["device", "ncu"])]
    pub(crate) chapter: Vec<u32>,
    /// Exactly this rung; may be given several times
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(rungs()), conflicts_with = "chapter")]
    pub(crate) rung: Vec<String>,
    /// Keys of a sequence; may be a list [default: 256,512,1024; on a device 1024,4096]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = count)]
    pub(crate) n: Vec<usize>,
    /// Channels of a head; may be a list [default: 64; on a device 64,128]
    #[arg(long, value_name = "D,...", value_delimiter = ',', value_parser = count)]
    pub(crate) d: Vec<usize>,
    /// Element types, of f32, bf16 and f16; may be a list [default: f32; on a device f32,f16]
    #[arg(long, value_name = "TYPE,...", value_delimiter = ',', value_parser = dtype)]
    pub(crate) dtype: Vec<DType>,
    /// Query heads, and as many key and value heads [default: 4; on a device 16, of 4 sequences]
    #[arg(long, value_parser = count)]
    pub(crate) heads: Option<usize>,
    /// Sequences, on a device [default: 4]
    #[arg(long, value_parser = count, conflicts_with_all = ["chapter", "peers", "levels", "threads"])]
    pub(crate) batch: Option<usize>,
    /// Only what has this mask, on a device [default: full and causal]
    #[arg(long, value_parser = mask, conflicts_with_all = ["chapter", "peers", "levels", "threads"])]
    pub(crate) mask: Option<Mask>,
    /// The sizes at which attention libraries are compared on a CPU: F32 and BF16, d 64 and 128, N 512 to 8192, full and
    /// causal, 16 heads; and one query on 16384 keys, 32 heads on 8. Of them, those with the given --n, --d and --dtype.
    /// On fa2-simd alone, unless --chapter or --rung says otherwise
    #[arg(long, conflicts_with_all = ["heads", "device", "ncu"])]
    pub(crate) peers: bool,
    /// Measure fa2-simd with each kind of vectors that this CPU has, too
    #[arg(long, conflicts_with_all = ["device", "ncu"])]
    pub(crate) levels: bool,
    /// Threads; may be a list [default: 1, and one for each core]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = threads, conflicts_with_all = ["device", "ncu"])]
    pub(crate) threads: Vec<usize>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Of the --rung, cuda-fa2 or fa3, the kernel as it was after these steps of its making, which NVRTC compiles; may be a
    /// list
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = count)]
    #[arg(requires_all = ["device", "rung"], conflicts_with = "ncu")]
    pub(crate) step: Vec<usize>,
    /// Launch each rung once on each case and measure nothing: for a profiler
    #[arg(long, requires = "device", conflicts_with_all = ["output", "json"])]
    pub(crate) once: bool,
    /// Measure nothing: read what the kernels of a run with --device and --once moved from the CSV of
    /// ncu --metrics dram__bytes_read.sum,dram__bytes_write.sum, and add it to the results in --output. Takes the same --rung,
    /// --n, --d, --dtype, --heads and --batch as that run, on that machine; one without a GPU takes it for an H200
    #[arg(long, value_name = "FILE.csv", conflicts_with_all = ["device", "once"])]
    pub(crate) ncu: Option<PathBuf>,
    /// Save the results in this file, which must be new or hold earlier results
    #[arg(long, value_name = "FILE.json")]
    pub(crate) output: Option<PathBuf>,
    /// Print the results as they are saved instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The chapter; without it, where you stand in all of them
    pub(crate) chapter: Option<u32>,
    /// A hint for the first step that is not done; twice for a more pointed one, three times for the reference's place
    #[arg(long, action = clap::ArgAction::Count)]
    pub(crate) hint: u8,
    /// Seconds that a chapter's tests may take in all once they are compiled; one alone may take a twelfth, or 15 s
    #[arg(long, value_name = "SECONDS", default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) timeout: u64,
    /// Print one JSON object instead of the lines
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// Files that `bench` saved; speeds are told against the first
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Write a page with the table and charts of speed over the number of keys
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// A request a line, in JSON: id, arrival (a step), generate (tokens), and of the prompt at least one of prefix
    /// ({"name", "tokens"}, the beginning of a text that requests share), prompt (token numbers) and own (so many tokens of
    /// its own); at_most is how long the answer might have become [default: an embedded trace]
    #[arg(value_name = "TRACE.jsonl")]
    pub(crate) trace: Option<PathBuf>,
    /// Blocks of the memory, at least 2: one of them is the pool's null block
    #[arg(long, value_name = "N", default_value_t = 96, value_parser = blocks)]
    pub(crate) blocks: usize,
    /// Slots of a block, each for the key and the value of one token
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count)]
    pub(crate) page: usize,
    /// Tokens computed in one step, at most
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = count)]
    pub(crate) budget: usize,
    /// Write a page with the table and charts of requests and memory over the steps
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct KernelsArgs {
    /// Write nothing; fail if a prebuilt file is not of the sources that this program has
    #[arg(long)]
    pub(crate) check: bool,
    /// The one architecture to report [default: sm_80 and sm_90]
    #[arg(long, value_name = "sm_NN", value_parser = architecture)]
    pub(crate) arch: Option<(u32, u32)>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object instead of the lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Does what the command line asks. `false` means that a check failed.
pub(crate) fn main() -> Result<bool> {
    let cli = match Cli::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            written(error.print())?;
            return Ok(true);
        }
        // Clap explains over several lines; what was wrong ends at the first empty one.
        Err(error) => {
            let text = error.to_string();
            let wrong: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
            return Err(anyhow!("{}", wrong.join(" ").trim_start_matches("error: ")));
        }
    };
    match cli.verb.unwrap_or(Verb::Climb(cli.climb)) {
        Verb::Climb(args) => args.machine.threads.pool()?.install(|| climb::main(&args)),
        Verb::Run(args) => args.machine.threads.pool()?.install(|| run::main(&args)),
        Verb::Conform(args) => args.machine.threads.pool()?.install(|| conform::main(&args)),
        Verb::Sim(args) => args.threads.pool()?.install(|| sim::main(&args)),
        Verb::Trace(args) => trace::main(&args),
        Verb::Bench(args) => benchmark::main(&args),
        Verb::Compare(args) => compare::main(&args),
        Verb::Check(args) => check::main(&args),
        Verb::ServeSim(args) => serve::main(&args),
        Verb::Kernels(args) => compile::main(&args),
        Verb::Doctor(args) => doctor::main(&args),
    }
}

/// Prints an answer, whole.
pub(crate) fn print(answer: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    written(writeln!(stdout, "{}", answer.trim_end()).and_then(|()| stdout.flush()))
}

/// Says on stderr what is wrong, in one line. With stderr gone too, the exit code is all that is left to say it with.
pub(crate) fn complain(what: &str) {
    let _ = writeln!(io::stderr(), "{}", what.replace(|c: char| c.is_control(), " "));
}

/// What became of an answer. A reader such as `head` that has seen enough is no failure, and changes no verdict.
fn written(answer: io::Result<()>) -> Result<()> {
    match answer {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("stdout"),
        _ => Ok(()),
    }
}

impl MachineArgs {
    pub(crate) fn settings(self) -> Settings {
        Settings { fast_memory: self.fast_memory }
    }
}

impl ThreadArgs {
    fn pool(self) -> Result<rayon::ThreadPool> {
        let threads = match (self.threads, std::env::var("RAYON_NUM_THREADS")) {
            (Some(threads), _) => threads,
            // 0 is rayon's own word for a thread on each core.
            (None, Ok(text)) => text.parse().ok().filter(|&n| n <= MAX_THREADS).unwrap_or(0),
            (None, Err(_)) => 0,
        };
        // Told nothing, the builder would read the variable again.
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        pool(if threads == 0 { cores() } else { threads })
    }
}

/// A bar on the terminal for work of so many steps.
pub(crate) fn progress(steps: usize) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("[{bar:30}] {pos}/{len} {msg}")?;
    Ok(ProgressBar::new(steps as u64).with_style(style))
}

/// As many threads.
pub(crate) fn pool(threads: usize) -> Result<rayon::ThreadPool> {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().context("cannot start the threads")
}

fn rungs() -> impl Iterator<Item = &'static str> {
    RUNGS.iter().map(|rung| rung.name).chain(devices::names())
}

pub(crate) fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or_else(|| "wanted a whole number of at least 1".into())
}

fn blocks(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n >= 2).ok_or_else(|| "wanted a whole number of at least 2".into())
}

fn chapter(text: &str) -> Result<u32, String> {
    let chapters: BTreeSet<u32> = RUNGS.iter().map(|rung| rung.chapter).collect();
    let wanted = || format!("wanted one of {}", chapters.iter().map(u32::to_string).collect::<Vec<_>>().join(", "));
    text.parse().ok().filter(|asked| chapters.contains(asked)).ok_or_else(wanted)
}

fn architecture(text: &str) -> Result<(u32, u32), String> {
    let parsed = text.strip_prefix("sm_").and_then(|number| number.parse().ok());
    let number = parsed.filter(|number| (80..1000).contains(number) && text == format!("sm_{number}"));
    number.map(|number: u32| (number / 10, number % 10)).ok_or_else(|| "wanted sm_80 or newer, as sm_90".into())
}

pub(crate) fn dtype(text: &str) -> Result<DType, String> {
    let types = [DType::F32, DType::Bf16, DType::F16];
    let named = types.into_iter().find(|dtype| dtype.to_string().eq_ignore_ascii_case(text));
    named.ok_or_else(|| "wanted f32, bf16 or f16".into())
}

fn threads(text: &str) -> Result<usize, String> {
    let wanted = || format!("wanted a whole number from 1 to {MAX_THREADS}");
    text.parse().ok().filter(|n| (1..=MAX_THREADS).contains(n)).ok_or_else(wanted)
}

pub(crate) fn mask(text: &str) -> Result<Mask, String> {
    let window = |limits: &str| {
        let (left, right) = limits.split_once(',')?;
        Some(Mask::window(left.trim().parse().ok()?, right.trim().parse().ok()?))
    };
    match text {
        "full" => Ok(Mask::Full),
        "causal" => Ok(Mask::Causal),
        _ => text
            .strip_prefix("window:")
            .and_then(window)
            .ok_or_else(|| "wanted full, causal or window:L,R with whole numbers L and R".into()),
    }
}

/// What `ladder bench` would be told by these words.
#[cfg(test)]
pub(crate) fn bench_args(words: &[&str]) -> BenchArgs {
    match verb("bench", words) {
        Some(Verb::Bench(args)) => args,
        other => panic!("{other:?}"),
    }
}

/// What `ladder sim` would be told by these words.
#[cfg(test)]
pub(crate) fn sim_args(words: &[&str]) -> SimArgs {
    match verb("sim", words) {
        Some(Verb::Sim(args)) => args,
        other => panic!("{other:?}"),
    }
}

#[cfg(test)]
fn verb(verb: &str, words: &[&str]) -> Option<Verb> {
    Cli::parse_from([&["ladder", verb], words].concat()).verb
}
