//! What the host decides about a call before the device does anything.

use crate::maps::MapOf;
use crate::params::{self, Blocks, Running, Schedule, Scores, Splits};
use attention::{AttentionError, DType, Mask, Options, Problem, Sequence};
use device::{Attributes, LaunchShape, Variant};

/// The most of anything that kernels count in 32 bits (rows, keys, channels, heads, sequences), with room for their sums.
const LONGEST: usize = 1 << 30;

/// What a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Bytes of shared memory that a block may have; no more than 2^32 are used.
    pub shared_per_block: usize,
    /// The device's compute capability, major and minor, for kernels of one architecture alone.
    pub compute_capability: (u32, u32),
    /// Multiprocessors that are to be busy.
    pub multiprocessors: usize,
    /// How many tiles of rows `cuda-fa2` takes a call of long queries to have; `None` counts them. What is taken decides the last
    /// bits of a result, and the count depends on the batch.
    pub tiles: Option<Tiles>,
    /// Into how many parts `cuda-fa2` splits the keys of short queries, at most one for each tile of the longest; `None` leaves
    /// it to the plan. The number decides the last bits of a result, and the plan's depends on the batch.
    pub splits: Option<usize>,
}

/// Tiles of rows that a call has for the multiprocessors of a device, as `cuda-fa2` sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiles {
    /// More than these.
    Many,
    /// No more than these: two groups of warps share the keys of each.
    Few,
    /// No more, even if they are half as long, as they are then.
    Fewer,
}

impl Target {
    /// An H200, for plans of what ran on one, and of what a smaller device is to run as it would.
    pub const H200: Target = Target {
        shared_per_block: 227 << 10,
        compute_capability: (9, 0),
        multiprocessors: 132,
        tiles: None,
        splits: None,
    };
}

impl From<&Attributes> for Target {
    fn from(device: &Attributes) -> Self {
        Target {
            shared_per_block: device.shared_per_block as usize,
            compute_capability: device.compute_capability,
            multiprocessors: device.multiprocessors as usize,
            tiles: None,
            splits: None,
        }
    }
}

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
    /// One row and one key of one channel: what every rung takes on a device where it runs.
    pub fn one(dtype: DType) -> Shape {
        let sequences = vec![Sequence { q: 0..1, k: 0..1 }];
        Shape { dtype, heads: 1, kv_heads: 1, d: 1, d_v: 1, packed: false, sequences }
    }

    /// Rows of the longest sequence.
    pub fn q_len(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.q.len()).max().unwrap_or(0)
    }

    /// Keys of the longest sequence.
    pub fn k_len(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.k.len()).max().unwrap_or(0)
    }

    /// Refuses what is no shape, and what kernels cannot count.
    pub(crate) fn check(&self, rung: &'static str) -> Result<(), AttentionError> {
        if self.heads == 0 || self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            let wanted = format!("at least 1, and a multiple of kv_heads, {}", self.kv_heads);
            return AttentionError::value("heads", self.heads, wanted);
        }
        if self.d == 0 || self.d_v == 0 {
            return AttentionError::value("d and d_v", format!("{} and {}", self.d, self.d_v), "1 or more");
        }
        let refuse = |what: &str| Err(AttentionError::Unsupported { rung, what: what.into() });
        let ends = |sequence: &Sequence| sequence.q.end.max(sequence.k.end);
        if self.sequences.iter().map(ends).max() > Some(LONGEST) {
            return refuse("sequences that reach beyond row 2^30");
        }
        if self.d.max(self.d_v).max(self.heads).max(self.sequences.len()) > LONGEST {
            return refuse("more than 2^30 heads, channels or sequences");
        }
        Ok(())
    }

    /// Heads of all sequences.
    pub fn all_heads(&self) -> usize {
        self.heads * self.sequences.len()
    }
}

/// A planned call: which kernels run in which shape, and how much memory they need between them.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) problem: params::Problem,
    pub(crate) sequences: Vec<params::Sequence>,
    /// Whether kernels read the table of sequences, and not the two lengths that all have.
    pub(crate) tabled: bool,
    pub(crate) launches: Vec<Launch>,
    /// What runs in their place where a row begins at no multiple of 16 bytes; empty if they do not mind.
    pub(crate) unaligned: Vec<Launch>,
    /// Whether the kernels want the channels of a row one behind the other.
    pub(crate) adjacent: bool,
    /// What their tensor maps of q, k and v are made of, if they have some.
    pub(crate) maps: Option<[MapOf; 3]>,
    pub(crate) workspace_bytes: usize,
}

