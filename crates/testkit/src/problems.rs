//! Proptest strategies for whole problems: any shape, GQA, strided views, masks, magnitudes, ragged batches.
//!
//! A [`Spec`] is a small plain value that proptest draws and shrinks; [`Spec::build`] fills it with seeded numbers. So a
//! counterexample shrinks in its lengths and options, and prints as one line that can be pasted into a test.

use crate::{Layout, OwnedBatch, OwnedProblem, Values};
use attention::{DType, Mask};
use ndarray::{ArrayD, Axis, IxDyn};
use proptest::prelude::*;
use proptest::sample::select;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use std::iter;

/// A problem in numbers: everything but the tensors' contents, which follow from `seed`.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Query and key length of each sequence. A dense batch takes the first pair for all.
    pub lengths: Vec<(usize, usize)>,
    /// How the sequences lie in the tensors.
    pub batch: BatchKind,
    /// kv heads.
    pub kv_heads: usize,
    /// Query heads for each kv head.
    pub group: usize,
    /// Channels of q and k.
    pub d: usize,
    /// Channels of v.
    pub d_v: usize,
    /// Whether v is the first d_v channels of k, in the same memory, as of latents; d_v is at most d then.
    pub values_are_keys: bool,
    /// Element type.
    pub dtype: DType,
    /// Memory layouts of q, k and v.
    pub layouts: [Layout; 3],
    /// As [`Options::mask`](attention::Options::mask).
    pub mask: Mask,
    /// As [`Options::scale`](attention::Options::scale).
    pub scale: Option<f64>,
    /// As [`Options::softcap`](attention::Options::softcap).
    pub softcap: f64,
    /// ALiBi slopes for each head, or for each sequence and head.
    pub alibi: Option<AlibiKind>,
    /// A bias, and whether its batch and head axes have length 1.
    pub bias: Option<(bool, bool)>,
    /// Whether there are sinks.
    pub sinks: bool,
    /// What the numbers look like.
    pub magnitude: Magnitude,
    /// What memory that belongs to no sequence holds.
    pub poison: f64,
    /// Seed of all numbers.
    pub seed: u64,
}

/// How sequences lie in the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// [`Batch::Dense`](attention::Batch::Dense).
    Dense,
    /// [`Batch::KeyLens`](attention::Batch::KeyLens), with two rows of padding behind the longest.
    KeyLens,
    /// [`Batch::Packed`](attention::Batch::Packed), with a tail of three rows that belong to no sequence.
    Packed,
}

/// The shape of ALiBi slopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlibiKind {
    /// `[heads]`.
    PerHead,
    /// `[batch, heads]`.
    PerSequence,
}

/// What the numbers of q, k and v look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Magnitude {
    /// Normal, times a factor for q and k and one for v.
    Normal {
        /// Factor of q and k: scores grow with its square.
        qk: f64,
        /// Factor of v.
        v: f64,
    },
    /// Normal with one element in a hundred ten times as large (FlashAttention-3, section 4.3, made denser).
    Outliers,
    /// All keys of a head equal: every visible key weighs the same.
    EqualKeys,
}

/// Any problem that the CPU rungs take.
pub fn problems() -> impl Strategy<Value = Spec> {
    let lengths = prop::collection::vec((length(), length()), 1..=3);
    let batch = select(vec![BatchKind::Dense, BatchKind::KeyLens, BatchKind::Packed]);
    let channels = || prop_oneof![1usize..=9, select(vec![16usize, 31, 33, 40, 64, 72, 128])];
    let dtype = select(vec![DType::F32, DType::F16, DType::Bf16]);
    let layout = || select(Layout::ALL.to_vec());
    let shape = (lengths, batch, 1usize..=3, 1usize..=5, channels(), channels(), dtype, [layout(), layout(), layout()]);
    let scale = prop_oneof![4 => Just(None), 1 => select(vec![0.0, -0.3, 1.0, 1e-3]).prop_map(Some)];
    let softcap = prop_oneof![3 => Just(0.0), 1 => select(vec![0.5, 5.0, 30.0])];
    let alibi = prop::option::weighted(0.25, select(vec![AlibiKind::PerHead, AlibiKind::PerSequence]));
    let bias = prop::option::weighted(0.25, any::<(bool, bool)>());
    let sinks = prop::bool::weighted(0.25);
    let poison = select(vec![f64::NAN, 6e4, 0.0]);
    let options = (mask(), scale, softcap, alibi, bias, sinks, magnitude(), poison, any::<u64>());
    (shape, options).prop_map(|(shape, options)| {
        let (lengths, batch, kv_heads, group, d, d_v, dtype, layouts) = shape;
        let (mask, scale, softcap, alibi, bias, sinks, magnitude, poison, seed) = options;
        #[rustfmt::skip]
        let spec = Spec {
            lengths, batch, kv_heads, group, d, d_v, values_are_keys: false, dtype, layouts,
            mask, scale, softcap, alibi, bias, sinks, magnitude, poison, seed,
        };
        spec
    })
}

