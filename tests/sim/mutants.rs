//! Wrong kernels: each is a prebuilt kernel with one fault put into its PTX, and is caught, at the right line.

pub(crate) mod fa3;
pub(crate) mod mma;

use crate::edit::{always, dropped, edited, first_operand, for_half_a_warp, line, never, operands, second_operand};
use crate::set_schedule;
use attention::{Attention, DType, Mask, oracle};
use device::{Device, Image};
use ladder::kernels::variants;
use ladder::registry::DEVICE_RUNGS;
use rayon::prelude::*;
use testkit::problems::{Magnitude, Spec};
use testkit::{forward_on_canaries, judge};

use Caught::{Fault, Value};

/// Schedules under which a fault must show, whatever else comes first in some of them.
const SEEDS: u64 = 4;

/// A line of CUDA: its file, and words that no other line of it has, of lines before it too if need be.
type Line = (&'static str, &'static str);

/// How a wrong kernel is caught.
enum Caught {
    /// By the simulator: the kinds of fault, of which the first is seen under some seed, and the lines of CUDA among which are
    /// all that the report names.
    Fault(&'static [&'static str], &'static [Line]),
    /// By the error rule, which names the first wrong element.
    Value,
}

struct Mutant {
    what: &'static str,
    rung: &'static str,
    /// The line whose instructions are edited.
    at: Line,
    opcode: &'static str,
    edit: fn(&str) -> String,
    caught: Caught,
}

const NAIVE: &str = "05_naive.cu";
const FA1: &str = "05_fa1.cu";
const SIMT: &str = "05_fa2_simt.cu";
const MMA: &str = "05_fa2_mma.cu";
const ROWS: &str = "tile/rows.cuh";
const TRITON: &str = "triton/fa2.py";

const NAIVE_LOAD: Line = (NAIVE, "tile[y][threadIdx.x] = from.get(first + y, column + threadIdx.x);");
const NAIVE_DOT: Line = (NAIVE, "dot[n] += q[threadIdx.y + n * WARPS][x] * k[threadIdx.x][x];");
const NAIVE_SUM: Line =
    (NAIVE, "run[n] = add_weighted(run[n], weights[threadIdx.y + n * WARPS][y], v[y][threadIdx.x]);");
const FA1_LOAD: Line = (FA1, "tile(r, c) = to_f32(from(first + r, c));");
const FA1_LOAD_LM: Line = (FA1, "l_i[r] = l[i0 + r], m_i[r] = m[i0 + r];");
const FA1_DOT: Line = (FA1, "dot += q_i(r, x) * k_j(c, x);");
const FA1_L_OLD: Line = (FA1, "const float l_old = weight(m_i[r], m_new) * l_i[r]");
const FA1_O: Line = (FA1, "o_i(r, c) = (l_old * o_i(r, c) + share * product) / l_new;");
const FA1_LM: Line = (FA1, "if (lane == 0) l_i[r] = l_new, m_i[r] = m_new;");
const FA1_P: Line = (FA1, "s_ij(r, c) = p_rc, l_tile += p_rc;");
const FA1_SUM: Line = (FA1, "product = add_weighted(product, s_ij(r, x), v_j(x, c));");
const FA1_END_O: Line = (FA1, "O(i, c) * (final_factor(m[i], l[i], head.sink) * l[i]));");
const FA1_END_L: Line = (FA1, "head.store_lse(i, log_sum_exp(m[i], l[i]));");
const FA1_WHOLE: Line = (FA1, "the tiles are whole");
const FA1_STORE_O: Line = (FA1, "O(i0 + x / problem.d_v, x % problem.d_v) = o_i(");
const FA1_STORE_LM: Line = (FA1, "l[i0 + r] = l_i[r], m[i0 + r] = m_i[r];");
const SIMT_READ: Line = (SIMT, "the tiles before have been read");
const SIMT_STORE_Q: Line = (SIMT, "q(c + e, r) = x[e];");
const SIMT_STORE_K: Line = (SIMT, "k(c + e, r) = x[e];");
const SIMT_STORE_V: Line = (SIMT, "*(float4*)v.group(r, c / 4) = make_float4(x[0], x[1], x[2], x[3]);");
const OPERANDS: Line = ("tile/outer_product.cuh", "} numbers = *(const Numbers*)from;");
const COLUMNS: Line = ("tile/outer_product.cuh", "*(float4*)to.group(column, 2 * ty + g) = make_float4(");
const TRITON_ROWS: Line = (TRITON, "inside = inside & (first + i < rows)[:, None]");
const TRITON_LOAD: Line = (TRITON, "tile = tl.load(at, mask=inside, other=0.0)");
const TRITON_S: Line = (TRITON, "s = tl.dot(q, k_j.T)");
const TRITON_O: Line = (TRITON, "o = tl.dot(p.to(v_j.dtype), v_j, o * rescale[:, None])");
const TRITON_STORE: Line = (TRITON, "tl.store(at, o_i.to(o.dtype.element_ty)");