/// One launch.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
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
    Splits(Splits),
    /// Nothing, but the problem comes piece by piece, as Triton has it.
    Triton,
    /// Tensor maps of q, k and v, [the plan's](Plan::maps), and which tiles blocks take; whether they count them.
    Maps {
        schedule: Schedule,
        counts: bool,
    },
}

impl Plan {
    /// Bytes of device memory that [`launch`](crate::CudaRung::launch) needs as its workspace.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// The launches in the order in which they run: kernel, blocks of the grid, threads of a block.
    pub fn launches(&self) -> impl Iterator<Item = (&'static str, [u32; 3], [u32; 3])> {
        self.launches.iter().map(|launch| (launch.kernel, launch.shape.grid, launch.shape.block))
    }

    /// The part that all algorithms share. Kernels that tile rows have tiles of `row_tile`.
    pub fn new(shape: &Shape, options: &Options, row_tile: usize) -> Plan {
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
            q_len: shape.q_len() as i32,
            k_len: shape.k_len() as i32,
            ..params::Problem::default()
        };
        let sequences = shape.sequences.iter().enumerate().map(place).collect();
        let whole = Sequence { q: 0..shape.q_len(), k: 0..shape.k_len() };
        Plan {
            problem,
            sequences,
            tabled: shape.packed || shape.sequences.iter().any(|sequence| *sequence != whole),
            launches: Vec::new(),
            unaligned: Vec::new(),
            adjacent: false,
            maps: None,
            workspace_bytes: 0,
        }
    }

    /// The plan with what all of these ask of tensors that they share: the largest workspace, and layouts that each takes.
    pub fn sharing(mut self, others: &[Plan]) -> Plan {
        for other in others {
            self.workspace_bytes = self.workspace_bytes.max(other.workspace_bytes);
            self.adjacent |= other.adjacent;
            self.maps = self.maps.or(other.maps);
        }
        self
    }

    /// Whether no row is asked for.
    pub fn is_empty(&self) -> bool {
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
    let side = |keys: Option<usize>| keys.filter(|&keys| keys < LONGEST).map_or(-1, |keys| keys as i32);
    params::Options {
        scale: options.scale.unwrap_or_else(|| 1.0 / (shape.d as f64).sqrt()) as f32,
        softcap: options.softcap as f32,
        left: side(left),
        right: side(right),
        ..params::Options::default()
    }
}

