//! The sizes of a layer, and the scale that follows from them.

use attention::{AttentionError, DType};

/// The sizes of a layer, by the paper's names (arXiv 2405.04434, sections 2.1.2 and 2.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// d, channels of a token.
    pub d_model: usize,
    /// n_h, query heads.
    pub heads: usize,
    /// d_h, channels of a query or key of one head that carry no position.
    pub d_nope: usize,
    /// d_h^R, channels that RoPE turns; even. One such key serves all heads.
    pub d_rope: usize,
    /// Channels of a value of one head. The paper's are d_h too.
    pub d_v: usize,
    /// d_c, channels of the latent of keys and values.
    pub d_c: usize,
    /// d_c', channels of the latent of queries.
    pub d_cq: usize,
}

impl Dims {
    /// DeepSeek-V2, by section 3.1.2 of its paper.
    pub const DEEPSEEK_V2: Dims =
        Dims { d_model: 5120, heads: 128, d_nope: 128, d_rope: 64, d_v: 128, d_c: 512, d_cq: 1536 };

    /// d_c + d_rope: what the cache holds of a token, and the channels of the absorbed form's queries.
    pub fn latent(&self) -> usize {
        self.d_c + self.d_rope
    }

    /// d_nope + d_rope: channels of a query or key of one head.
    pub fn d_qk(&self) -> usize {
        self.d_nope + self.d_rope
    }

    pub(crate) fn check(&self) -> Result<(), AttentionError> {
        let Dims { d_model, heads, d_nope, d_rope, d_v, d_c, d_cq } = *self;
        let sizes = [
            ("d_model", d_model),
            ("heads", heads),
            ("d_nope", d_nope),
            ("d_rope", d_rope),
            ("d_v", d_v),
            ("d_c", d_c),
            ("d_cq", d_cq),
        ];
        // Sums and products of a few of them stay in range.
        let most = u32::MAX as usize / 4;
        for (name, found) in sizes {
            if found == 0 || found > most {
                return AttentionError::value(name, found, format!("1 to {most}"));
            }
        }
        if d_rope % 2 == 1 { AttentionError::value("d_rope", d_rope, "pairs of channels") } else { Ok(()) }
    }
}

/// What YaRN (arXiv 2309.00071) changes in the scores: the scale grows by `mscale^2`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// How many times as long as in training a sequence may be; at least 1.
    pub factor: f64,
    /// The weight of the logarithm, "mscale_all_dim" of DeepSeek's configurations.
    pub mscale_all_dim: f64,
}

impl Yarn {
    /// `0.1 mscale_all_dim ln(factor) + 1`.
    pub fn mscale(&self) -> f64 {
        0.1 * self.mscale_all_dim * self.factor.ln() + 1.0
    }

    pub(crate) fn check(&self) -> Result<(), AttentionError> {
        if !self.factor.is_finite() || self.factor < 1.0 {
            return AttentionError::value("yarn.factor", self.factor, "a finite number of at least 1");
        }
        if !self.mscale_all_dim.is_finite() {
            return AttentionError::value("yarn.mscale_all_dim", self.mscale_all_dim, "a finite number");
        }
        Ok(())
    }
}

/// The factor of `q . k` in every form: `1 / sqrt(d_nope + d_rope)` of equation 18, times `mscale^2` with YaRN.
///
/// The absorbed form multiplies d_c + d_rope channels, and its scale is the same: absorption moves a product, and changes
/// none.
///
/// ```
/// use mla::{Dims, scale};
/// assert_eq!(scale(&Dims::DEEPSEEK_V2, None), 1.0 / 192f64.sqrt());
/// ```
// ANCHOR: scale
pub fn scale(dims: &Dims, yarn: Option<Yarn>) -> f64 {
    let mscale = yarn.map_or(1.0, |yarn| yarn.mscale());
    mscale * mscale / (dims.d_qk() as f64).sqrt()
}
// ANCHOR_END: scale

/// Refuses types that a layer cannot have.
pub(crate) fn check_type(tensor: &'static str, found: DType) -> Result<(), AttentionError> {
    match found {
        DType::F32 | DType::F16 | DType::Bf16 => Ok(()),
        DType::F64 | DType::E4m3 => Err(AttentionError::DType { tensor, found, wanted: "F32, F16 or BF16".into() }),
    }
}
