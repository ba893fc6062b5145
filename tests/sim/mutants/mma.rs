//! Wrong variants of `05_fa2_mma.cu`, and of what it includes.
//!
//! Not among them is an m of one group alone where two are joined: it makes weights that overflow, of rows that are computed
//! again, with care. `counts.rs` sees that.

use super::Caught::{Fault, Value};
use super::{
    Caught, EARLY, Line, MMA, Mutant, OUTSIDE, RACE, ROWS, TOO_EARLY, UNWRITTEN, dropped_barrier, without_addend,
};
use crate::edit::{always, dropped, first_operand, for_half_a_warp, operands, second_operand};
use testkit::problems::Spec;

const CP_ASYNC: &str = "ptx/cp_async.cuh";
const LDMATRIX: &str = "ptx/ldmatrix.cuh";
const HALVES: &str = "tile/halves.cuh";
const RESULTS: &str = "tile/results.cuh";
const SPLITS: &str = "tile/splits.cuh";

const COPY: Line = (CP_ASYNC, "[%0], [%1], 16;\"");
const COPY_SOME: Line = (CP_ASYNC, "[%0], [%1], 16, %2;\"");
const WAIT: Line = (CP_ASYNC, "cp.async.wait_group");
const WHOLE: Line = (MMA, "they are whole for all its threads");
const SHARED: Line = (MMA, "if (threadIdx.x == 0) at = place, k_rows = head.k, v_rows = head.v;");
const STAGES: Line = (MMA, "j0 += STEP, stage ^= 1");
const RESCALE: Line = (ROWS, "state.o.of_row(r, c, 0) *= rescale[r]");
const STORE_O: Line = (RESULTS, "if (is_wanted) store_global(");
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
const PART: Line = (RESULTS, "if (lane == 0) splits.m[part] = state.m[r] * LN_2, splits.l[part] = l[r];");
const SUMS: Line = (SPLITS, "of_warps[warp][c] = o[x].x");
const SUM: Line = (SPLITS, "sum = add_weighted(sum, share[w], of_warps[w][c]);");
const PUT_STATE: Line = (SPLITS, "if (lane == 0) m_of_warps[warp] = m");
const GET_M: Line = (SPLITS, "for (float m_of : m_of_warps)");
const GET_STATE: Line = (SPLITS, "share[w] = weight(m_of_warps[w], m)");
/// Which keys of a tile a row sees, a bit each: those before the end, and not before the start.
pub(super) const SEEN: Line =
    (ROWS, "const unsigned seen = bits_before<B>(keys.end - j0) & ~bits_before<B>(keys.start - j0);");
/// How many of the keys of a tile, of eight that four lanes share, lie before an end, as far as this lane is asked.
pub(super) const BITS_BEFORE: Line = (ROWS, "rest = inside % 8 - threadIdx.x % 4 * 2;");
// Two groups of warps that share keys.
const FIRST_TILE: Line = (MMA, "j0 = place.begin + group * B::KEYS, end = place.end");
const NEXT_TILE: Line = (MMA, "if (j0 + STEP < end) start_to_load(");
const PLACE_OF_STAGE: Line = (MMA, "(B::ROWS + 2 * (2 * group + stage) * B::KEYS) * D * 2}; };");
const GROUP_BARRIER: Line = (MMA, "if (B::GROUPS > 1) barrier_sync(1 + group, B::THREADS);");
const WAIT_FOR_Q: Line = (MMA, "cp_async_wait<0>();  // for a part of Q that others read");
const Q_WHOLE: Line = (MMA, "if (B::GROUPS > 1 || j0 >= end) __syncthreads();");
const TILES_READ: Line = (MMA, "+ thread]; };\n    __syncthreads();");
const OTHER_WHOLE: Line = (MMA, "next() = state.o.of_row(r, c / 2, c % 2);\n        }\n    }\n    __syncthreads();");
const PUT_M_L: Line = (MMA, "next() = state.m[r], next() = state.l[r];");
const PUT_O: Line = (MMA, "next() = state.o.of_row(r, c / 2, c % 2);");
pub(crate) const JOIN_M: Line = (MMA, "const float other = next(), m = fmaxf(state.m[r], other)");
const JOIN_L: Line = (MMA, "state.l[r] = mine * state.l[r] + its * next();");
const JOIN_O: Line = (MMA, "x = mine * x + its * next();");
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
    NEXT_TILE,
    (MMA, "(k(stage), k_rows, j0, wanted);"),
    (MMA, "(v(stage), v_rows, j0, wanted);"),
];

/// Where two groups join what they have found, in the place of tiles.
const JOINED: &[Line] = &[COPY, COPY_SOME, OPERANDS, VALUES, PUT_M_L, PUT_O, JOIN_M, JOIN_L, JOIN_O];