/// A launch of that many blocks in a row, at least one. What shared memory a block has is for the device to refuse.
pub(crate) fn launch_shape(
    rung: &'static str,
    blocks: usize,
    block: [u32; 3],
    shared_bytes: usize,
) -> Result<LaunchShape, AttentionError> {
    match i32::try_from(blocks) {
        Ok(blocks) => {
            let shared_bytes = u32::try_from(shared_bytes).unwrap_or(u32::MAX);
            Ok(LaunchShape { grid: [blocks as u32, 1, 1], block, cluster: [1; 3], shared_bytes })
        }
        Err(_) => Err(AttentionError::Unsupported { rung, what: "2^31 tiles of all heads, or more".into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, FA1, FA2, FA2_SIMT, NAIVE, TRITON};

    fn all() -> [&'static Algorithm; 5] {
        [&NAIVE, &FA1, &FA2_SIMT, &FA2, &TRITON]
    }

    fn shape(sequences: Vec<(usize, usize)>) -> Shape {
        let sequences = sequences.into_iter().map(|(q, k)| Sequence { q: 0..q, k: 0..k }).collect();
        Shape { dtype: DType::F32, heads: 2, kv_heads: 1, d: 64, d_v: 64, packed: false, sequences }
    }

    /// In F16, which all take.
    fn plan(algorithm: &Algorithm, shape: &Shape) -> Result<Plan, AttentionError> {
        algorithm.plan(&Shape { dtype: DType::F16, ..shape.clone() }, &Options::default(), Target::H200)
    }

    fn refusal(algorithm: &Algorithm, shape: &Shape) -> Option<String> {
        match plan(algorithm, shape) {
            Err(AttentionError::Unsupported { rung, what }) => Some(what).filter(|_| rung == algorithm.name),
            Err(error) => Some(error.to_string()),
            Ok(_) => None,
        }
    }

    #[test]
    fn what_32_bits_cannot_count_is_refused() {
        for algorithm in all() {
            assert_eq!(refusal(algorithm, &shape(vec![(9, 70)])), None);
            let longest = refusal(algorithm, &shape(vec![(1, 1 << 30)]));
            assert!(longest.is_none_or(|what| what.contains("tiles of all heads")), "{}", algorithm.name);
            for (q, k) in [(1, (1 << 30) + 1), ((1 << 30) + 1, 1)] {
                let beyond = refusal(algorithm, &shape(vec![(q, k)]));
                assert_eq!(beyond.as_deref(), Some("sequences that reach beyond row 2^30"), "{}", algorithm.name);
            }
            let heads = Shape { heads: (1 << 30) + 1, ..shape(vec![(1, 1)]) };
            let wanted = "more than 2^30 heads, channels or sequences";
            assert_eq!(refusal(algorithm, &heads).as_deref(), Some(wanted), "{}", algorithm.name);
            let blocks = Shape { heads: 1 << 30, ..shape(vec![(1, 1); 2]) };
            assert_eq!(
                refusal(algorithm, &blocks).as_deref(),
                Some("2^31 tiles of all heads, or more"),
                "{}",
                algorithm.name
            );
        }
    }

    #[test]
    fn what_is_no_shape_is_refused() {
        let good = shape(vec![(3, 3)]);
        for bad in [
            Shape { kv_heads: 0, ..good.clone() },
            Shape { kv_heads: 3, ..good.clone() },
            Shape { heads: 0, ..good.clone() },
            Shape { d: 0, ..good.clone() },
            Shape { d_v: 0, ..good },
        ] {
            for algorithm in all() {
                let plan = plan(algorithm, &bad);
                assert!(matches!(plan, Err(AttentionError::Value { .. })), "{} {bad:?}", algorithm.name);
            }
        }
    }

    #[test]
    fn a_device_of_less_shared_memory_takes_fewer_channels() {
        let plan = |d, shared_per_block| {
            let shape = Shape { d, ..shape(vec![(5, 7)]) };
            FA2_SIMT.plan(&shape, &Options::default(), Target { shared_per_block, ..Target::H200 }).map(drop)
        };
        assert!(plan(64, 99 << 10).is_ok() && plan(256, 227 << 10).is_ok());
        for (d, shared) in [(65, 99 << 10), (200, 99 << 10), (257, 227 << 10)] {
            assert!(matches!(plan(d, shared), Err(AttentionError::Unsupported { .. })), "{d} with {shared}");
        }
    }

    #[test]
    fn nothing_is_launched_for_no_row_and_no_scores_are_made_of_no_key() {
        for algorithm in all() {
            for sequences in [vec![], vec![(0, 5)], vec![(0, 0), (0, 3)]] {
                let plan = plan(algorithm, &shape(sequences)).unwrap();
                assert!(plan.launches.is_empty(), "{}", algorithm.name);
            }
            let plan = plan(algorithm, &shape(vec![(5, 0)])).unwrap();
            let kernels: Vec<&str> = plan.launches.iter().map(|step| step.kernel).collect();
            let wanted: &[&str] = match algorithm.name {
                "cuda-naive" => &["naive_softmax", "naive_output"],
                "cuda-fa1" => &["fa1"],
                "cuda-fa2-simt" => &["fa2_simt"],
                "cuda-fa2" => &["fa2_mma_short", "fa2_mma_combine"],
                _ => &["fa2"],
            };
            assert_eq!(kernels, wanted);
            assert!(
                plan.launches.iter().all(|step| step.shape.grid.iter().all(|&blocks| blocks > 0)),
                "{}",
                algorithm.name
            );
        }
    }

    #[test]
    fn a_window_wider_than_any_sequence_is_no_limit() {
        let sides = |mask| {
            let options = scalars(&shape(vec![(3, 3)]), &Options { mask, ..Options::default() });
            (options.left, options.right)
        };
        let window = |left, right| Mask::Window { left, right };
        assert_eq!(sides(Mask::Full), (-1, -1));
        assert_eq!(sides(Mask::Causal), (-1, 0));
        assert_eq!(sides(window(Some(3), None)), (3, -1));
        assert_eq!(sides(window(Some(usize::MAX), Some((1 << 30) - 1))), (-1, (1 << 30) - 1));
        assert_eq!(sides(window(Some(1 << 30), Some(0))), (-1, 0));
    }
}