/// As [`problems`], with one kv head whose values are the first channels of its keys, as in latent attention.
///
/// Keys are never all equal: values would be, too, and the roundings of a sum of equal terms go one way, which is not the
/// random walk of the error rule.
pub fn latents() -> impl Strategy<Value = Spec> {
    problems().prop_map(|spec| {
        let (d, d_v, group) = (spec.d.max(spec.d_v), spec.d.min(spec.d_v), spec.heads());
        let magnitude = match spec.magnitude {
            Magnitude::EqualKeys => Magnitude::Outliers,
            other => other,
        };
        Spec { d, d_v, group, kv_heads: 1, values_are_keys: true, magnitude, ..spec }
    })
}

/// Lengths: none, one, few, and round the tile edges of the rungs' default and smallest memories.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => 0usize..=8,
        3 => 9usize..=70,
        2 => select(vec![31usize, 32, 33, 49, 50, 51, 63, 64, 65, 99, 100, 101, 106, 107, 108, 127, 128, 129, 131]),
    ]
}

fn mask() -> impl Strategy<Value = Mask> {
    prop_oneof![
        2 => Just(Mask::Full),
        3 => Just(Mask::Causal),
        3 => (-1i64..=70, -1i64..=70).prop_map(|(left, right)| Mask::window(left, right)),
        1 => (0i64..=3, 0i64..=3).prop_map(|(left, right)| Mask::window(left, right)),
    ]
}

fn magnitude() -> impl Strategy<Value = Magnitude> {
    let normal = |qk: f64, v: f64| Just(Magnitude::Normal { qk, v });
    prop_oneof![
        4 => normal(1.0, 1.0),
        1 => normal(1e-3, 1.0),
        1 => normal(30.0, 1e3),
        1 => normal(3.0, 1e-4),
        1 => Just(Magnitude::Outliers),
        1 => Just(Magnitude::EqualKeys),
    ]
}

/// A seeded array of independent normal numbers.
pub fn normal(rng: &mut StdRng, shape: &[usize]) -> ArrayD<f64> {
    ArrayD::from_shape_simple_fn(IxDyn(shape), || rng.sample(StandardNormal))
}

impl Spec {
    /// A dense problem of one sequence with plain options, to vary from.
    pub fn plain(q_len: usize, k_len: usize, d: usize) -> Self {
        Spec {
            lengths: vec![(q_len, k_len)],
            batch: BatchKind::Dense,
            kv_heads: 1,
            group: 1,
            d,
            d_v: d,
            values_are_keys: false,
            dtype: DType::F32,
            layouts: [Layout::Contiguous; 3],
            mask: Mask::Full,
            scale: None,
            softcap: 0.0,
            alibi: None,
            bias: None,
            sinks: false,
            magnitude: Magnitude::Normal { qk: 1.0, v: 1.0 },
            poison: f64::NAN,
            seed: 0,
        }
    }

    /// Query heads.
    pub fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    /// Rows of q and of k in the tensors.
    fn rows(&self) -> (usize, usize) {
        let (q_lens, k_lens) = (self.lengths.iter().map(|l| l.0), self.lengths.iter().map(|l| l.1));
        match self.batch {
            BatchKind::Dense => self.lengths[0],
            BatchKind::KeyLens => (self.lengths[0].0, k_lens.max().unwrap_or(0) + 2),
            BatchKind::Packed => (q_lens.sum::<usize>() + 3, k_lens.sum::<usize>() + 3),
        }
    }

    /// Rows and keys of a bias: the tensors', or those of the longest packed sequences.
    fn bias_extent(&self) -> (usize, usize) {
        let longest = |of: fn(&(usize, usize)) -> usize| self.lengths.iter().map(of).max().unwrap_or(0);
        match self.batch {
            BatchKind::Dense | BatchKind::KeyLens => self.rows(),
            BatchKind::Packed => (longest(|l| l.0), longest(|l| l.1)),
        }
    }

