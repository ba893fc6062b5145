//! What is measured.

use crate::registry::{RUNGS, Rung, Settings};
use attention::{Attention, DType, Mask, Sequence};
use cuda_fa2::Shape;
use std::fmt;
use testkit::OwnedProblem;
use testkit::problems::Spec;

/// Seed of all inputs: two people who measure a case measure the same numbers.
const SEED: u64 = 14;

/// Sequences that one decoding step serves: one query each leaves a machine idle if there are few.
const DECODE_BATCH: usize = 16;

/// The rung that is written for speed, and stands beside attention libraries.
pub const FASTEST: &str = "fa2-simd";

/// One shape to measure. Inputs are normal, never zeros: on some machines arithmetic on zeros costs less power, and so
/// less time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Element type.
    pub dtype: DType,
    /// Channels of a head, in q, k and v.
    pub d: usize,
    /// Channels of v where v is no tensor of its own but the first channels of k.
    pub latent: Option<usize>,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Sequences.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Queries of a sequence.
    pub q_len: usize,
    /// Keys of a sequence.
    pub kv_len: usize,
}

/// The cases of length `n`: whole sequences, full and causal, and a decoding step on `n` keys.
pub fn cases(n: usize) -> [Case; 3] {
    let (mask, batch) = (Mask::Full, 1);
    let full = Case { dtype: DType::F32, d: 64, latent: None, mask, batch, heads: 4, kv_heads: 4, q_len: n, kv_len: n };
    [full, Case { mask: Mask::Causal, ..full }, Case { batch: DECODE_BATCH, q_len: 1, ..full }]
}

/// The cases of length `n` for rungs that run on a device: enough heads to fill one, full and causal.
pub fn device_cases(n: usize) -> [Case; 2] {
    let [full, causal, _] = cases(n);
    [full, causal].map(|case| Case { batch: 4, heads: 16, kv_heads: 16, ..case })
}

/// The sizes at which attention libraries are compared on a CPU: F32 and BF16, d 64 and 128, 512 to 8192 queries and keys,
/// full and causal, one sequence of 16 heads; and, in both types, a decoding step of 32 heads on 8 over 16384 keys.
pub fn peers() -> Vec<Case> {
    let mut peers = Vec::new();
    for dtype in [DType::F32, DType::Bf16] {
        for d in [64, 128] {
            for n in [512, 1024, 2048, 4096, 8192] {
                let [full, causal, _] = cases(n).map(|case| Case { dtype, d, heads: 16, kv_heads: 16, ..case });
                peers.extend([full, causal]);
            }
        }
        let mask = Mask::Full;
        let (batch, heads, kv_heads) = (1, 32, 8);
        peers.push(Case { dtype, d: 128, latent: None, mask, batch, heads, kv_heads, q_len: 1, kv_len: 16384 });
    }
    peers
}

/// The cases of length `n` for rungs that take latents alone: a decoding step on `n` latents of DeepSeek-V2's sizes, for
/// 128 heads, and for the 16 of them that one of eight machines has.
pub fn latents(n: usize) -> [Case; 2] {
    let [.., step] = cases(n);
    let all = Case { d: 576, latent: Some(512), batch: 1, heads: 128, kv_heads: 1, ..step };
    [all, Case { heads: 16, ..all }]
}

/// The cases of length `n` that all these rungs take: [`latents`] if one of them takes nothing else, or [`cases`].
pub fn cases_for(rungs: &[&Rung], n: usize) -> Vec<Case> {
    if rungs.iter().any(|rung| rung.latents) { latents(n).into() } else { cases(n).into() }
}

/// The rungs of these chapters, each with the one below it, from the lowest up. No chapters are all chapters, without the
/// rungs that take latents alone.
pub fn rungs(chapters: &[u32]) -> Vec<&'static Rung> {
    let asked = |rung: &Rung| if chapters.is_empty() { !rung.latents } else { chapters.contains(&rung.chapter) };
    let takes_part = |&place: &usize| asked(&RUNGS[place]) || RUNGS.get(place + 1).is_some_and(asked);
    (0..RUNGS.len()).filter(takes_part).map(|place| &RUNGS[place]).collect()
}

/// The rungs, ready to run with the settings that every benchmark uses.
pub fn build(rungs: &[&Rung]) -> Vec<Box<dyn Attention>> {
    rungs.iter().map(|rung| rung.build(Settings::default())).collect()
}

