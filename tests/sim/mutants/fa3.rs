//! Wrong variants of `06_fa3.cu`.

use super::Caught::{Fault, Value};
use super::{Line, Mutant};
use crate::edit::{dropped, first_operand, never, operands};
use attention::Mask;
use testkit::problems::Spec;

pub(super) const FA3: &str = "06_fa3.cu";
const MBARRIER: &str = "ptx/mbarrier.cuh";
const RING: &str = "tile/ring.cuh";
const ROWS: &str = "tile/rows.cuh";
const HALVES: &str = "tile/halves.cuh";

const WAIT_Q: Line = (FA3, "mbarrier_wait(shared_address(&shared.q_full), 0);");
const WAIT_K: Line = (FA3, "mbarrier_wait(shared.k.full(stage), turn.parity);");
const WAIT_V: Line = (FA3, "mbarrier_wait(shared.v.full(stage), turn.parity);");
const WAIT_K_EMPTY: Line = (FA3, "mbarrier_wait(shared.k.empty(stage), turn.parity ^ 1);");
const WAIT_V_EMPTY: Line = (FA3, "mbarrier_wait(shared.v.empty(stage), turn.parity ^ 1);");
const WAIT_LANDED: Line = (FA3, "mbarrier_wait(landed, landings++ % 2);");
const RELEASE_K: Line = (FA3, "if (leads) mbarrier_arrive(shared.k.empty(stage));");
const RELEASE_V: Line = (FA3, "if (leads) mbarrier_arrive(shared.v.empty(stage));");
const ANNOUNCE: Line = (FA3, "mbarrier_arrive_expect_tx(barrier, tile.BYTES);");
const LOAD: Line = (FA3, "tile.start_to_load(map, barrier, row, tensor.head ? head : 0, tensor.batch ? batch : 0);");
const ZEROS: Line = (FA3, "store_shared(tiles.v(stage).chunk(r, c), uint4{});");
const S_FENCE: Line = (FA3, "wgmma_hold(s.x[0]);\n    wgmma_fence();");
const S: Line = (FA3, "wgmma<T>(s.x[0], q.along_rows(row, c), k.along_rows(0, c), c > 0);");
const S_COMMIT: Line = (FA3, "k.along_rows(0, c), c > 0);\n    wgmma_commit();");
const S_WAIT: Line = (FA3, "k.along_rows(0, c), c > 0);\n    wgmma_commit();\n    wgmma_wait<0>();");
const O_FENCE: Line = (FA3, "wgmma_hold(o.x[0]), wgmma_hold(p);\n    wgmma_fence();");
const O: Line = (FA3, "wgmma<T>(o.x[0], p[j / 16], v.along_columns(j));");
const O_COMMIT: Line = (FA3, "v.along_columns(j));\n    wgmma_commit();");
const O_WAIT: Line = (FA3, "v.along_columns(j));\n    wgmma_commit();\n    wgmma_wait<0>();");
const MAX: Line = (FA3, "move_max(state, s, scale);");
const DESCRIPTOR_OF_K: Line = ("tile/panels.cuh", "c % COLUMNS * 2, 16, EIGHT_ROWS);");
const DESCRIPTOR_OF_V: Line = ("tile/panels.cuh", "return descriptor(data + r * ROW_BYTES, PANEL_BYTES, EIGHT_ROWS);");
/// Where the copies are, and where threads wait.
const COPY: Line = ("tile/panels.cuh", "tma_load_4d(data + p * PANEL_BYTES");
const WAIT: Line = (MBARRIER, "while (!mbarrier_try_wait(barrier, parity)) {}");
const GIVEN: Line = (FA3, "shared.at = place;");

/// Two blocks of two warpgroups, and three times as many tiles of keys as a ring has stages.
pub(super) fn problem() -> Spec {
    Spec { mask: Mask::Causal, ..Spec::plain(140, 660, 104) }
}

/// What a descriptor has besides the address: swizzle, stride, and leading distance.
const OF_K: u64 = 1 << 62 | 64 << 32 | 1 << 16;
const OF_V: u64 = 1 << 62 | 64 << 32 | 1024 << 16;

/// A wait that is over at once.
fn over(_: &str) -> String {
    "setp.eq.u32 over, 0, 0;".into()
}

/// The last operand is another.
fn with_last(text: &str, last: &str) -> String {
    let (head, _) = text.rsplit_once(", ").unwrap();
    format!("{head}, {last};")
}

const fn fault(
    what: &'static str,
    at: Line,
    opcode: &'static str,
    edit: fn(&str) -> String,
    (kinds, lines): (&'static [&'static str], &'static [Line]),
) -> Mutant {
    Mutant { what, rung: "fa3", at, opcode, edit, caught: Fault(kinds, lines) }
}

const fn value(what: &'static str, at: Line, opcode: &'static str, edit: fn(&str) -> String) -> Mutant {
    Mutant { what, rung: "fa3", at, opcode, edit, caught: Value }
}

const TRY: &str = "mbarrier.try_wait";
const EARLY: &[&str] = &["copy in flight", "race", "uninitialised memory"];
const DEADLOCK: (&[&str], &[Line]) = (&["deadlock"], &[WAIT, (FA3, "setmaxnreg_inc<CONSUMER_REGISTERS>();")]);
const IN_USE: &[&str] = &["operand in use", "fragment in use", "copy in flight"];

