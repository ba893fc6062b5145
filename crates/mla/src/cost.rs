//! What a token costs in the cache, and what the three forms cost in arithmetic and traffic.
//!
//! All of it is counted from the shapes, none of it measured. The projections that all forms share (equations 9, 12 to 15
//! and 19) are left out.

use crate::{Dims, Form};
use attention::{AttentionError, DEFAULT_FAST_MEMORY, DType, Mask};
use fa2::Tiles;

/// What one layer caches of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// A key and a value for each kv head. As many of them as query heads are multi-head attention (MHA), fewer are grouped
    /// (GQA), one is multi-query (MQA).
    KeysAndValues {
        /// kv heads.
        kv_heads: usize,
        /// Channels of a key and of a value.
        d: usize,
    },
    /// A latent and a rotated key.
    Latent {
        /// Channels of the latent.
        d_c: usize,
        /// Channels of the rotated key.
        d_rope: usize,
    },
}

impl Cached {
    /// Numbers for each token and layer.
    ///
    /// ```
    /// use mla::Cached;
    /// let (mha, mla) = (Cached::KeysAndValues { kv_heads: 128, d: 128 }, Cached::Latent { d_c: 512, d_rope: 64 });
    /// assert_eq!((mha.elements(), mla.elements()), (32_768, 576));
    /// ```
    pub const fn elements(self) -> usize {
        match self {
            Cached::KeysAndValues { kv_heads, d } => 2 * kv_heads * d,
            Cached::Latent { d_c, d_rope } => d_c + d_rope,
        }
    }

    /// Bytes for each token and layer.
    pub const fn bytes(self, dtype: DType) -> usize {
        self.elements() * dtype.size()
    }
}

/// A published model.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Its name.
    pub name: &'static str,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// What a layer caches of a token.
    pub cached: Cached,
    /// Where the numbers stand.
    pub source: &'static str,
}

/// Models with each kind of cache.
pub const MODELS: [Model; 7] = [
    Model {
        name: "LLaMA 7B",
        layers: 32,
        heads: 32,
        cached: Cached::KeysAndValues { kv_heads: 32, d: 128 },
        source: "arXiv 2302.13971, table 2",
    },
    Model {
        name: "PaLM 540B",
        layers: 118,
        heads: 48,
        cached: Cached::KeysAndValues { kv_heads: 1, d: 256 },
        source: "arXiv 2204.02311, section 2 and table 1",
    },
    Model {
        name: "Llama 3 8B",
        layers: 32,
        heads: 32,
        cached: Cached::KeysAndValues { kv_heads: 8, d: 128 },
        source: "arXiv 2407.21783, table 3",
    },
    Model {
        name: "Llama 3 70B",
        layers: 80,
        heads: 64,
        cached: Cached::KeysAndValues { kv_heads: 8, d: 128 },
        source: "arXiv 2407.21783, table 3",
    },
    Model {
        name: "Llama 3 405B",
        layers: 126,
        heads: 128,
        cached: Cached::KeysAndValues { kv_heads: 8, d: 128 },
        source: "arXiv 2407.21783, table 3",
    },
    Model {
        name: "DeepSeek-V2",
        layers: 60,
        heads: 128,
        cached: Cached::Latent { d_c: 512, d_rope: 64 },
        source: "arXiv 2405.04434, section 3.1.2",
    },
    Model {
        name: "DeepSeek-V3",
        layers: 61,
        heads: 128,
        cached: Cached::Latent { d_c: 512, d_rope: 64 },
        source: "arXiv 2412.19437, section 4.2",
    },
];

impl Model {
    /// MHA, GQA, MQA or MLA.
    pub fn kind(&self) -> &'static str {
        match self.cached {
            Cached::KeysAndValues { kv_heads: 1, .. } => "MQA",
            Cached::KeysAndValues { kv_heads, .. } if kv_heads == self.heads => "MHA",
            Cached::KeysAndValues { .. } => "GQA",
            Cached::Latent { .. } => "MLA",
        }
    }

    /// Bytes for each token in all layers.
    pub fn bytes_per_token(&self, dtype: DType) -> usize {
        self.layers * self.cached.bytes(dtype)
    }
}

