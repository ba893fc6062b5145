//! Wrong kernels: each is a prebuilt kernel with one fault put into its PTX, and is caught, at the right line.

use crate::simulated;
use crate::edit::{dropped, edited, for_half_a_warp, line, never, operands};
use attention::{Attention, DType, Mask, oracle};
use cuda_fa2::variants;
use device::Image;
use ladder::registry::DEVICE_RUNGS;
use testkit::problems::{BatchKind, Spec};
use testkit::{forward_on_canaries, judge};

/// Schedules under which a fault of order must show: in some of them another may come first.
const SEEDS: u64 = 6;

/// How a wrong kernel is caught.
enum Caught {
    /// By the simulator: the kind of fault, and lines of CUDA of which all that it names are.
    Fault(&'static str, &'static [(&'static str, &'static str)]),
    /// By the error rule, with the first wrong element.
    Value,
}

use Caught::{Fault, Value};

struct Mutant {
    what: &'static str,
    rung: &'static str,
    /// File and words of the line whose instructions are edited.
    at: (&'static str, &'static str),
    opcode: &'static str,
    edit: fn(&str) -> String,
    caught: Caught,
}

const NAIVE: &str = "05_naive.cu";
const FA1: &str = "05_fa1.cu";
const SIMT: &str = "05_fa2_simt.cu";

/// The lines of each kernel that touch shared memory or its workspace.
const NAIVE_LOAD: Line = (NAIVE, "tile[y][threadIdx.x] = from.get(first + y, column + threadIdx.x);");
const NAIVE_DOT: Line = (NAIVE, "dot[n] += q[threadIdx.y + n * WARPS][x] * k[threadIdx.x][x];");
const NAIVE_SUM: Line = (NAIVE, "run[n] = add_weighted(run[n], weights[threadIdx.y + n * WARPS][y], v[y][threadIdx.x]);");
const FA1_LOAD: Line = (FA1, "tile(r, c) = to_f32(from(first + r, c));");
const FA1_DOT: Line = (FA1, "dot += q_i(r, x) * k_j(c, x);");

type Line = (&'static str, &'static str);

const fn dropped_barrier(rung: &'static str, at: Line, opcode: &'static str, lines: &'static [Line]) -> Mutant {
    Mutant { what: "a dropped barrier", rung, at, opcode, edit: dropped, caught: Fault("race", lines) }
}

