//! Wrong variants of `06_fa3.cu`, and of what it includes.
//!
//! Not among them is what only costs time: no turns at all; who looks for the next job sooner than it is asked to; tiles of rows in
//! another order; an S that is waited for together with O. What no row sees of V, left as it is, makes rows that are computed
//! again, with care: `counts.rs` sees that.

use super::Caught::{Fault, Value};
use super::mma::{BITS_BEFORE, SEEN, before_the_end, every_bit, one_more};
use super::{Line, Mutant, UNWRITTEN};
use crate::edit::{always, dropped, first_operand, never, operands};
use attention::Mask;
use testkit::problems::{BatchKind, Spec};

pub(crate) const FA3: &str = "06_fa3.cu";
const BARRIER: &str = "ptx/barrier.cuh";
const JOBS: &str = "tile/jobs.cuh";
const MBARRIER: &str = "ptx/mbarrier.cuh";
const PANELS: &str = "tile/panels.cuh";
const RESULTS: &str = "tile/results.cuh";
const RING: &str = "tile/ring.cuh";
const ROWS: &str = "tile/rows.cuh";

// Who waits for what.
const WAIT_Q: Line = (FA3, "mbarrier_wait(shared.q.full(0), Turn<1>{job_turn.number}.parity());");
const WAIT_FIRST_K: Line =
    (FA3, "arrive(shared.q.empty(0));\n            mbarrier_wait(shared.k.full(turn.stage()), turn.parity());");
const WAIT_K: Line = (FA3, "if (j0 + B::KEYS < end) mbarrier_wait(shared.k.full(turn.stage()), turn.parity());");
const WAIT_V: Line =
    (FA3, "trace.mark(Did::START_S);\n                mbarrier_wait(shared.v.full(v_turn.stage()), v_turn.parity());");
const WAIT_LAST_V: Line =
    (FA3, "= turn.before();\n            mbarrier_wait(shared.v.full(v_turn.stage()), v_turn.parity());");
const WAIT_Q_EMPTY: Line = (FA3, "mbarrier_wait(shared.q.empty(0), Turn<1>{job_turn.number}.parity() ^ 1);");
const WAIT_K_EMPTY: Line = (FA3, "mbarrier_wait(shared.k.empty(stage), turn.parity() ^ 1);");
const WAIT_V_EMPTY: Line = (FA3, "mbarrier_wait(shared.v.empty(stage), turn.parity() ^ 1);");
const WAIT_PARTIAL: Line = (FA3, "mbarrier_wait(shared.partials.full(turn.stage()), turn.parity());");
const WAIT_PARTIAL_EMPTY: Line =
    (FA3, "mbarrier_wait(shared.partials.empty(partial_turn.stage()), partial_turn.parity() ^ 1);");
const WAIT_JOB: Line = (FA3, "const Place<B>& at = shared.jobs.wait(job_turn).at;");
const WAIT_JOB_TO_COPY: Line = (FA3, "const Job<B>& job = shared.jobs.wait(job_turn);");
const WAIT_JOB_EMPTY: Line = (JOBS, "mbarrier_wait(ring.empty(turn.stage()), turn.parity() ^ 1);");

// Who says what is done.
const TAKE_Q: Line = (FA3, "if (q.take()) arrive(shared.q.empty(0));");
const RELEASE_Q: Line = (FA3, "if (!BLOCK_Q_IN_REGISTERS && j0 + B::KEYS >= end) arrive(shared.q.empty(0));");
const RELEASE_UNREAD_Q: Line = (FA3, "} else {\n            arrive(shared.q.empty(0));");
const RELEASE_K: Line = (FA3, "arrive(shared.k.empty(turn.stage()));");
const RELEASE_V: Line = (FA3, "arrive(shared.v.empty(v_turn.stage()));");
const RELEASE_JOB: Line =
    (FA3, "// all lanes have read where they are\n        arrive(shared.jobs.ring.empty(job_turn.stage()));");
