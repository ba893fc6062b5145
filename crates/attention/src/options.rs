//! What a caller may ask of attention beyond q, k and v.

use ndarray::{ArrayView1, ArrayView4, ArrayViewD};
use std::fmt;
use std::ops::Range;

/// Options of one call. The default is plain attention: scale `1/sqrt(d)`, no mask, nothing added.
///
/// One score is computed in this order: `s = scale * (q . k)`; with a soft cap `s = cap * tanh(s / cap)`;
/// `s -= slope * |i + off - j|` (ALiBi); `s += bias`; then the mask. Here `i` is the query row, `j` the key, and
/// `off = k_len - q_len` of the sequence, so that the last query sits on the last key.
///
/// ndarray's views are invariant in their lifetime: write a function that makes options as `fn f<'a>() -> Options<'a>`,
/// since `Options<'static>` fits no shorter-lived tensor.
#[derive(Clone, Debug, Default)]
pub struct Options<'a> {
    /// Factor of q . k. `None` is `1/sqrt(d)`; zero, negative and tiny values are used as given.
    pub scale: Option<f64>,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Soft cap of the scaled score; 0 is off.
    pub softcap: f64,
    /// ALiBi slopes `[heads]` or `[batch, heads]`; a positive slope means decay with distance.
    pub alibi_slopes: Option<ArrayViewD<'a, f32>>,
    /// Added to the scores: `[batch or 1, heads or 1, q_len, kv_len]`, in packed batches the longest q_len and k_len.
    /// A key with bias -inf is masked for that row, whatever k and v hold there.
    pub bias: Option<ArrayView4<'a, f32>>,
    /// One more logit per head `[heads]` in the denominator, with no value: neither scaled nor capped.
    /// The lse leaves it out.
    pub sinks: Option<ArrayView1<'a, f32>>,
}

/// Which keys each query row sees, aligned to the bottom right: the last row sits on the last key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mask {
    /// Every row sees every key.
    #[default]
    Full,
    /// Row i sees key j if `j <= i + off`.
    Causal,
    /// Row i sees key j if `i + off - left <= j <= i + off + right`, both ends included; `None` is no limit.
    Window {
        /// Keys before the row's own that it sees.
        left: Option<usize>,
        /// Keys after the row's own that it sees.
        right: Option<usize>,
    },
}

impl Mask {
    /// A window in the convention of FlashAttention: a negative side has no limit.
    ///
    /// ```
    /// # use attention::Mask;
    /// assert_eq!(Mask::window(2, -1), Mask::Window { left: Some(2), right: None });
    /// ```
    pub fn window(left: i64, right: i64) -> Self {
        Mask::Window { left: usize::try_from(left).ok(), right: usize::try_from(right).ok() }
    }

    /// The causal window of model configurations ("sliding_window = W"): W keys in all, the row's own among them.
    ///
    /// ```
    /// # use attention::Mask;
    /// # use std::num::NonZeroUsize;
    /// let three_keys = Mask::sliding_window(NonZeroUsize::new(3).unwrap());
    /// assert_eq!(three_keys, Mask::window(2, 0));
    /// ```
    pub fn sliding_window(keys: std::num::NonZeroUsize) -> Self {
        Mask::Window { left: Some(keys.get() - 1), right: Some(0) }
    }

    /// The keys that row `i` of `q_len` sees among `k_len`: always one range, perhaps empty.
    ///
    /// Both ends never fall from one row to the next, which is what lets a tile of rows skip whole tiles of keys.
    ///
    /// ```
    /// # use attention::Mask;
    /// assert_eq!(Mask::Causal.visible(0, 2, 5), 0..4);
    /// assert_eq!(Mask::Causal.visible(0, 5, 2), 0..0); // three rows come before the first key
    /// ```
    pub fn visible(&self, i: usize, q_len: usize, k_len: usize) -> Range<usize> {
        let (left, right) = match *self {
            Mask::Full => (None, None),
            Mask::Causal => (None, Some(0)),
            Mask::Window { left, right } => (left, right),
        };
        // i + off = i + k_len - q_len may be negative; adding q_len to every term keeps the sums unsigned.
        let own = i + k_len;
        let start = left.map_or(0, |left| own.saturating_sub(left).saturating_sub(q_len));
        let end = right.map_or(k_len, |right| own.saturating_add(right).saturating_add(1).saturating_sub(q_len));
        start.min(k_len)..end.min(k_len).max(start.min(k_len))
    }

    /// How many (row, key) pairs are visible, in closed form.
    ///
    /// ```
    /// # use attention::Mask;
    /// assert_eq!(Mask::Causal.pairs(4, 4), 10.0);
    /// assert_eq!(Mask::window(1, 0).pairs(4, 4), 7.0);
    /// ```
    pub fn pairs(&self, q_len: usize, k_len: usize) -> f64 {
        let (q, k) = (q_len as i128, k_len as i128);
        // The sum over rows i of i + c, clamped to 0..=k: a run of zeros, an arithmetic series, a run of k.
        let clamped_sum = |c: i128| {
            let first = (-c).clamp(0, q);
            let full = (k - c).clamp(first, q);
            (first + full - 1 + 2 * c) * (full - first) / 2 + (q - full) * k
        };
        let (left, right) = match *self {
            Mask::Full => (None, None),
            Mask::Causal => (None, Some(0)),
            Mask::Window { left, right } => (left, right),
        };
        let ends = right.map_or(q * k, |right| clamped_sum(k - q + right as i128 + 1));
        let starts = left.map_or(0, |left| clamped_sum(k - q - left as i128));
        (ends - starts) as f64
    }
}

/// `full`, `causal`, or `window:L,R` in the convention of [`Mask::window`], with -1 for no limit.
impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = |limit: Option<usize>| limit.map_or("-1".into(), |keys| keys.to_string());
        match *self {
            Mask::Full => f.write_str("full"),
            Mask::Causal => f.write_str("causal"),
            Mask::Window { left, right } => write!(f, "window:{},{}", limit(left), limit(right)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Mask;

    /// Every visible pair, by the definition.
    fn sees(left: i64, right: i64, (i, q_len): (i64, i64), (j, k_len): (i64, i64)) -> bool {
        let own = i + k_len - q_len;
        (left < 0 || j >= own - left) && (right < 0 || j <= own + right)
    }

    #[test]
    fn visible_and_pairs_agree_with_the_definition() {
        for (q_len, k_len) in [(0, 3), (3, 0), (1, 1), (1, 7), (7, 1), (5, 5), (4, 9), (9, 4)] {
            for (left, right) in [(-1, -1), (-1, 0), (0, 0), (2, 0), (0, 2), (3, 1), (-1, 2), (50, 50)] {
                let mask = Mask::window(left, right);
                let mut pairs = 0;
                for i in 0..q_len {
                    let keys: Vec<i64> = (0..k_len).filter(|&j| sees(left, right, (i, q_len), (j, k_len))).collect();
                    let visible = mask.visible(i as usize, q_len as usize, k_len as usize);
                    let found: Vec<i64> = visible.map(|j| j as i64).collect();
                    assert_eq!(found, keys, "row {i} of {q_len} x {k_len} under {mask:?}");
                    pairs += keys.len();
                }
                assert_eq!(mask.pairs(q_len as usize, k_len as usize), pairs as f64, "{q_len} x {k_len} {mask:?}");
            }
        }
    }

    #[test]
    fn the_widest_window_is_no_window() {
        let mask = Mask::Window { left: Some(usize::MAX), right: Some(usize::MAX) };
        assert_eq!(mask.visible(2, 5, 9), 0..9);
    }
}