const RACE: &[&str] = &["race"];
/// A reader that comes before the writer it should wait for.
const EARLY: &[&str] = &["race", "uninitialised memory"];
/// A reader that does not wait for a copy, or comes before it was begun.
const TOO_EARLY: &[&str] = &["copy in flight", "race", "uninitialised memory"];
const OUTSIDE: &[&str] = &["out of bounds"];
const UNWRITTEN: &[&str] = &["uninitialised memory"];

const fn dropped_barrier(
    rung: &'static str,
    at: Line,
    kinds: &'static [&'static str],
    lines: &'static [Line],
) -> Mutant {
    Mutant { what: "a dropped barrier", rung, at, opcode: "bar.sync", edit: dropped, caught: Fault(kinds, lines) }
}

const fn dropped_warp_barrier(rung: &'static str, at: Line, lines: &'static [Line]) -> Mutant {
    Mutant { opcode: "bar.warp.sync", ..dropped_barrier(rung, at, RACE, lines) }
}

/// `d = a b + c` without the c.
fn without_addend(text: &str) -> String {
    let [d, a, b, ..] = operands(text)[..] else { panic!("{text}") };
    format!("mul.f32 {d}, {a}, {b};")
}

const MUTANTS: &[Mutant] = &[
    dropped_barrier("cuda-naive", (NAIVE, "Q and K are whole"), EARLY, &[NAIVE_LOAD, NAIVE_DOT]),
    dropped_barrier("cuda-naive", (NAIVE, "Q and K have been read"), RACE, &[NAIVE_LOAD, NAIVE_DOT]),
    dropped_barrier("cuda-naive", (NAIVE, "P and V are whole"), EARLY, &[NAIVE_LOAD, NAIVE_SUM]),
    dropped_barrier("cuda-naive", (NAIVE, "P and V have been read"), RACE, &[NAIVE_LOAD, NAIVE_SUM]),
    dropped_barrier("cuda-fa1", FA1_WHOLE, EARLY, &[FA1_LOAD, FA1_LOAD_LM, FA1_DOT]),
    dropped_warp_barrier("cuda-fa1", (FA1, "the row of P~ is whole"), &[FA1_P, FA1_SUM, FA1_L_OLD, FA1_LM]),
    dropped_barrier("cuda-fa1", (FA1, "every row is done"), RACE, &[FA1_O, FA1_LM, FA1_STORE_O, FA1_STORE_LM]),
    dropped_barrier(
        "cuda-fa1",
        (FA1, "O, l and m are whole"),
        RACE,
        &[FA1_STORE_O, FA1_STORE_LM, FA1_END_O, FA1_END_L],
    ),
    dropped_barrier("cuda-fa2-simt", SIMT_READ, RACE, &[SIMT_STORE_K, SIMT_STORE_V, OPERANDS]),
    dropped_warp_barrier("cuda-fa2-simt", (SIMT, "P is whole for these rows"), &[COLUMNS, OPERANDS]),
    Mutant {
        what: "a reduction without its barrier",
        rung: "cuda-fa2-simt",
        at: (SIMT, "__syncthreads_and("),
        opcode: "bar.red",
        edit: |text| format!("mov.pred {}, {};", operands(text)[0], operands(text)[2]),
        caught: Fault(EARLY, &[SIMT_STORE_Q, SIMT_STORE_K, SIMT_STORE_V, OPERANDS]),
    },
    Mutant {
        what: "a barrier for half of a warp",
        rung: "cuda-fa2-simt",
        at: SIMT_READ,
        opcode: "bar.sync",
        edit: for_half_a_warp,
        caught: Fault(&["divergence"], &[SIMT_READ, (SIMT, "__syncthreads_and(")]),
    },
    Mutant {
        what: "a barrier of more threads than there are",
        rung: "cuda-fa2-simt",
        at: SIMT_READ,
        opcode: "bar.sync",
        edit: |_| "bar.sync 0, 160;".into(),
        caught: Fault(&["barrier"], &[SIMT_READ]),
    },
    Mutant {
        what: "a barrier of half of the threads",
        rung: "cuda-fa2-simt",
        at: SIMT_READ,
        opcode: "bar.sync",
        edit: |_| "bar.sync 0, 64;".into(),
        caught: Fault(&["race", "barrier"], &[SIMT_READ, SIMT_STORE_K, SIMT_STORE_V, OPERANDS]),
    },
    Mutant {
        what: "rows behind the last taken as rows",
        rung: "cuda-fa2-simt",
        at: (SIMT, "if (r + u * STEP < rows) four[u]"),
        opcode: "setp.ge",
        edit: never,
        caught: Fault(OUTSIDE, &[("tile/problem.cuh", "if constexpr (IN_FOURS) return *(const Four<T>*)at;")]),
    },
    Mutant {
        what: "rows of O behind the last stored",
        rung: "cuda-fa1",
        at: (FA1, "for (int x = threadIdx.x; x < rows * problem.d_v; x += THREADS) {"),
        opcode: "mul.lo",
        edit: |text| format!("{}, 99999;", text.replace("mul.lo", "mad.lo").trim_end_matches(';')),
        caught: Fault(&["uninitialised memory", "race", "out of bounds"], &[FA1_STORE_O]),
    },
    Mutant {
        what: "scores twice as far apart",
        rung: "cuda-naive",
        at: (NAIVE, "head.score(dot[n], i, j);"),
        opcode: "shl.b64",
        edit: |text| text.replace(", 2;", ", 3;"),
        caught: Fault(OUTSIDE, &[(NAIVE, "head.score(dot[n], i, j);")]),
    },
    Mutant {
        what: "rows of a tile twice as far apart",
        rung: "cuda-naive",
        at: NAIVE_LOAD,
        opcode: "mul.wide.s32",
        edit: |text| text.replace(", 132;", ", 264;"),
        caught: Fault(&["out of bounds", "race"], &[NAIVE_LOAD]),
    },
    Mutant {
        what: "l and m that are not loaded",
        rung: "cuda-fa1",
        at: FA1_LOAD_LM,
        opcode: "st.shared",
        edit: dropped,
        caught: Fault(UNWRITTEN, &[(FA1, "const float m_new = fmaxf(m_i[r], m_tile);")]),
    },
    Mutant {
        what: "O that does not begin as 0",
        rung: "cuda-fa1",
        at: (FA1, "O.data[x] = 0.0f;"),
        opcode: "st.global",
        edit: dropped,
        caught: Fault(UNWRITTEN, &[FA1_LOAD]),
    },
    Mutant {
        what: "tiles that are not stored",
        rung: "cuda-naive",
        at: NAIVE_LOAD,
        opcode: "st.shared",
        edit: dropped,
        caught: Fault(UNWRITTEN, &[NAIVE_DOT]),
    },
    Mutant {
        what: "a forgotten rescale of O",
        rung: "cuda-fa2-simt",
        at: (SIMT, "o[r][c] *= rescale;"),
        opcode: "mul.f32",
        edit: second_operand,
        caught: Value,
    },
    Mutant {
        what: "O overwritten by each tile",
        rung: "cuda-fa1",
        at: FA1_O,
        opcode: "fma",
        edit: without_addend,
        caught: Value,
    },
    dropped_barrier("triton-fa2", TRITON_LOAD, TOO_EARLY, &[TRITON_LOAD, TRITON_S, TRITON_O]),
    dropped_barrier("triton-fa2", TRITON_STORE, EARLY, &[TRITON_STORE]),
    Mutant {
        what: "a wait that is left out",
        rung: "triton-fa2",
        at: TRITON_LOAD,
        opcode: "cp.async.wait_group",
        edit: dropped,
        caught: Fault(TOO_EARLY, &[TRITON_LOAD, TRITON_S, TRITON_O]),
    },
    Mutant {
        what: "a wait for K and not for V",
        rung: "triton-fa2",
        at: TRITON_LOAD,
        opcode: "cp.async.wait_group",
        edit: |text| text.replace("2;", "3;"),
        caught: Fault(TOO_EARLY, &[TRITON_LOAD, TRITON_S, TRITON_O]),
    },
    Mutant {
        what: "rows behind the last taken as rows",
        rung: "triton-fa2",
        at: TRITON_ROWS,
        opcode: "setp.lt",
        edit: always,
        caught: Fault(OUTSIDE, &[TRITON_LOAD]),
    },
    Mutant {
        what: "tiles stored without their swizzle",
        rung: "triton-fa2",
        at: TRITON_LOAD,
        opcode: "xor.b32",
        edit: first_operand,
        caught: Value,
    },
    Mutant {
        what: "a tile taken as seen by all",
        rung: "triton-fa2",
        at: (TRITON, "s = tl.where((j + tl.arange(0, KEYS))[None, :] < ends[:, None]"),
        opcode: "setp.lt",
        edit: always,
        caught: Value,
    },
    Mutant {
        what: "top-left causal",
        rung: "triton-fa2",
        at: (TRITON, "offset = k_len - q_len"),
        opcode: "sub.s32",
        edit: |text| format!("mov.b32 {}, 0;", operands(text)[0]),
        caught: Value,
    },
    Mutant {
        what: "a forgotten rescale of O",
        rung: "triton-fa2",
        at: TRITON_O,
        opcode: "mul.f32",
        edit: second_operand,
        caught: Value,
    },
    Mutant {
        what: "a forgotten rescale of l",
        rung: "triton-fa2",
        at: (TRITON, "l = l * rescale + tl.sum(p, 1)"),
        opcode: "fma",
        edit: |text| format!("add.f32 {}, {}, {};", operands(text)[0], operands(text)[1], operands(text)[3]),
        caught: Value,
    },
    Mutant {
        what: "a sum of weights that forgets the tiles before",
        rung: "cuda-fa1",
        at: (FA1, "const float l_new = l_old + share * l_tile;"),
        opcode: "fma",
        edit: without_addend,
        caught: Value,
    },
];

