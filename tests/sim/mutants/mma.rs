//! Wrong variants of `05_fa2_mma.cu`, and of what it includes.

use super::Caught::{Fault, Value};
use super::{EARLY, Line, MMA, Mutant, OUTSIDE, ROWS, TOO_EARLY, UNWRITTEN, dropped_barrier};
use crate::edit::{always, dropped, first_operand, for_half_a_warp, never, operands, second_operand};

const CP_ASYNC: &str = "ptx/cp_async.cuh";
const LDMATRIX: &str = "ptx/ldmatrix.cuh";
const HALVES: &str = "tile/halves.cuh";
const RESULTS: &str = "tile/results.cuh";
const SPLITS: &str = "tile/splits.cuh";

const COPY: Line = (CP_ASYNC, "[%0], [%1], 16;\"");
const COPY_SOME: Line = (CP_ASYNC, "[%0], [%1], 16, %2;\"");
const WAIT: Line = (CP_ASYNC, "cp.async.wait_group");
const WHOLE: Line = (MMA, "they are whole for all threads");
const SHARED: Line = (MMA, "if (threadIdx.x == 0) at = place, k_rows = head.k, v_rows = head.v;");
const STAGES: Line = (MMA, "j0 += B::KEYS, stage ^= 1");
const RESCALE: Line = (ROWS, "state.o.of_row(r, c, 0) *= rescale[r]");
const STORE_O: Line = (RESULTS, "if (wanted) store_global(");
const STORE_LSE: Line = ("tile/problem.cuh", "{ lse[i * lse_row] = value; }");
// Instructions of several lines are of the last that has operands.
const OPERANDS: Line = (
    LDMATRIX,
    "x4.shared.b16 {%0, %1, %2, %3}, [%4];\"\n        : \"=r\"(matrices[0]), \"=r\"(matrices[1]), \"=r\"(matrices[2]), \"=r\"(matrices[3])\n        : \"r\"(row)",
);
const VALUES: Line = (
    LDMATRIX,
    "x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\"\n        : \"=r\"(matrices[0]), \"=r\"(matrices[1]), \"=r\"(matrices[2]), \"=r\"(matrices[3])\n        : \"r\"(row)",
);
const PART: Line = (RESULTS, "if (wanted && lane == 0) splits.m[part] = m, splits.l[part] = l;");
const SUMS: Line = (SPLITS, "of_warps[warp][c] = o[x].x");
const SUM: Line = (SPLITS, "sum = add_weighted(sum, share[w], of_warps[w][c]);");
const PUT_STATE: Line = (SPLITS, "if (lane == 0) m_of_warps[warp] = m");
const GET_M: Line = (SPLITS, "for (float m_of : m_of_warps)");
const GET_STATE: Line = (SPLITS, "share[w] = weight(m_of_warps[w], m)");
/// All that reads and writes tiles of `cuda-fa2` in shared memory.
const TILES: &[Line] = &[COPY, COPY_SOME, OPERANDS, VALUES];
/// The same, and what else threads share: written once, read to begin copies and to see whether a tile is whole.
const UNORDERED: &[Line] = &[
    COPY,
    COPY_SOME,
    OPERANDS,
    VALUES,
    SHARED,
    (HALVES, "if (begin < wanted.start || begin + COUNT > wanted.end"),
    (HALVES, "const bool in_chunks = from.in_chunks();"),
    (HALVES, "const int numbers = inside ?"),
    (HALVES, "const auto* first = from.at(begin + r)"),
    (MMA, "j0 > at.whole.end) hide("),
    (ROWS, "const Range keys = at.visible(at.own(r));"),
    (MMA, "if (j0 + B::KEYS < end) start_to_load("),
    (MMA, "(k(stage), k_rows, j0, wanted);"),
    (MMA, "(v(stage), v_rows, j0, wanted);"),
];

/// Whether a line is of the kernels for short queries alone.
pub(super) fn is_of_short_queries(at: Line) -> bool {
    at.0 == SPLITS || at == PART
}

