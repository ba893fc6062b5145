//! What the host decides about a call before the device does anything.

use crate::params::{self, Blocks, Running, Scores};
use attention::{AttentionError, DType, Mask, Options, Problem, Sequence};
use device::{LaunchShape, Variant};

/// Rows or keys of the longest sequence that kernels count in 32 bits, with room for the sums they take.
const LONGEST: usize = 1 << 30;

/// The shapes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Element type of q, k, v and o.
    pub dtype: DType,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Channels of q and k.
    pub d: usize,
    /// Channels of v.
    pub d_v: usize,
    /// Whether tensors have no batch axis and sequences lie one behind the other.
    pub packed: bool,
    /// Where each sequence lies.
    pub sequences: Vec<Sequence>,
}

impl From<&Problem<'_>> for Shape {
    fn from(problem: &Problem) -> Self {
        Shape {
            dtype: problem.dtype(),
            heads: problem.heads(),
            kv_heads: problem.kv_heads(),
            d: problem.d(),
            d_v: problem.d_v(),
            packed: problem.is_packed(),
            sequences: problem.sequences().to_vec(),
        }
    }
}

impl Shape {
    /// Rows of the longest sequence.
    pub fn q_len(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.q.len()).max().unwrap_or(0)
    }

    /// Keys of the longest sequence.
    pub fn k_len(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.k.len()).max().unwrap_or(0)
    }

    /// Heads of all sequences.
    pub(crate) fn all_heads(&self) -> usize {
        self.heads * self.sequences.len()
    }
}

/// A planned call: which kernels run in which shape, and how much memory they need between them.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) problem: params::Problem,
    pub(crate) sequences: Vec<params::Sequence>,
    pub(crate) steps: Vec<Step>,
    pub(crate) workspace_bytes: usize,
}

/// One launch.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) variant: &'static Variant,
    pub(crate) kernel: &'static str,
    pub(crate) shape: LaunchShape,
    pub(crate) extra: Extra,
}

/// What a kernel takes besides the problem. Addresses are counted from the start of the workspace.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Extra {
    None,
    Scores(Scores),
    Running(Blocks, Running),
}

impl Plan {
    /// Bytes of device memory that [`launch`](crate::CudaRung::launch) needs as its workspace.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// The part that all algorithms share. Kernels that tile rows have tiles of `row_tile`.
    pub(crate) fn new(
        rung: &'static str,
        shape: &Shape,
        options: &Options,
        row_tile: usize,
    ) -> Result<Plan, AttentionError> {
        let refuse = |what: &str| Err(AttentionError::Unsupported { rung, what: what.into() });
        let ends = |sequence: &Sequence| sequence.q.end.max(sequence.k.end);
        if shape.sequences.iter().map(ends).max() > Some(LONGEST) {
            return refuse("sequences that reach beyond row 2^30");
        }
        let channels = shape.d.max(shape.d_v).max(shape.heads).max(shape.sequences.len());
        if channels > LONGEST {
            return refuse("more than 2^30 heads, channels or sequences");
        }
        let place = |(batch, Sequence { q, k }): (usize, &Sequence)| params::Sequence {
            batch: if shape.packed { 0 } else { batch as i32 },
            q_start: q.start as i32,
            q_len: q.len() as i32,
            k_start: k.start as i32,
            k_len: k.len() as i32,
        };
        let problem = params::Problem {
            options: scalars(shape, options),
            batch: shape.sequences.len() as i32,
            heads: shape.heads as i32,
            group: (shape.heads / shape.kv_heads) as i32,
            d: shape.d as i32,
            d_v: shape.d_v as i32,
            row_tiles: shape.q_len().div_ceil(row_tile) as i32,
            ..params::Problem::default()
        };
        let sequences = shape.sequences.iter().enumerate().map(place).collect();
        Ok(Plan { problem, sequences, steps: Vec::new(), workspace_bytes: 0 })
    }

    /// Whether no row is asked for.
    pub(crate) fn is_empty(&self) -> bool {
        self.problem.row_tiles == 0
    }
}

fn scalars(shape: &Shape, options: &Options) -> params::Options {
    let (left, right) = match options.mask {
        Mask::Full => (None, None),
        Mask::Causal => (None, Some(0)),
        Mask::Window { left, right } => (left, right),
    };
    // A window wider than any sequence is no limit.
    let side = |keys: Option<usize>| keys.filter(|&keys| keys < 2 * LONGEST).map_or(-1, |keys| keys as i32);
    params::Options {
        scale: options.scale.unwrap_or_else(|| 1.0 / (shape.d as f64).sqrt()) as f32,
        softcap: options.softcap as f32,
        left: side(left),
        right: side(right),
        ..params::Options::default()
    }
}

/// A launch of that many blocks in a row.
pub(crate) fn launch_shape(
    rung: &'static str,
    blocks: usize,
    block: [u32; 3],
    shared_bytes: usize,
) -> Result<LaunchShape, AttentionError> {
    match i32::try_from(blocks) {
        Ok(blocks) => {
            let shared_bytes = shared_bytes as u32;
            Ok(LaunchShape { grid: [blocks as u32, 1, 1], block, cluster: [1; 3], shared_bytes })
        }
        Err(_) => Err(AttentionError::Unsupported { rung, what: "more than 2^31 tiles of all heads".into() }),
    }
}