#[test]
fn every_wrong_kernel_is_caught() {
    let mutants: Vec<&Mutant> = MUTANTS.iter().chain(mma::MUTANTS).chain(fa3::MUTANTS).collect();
    let passed: Vec<String> = mutants.par_iter().filter_map(|mutant| mutant.is_caught().err()).collect();
    assert!(passed.is_empty(), "{}", passed.join("\n\n"));
}

/// A few tiles of rows and keys in every kernel, the last ones not full.
fn problem() -> Spec {
    Spec { dtype: DType::F32, mask: Mask::Causal, ..Spec::plain(110, 140, 104) }
}

/// The same for a rung whose kernels for short queries split the keys.
fn short_problem() -> Spec {
    Spec { group: 3, ..Spec { lengths: vec![(5, 140)], ..problem() } }
}

impl Mutant {
    /// # Errors
    /// It is not, or in another way than it should be: what was told.
    fn is_caught(&self) -> Result<(), String> {
        let rung = DEVICE_RUNGS.iter().find(|rung| rung.name == self.rung).unwrap();
        // Of 104 channels; tiles of 64 are copied in whole.
        let (file, name, d) = match self.rung {
            "cuda-naive" => (NAIVE, "f32", 104),
            "cuda-fa1" => (FA1, "f32", 104),
            "cuda-fa2-simt" => (SIMT, "f32.d128", 104),
            "cuda-fa2" => (MMA, "f16.d64", 64),
            "fa3" => {
                let (name, d) = fa3::variant_and_channels(self.at);
                (fa3::FA3, name, d)
            }
            _ => (TRITON, "f16.d128", 104),
        };
        let variant = variants().find(|variant| variant.file == file && variant.name == name).unwrap();
        let image = Image::Ptx(edited(variant, self.at, self.opcode, self.edit));
        let (short, groups) = (mma::is_of_short_queries(self.at), mma::is_of_groups(self.at));
        let spec = match self.rung {
            "fa3" => fa3::problem(),
            _ if short => short_problem(),
            "cuda-fa2" => mma::problem(),
            _ => problem(),
        };
        // Scores far enough apart for m to move more than once.
        let magnitude = Magnitude::Normal { qk: 3.0, v: 1.0 };
        let magnitude = if file == MMA || file == fa3::FA3 { magnitude } else { spec.magnitude };
        let owned = rung.takes.narrowed(Spec { d, d_v: d, magnitude, ..spec }).build();
        let problem = owned.problem();
        let truth = oracle::truth(&problem);
        let (mut first_seen, mut last_told) = (false, String::new());
        // What is wrong under one schedule is wrong under all, but for races.
        let seeds = if matches!(self.caught, Value) { 1 } else { SEEDS };
        let mut forms = rung.forms(&Device::simulated()).unwrap();
        // The last form has many tiles of rows, and splits the keys of short queries; that before it shares them among groups.
        let form = if groups { forms.swap_remove(1) } else { forms.pop().unwrap() };
        let attention = form.with_image(variant, &image).unwrap();
        for seed in 0..seeds {
            set_schedule(attention.device(), seed);
            let (told, is_wrong) = match forward_on_canaries(&attention, &problem) {
                Err(error) => (error.to_string(), false),
                Ok(output) => {
                    let verdict = judge(&problem, &truth, &output, attention.weights(&problem));
                    (verdict.to_string(), !verdict.passes())
                }
            };
            let says = format!("{}, {} at {:?}, seed {seed}: {told}", self.rung, self.what, self.at);
            match self.caught {
                Value => {
                    if !is_wrong {
                        return Err(says);
                    }
                }
                Fault(kinds, lines) => {
                    let kind = kinds.iter().position(|kind| told.contains(&format!(": {kind}: ")));
                    first_seen |= kind == Some(0);
                    let named = |site: &str| {
                        lines.iter().any(|(file, words)| {
                            let place = format!("{file}:{}", line(file, words));
                            [",", " ", ")"].iter().any(|end| site.contains(&format!("{place}{end}")))
                        })
                    };
                    if kind.is_none() || !told.lines().skip(1).filter(|site| site.contains("PTX line")).all(named) {
                        return Err(says);
                    }
                }
            }
            last_told = told;
        }
        let as_it_should = first_seen || matches!(self.caught, Value);
        if as_it_should { Ok(()) } else { Err(format!("{} {}: other faults alone, {last_told}", self.rung, self.what)) }
    }
}