const RELEASE_JOB_TO_COPY: Line = (FA3, "mbarrier_arrive(shared.jobs.ring.empty(job_turn.stage()));");
const ASK_FOR_JOB: Line = (FA3, "mbarrier_arrive(shared.jobs.wanted());");
const CLEARED: Line = (FA3, "if (lane == 0) mbarrier_arrive(shared.v.full(partial.stage))");
const LAST_PARTIAL: Line = (FA3, "mbarrier_arrive(announce({-1, {}}));");
const TAKE_TURN: Line = (FA3, "barrier_sync(1 + group, 2 * WARPGROUP), trace");
const PASS_TURN: Line = (FA3, "barrier_arrive(1 + (group + 1) % BLOCK_CONSUMERS, 2 * WARPGROUP); };");
const FIRST_TURN: Line = (FA3, "if (group == BLOCK_CONSUMERS - 1) pass_turn();");

const FULL: Line = (RING, "mbarrier_init(full(stage), 1);");
const EMPTY: Line = (RING, "mbarrier_init(empty(stage), readers);");

// Where memory is read and written.
const ANNOUNCE: Line = (FA3, "mbarrier_arrive_expect_tx(barrier, tile.BYTES);");
const LOAD: Line = (FA3, "tile.start_to_load(map, barrier, row, tensor.head ? head : 0, tensor.batch ? batch : 0);");
const COPY: Line = (PANELS, "tma_load_4d(data + p * PANEL_BYTES");
const TAKE: Line = (FA3, "ldmatrix_x4(a[c], tile.chunk(of_warp + lane % 16, 2 * c + lane / 16));");
const PARTIAL: Line = (FA3, "shared.partial[partial_turn.stage()] = partial;");
const READ_PARTIAL: Line = (FA3, "const Partial partial = shared.partial[turn.stage()];");
pub(crate) const ZEROS: Line = (FA3, "store_shared(tiles.v(partial.stage).chunk(r, x % CHUNKS), uint4{});");
const NO_JOB: Line = (JOBS, "Job<B>& found = job[turn.stage()];\n            found.at.row = -1;");
/// Where a job is written, and where it is read.
const JOB: &[Line] = &[
    (JOBS, "place.init(problem, problem.row_tiles - 1 - rest / heads, first + rest % heads);"),
    NO_JOB,
    (FA3, "const Place<B>& at = job.at;\n        if (at.row < 0) break;"),
    (FA3, "const Place<B>& at = shared.jobs.wait(job_turn).at;\n        if (at.row < 0) return;"),
    (ROWS, "r / 2 * 16 + r % 2 * 8 + thread_index() % LANES / 4; }"),
    (RESULTS, "put_careful_row(problem, splits, at, at.row + at.of_warp() + row);"),
];
const COUNT: Line = (JOBS, "(next ? atomicAdd(next, 1) : tile); }");
const STORE_PAIR: Line = (RESULTS, "if (c < o.channels) o(row, c)");
const STORE_LSE: Line = ("tile/problem.cuh", "{ lse[i * lse_row] = value; }");

// Products, and what else has to do with their registers.
const S_FENCE: Line = (FA3, "wgmma_hold(s.x[0]);\n    wgmma_fence();");
const S_OF_REGISTERS: Line = (FA3, "wgmma<T, false>(s.x[0], q.a[c / 16], k.along_rows(0, c), c > 0);");
const S: Line = (FA3, "else wgmma<T>(s.x[0], q.tile.along_rows(q.row, c), k.along_rows(0, c), c > 0);");
const S_COMMIT: Line = (FA3, "k.along_rows(0, c), c > 0);\n    }\n    wgmma_commit();");
const FIRST_S_WAIT: Line = (FA3, "pass_turn();\n            wgmma_wait<0>();");
const S_WAIT: Line = (FA3, "wgmma_wait<1>();");
const O_FENCE: Line = (FA3, "wgmma_hold(o.x[0]), wgmma_hold(p);\n    wgmma_fence();");
const O: Line = (FA3, "wgmma<T, true>(o.x[0], p[j / 16], v.along_columns(j), true);");
const O_COMMIT: Line = (FA3, "v.along_columns(j), true);\n    wgmma_commit();");
const O_WAIT: Line = (FA3, "wait_for_o(v_turn);  // line 14 (2)");
const MASKED_STEP: Line = (FA3, "for (; j0 < end; j0 += B::KEYS) step(true);");
const LAST_O_WAIT: Line = (FA3, "trace.mark(Did::START_O);\n            wait_for_o(v_turn);");
const LARGEST: Line = (ROWS, "most = fmaxf(most, fmaxf(s.of_row(r, n, 0), s.of_row(r, n, 1)));");
const HIDDEN: Line = (ROWS, "score = seen >> x & 1 ? score : NEG_INFINITY;");
const PACKED: Line = (ROWS, "p[n / 2][n % 2 * 2 + r] = pair_from_f32<T>(s.of_row(r, n, 0), s.of_row(r, n, 1));");
const RESCALE: Line = (ROWS, "state.o.of_row(r, c, 0) *= rescale[r]");
const SQUARE: Line = (RESULTS, "square = fmaf(x, x, square);");
const EXCHANGE: Line = (RESULTS, "(odd ? x : y) = got;");
const SHUFFLE: Line = (RESULTS, "odd ? x : y, step);");
const EXCHANGE_FURTHER: Line = (RESULTS, "exchange(x0, x2, 2), exchange(x1, x3, 2);");
const DESCRIPTOR_OF_K: Line = (PANELS, "c % COLUMNS * 2, 16, EIGHT_ROWS);");
const DESCRIPTOR_OF_V: Line = (PANELS, "return descriptor(data + r * ROW_BYTES, PANEL_BYTES, EIGHT_ROWS);");
/// Where threads wait.
const WAIT: Line = (MBARRIER, "while (!mbarrier_try_wait(barrier, parity)) {}");
const SYNC: Line = (BARRIER, "bar.sync");

