//! Chapter 5, the exercise: FlashAttention-2 as a CUDA kernel, in its plainest form.
//!
//! Yours is `src/mine.cu`, beside this file. `cargo run --release -- check 5` says how far you are, and `--hint` helps. The
//! kernel is compiled by NVRTC, which `ladder doctor` says how to install, and runs on a simulated GPU: you need none.
//!
//! Here is the host's side, which is given. [`EXERCISE`] compiles and launches, and says what a kernel did wrong, and in which
//! line. [`CudaFa2`] is the rung: it cuts the rows into tiles, copies the tensors to the device and the results back.

use attention::{Attention, AttentionError, Mask, OutputMut, Problem, RowsMut, supports_contiguous};
use device::{Arg, Counters, DeviceError};
use kernelkit::{Compiled, Exercise};
use ndarray::aview1;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The exercise. No check needs a tenth of its instructions.
pub static EXERCISE: Exercise = Exercise {
    file: "chapters/05-cuda-fa2/src/mine.cu",
    steps: include_str!("steps.cu"),
    arch: "sm_80",
    step_limit: 1 << 22,
    with_names: |words| words.into(),
};

/// The learner's kernel.
pub const MINE: &str = include_str!("mine.cu");

/// Rows of a tile, and threads of a block: `ROWS` of the kernel.
pub const ROWS: usize = 64;

/// Keys of a tile: `KEYS` of the kernel.
pub const KEYS: usize = 8;

/// Channels, at most: two tiles of keys are then 16 KiB, of the 48 that a block gets without asking.
const MOST_CHANNELS: usize = 256;

/// Elements of one head, at most: the kernel counts them in an int.
const MOST_ELEMENTS: usize = i32::MAX as usize;

const NAME: &str = "your kernel";

/// FlashAttention-2 by the kernel `fa2` of a text like `mine.cu`, on a simulated GPU.
#[derive(Debug)]
pub struct CudaFa2 {
    text: String,
    seed: u64,
    /// By number of channels.
    compiled: Mutex<HashMap<usize, Arc<Compiled>>>,
}

/// The tensors of one sequence, all heads one behind the other, each row filled up with zeros to `channels` numbers.
struct Sequence {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    channels: usize,
    q_len: usize,
    k_len: usize,
}

impl CudaFa2 {
    /// The rung with this text for a kernel.
    pub fn new(text: &str) -> Self {
        CudaFa2 { text: text.into(), seed: 0, compiled: Mutex::default() }
    }

    /// The same rung with the warps in the order that `seed` draws.
    pub fn with_schedule(self, seed: u64) -> Self {
        CudaFa2 { seed, ..self }
    }

    /// Runs the kernel once for each sequence, and counts what it did.
    ///
    /// # Errors
    /// There is no NVRTC; the kernel does not compile, or does what no kernel may do.
    ///
    /// # Panics
    /// If the rung does not [support](Attention::supports) the problem.
    pub fn run(&self, problem: &Problem, out: &mut [RowsMut]) -> Result<Counters, DeviceError> {
        let mut counters = Counters::default();
        for (number, heads) in out.chunk_by_mut(|one, next| one.sequence == next.sequence).enumerate() {
            let sequence = Sequence::new(problem, number);
            if sequence.q_len > 0 {
                counters += self.launch(problem, &sequence, heads)?;
            }
        }
        Ok(counters)
    }

