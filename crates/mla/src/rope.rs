//! Rotary position embedding: pairs of channels turn with the position.
//!
//! Which channels make a pair is a convention of the weights, and there are two. Each is right if queries and keys agree on
//! it; mixed, scores are silently wrong. So the convention is a type: whatever holds rotated channels carries it, and what
//! does not fit does not compile.

use attention::AttentionError;
use ndarray::ArrayViewMut2;
use std::fmt::Debug;
use std::marker::PhantomData;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Interleaved {}
    impl Sealed for super::HalfSplit {}
}

/// Which two channels turn together.
pub trait Pairing: sealed::Sealed + Copy + Debug + Send + Sync + 'static {
    /// The channels of pair `i` among `d / 2` pairs.
    fn pair(i: usize, d: usize) -> (usize, usize);
}

/// Channels 2i and 2i + 1, as RoFormer (arXiv 2104.09864) and DeepSeek's weights pair them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interleaved;

/// Channels i and i + d/2, as GPT-NeoX and the Llama weights of Hugging Face pair them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfSplit;

// ANCHOR: pairings
impl Pairing for Interleaved {
    fn pair(i: usize, _: usize) -> (usize, usize) {
        (2 * i, 2 * i + 1)
    }
}

impl Pairing for HalfSplit {
    fn pair(i: usize, d: usize) -> (usize, usize) {
        (i, i + d / 2)
    }
}
// ANCHOR_END: pairings

/// The rotation of pairs `P` of channels: pair i turns by `position * frequency_i`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope<P> {
    frequencies: Vec<f64>,
    pairing: PhantomData<P>,
}

impl<P: Pairing> Rope<P> {
    /// The frequencies `theta^(-2i / d_rope)`; theta is 10,000 in most models.
    ///
    /// # Errors
    /// [`AttentionError::Value`] if d_rope is 0 or odd, or theta is not positive.
    pub fn new(d_rope: usize, theta: f64) -> Result<Self, AttentionError> {
        if d_rope == 0 || d_rope % 2 == 1 || d_rope > 1 << 16 {
            return AttentionError::value("d_rope", d_rope, "pairs of channels, at most 65536");
        }
        if !theta.is_finite() || theta <= 0.0 {
            return AttentionError::value("theta", theta, "a positive finite number");
        }
        Self::with_frequencies((0..d_rope / 2).map(|i| theta.powf(-2.0 * i as f64 / d_rope as f64)).collect())
    }

    /// Frequencies as given, one for each pair, such as those that YaRN interpolates.
    ///
    /// # Errors
    /// [`AttentionError::Value`] if there is none, or one that is not finite.
    pub fn with_frequencies(frequencies: Vec<f64>) -> Result<Self, AttentionError> {
        match frequencies.iter().find(|frequency| !frequency.is_finite()) {
            Some(found) => AttentionError::value("frequencies", found, "finite numbers"),
            None if frequencies.is_empty() => {
                AttentionError::value("frequencies", "none", "one for each pair of channels")
            }
            None => Ok(Rope { frequencies, pairing: PhantomData }),
        }
    }

    /// The frequency of each pair, in radians a position.
    pub fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    /// Channels that it turns.
    pub fn d_rope(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// The same rotation of pairs that lie otherwise.
    pub(crate) fn repaired<Q: Pairing>(self) -> Rope<Q> {
        Rope { frequencies: self.frequencies, pairing: PhantomData }
    }
}

/// Turns `vectors` `[any, d_rope]`, all of one token at `position`: the pair `(x, y)` becomes
/// `(x cos a - y sin a, x sin a + y cos a)` in its place, with `a = position * frequency`.
///
/// Two vectors turned at positions s and t have a product that depends on t - s alone.
///
/// ```
/// use mla::{Interleaved, Rope, rotate};
/// let mut vectors = ndarray::array![[1.0, 0.0, 0.0, 1.0]];
/// let rope = Rope::<Interleaved>::with_frequencies(vec![std::f64::consts::FRAC_PI_2, 0.0])?;
/// rotate(&rope, vectors.view_mut(), 1);
/// assert!((vectors - ndarray::array![[0.0, 1.0, 0.0, 1.0]]).iter().all(|x: &f32| x.abs() < 1e-6));
/// # Ok::<(), attention::AttentionError>(())
/// ```
///
/// # Panics
/// If the vectors have fewer channels.
// ANCHOR: rotate
pub fn rotate<P: Pairing>(rope: &Rope<P>, mut vectors: ArrayViewMut2<f32>, position: usize) {
    for (i, frequency) in rope.frequencies().iter().enumerate() {
        let (x, y) = P::pair(i, rope.d_rope());
        // The angle in f64: at position 100,000 an f32 would be off by a hundredth of a radian.
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let (sin, cos) = (sin as f32, cos as f32);
        for mut vector in vectors.rows_mut() {
            (vector[x], vector[y]) = (vector[x] * cos - vector[y] * sin, vector[x] * sin + vector[y] * cos);
        }
    }
}
// ANCHOR_END: rotate