impl Case {
    /// What a rung on a device plans with.
    pub fn shape(&self) -> Shape {
        let Case { dtype, d, latent, batch, heads, kv_heads, q_len, kv_len, .. } = *self;
        let sequences = vec![Sequence { q: 0..q_len, k: 0..kv_len }; batch];
        Shape { dtype, heads, kv_heads, d, d_v: latent.unwrap_or(d), packed: false, sequences }
    }

    /// Fills the tensors with seeded normal numbers.
    pub fn build(&self) -> OwnedProblem {
        let Case { dtype, d, latent, mask, batch, heads, kv_heads, q_len, kv_len } = *self;
        let (lengths, group) = (vec![(q_len, kv_len); batch], heads / kv_heads);
        let (d_v, values_are_keys) = (latent.unwrap_or(d), latent.is_some());
        let plain = Spec::plain(q_len, kv_len, d);
        Spec { lengths, kv_heads, group, d_v, values_are_keys, dtype, mask, seed: SEED, ..plain }.build()
    }

    /// Whether it is a decoding step, which moves bytes more than it computes.
    pub fn is_decode(&self) -> bool {
        self.q_len == 1
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { dtype, d, latent, mask, batch, heads, kv_heads, q_len, kv_len } = self;
        let latent = latent.map_or(String::new(), |d_v| format!(", the first {d_v} values too"));
        write!(f, "{dtype} {mask} batch {batch} heads {heads} on {kv_heads} q {q_len} kv {kv_len} d {d}{latent}")
    }
}

#[cfg(test)]
mod tests {
    use super::{FASTEST, build, cases, device_cases, latents, peers, rungs};
    use crate::registry::rung;
    use cuda_fa2::Shape;

    #[test]
    fn a_chapter_brings_the_rung_below_it() {
        let names = |chapters: &[u32]| rungs(chapters).iter().map(|rung| rung.name).collect::<Vec<_>>();
        assert_eq!(names(&[1]), ["naive"]);
        assert_eq!(names(&[4]), ["fa1", "fa2", "fa2-simd"]);
        assert_eq!(names(&[2, 4]), ["naive", "online-softmax", "fa1", "fa2", "fa2-simd"]);
        assert_eq!(names(&[7]), ["fa2-simd", "paged", "paged-simd"]);
        assert_eq!(names(&[8]), ["paged-simd", "mla-absorbed"]);
        assert!(!names(&[]).contains(&"mla-absorbed") && names(&[]).len() >= 5);
    }

    #[test]
    fn latents_are_what_the_rungs_for_them_take() {
        for case in latents(9) {
            let owned = case.build();
            let problem = owned.problem();
            assert_eq!((problem.d(), problem.d_v(), problem.kv_heads()), (576, 512, 1), "{case}");
            for rung in build(&rungs(&[8])) {
                assert_eq!(rung.supports(&problem), Ok(()), "{case}");
            }
        }
    }

    #[test]
    fn peers_are_two_types_of_ten_lengths_and_a_step_each() {
        let peers = peers();
        assert_eq!(peers.len(), 2 * (2 * 5 * 2 + 1));
        assert!((1..).zip(&peers).all(|(next, case)| !peers[next..].contains(case)), "each once");
        assert_eq!(peers.iter().filter(|case| case.is_decode()).count(), 2);
        assert_eq!(peers[38].to_string(), "BF16 causal batch 1 heads 16 on 16 q 4096 kv 4096 d 128");
        assert_eq!(peers[20].to_string(), "F32 full batch 1 heads 32 on 8 q 1 kv 16384 d 128");
        assert!(rung(FASTEST).is_some());
    }

    #[test]
    fn a_device_plans_with_the_shape_of_what_is_built() {
        for case in device_cases(5).into_iter().chain(latents(3)) {
            assert_eq!(case.shape(), Shape::from(&case.build().problem()), "{case}");
        }
    }

    #[test]
    fn inputs_are_seeded_and_not_zero() {
        for case in cases(16) {
            let (owned, again) = (case.build(), case.build());
            let (problem, again) = (owned.problem(), again.problem());
            assert_eq!(problem.q().shape(), [case.batch, case.heads, case.q_len, case.d], "{case}");
            assert_eq!(problem.k().shape(), [case.batch, case.kv_heads, case.kv_len, case.d], "{case}");
            assert_eq!((problem.dtype(), problem.options().mask), (case.dtype, case.mask), "{case}");
            for (tensor, again) in [(problem.q(), again.q()), (problem.k(), again.k()), (problem.v(), again.v())] {
                let numbers = tensor.to_f64();
                assert!(numbers.iter().all(|&x| x != 0.0), "{case}");
                assert_eq!(numbers, again.to_f64(), "{case}");
            }
        }
    }
}
