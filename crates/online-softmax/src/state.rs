//! What a row has seen so far: the running maximum, the running sum, and the output not yet divided.

use attention::{sink_factor, weight};
use ndarray::{Array1, ArrayView1};

/// The softmax of a row over some keys, in a form that can grow and merge.
///
/// `m` is the largest score, `l = sum_j e^(s_j - m)`, `o = sum_j e^(s_j - m) v_j`. States over disjoint keys form a
/// commutative monoid under [`merge`](State::merge), up to rounding, with [`empty`](State::empty) its identity
/// (-inf, 0, 0).
///
/// o is divided once, at the end, so `sum_j |v_j|` of a row must fit f32: with v of up to 3e38 two keys can overflow.
///
/// ```
/// use ndarray::array;
/// use online_softmax::State;
///
/// // Two equal scores average their values; a third, ln 2 higher, weighs as much as both.
/// let mut state = State::empty(1);
/// state.push(1.0, array![3.0].view());
/// state.push(1.0, array![5.0].view());
/// state.push(1.0 + 2f32.ln(), array![8.0].view());
/// let (o, lse) = state.finish(f32::NEG_INFINITY);
/// assert!((o[0] - 6.0).abs() < 1e-6);
/// assert!((lse - (1.0 + 4f32.ln())).abs() < 1e-6);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The largest score; -inf while there is none.
    pub m: f32,
    /// The sum of the weights `e^(s_j - m)`; 0 exactly for an empty state.
    pub l: f32,
    /// The weighted sum of the values, `[d_v]`.
    pub o: Array1<f32>,
}

impl State {
    /// No key seen: the identity of [`merge`](State::merge).
    pub fn empty(d_v: usize) -> Self {
        State { m: f32::NEG_INFINITY, l: 0.0, o: Array1::zeros(d_v) }
    }

    /// The state of a finished partial result, as another kernel returns it: o divided, lse natural and without a sink.
    ///
    /// A partial with lse -inf is empty, and so is one with +inf, which some kernels return for a row that saw no key;
    /// whatever its o holds is dropped.
    pub fn from_partial(o: ArrayView1<f32>, lse: f32) -> Self {
        if lse.is_infinite() { State::empty(o.len()) } else { State { m: lse, l: 1.0, o: o.to_owned() } }
    }

    /// Takes in one key: its score and its value `[d_v]`. A score of -inf is a hidden key, whose value is not read.
    pub fn push(&mut self, s: f32, v: ArrayView1<f32>) {
        if s == f32::NEG_INFINITY {
            return;
        }
        if s > self.m {
            self.rescale(s);
        }
        let p = weight(s, self.m);
        self.l += p;
        self.o.scaled_add(p, &v);
    }

    /// Takes in the keys of another state over other keys.
    pub fn merge(&mut self, other: &State) {
        if other.l == 0.0 {
            return;
        }
        if other.m > self.m {
            self.rescale(other.m);
        }
        let factor = weight(other.m, self.m);
        self.l += factor * other.l;
        self.o.scaled_add(factor, &other.o);
    }

    /// Expresses the state against a maximum `m` no lower than its own: l and o shrink by `e^(m_old - m)`.
    pub fn rescale(&mut self, m: f32) {
        let factor = weight(self.m, m);
        self.l *= factor;
        self.o *= factor;
        self.m = m;
    }

    /// The one division: the row's output `[d_v]` and lse. A `sink` (-inf for none) joins the denominator here, once,
    /// and stays out of lse. An empty state gives zeros and -inf.
    pub fn finish(mut self, sink: f32) -> (Array1<f32>, f32) {
        if self.l == 0.0 {
            self.o.fill(0.0);
            return (self.o, f32::NEG_INFINITY);
        }
        self.o *= sink_factor(sink, self.m, self.l) / self.l;
        (self.o, self.m + self.l.ln())
    }
}
