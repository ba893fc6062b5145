//! What a result is checked against before it is timed.

use super::flops;
use attention::oracle::{Truth, truth};
use attention::{DType, Mask, Output, Problem};
use std::ops::Range;
use testkit::{Verdict, judge};

/// Rows of a window.
pub(super) const ROWS: usize = 16;

/// Visible query-key pairs of all heads, times d + d_v, up to which the oracle computes every row.
const WHOLE: f64 = (1 << 30) as f64;

/// What the oracle says of a problem: of all its rows, or, where that would take longer than about a second, of three
/// windows of 16 rows in every head: the first, the middle and the last ones.
///
/// The line is at 2^30 visible query-key pairs (of all heads) times channels (d + d_v), for which two cores take that second:
/// 4 heads of 1024 queries and keys with d = 64 are half of it, and compared whole.
///
/// A window is a problem of its own with the same answer: those rows of q with all keys, or under a causal mask with the
/// keys that the last of them sees, so that each row still sits on its own key. A rung that goes wrong between the windows
/// of a large case alone is not caught here: small cases, and the tests of the ladder, are there for that.
pub struct Answers<'a> {
    lse_shape: Vec<usize>,
    windows: Vec<Window<'a>>,
}

/// Some rows of every head, as a problem, and its true result.
struct Window<'a> {
    rows: Range<usize>,
    problem: Problem<'a>,
    truth: Truth,
}

impl<'a> Answers<'a> {
    /// Asks the oracle, in the caller's rayon pool.
    pub fn of(problem: &Problem<'a>) -> Self {
        let windows = if flops(problem) / 2.0 > WHOLE { windows(problem) } else { None };
        let whole = || vec![(0..rows(problem), problem.clone())];
        let window = |(rows, problem)| Window { truth: truth(&problem), rows, problem };
        let windows = windows.unwrap_or_else(whole).into_iter().map(window).collect();
        Answers { lse_shape: problem.lse_shape(), windows }
    }

    /// Judges an output whose weights were kept in `weights` by the error rule. The verdict is that on the worst window,
    /// with its rows counted in the whole.
    ///
    /// # Panics
    /// If the output is that of a problem of another shape.
    pub fn judge(&self, output: &Output, weights: DType) -> Verdict {
        assert_eq!(output.lse.shape(), self.lse_shape, "an output of the problem that the oracle was asked about");
        let verdicts = self.windows.iter().map(|window| window.judge(output, weights));
        verdicts.max_by(|a, b| a.ratio().total_cmp(&b.ratio())).expect("there is at least one window")
    }
}

impl Window<'_> {
    fn judge(&self, output: &Output, weights: DType) -> Verdict {
        let mut verdict = judge(&self.problem, &self.truth, &output.rows(self.rows.clone()), weights);
        let places = [verdict.o.at.iter_mut().nth_back(1), verdict.lse.at.iter_mut().next_back()];
        places.into_iter().flatten().for_each(|row| *row += self.rows.start);
        verdict
    }
}

/// Rows of each head in the tensors.
fn rows(problem: &Problem) -> usize {
    problem.lse_shape().last().copied().unwrap_or(0)
}

/// The windows of a problem; `None` if they would be all of it, or if a part of it is not a problem of the same kind: where
/// lengths differ, a distance or a bias counts, or the mask is a window itself.
fn windows<'a>(problem: &Problem<'a>) -> Option<Vec<(Range<usize>, Problem<'a>)>> {
    let (options, q_len) = (problem.options(), rows(problem));
    let plain = matches!(options.mask, Mask::Full | Mask::Causal) && options.bias.is_none();
    let plain = plain && options.alibi_slopes.is_none() && !problem.is_packed() && problem.block_table().is_none();
    if !plain || q_len <= 3 * ROWS {
        return None;
    }
    let k_len = problem.k().shape()[2];
    if problem.sequences().iter().any(|sequence| sequence.k.len() != k_len) {
        return None;
    }
    let window = |start: usize| {
        let rows = start..start + ROWS;
        let keys = 0..options.mask.visible(rows.end - 1, q_len, k_len).end;
        let (q, k, v) = (problem.q().rows(rows.clone()), problem.k().rows(keys.clone()), problem.v().rows(keys));
        (rows, Problem::dense(q, k, v, options.clone()).expect("a part of a sound problem is one"))
    };
    Some([0, (q_len - ROWS) / 2, q_len - ROWS].map(window).into())
}

#[cfg(test)]
mod tests {
    use super::{ROWS, windows};
    use attention::Mask;
    use attention::oracle::truth;
    use ndarray::{ArrayD, Axis};
    use std::ops::Range;
    use testkit::problems::{AlibiKind, BatchKind, Spec};

    /// `rows` of the axis that counts them, `from_last` axes before the last.
    fn part(whole: &ArrayD<f64>, from_last: usize, rows: &Range<usize>) -> ArrayD<f64> {
        whole.slice_axis(Axis(whole.ndim() - 1 - from_last), rows.clone().into()).to_owned()
    }

    #[test]
    fn a_window_has_the_answer_of_its_rows_in_the_whole() {
        for (mask, q_len, k_len) in [
            (Mask::Full, 100, 100),
            (Mask::Full, 49, 7),
            (Mask::Causal, 100, 100),
            (Mask::Causal, 70, 131),
            (Mask::Causal, 131, 70),
        ] {
            let spec = Spec {
                lengths: vec![(q_len, k_len); 2],
                kv_heads: 2,
                group: 3,
                mask,
                sinks: true,
                softcap: 5.0,
                ..Spec::plain(q_len, k_len, 8)
            };
            let owned = spec.build();
            let problem = owned.problem();
            let (whole, windows) = (truth(&problem), windows(&problem).unwrap());
            let starts: Vec<usize> = windows.iter().map(|(rows, _)| rows.start).collect();
            assert_eq!(starts, [0, (q_len - ROWS) / 2, q_len - ROWS]);
            for (rows, window) in windows {
                let found = truth(&window);
                for (found, whole, from_last) in [
                    (&found.o, &whole.o, 1),
                    (&found.spread, &whole.spread, 1),
                    (&found.v_norm, &whole.v_norm, 1),
                    (&found.v_max, &whole.v_max, 1),
                    (&found.lse, &whole.lse, 0),
                    (&found.reach, &whole.reach, 0),
                    (&found.s_max, &whole.s_max, 0),
                    (&found.keys, &whole.keys, 0),
                ] {
                    assert_eq!(found, &part(whole, from_last, &rows), "rows {rows:?} of {q_len} on {k_len}, {mask}");
                }
            }
        }
    }

    #[test]
    fn what_has_no_windows_is_compared_whole() {
        let plain = Spec { mask: Mask::Causal, ..Spec::plain(64, 64, 4) };
        let none = |spec: &Spec| windows(&spec.build().problem()).is_none();
        assert!(!none(&plain));
        assert!(none(&Spec { lengths: vec![(48, 64)], ..plain.clone() }), "three windows are all of it");
        assert!(none(&Spec { mask: Mask::window(4, 0), ..plain.clone() }));
        assert!(none(&Spec { bias: Some((true, true)), ..plain.clone() }));
        assert!(none(&Spec { alibi: Some(AlibiKind::PerHead), ..plain.clone() }));
        for batch in [BatchKind::KeyLens, BatchKind::Packed] {
            assert!(none(&Spec { batch, lengths: vec![(64, 64), (64, 60)], ..plain.clone() }), "{batch:?}");
        }
    }
}