/// What a form takes beyond the projections that all of them share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Floating-point operations: two for each multiplication with its addition.
    pub flops: f64,
    /// Bytes of weights, queries, keys, values, latents and results that each step reads or writes, every tensor once a
    /// step. What a step reads again for another tile is not counted.
    pub bytes: f64,
}

impl Form {
    /// The cost of `q_len` queries, the last of which is token `k_len`, under a causal mask.
    ///
    /// With P visible pairs of query and key, H heads, `d_qk = d_nope + d_rope`, and in units of 2 H operations:
    ///
    /// - naive: `k_len d_c (d_nope + d_v) + P (d_qk + d_v)`;
    /// - fused: as naive, with the keys that each tile of queries sees in place of k_len;
    /// - absorbed: `q_len d_c (d_nope + d_v) + P (2 d_c + d_rope)`.
    ///
    /// # Errors
    /// [`AttentionError::Value`] if a layer cannot have these sizes, or the fused form has no tiles for them.
    pub fn cost(self, dims: &Dims, q_len: usize, k_len: usize, dtype: DType) -> Result<Cost, AttentionError> {
        dims.check()?;
        let tiles = Tiles::fit(DEFAULT_FAST_MEMORY, dims.d_qk(), dims.d_v)?;
        let [heads, d_nope, d_v, d_c, d_qk, latent, q, k] =
            [dims.heads, dims.d_nope, dims.d_v, dims.d_c, dims.d_qk(), dims.latent(), q_len, k_len].map(|x| x as f64);
        let pairs = Mask::Causal.pairs(q_len, k_len);
        let up = d_c * (d_nope + d_v);
        let seen = |start| Mask::Causal.visible(q_len.min(start + tiles.rows) - 1, q_len, k_len).end as f64;
        // ANCHOR: cost
        let (flops, numbers) = match self {
            Form::Naive => {
                let (decompressed, attended) = (k * (d_qk + d_v), q * (d_qk + d_v));
                (k * up + pairs * (d_qk + d_v), k * latent + heads * (up + 2.0 * decompressed + attended))
            }
            Form::Fused => {
                let decompressed: f64 = (0..q_len).step_by(tiles.rows).map(seen).sum();
                (decompressed * up + pairs * (d_qk + d_v), k * latent + heads * (up + q * (d_qk + d_v)))
            }
            Form::Absorbed => {
                let (absorbed, expanded) = (q * (d_nope + 2.0 * latent), q * (2.0 * d_c + d_v));
                (q * up + pairs * (latent + d_c), k * latent + heads * (up + absorbed + expanded))
            }
        };
        Ok(Cost { flops: 2.0 * heads * flops, bytes: dtype.size() as f64 * numbers })
        // ANCHOR_END: cost
    }
}

/// The fewest queries, the last of which is token `k_len`, for which decompressing takes fewer operations than absorbing;
/// `None` if there are none, as where `2 d_c <= d_nope + d_v`.
///
/// Of few queries among many keys each costs `2 d_c - d_nope - d_v` more for a key when absorbed, and `d_c (d_nope + d_v)`
/// less in all for not decompressing it: the quotient is where the two meet.
///
/// ```
/// use mla::{Dims, cost::crossover};
/// // 512 * 256 / (1024 - 256) is a little under 171.
/// assert_eq!(crossover(&Dims::DEEPSEEK_V2, 1 << 20), Some(171));
/// ```
pub fn crossover(dims: &Dims, k_len: usize) -> Option<usize> {
    let [d_c, channels] = [dims.d_c, dims.d_nope + dims.d_v].map(|x| x as f64);
    let spared = |q_len: usize| (k_len - q_len) as f64 * d_c * channels;
    let spent = |q_len: usize| Mask::Causal.pairs(q_len, k_len) * (2.0 * d_c - channels);
    // More queries spare less and spend more, so that the cheaper form changes once.
    let (mut fewer, mut enough) = (0, k_len);
    if k_len == 0 || spent(k_len) <= 0.0 {
        return None;
    }
    while enough - fewer > 1 {
        let q_len = fewer.midpoint(enough);
        *if spent(q_len) > spared(q_len) { &mut enough } else { &mut fewer } = q_len;
    }
    Some(enough)
}