/// The variant that a line is of, and the channels with which it is reached.
pub(super) fn variant_and_channels(at: Line) -> (&'static str, usize) {
    match at {
        RELEASE_Q | S | WAIT_PARTIAL_EMPTY => ("f16.d64", 64),
        EXCHANGE | SHUFFLE | EXCHANGE_FURTHER => ("f16.d128", 128),
        _ => ("f16.d128", 104),
    }
}

/// Eight jobs for one block, without keys, with one tile of them, and with more tiles than a ring has stages, which all rows see
/// in full or not; NaN behind the last key, which is no tensor's end.
pub(super) fn problem() -> Spec {
    Spec {
        lengths: vec![(140, 0), (140, 100), (140, 400), (140, 300)],
        batch: BatchKind::KeyLens,
        mask: Mask::window(150, 0),
        ..Spec::plain(140, 400, 104)
    }
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

/// A wait for the other parity.
fn of_other_parity(text: &str) -> String {
    let parity = operands(text)[2];
    let wait = with_last(text, "%other");
    format!("{{ .reg .b32 %other; xor.b32 %other, {parity}, 1; {wait} }}")
}

/// A barrier for one arrival fewer, where it is for more than one.
fn for_one_fewer(text: &str) -> String {
    let (count, init) = (operands(text)[1], with_last(text, "%fewer"));
    format!("{{ .reg .b32 %fewer; sub.u32 %fewer, {count}, 1; max.u32 %fewer, %fewer, 1; {init} }}")
}

/// A barrier for one arrival more.
fn for_one_more(text: &str) -> String {
    let (count, init) = (operands(text)[1], with_last(text, "%more"));
    format!("{{ .reg .b32 %more; add.u32 %more, {count}, 1; {init} }}")
}

fn twice(text: &str) -> String {
    format!("{text} {text}")
}

/// A wait that leaves one group more under way.
fn with_one_more_pending(text: &str) -> String {
    text.replace(" 1;", " 2;").replace(" 0;", " 1;")
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
const ARRIVE: &str = "mbarrier.arrive";
const EARLY: &[&str] = &["copy in flight", "race", "uninitialised memory"];
/// What is left waits at barriers, or has ended.
const DEADLOCK: (&[&str], &[Line]) = (
    &["deadlock"],
    &[WAIT, SYNC, (FA3, "setmaxnreg_inc<CONSUMER_REGISTERS>();"), (FA3, "__syncwarp();         // and of all")],
);
const FRAGMENT: &[&str] = &["fragment in use"];

pub(super) const MUTANTS: &[Mutant] = &[
    // The ring of tiles.
    fault("Q not waited for", WAIT_Q, TRY, over, (EARLY, &[TAKE, COPY])),
    fault("the first K not waited for", WAIT_FIRST_K, TRY, over, (EARLY, &[S_OF_REGISTERS, COPY])),
    fault("K not waited for", WAIT_K, TRY, over, (EARLY, &[S_OF_REGISTERS, COPY])),
    fault(
        "V not waited for",
        WAIT_V,
        TRY,
        over,
        (&["race", "copy in flight", "uninitialised memory"], &[O, COPY, ZEROS]),
    ),
    fault(
        "the last V not waited for",
        WAIT_LAST_V,
        TRY,
        over,
        (&["copy in flight", "race", "uninitialised memory", "deadlock"], &[O, COPY, ZEROS, WAIT]),
    ),
    fault(
        "the place of Q not waited for",
        WAIT_Q_EMPTY,
        TRY,
        over,
        (&["mbarrier", "copy in flight", "race"], &[ANNOUNCE, COPY, TAKE]),
    ),
    fault(
        "the stage of K not waited for",
        WAIT_K_EMPTY,
        TRY,
        over,
        (&["copy in flight", "mbarrier"], &[ANNOUNCE, COPY]),
    ),
    fault(
        "the stage of V not waited for",
        WAIT_V_EMPTY,
        TRY,
        over,
        (&["race", "copy in flight", "mbarrier"], &[COPY, ANNOUNCE, ZEROS]),
    ),
    fault("K of the phase before", WAIT_K, TRY, of_other_parity, DEADLOCK),
    fault("V of the phase before", WAIT_V, TRY, of_other_parity, DEADLOCK),
    fault("the parity of V's first round, always", WAIT_V, TRY, |text| with_last(text, "0"), DEADLOCK),
    fault("a first round that waits", WAIT_K_EMPTY, TRY, |text| with_last(text, "0"), DEADLOCK),
    fault("K never released", RELEASE_K, ARRIVE, dropped, DEADLOCK),
    fault("V never released", RELEASE_V, ARRIVE, dropped, DEADLOCK),
    fault(
        "K released twice",
        RELEASE_K,
        ARRIVE,
        twice,
        (&["operand in use", "copy in flight", "deadlock"], &[S_OF_REGISTERS, COPY, WAIT, SYNC]),
    ),
    fault("V released twice", RELEASE_V, ARRIVE, twice, DEADLOCK),
    fault("Q in registers never released", TAKE_Q, ARRIVE, dropped, DEADLOCK),
    fault("Q in shared memory never released", RELEASE_Q, ARRIVE, dropped, DEADLOCK),
    fault("Q that nobody reads never released", RELEASE_UNREAD_Q, ARRIVE, dropped, DEADLOCK),
    fault("Q released at each K", RELEASE_Q, "setp.lt", never, (&["copy in flight", "operand in use"], &[S, COPY])),
    fault("too few bytes announced", ANNOUNCE, ARRIVE, |text| with_last(text, "4096"), (&["mbarrier"], &[COPY])),
    fault("too many bytes announced", ANNOUNCE, ARRIVE, |text| with_last(text, "65536"), DEADLOCK),
    fault(
        "stages that all warps but one release",
        (FA3, "shared.v.init(READERS);"),
        "mbarrier.init",
        for_one_fewer,
        (&["race", "operand in use"], &[S_OF_REGISTERS, O, COPY, TAKE]),
    ),
    fault("stages that one warp more is to release", EMPTY, "mbarrier.init", for_one_more, DEADLOCK),
    fault("stages that are full at the second arrival", FULL, "mbarrier.init", for_one_more, DEADLOCK),
    fault(
        "stages beyond the last",
        (RING, "return number % STAGES;"),
        "and.b32",
        |text| text.replace(", 1;", ", 3;"),
        (&["mbarrier"], &[NO_JOB, FULL, EMPTY]),
    ),
    fault(
        "barriers that copies do not see",
        (MBARRIER, "fence.mbarrier_init"),
        "fence",
        dropped,
        (&["missing proxy fence"], &[COPY, FULL]),
    ),
    fault(
        "barriers that threads do not see",
        (FA3, "// the barriers are there"),
        "bar.sync",
        dropped,
        (&["race", "mbarrier"], &[WAIT, FULL, EMPTY]),
    ),
    // Zeros in V.
    fault(
        "V cleared before it is there",
        WAIT_PARTIAL,
        TRY,
        over,
        (&["uninitialised memory", "race", "copy in flight"], &[ZEROS, COPY, PARTIAL, READ_PARTIAL]),
    ),
    fault(
        "a partial tile of V told over another",
        WAIT_PARTIAL_EMPTY,
        TRY,
        over,
        (&["race", "mbarrier"], &[PARTIAL, READ_PARTIAL, ANNOUNCE]),
    ),
    fault("a partial tile of V never full", CLEARED, ARRIVE, dropped, DEADLOCK),
    fault("an end that who clears is not told of", LAST_PARTIAL, ARRIVE, dropped, DEADLOCK),
    fault(
        "zeros that wgmma does not see",
        (FA3, "fence_proxy_async();  // wgmma sees the zeros of this lane"),
        "fence.proxy",
        dropped,
        (&["missing proxy fence"], &[O, ZEROS]),
    ),
    fault(
        "zeros of one lane alone",
        (FA3, "// and of all"),
        "bar.warp",
        dropped,
        (&["race"], &[O, ZEROS, READ_PARTIAL, PARTIAL]),
    ),
    // Jobs.
    fault("a job not waited for", WAIT_JOB, TRY, over, (&["race", "uninitialised memory"], JOB)),
    fault("a job to copy for not waited for", WAIT_JOB_TO_COPY, TRY, over, (&["race", "uninitialised memory"], JOB)),
    fault("a job written over another", WAIT_JOB_EMPTY, TRY, over, (&["race"], JOB)),
    fault("jobs of the phase before", WAIT_JOB, TRY, of_other_parity, (&["uninitialised memory", "race"], JOB)),
    fault("a job that consumers never give back", RELEASE_JOB, ARRIVE, dropped, DEADLOCK),
    fault("a job that who copies never gives back", RELEASE_JOB_TO_COPY, ARRIVE, dropped, DEADLOCK),
    fault("a job given back twice", RELEASE_JOB_TO_COPY, ARRIVE, twice, (&["race"], JOB)),
    fault("a job that is never asked for", ASK_FOR_JOB, ARRIVE, dropped, DEADLOCK),
    fault("a job asked for twice", ASK_FOR_JOB, ARRIVE, twice, DEADLOCK),
    fault(
        "a job given back while lanes read it",
        (FA3, "// all lanes have read where they are"),
        "bar.warp",
        dropped,
        (&["race"], JOB),
    ),
    fault("a count that nobody begins", (FA3, "*schedule.next = 0;"), "st.global", dropped, (UNWRITTEN, &[COUNT])),
    value("a count that begins with a tile taken", (FA3, "*schedule.next = 0;"), "st.global", |text| {
        with_last(text, "1")
    }),
    value(
        "rows one tile too far",
        (JOBS, "place.init(problem, problem.row_tiles - 1 - rest / heads"),
        "not.b32",
        |text| text.replace("not.b32", "neg.s32"),
    ),
    // Turns.
    fault("a turn not waited for", TAKE_TURN, "bar.sync", dropped, (&["barrier"], &[PASS_TURN])),
    fault("a turn never passed", PASS_TURN, "bar.arrive", dropped, DEADLOCK),
    fault("a first turn that nobody has", FIRST_TURN, "bar.arrive", dropped, DEADLOCK),
    fault("a turn for other threads", PASS_TURN, "bar.arrive", |text| with_last(text, "128"), DEADLOCK),
    // Products under way.
    fault(
        "Q copied over what lanes load",
        (FA3, "fence_proxy_async();  // the copy of the next Q_i comes behind this lane's loads"),
        "fence.proxy",
        dropped,
        (&["missing proxy fence"], &[COPY, TAKE]),
    ),
    fault(
        "Q released by one lane alone",
        (FA3, "// and those of all"),
        "bar.warp",
        dropped,
        (&["race"], &[COPY, TAKE]),
    ),
    fault("S without a fence", S_FENCE, "wgmma.fence", dropped, (&["missing wgmma.fence"], &[S_OF_REGISTERS])),
    fault(
        "O without a fence",
        O_FENCE,
        "wgmma.fence",
        dropped,
        (&["missing wgmma.fence"], &[O, PACKED, (FA3, "j0 < min(end, whole.start); j0 += B::KEYS) step(true);")]),
    ),
    fault("S of no group", S_COMMIT, "wgmma.commit", dropped, (FRAGMENT, &[S_OF_REGISTERS, HIDDEN])),
    fault("O of no group", O_COMMIT, "wgmma.commit", dropped, (FRAGMENT, &[O, S_OF_REGISTERS, LARGEST, SQUARE])),
    fault(
        "the first S not waited for",
        FIRST_S_WAIT,
        "wgmma.wait",
        with_one_more_pending,
        (FRAGMENT, &[S_OF_REGISTERS, HIDDEN]),
    ),
    fault(
        "S not waited for",
        S_WAIT,
        "wgmma.wait",
        with_one_more_pending,
        (FRAGMENT, &[S_OF_REGISTERS, HIDDEN, LARGEST]),
    ),
    fault(
        "O of a masked tile not waited for",
        MASKED_STEP,
        "wgmma.wait",
        // The wait for S leaves one under way, that of O none.
        |text| text.replace(" 0;", " 1;"),
        (&["fragment in use", "operand in use", "copy in flight"], &[O, COPY, PACKED]),
    ),
    fault("O not waited for", O_WAIT, "wgmma.wait", with_one_more_pending, (FRAGMENT, &[O, PACKED])),
    fault("the last O not waited for", LAST_O_WAIT, "wgmma.wait", with_one_more_pending, (FRAGMENT, &[O, SQUARE])),
    fault(
        "registers that nobody gives back",
        (FA3, "setmaxnreg_dec<PRODUCER_REGISTERS>();"),
        "setmaxnreg",
        dropped,
        DEADLOCK,
    ),
    fault(
        "more registers than there are",
        (FA3, "setmaxnreg_inc<CONSUMER_REGISTERS>();"),
        "setmaxnreg",
        |_| "setmaxnreg.inc.sync.aligned.u32 248;".into(),
        DEADLOCK,
    ),
    // Places.
    fault(
        "a copy to a crooked place",
        LOAD,
        "cp.async.bulk",
        |text| text.replacen(']', "+16]", 1),
        (&["misaligned address"], &[COPY]),
    ),
    fault(
        "rows of O behind the last stored",
        (RESULTS, "const bool is_there = at.own(r) < at.end_row;"),
        "setp.lt.s32",
        always,
        (&["out of bounds", "race"], &[STORE_PAIR, STORE_LSE]),
    ),
    value("the same rows copied each time", LOAD, "cp.async.bulk", |text| {
        let [_, _, _, row, head, ..] = operands(text)[..] else { panic!("{text}") };
        text.replace(row, head)
    }),
    // Of the constant bits of a descriptor, the leading distance and the stride.
    value("panels of V sixteen bytes apart", DESCRIPTOR_OF_V, "or.b64", |text| {
        text.replace(&OF_V.to_string(), &OF_K.to_string())
    }),
    value("eight rows of K too close", DESCRIPTOR_OF_K, "or.b64", |text| {
        text.replace(&OF_K.to_string(), &(OF_K - (32 << 32)).to_string())
    }),
    value("chunks of Q not mixed", TAKE, "xor.b32", first_operand),
    value("values that are not transposed", O, "wgmma.mma_async", |text| text.replace("1, 1, 1;", "1, 1, 0;")),
    value("scores that are added to those before", S_OF_REGISTERS, "setp.ne.b32", |text| {
        text.replace("setp.ne.b32", "setp.ge.u32")
    }),
    value("keys behind the last not hidden", SEEN, "not.b32", every_bit),
    value("keys before the first not hidden", SEEN, "and.b32", before_the_end),
    value("keys hidden from one too late on", BITS_BEFORE, "sub.s32", one_more),
    value("a forgotten rescale of O", RESCALE, "mul.f32", first_operand),
    value("numbers not exchanged", EXCHANGE, "selp", first_operand),
    value("numbers exchanged with the wrong lane", SHUFFLE, "shfl", |text| {
        let [to, x, ..] = operands(text)[..] else { panic!("{text}") };
        format!("shfl.sync.bfly.b32 {to}, {x}, 3, 31, -1;")
    }),
    value("pairs of numbers exchanged with the lane beside", EXCHANGE_FURTHER, "shfl", |text| {
        let [to, x, ..] = operands(text)[..] else { panic!("{text}") };
        format!("shfl.sync.bfly.b32 {to}, {x}, 1, 31, -1;")
    }),
];