    /// Copies a sequence to the device, runs the kernel, and stores what it gives.
    fn launch(&self, problem: &Problem, sequence: &Sequence, out: &mut [RowsMut]) -> Result<Counters, DeviceError> {
        let Sequence { channels, q_len, k_len, .. } = *sequence;
        let compiled = self.compiled(channels)?;
        let device = compiled.device();
        let [q, k, v] = [&sequence.q, &sequence.k, &sequence.v].map(|tensor| device.upload(tensor));
        let (q, k, v) = (q?, k?, v?);
        let o = device.alloc(size_of_val(&sequence.q[..]))?;
        let lse = device.alloc(size_of::<f32>() * out.len() * q_len)?;
        let addresses = [&q, &k, &v, &o, &lse].map(|buffer| Arg::U64(buffer.address()));
        let numbers = [q_len, k_len, problem.heads() / problem.kv_heads()].map(|number| Arg::I32(number as i32));
        let causal = [u8::from(problem.options().mask == Mask::Causal)];
        let options = [Arg::F32(problem.scale() as f32), Arg::Bytes(&causal)];
        let args: Vec<Arg> = addresses.into_iter().chain(numbers).chain(options).collect();
        // Line 3: a block for each tile of rows of each head.
        let grid = [q_len.div_ceil(ROWS) as u32, out.len() as u32];
        let counters = compiled.run("fa2", (grid, ROWS as u32), &args, self.seed)?;
        let (o, lse) = (o.to_vec::<f32>()?, lse.to_vec::<f32>()?);
        for (head, out) in out.iter_mut().enumerate() {
            for i in 0..q_len {
                let row = head * q_len + i;
                out.store(i, aview1(&o[row * channels..][..problem.d_v()]), lse[row]);
            }
        }
        Ok(counters)
    }

    fn compiled(&self, channels: usize) -> Result<Arc<Compiled>, DeviceError> {
        let mut all = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = all.get(&channels) {
            return Ok(compiled.clone());
        }
        let compiled = Arc::new(EXERCISE.compile(&self.text, &[("HEAD_DIM", &channels.to_string())])?);
        all.insert(channels, compiled.clone());
        Ok(compiled)
    }
}

impl Sequence {
    fn new(problem: &Problem, number: usize) -> Self {
        let channels = problem.d().max(problem.d_v());
        let filled = |rows: ndarray::Array2<f32>| {
            let zeros = channels - rows.ncols();
            rows.rows()
                .into_iter()
                .flat_map(|row| row.to_vec().into_iter().chain(vec![0.0; zeros]))
                .collect::<Vec<f32>>()
        };
        let group = problem.heads() / problem.kv_heads();
        let head = |head: usize| problem.head(number, head);
        let kv = || (0..problem.kv_heads()).map(|kv_head| head(kv_head * group));
        let (q_len, k_len) = (head(0).q_len, head(0).k_len);
        let q = (0..problem.heads()).flat_map(|n| filled(head(n).q.load(0..q_len))).collect();
        let k = kv().flat_map(|head| filled(head.k.load(0..k_len))).collect();
        let v = kv().flat_map(|head| filled(head.v.load(0..k_len))).collect();
        Sequence { q, k, v, channels, q_len, k_len }
    }
}

impl Attention for CudaFa2 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn supports(&self, problem: &Problem) -> Result<(), AttentionError> {
        supports_contiguous(NAME, problem)?;
        let options = problem.options();
        let refused = [
            (options.softcap != 0.0, "a soft cap"),
            (options.alibi_slopes.is_some(), "ALiBi"),
            (options.bias.is_some(), "a bias"),
            (options.sinks.is_some(), "sinks"),
            (!matches!(options.mask, Mask::Full | Mask::Causal), "a window"),
            (problem.d().max(problem.d_v()) > MOST_CHANNELS, "more than 256 channels"),
            (
                problem.sequences().iter().any(|one| one.q.len().max(one.k.len()) > MOST_ELEMENTS / MOST_CHANNELS),
                "so long a sequence",
            ),
        ];
        match refused.into_iter().find(|(refused, _)| *refused) {
            Some((_, what)) => Err(AttentionError::Unsupported { rung: NAME, what: what.into() }),
            None => Ok(()),
        }
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        self.supports(problem)?;
        let fails = |error| AttentionError::Device { rung: NAME, what: EXERCISE.told(&self.text, &error) };
        self.run(problem, &mut out.heads(problem)?).map(drop).map_err(fails)
    }
}
