//! In place of a language model: keys, values and queries drawn from a token and its position, and the next token drawn from
//! what attention made of them.
//!
//! Rows depend on nothing else, so that any two ways of keeping them can be compared bit for bit. And since the next token is
//! drawn from all bits of o, one wrong bit changes the rest of an answer.

use ndarray::{Array3, Array4, ArrayView1};

/// Query heads.
pub(crate) const HEADS: usize = 4;
/// Heads of keys and values.
pub(crate) const KV_HEADS: usize = 2;
/// Channels of a head.
pub(crate) const D: usize = 16;
/// Bytes that the key and the value of one token take, in F32.
pub(crate) const TOKEN_BYTES: usize = 2 * KV_HEADS * D * size_of::<f32>();
/// Token numbers are below it.
pub(crate) const VOCABULARY: u64 = 32_000;

/// What some tokens that stand one behind the other bring to attention.
pub(crate) struct Rows {
    /// `[tokens, HEADS, 1, D]`: a sequence of one query for each token.
    pub(crate) q: Array4<f32>,
    /// `[tokens, KV_HEADS, D]`.
    pub(crate) k: Array3<f32>,
    /// `[tokens, KV_HEADS, D]`.
    pub(crate) v: Array3<f32>,
}

impl Rows {
    /// The rows of `tokens`, the first of them at position `start`.
    pub(crate) fn new(tokens: &[u32], start: usize) -> Self {
        let draw = |tensor: u64, token: usize, place: usize| {
            let seed = mix(u64::from(tokens[token]) << 32 | (start + token) as u64);
            // 24 bits, evenly from -3 to 3: scores are neither all alike nor one alone.
            (mix(seed.wrapping_add(tensor << 32 | place as u64)) >> 40) as f32 * (6.0 / (1 << 24) as f32) - 3.0
        };
        let n = tokens.len();
        Rows {
            q: Array4::from_shape_fn((n, HEADS, 1, D), |(token, head, _, c)| draw(0, token, head * D + c)),
            k: Array3::from_shape_fn((n, KV_HEADS, D), |(token, head, c)| draw(1, token, head * D + c)),
            v: Array3::from_shape_fn((n, KV_HEADS, D), |(token, head, c)| draw(2, token, head * D + c)),
        }
    }
}

/// A hash of all bits of one token's o.
pub(crate) fn hash(o: ArrayView1<f32>) -> u64 {
    o.iter().fold(0, |hash, x| mix(hash ^ u64::from(x.to_bits())))
}

/// The token that follows one whose o has this hash.
pub(crate) fn next_token(hash: u64) -> u32 {
    (hash % VOCABULARY) as u32
}

/// A bijection of 64 bits in which each depends on all others: the finaliser of splitmix64.
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