pub(super) const MUTANTS: &[Mutant] = &[
    fault("Q not waited for", WAIT_Q, TRY, over, (EARLY, &[S, COPY])),
    fault("K not waited for", WAIT_K, TRY, over, (EARLY, &[S, COPY])),
    fault("V not waited for", WAIT_V, TRY, over, (EARLY, &[O, COPY, ZEROS])),
    fault(
        "the stage of K not waited for",
        WAIT_K_EMPTY,
        TRY,
        over,
        (&["mbarrier", "copy in flight"], &[ANNOUNCE, COPY]),
    ),
    fault(
        "the stage of V not waited for",
        WAIT_V_EMPTY,
        TRY,
        over,
        (&["copy in flight", "mbarrier"], &[COPY, ANNOUNCE]),
    ),
    fault("the last values not waited for", WAIT_LANDED, TRY, over, (EARLY, &[ZEROS, COPY])),
    fault("the parity of K's first round, always", WAIT_K, TRY, |text| with_last(text, "0"), DEADLOCK),
    fault("the parity of V's first round, always", WAIT_V, TRY, |text| with_last(text, "0"), DEADLOCK),
    fault("a first round that waits", WAIT_K_EMPTY, TRY, |text| with_last(text, "0"), DEADLOCK),
    fault("K never released", RELEASE_K, "mbarrier.arrive", dropped, DEADLOCK),
    fault("V never released", RELEASE_V, "mbarrier.arrive", dropped, DEADLOCK),
    fault(
        "too few bytes announced",
        ANNOUNCE,
        "mbarrier.arrive",
        |text| with_last(text, "4096"),
        (&["mbarrier"], &[COPY]),
    ),
    fault("too many bytes announced", ANNOUNCE, "mbarrier.arrive", |text| with_last(text, "65536"), DEADLOCK),
    fault(
        "stages that one warpgroup releases",
        (RING, "mbarrier_init(empty(stage), readers);"),
        "mbarrier.init",
        |text| with_last(text, "4"),
        (&["operand in use", "deadlock"], &[COPY, S, O, WAIT]),
    ),
    fault(
        "barriers that copies do not see",
        (MBARRIER, "fence.mbarrier_init"),
        "fence",
        dropped,
        (&["missing proxy fence"], &[COPY, (FA3, "mbarrier_init(shared_address(&shared.q_full), 1)"), GIVEN]),
    ),
    fault(
        "barriers that threads do not see",
        (FA3, "// the barriers are there"),
        "bar.sync",
        dropped,
        (&["race", "mbarrier"], &[GIVEN, WAIT, (FA3, "const Sequence sequence = problem.sequence(at.sequence);")]),
    ),
    fault(
        "zeros that wgmma does not see",
        (FA3, "fence_proxy_async();"),
        "fence.proxy",
        dropped,
        (&["missing proxy fence"], &[O, ZEROS]),
    ),
    fault("zeros of one lane alone", (FA3, "// and of all"), "bar.warp", dropped, (&["race"], &[O, ZEROS])),
    fault("S without a fence", S_FENCE, "wgmma.fence", dropped, (&["missing wgmma.fence"], &[S])),
    fault("O without a fence", O_FENCE, "wgmma.fence", dropped, (&["missing wgmma.fence"], &[O, MAX])),
    fault("S of no group", S_COMMIT, "wgmma.commit", dropped, (&["fragment in use"], &[S, MAX])),
    fault("O of no group", O_COMMIT, "wgmma.commit", dropped, (IN_USE, &[O, COPY, MAX])),
    fault(
        "S not waited for",
        S_WAIT,
        "wgmma.wait",
        |text| text.replace(" 0;", " 1;"),
        (&["fragment in use"], &[S, MAX]),
    ),
    fault("O not waited for", O_WAIT, "wgmma.wait", |text| text.replace(" 0;", " 1;"), (IN_USE, &[O, COPY, MAX])),
    fault(
        "registers that nobody gives back",
        (FA3, "setmaxnreg_dec<PRODUCER_REGISTERS>();"),
        "setmaxnreg",
        dropped,
        DEADLOCK,
    ),
    fault(
        "a copy to a crooked place",
        LOAD,
        "cp.async.bulk",
        |text| text.replacen(']', "+16]", 1),
        (&["misaligned address"], &[COPY]),
    ),
    fault(
        "stages beyond the last",
        (RING, "if (++stage == STAGES)"),
        "setp",
        never,
        (&["out of bounds"], &[COPY, S, O]),
    ),
    fault(
        "rows of O behind the last stored",
        (HALVES, "if (first + r >= end || c >= to.channels) continue;"),
        "setp.ge",
        never,
        (&["out of bounds", "race"], &[(HALVES, "to(first + r, c) = T{load_shared_16(number)};")]),
    ),
    // Of the constant bits of a descriptor, the leading distance and the stride.
    value("panels of V sixteen bytes apart", DESCRIPTOR_OF_V, "or.b64", |text| {
        text.replace(&OF_V.to_string(), &OF_K.to_string())
    }),
    value("eight rows of K too close", DESCRIPTOR_OF_K, "or.b64", |text| {
        text.replace(&OF_K.to_string(), &(OF_K - (32 << 32)).to_string())
    }),
    value("values that are not transposed", O, "wgmma.mma_async", |text| text.replace("1, 1, 1, 1;", "1, 1, 1, 0;")),
    value("scores that are added to those before", S, "setp.ne.b32", |text| text.replace("setp.ne.b32", "setp.ge.u32")),
    value(
        "keys behind the last not hidden",
        (ROWS, "if (j < keys.start || j >= keys.end) s.of_row(r, n, e) = NEG_INFINITY;"),
        "setp.ge",
        never,
    ),
    value("a forgotten rescale of O", (ROWS, "state.o.of_row(r, c, 0) *= rescale"), "mul.f32", first_operand),
    value("the same rows copied each time", LOAD, "cp.async.bulk", |text| {
        let [_, _, _, row, head, ..] = operands(text)[..] else { panic!("{text}") };
        text.replace(row, head)
    }),
];