const MUTANTS: &[Mutant] = &[
    dropped_barrier("cuda-fa1", (FA1, "the tiles before have been read, and may be overwritten"), "bar.sync", &[]),
    dropped_barrier("cuda-fa1", (FA1, "have been read or stored, and O is written"), "bar.sync", &[]),
    dropped_barrier("cuda-fa1", (FA1, "the tiles are whole"), "bar.sync", &[]),
    dropped_barrier("cuda-fa1", (FA1, "the row of P~ is whole"), "bar.warp.sync", &[]),
    dropped_barrier("cuda-fa1", (FA1, "every row is done"), "bar.sync", &[]),
    dropped_barrier("cuda-fa2-simt", (SIMT, "the tiles before have been read"), "bar.sync", &[]),
    dropped_barrier("cuda-fa2-simt", (SIMT, "P is whole for these rows"), "bar.warp.sync", &[]),
    Mutant {
        what: "a reduction without its barrier",
        rung: "cuda-fa2-simt",
        at: (SIMT, "__syncthreads_and("),
        opcode: "bar.red",
        edit: |text| format!("mov.pred {}, {};", operands(text)[0], operands(text)[2]),
        caught: Fault("race", &[]),
    },
    Mutant {
        what: "rows behind the last taken as rows",
        rung: "cuda-fa2-simt",
        at: (SIMT, "if (r + u * STEP < rows) four[u]"),
        opcode: "setp.ge",
        edit: never,
        caught: Fault("out of bounds", &[]),
    },
    Mutant {
        what: "O stored behind the last row",
        rung: "cuda-fa1",
        at: (FA1, "O(i0 + x / problem.d_v, x % problem.d_v) = o_i("),
        opcode: "mul.lo",
        edit: |text| format!("{}, 99999;", text.replace("mul.lo", "mad.lo").trim_end_matches(';')),
        caught: Fault("out of bounds", &[]),
    },
    Mutant {
        what: "scores stored twice as far apart",
        rung: "cuda-naive",
        at: (NAIVE, "head.score(dot[n], i, j);"),
        opcode: "shl.b64",
        edit: |text| text.replace(", 2;", ", 3;"),
        caught: Fault("out of bounds", &[]),
    },
    Mutant {
        what: "rows of a tile twice as far apart",
        rung: "cuda-naive",
        at: NAIVE_LOAD,
        opcode: "mul.wide.s32",
        edit: |text| text.replace(", 132;", ", 264;"),
        caught: Fault("out of bounds", &[]),
    },
    Mutant {
        what: "l and m that are not loaded",
        rung: "cuda-fa1",
        at: (FA1, "l_i[r] = l[i0 + r], m_i[r] = m[i0 + r];"),
        opcode: "st.shared",
        edit: dropped,
        caught: Fault("uninitialised memory", &[]),
    },
    Mutant {
        what: "O that does not begin as 0",
        rung: "cuda-fa1",
        at: (FA1, "O.data[x] = 0.0f;"),
        opcode: "st.global",
        edit: dropped,
        caught: Fault("uninitialised memory", &[]),
    },
    Mutant {
        what: "a tile that is not stored",
        rung: "cuda-naive",
        at: NAIVE_LOAD,
        opcode: "st.shared",
        edit: dropped,
        caught: Fault("uninitialised memory", &[]),
    },
    Mutant {
        what: "a barrier for half of a warp",
        rung: "cuda-fa1",
        at: (FA1, "the tiles are whole"),
        opcode: "bar.sync",
        edit: for_half_a_warp,
        caught: Fault("divergence", &[]),
    },
    Mutant {
        what: "a barrier of more threads than there are",
        rung: "cuda-fa2-simt",
        at: (SIMT, "the tiles before have been read"),
        opcode: "bar.sync",
        edit: |_| "bar.sync 0, 160;".into(),
        caught: Fault("barrier", &[]),
    },
    Mutant {
        what: "a barrier of fewer threads than there are",
        rung: "cuda-fa2-simt",
        at: (SIMT, "the tiles before have been read"),
        opcode: "bar.sync",
        edit: |_| "bar.sync 0, 64;".into(),
        caught: Fault("race", &[]),
    },
    Mutant {
        what: "a forgotten rescale of O",
        rung: "cuda-fa2-simt",
        at: (SIMT, "o[r][c] *= rescale;"),
        opcode: "mul.f32",
        edit: |text| format!("mov.f32 {}, {};", operands(text)[0], operands(text)[2]),
        caught: Value,
    },
    Mutant {
        what: "O overwritten by each tile",
        rung: "cuda-fa1",
        at: (FA1, "o_i(r, c) = (l_old * o_i(r, c) + share * product) / l_new;"),
        opcode: "fma",
        edit: |text| format!("mul.f32 {}, {}, {};", operands(text)[0], operands(text)[1], operands(text)[2]),
        caught: Value,
    },
    Mutant {
        what: "a sum of weights that forgets the tiles before",
        rung: "cuda-fa1",
        at: (FA1, "const float l_new = l_old + share * l_tile;"),
        opcode: "fma",
        edit: |text| format!("mul.f32 {}, {}, {};", operands(text)[0], operands(text)[1], operands(text)[2]),
        caught: Value,
    },
];

#[test]
fn every_wrong_kernel_is_caught() {
    for mutant in MUTANTS {
        mutant.is_caught();
    }
}

/// A few tiles of each kernel, the last ones not full.
fn problem() -> Spec {
    Spec {
        lengths: vec![(70, 75), (33, 70)],
        batch: BatchKind::KeyLens,
        kv_heads: 1,
        group: 2,
        dtype: DType::F32,
        mask: Mask::Causal,
        ..Spec::plain(70, 75, 40)
    }
}

impl Mutant {
    fn is_caught(&self) {
        let rung = DEVICE_RUNGS.iter().find(|rung| rung.name == self.rung).unwrap();
        let file = self.rung.trim_start_matches("cuda-").replace('-', "_");
        let variant = variants().find(|variant| variant.file == format!("05_{file}.cu")).unwrap();
        let image = Image::Ptx(edited(variant, self.at, self.opcode, self.edit).into());
        let owned = problem().build();
        let problem = owned.problem();
        let truth = oracle::truth(&problem);
        println!("=== {} {} {:?}", self.rung, self.what, self.at);
        for seed in 0..SEEDS {
            let attention = rung.build(&simulated(seed)).unwrap().with_image(variant, &image).unwrap();
            let told = match forward_on_canaries(&attention, &problem) {
                Err(error) => error.to_string(),
                Ok(output) => {
                    let verdict = judge(&problem, &truth, &output, attention.weights(&problem));
                    if verdict.passes() { println!("PASSES"); }
                    verdict.to_string()
                }
            };
            println!("{}: seed {seed}: {told}\n", self.what);
        }
    }
}