pub(super) const MUTANTS: &[Mutant] = &[
    dropped_barrier("cuda-fa2", WHOLE, EARLY, UNORDERED),
    dropped_barrier(
        "cuda-fa2",
        (SPLITS, "what all warps have found is there"),
        EARLY,
        &[SUMS, SUM, PUT_STATE, GET_M, GET_STATE],
    ),
    Mutant {
        what: "a barrier for half of a warp",
        rung: "cuda-fa2",
        at: WHOLE,
        opcode: "bar.sync",
        edit: for_half_a_warp,
        caught: Fault(&["race", "uninitialised memory", "divergence"], UNORDERED),
    },
    Mutant {
        what: "a wait one stage early",
        rung: "cuda-fa2",
        at: WAIT,
        opcode: "cp.async.wait_group",
        edit: |text| text.replace("0;", "1;"),
        caught: Fault(TOO_EARLY, TILES),
    },
    Mutant {
        what: "a wait that is left out",
        rung: "cuda-fa2",
        at: WAIT,
        opcode: "cp.async.wait_group",
        edit: dropped,
        caught: Fault(TOO_EARLY, TILES),
    },
    Mutant {
        what: "copies of no group",
        rung: "cuda-fa2",
        at: (CP_ASYNC, "cp.async.commit_group"),
        opcode: "cp.async.commit_group",
        edit: dropped,
        caught: Fault(TOO_EARLY, TILES),
    },
    Mutant {
        what: "the same stage read for each tile",
        rung: "cuda-fa2",
        at: STAGES,
        opcode: "xor.b32",
        edit: first_operand,
        caught: Value,
    },
    Mutant {
        what: "rows behind the last copied",
        rung: "cuda-fa2",
        at: COPY_SOME,
        opcode: "cp.async",
        edit: |text| format!("cp.async.cg.shared.global {}, {}, 16;", operands(text)[0], operands(text)[1]),
        caught: Fault(OUTSIDE, &[COPY_SOME]),
    },
    Mutant {
        what: "rows of O behind the last stored",
        rung: "cuda-fa2",
        at: (RESULTS, "!careful && at.own(r) < at.end_row);"),
        opcode: "setp.lt.s32",
        edit: always,
        caught: Fault(OUTSIDE, &[STORE_O, STORE_LSE]),
    },
    Mutant {
        what: "a part of the keys whose l and m are not stored",
        rung: "cuda-fa2",
        at: PART,
        opcode: "st.global",
        edit: dropped,
        caught: Fault(UNWRITTEN, &[(SPLITS, "m_of[f] = split < splits.count ? splits.m[row]")]),
    },
    Mutant {
        what: "keys behind the last not hidden",
        rung: "cuda-fa2",
        at: (ROWS, "if (j < keys.start || j >= keys.end) s.of_row(r, n, e) = NEG_INFINITY;"),
        opcode: "setp.ge",
        edit: never,
        caught: Value,
    },
    Mutant {
        what: "values that are not transposed",
        rung: "cuda-fa2",
        at: VALUES,
        opcode: "ldmatrix",
        edit: |text| text.replace(".trans", ""),
        caught: Value,
    },
    Mutant {
        what: "matrices read by a swizzle that is not that of the copies",
        rung: "cuda-fa2",
        at: (HALVES, "return (at ^ chunks % RUN * 16)"),
        opcode: "xor.b32",
        edit: first_operand,
        caught: Value,
    },
    Mutant {
        what: "weights the wrong way round",
        rung: "cuda-fa2",
        at: ("ptx/cvt.cuh", "cvt.rn.f16x2.f32"),
        opcode: "cvt.rn.f16x2.f32",
        edit: |text| {
            let [to, high, low] = operands(text)[..] else { panic!("{text}") };
            format!("cvt.rn.f16x2.f32 {to}, {low}, {high};")
        },
        caught: Value,
    },
    Mutant {
        what: "a forgotten rescale of O",
        rung: "cuda-fa2",
        at: RESCALE,
        opcode: "mul.f32",
        edit: second_operand,
        caught: Value,
    },
    Mutant {
        what: "parts of l added without their weights",
        rung: "cuda-fa2",
        at: GET_STATE,
        opcode: "fma",
        edit: |text| format!("add.f32 {}, {}, {};", operands(text)[0], operands(text)[2], operands(text)[3]),
        caught: Value,
    },
];