/// Whether what is wrong at a line is looked at in a kernel whose groups of warps share the keys.
pub(super) fn is_of_groups(at: Line) -> bool {
    let of_tiles = [FIRST_TILE, NEXT_TILE, PLACE_OF_STAGE, GROUP_BARRIER, WAIT_FOR_Q, Q_WHOLE];
    let of_join = [TILES_READ, OTHER_WHOLE, JOIN_M, JOIN_L, JOIN_O];
    of_tiles.contains(&at) || of_join.contains(&at)
}

/// Five tiles of keys, the last not full: of two groups, one has a tile more.
pub(super) fn problem() -> Spec {
    Spec { lengths: vec![(110, 600)], ..super::problem() }
}

/// Whether a line is of the kernels for short queries alone.
pub(super) fn is_of_short_queries(at: Line) -> bool {
    at.0 == SPLITS || at == PART
}

/// All keys of a tile as if they were before the end, whose bits are those turned round in PTX.
pub(super) fn every_bit(text: &str) -> String {
    format!("mov.b32 {}, -1;", operands(text)[0])
}

/// None as if it were before the start: of the line's bits in common, those of two numbers of which none is constant.
pub(super) fn before_the_end(text: &str) -> String {
    if operands(text)[2].starts_with('%') { first_operand(text) } else { text.into() }
}

pub(super) fn one_more(text: &str) -> String {
    let to = operands(text)[0];
    format!("{text} add.s32 {to}, {to}, 1;")
}

const fn of_groups(
    what: &'static str,
    at: Line,
    opcode: &'static str,
    edit: fn(&str) -> String,
    caught: Caught,
) -> Mutant {
    Mutant { what, rung: "cuda-fa2", at, opcode, edit, caught }
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
        at: (RESULTS, "const bool is_there = at.own(r) < at.end_row;"),
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
        at: SEEN,
        opcode: "not.b32",
        edit: every_bit,
        caught: Value,
    },
    Mutant {
        what: "keys hidden from one too late on",
        rung: "cuda-fa2",
        at: BITS_BEFORE,
        opcode: "sub.s32",
        edit: one_more,
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
    // Two groups of warps that share keys.
    of_groups("a part of Q not waited for", WAIT_FOR_Q, "cp.async.wait_group", dropped, Fault(TOO_EARLY, TILES)),
    of_groups("no barrier before others read", Q_WHOLE, "bar.sync", dropped, Fault(EARLY, UNORDERED)),
    of_groups("a group's barrier dropped", GROUP_BARRIER, "bar.sync", dropped, Fault(TOO_EARLY, UNORDERED)),
    of_groups(
        "a barrier that both groups take for theirs",
        GROUP_BARRIER,
        "bar.sync",
        |_| "bar.sync 1, 128;".into(),
        Fault(&["race", "uninitialised memory"], UNORDERED),
    ),
    of_groups(
        "a barrier of both groups, of which one has a tile more",
        GROUP_BARRIER,
        "bar.sync",
        |_| "bar.sync 2, 256;".into(),
        Fault(&["deadlock"], &[GROUP_BARRIER, TILES_READ]),
    ),
    of_groups(
        "stages that both groups take for theirs",
        PLACE_OF_STAGE,
        "shl.b32",
        |text| {
            // What is shifted is the group for its first tile, and for others twice the group, and the stage.
            let [to, of, bits] = operands(text)[..] else { panic!("{text}") };
            let stage = if bits == "16" { format!("mov.b32 {to}, 0;") } else { format!("and.b32 {to}, {of}, 1;") };
            format!("{stage} shl.b32 {to}, {to}, {bits};")
        },
        Fault(&["race", "copy in flight"], TILES),
    ),
    of_groups(
        "the same tiles for both groups",
        FIRST_TILE,
        "and.b32",
        |text| {
            let [to, _, bits] = operands(text)[..] else { panic!("{text}") };
            if bits == "-128" { format!("mov.b32 {to}, 0;") } else { text.into() }
        },
        Value,
    ),
    of_groups(
        "tiles that the other group has too",
        NEXT_TILE,
        "add.s32",
        |text| text.replace(", 256;", ", 128;"),
        Value,
    ),
    of_groups("tiles of keys overwritten while they are read", TILES_READ, "bar.sync", dropped, Fault(RACE, JOINED)),
    of_groups("what the other group has found not waited for", OTHER_WHOLE, "bar.sync", dropped, Fault(EARLY, JOINED)),
    of_groups(
        "what groups have found joined as if m were the same",
        JOIN_M,
        "sub.f32",
        |text| format!("mov.f32 {}, 0f00000000;", operands(text)[0]),
        Value,
    ),
    of_groups("l of one group alone", JOIN_L, "fma", without_addend, Value),
    of_groups("O of the other group without its weight", JOIN_O, "mul.f32", second_operand, Value),
    of_groups(
        "O of the first group without its weight",
        JOIN_O,
        "fma",
        |text| format!("add.f32 {}, {}, {};", operands(text)[0], operands(text)[2], operands(text)[3]),
        Value,
    ),
];