    /// The tensors' shapes: q, k, v.
    fn shapes(&self) -> [Vec<usize>; 3] {
        let (q_rows, k_rows) = self.rows();
        let shape = |heads, rows, d| match self.batch {
            BatchKind::Packed => vec![heads, rows, d],
            BatchKind::Dense | BatchKind::KeyLens => vec![self.lengths.len(), heads, rows, d],
        };
        [
            shape(self.heads(), q_rows, self.d),
            shape(self.kv_heads, k_rows, self.d),
            shape(self.kv_heads, k_rows, self.d_v),
        ]
    }

    /// Fills the tensors.
    pub fn build(&self) -> OwnedProblem {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let [q, k, v] = self.shapes();
        let (mut q, mut k, mut v) = (normal(&mut rng, &q), normal(&mut rng, &k), normal(&mut rng, &v));
        match self.magnitude {
            Magnitude::Normal { qk, v: factor } => {
                q *= qk;
                k *= qk;
                v *= factor;
            }
            Magnitude::Outliers => {
                for tensor in [&mut q, &mut k, &mut v] {
                    tensor.mapv_inplace(|x| if rng.random_bool(0.01) { 10.0 * x } else { x });
                }
            }
            Magnitude::EqualKeys => {
                let length = Axis(k.ndim() - 2);
                k.lanes_mut(length).into_iter().for_each(|mut channel| {
                    if let Some(&first) = channel.first() {
                        channel.fill(first);
                    }
                });
            }
        }
        self.poison_unused(&mut q, &mut k, &mut v);
        let batch = self.lengths.len();
        let mut sample = |shape: &[usize], f: &mut dyn FnMut(f64) -> f32| normal(&mut rng, shape).mapv(f);
        let alibi_slopes = self.alibi.map(|kind| match kind {
            AlibiKind::PerHead => sample(&[self.heads()], &mut |x| (x.abs() / 4.0) as f32),
            AlibiKind::PerSequence => sample(&[batch, self.heads()], &mut |x| (x / 4.0) as f32),
        });
        let bias = self.bias.map(|(one_batch, one_head)| {
            let b = if one_batch { 1 } else { batch };
            let h = if one_head { 1 } else { self.heads() };
            // One key in five is hidden by -inf, so that some short rows see nothing.
            let mut hide = |x: f64| if x > 0.84 { f32::NEG_INFINITY } else { x as f32 };
            let (rows, keys) = self.bias_extent();
            let bias = sample(&[b, h, rows, keys], &mut hide);
            bias.into_dimensionality().expect("four lengths were given")
        });
        let sinks = self.sinks.then(|| {
            let sinks = sample(&[self.heads()], &mut |x| if x > 1.5 { f32::NEG_INFINITY } else { 3.0 * x as f32 });
            sinks.into_dimensionality().expect("one length was given")
        });
        let [q, k, v] = [(q, self.layouts[0]), (k, self.layouts[1]), (v, self.layouts[2])]
            .map(|(values, layout)| layout.store(&values, self.dtype));
        let v = if self.values_are_keys { Values::OfKeys(self.d_v) } else { Values::Own(v) };
        let (scale, mask, softcap, batch) = (self.scale, self.mask, self.softcap, self.owned_batch());
        OwnedProblem { q, k, v, pages: None, batch, scale, mask, softcap, alibi_slopes, bias, sinks }
    }

    fn owned_batch(&self) -> OwnedBatch {
        let offsets = |of: fn(&(usize, usize)) -> usize| {
            let ends = self.lengths.iter().scan(0, |end, length| {
                *end += of(length) as i32;
                Some(*end)
            });
            iter::once(0).chain(ends).collect()
        };
        match self.batch {
            BatchKind::Dense => OwnedBatch::Dense,
            BatchKind::KeyLens => OwnedBatch::KeyLens(self.lengths.iter().map(|l| l.1 as i32).collect()),
            BatchKind::Packed => OwnedBatch::Packed { cu_seqlens_q: offsets(|l| l.0), cu_seqlens_k: offsets(|l| l.1) },
        }
    }

    /// Overwrites what no sequence owns.
    fn poison_unused(&self, q: &mut ArrayD<f64>, k: &mut ArrayD<f64>, v: &mut ArrayD<f64>) {
        use ndarray::s;
        match self.batch {
            BatchKind::Dense => {}
            BatchKind::KeyLens => {
                for (b, &(_, k_len)) in self.lengths.iter().enumerate() {
                    k.slice_mut(s![b, .., k_len.., ..]).fill(self.poison);
                    v.slice_mut(s![b, .., k_len.., ..]).fill(self.poison);
                }
            }
            BatchKind::Packed => {
                for tensor in [q, k, v] {
                    tensor.slice_mut(s![.., -3.., ..]).fill(self.poison);
                }
            }
        }
    }
}
