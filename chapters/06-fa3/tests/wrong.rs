//! Wrong variants of chapter 6: slips that are easy to make, as edits of the reference. The checks must reject each of
//! them, in every order of warps and copies that is tried, and the simulated GPU must name the kind of fault.

mod laws;

use chapter_06_fa3::ROWS;
use kernelkit::named;
use laws::*;
use proptest::prelude::*;

const REFERENCE: &str = include_str!("reference.cu");

/// Orders of warps and copies.
const ORDERS: std::ops::Range<u64> = 0..8;

/// A law in the order that a seed draws.
type Law = fn(&Kernels, u64) -> Result<(), TestCaseError>;

/// A slip: what it is, what it replaces in the reference and by what, and words of which each report of it has one.
type Slip<'a> = (&'a str, &'a str, &'a str, &'a [&'a str]);

fn main() -> std::process::ExitCode {
    let with_nvrtc = named![
        barriers_for_too_many_or_too_few,
        barriers_that_copies_have_not_heard_of,
        announcements_that_are_not_what_comes,
        copies_of_another_tile,
        waits_for_full_that_end_too_early_or_never,
        a_wait_for_full_that_gives_up,
        a_warp_that_says_it_has_read_and_has_not,
        waits_for_empty_that_end_too_early_or_never,
        a_stage_given_back_before_it_is_read,
        barriers_used_before_they_are_there,
        tails_that_are_forgotten,
        no_tile_at_all,
        tiles_that_nobody_needs,
        reports_name_lines_and_barriers,
    ];
    kernelkit::run_or_ignore(with_nvrtc, vec![])
}

/// The reference with the only `old` in it replaced.
fn with(old: &str, new: &str) -> String {
    assert_eq!(REFERENCE.matches(old).count(), 1, "{old}");
    REFERENCE.replace(old, new)
}

/// Asserts that every law rejects every slip in every order.
fn assert_all_caught(laws: &[Law], slips: &[Slip]) {
    for (name, old, new, words) in slips {
        let text = with(old, new);
        let kernels = Kernels::new(&text);
        for (law, seed) in laws.iter().flat_map(|law| ORDERS.map(move |seed| (law, seed))) {
            let law = law(&kernels, seed);
            let said = law.err().unwrap_or_else(|| panic!("the wrong variant \"{name}\" passes in order {seed}"));
            let said = said.to_string();
            assert!(words.iter().any(|word| said.contains(word)), "{name}: none of {words:?} in {said}");
        }
    }
}

/// The kernel on a matrix of so many rows.
fn kernel<const N: usize>(kernels: &Kernels, seed: u64) -> Result<(), TestCaseError> {
    kernel_adds_up_the_columns(kernels, N, seed).map(drop)
}

/// Five tiles.
const FIVE: Law = kernel::<{ 5 * ROWS }>;

/// What comes of reading or filling a stage too early.
const EARLY: &[&str] = &[": race: ", ": copy in flight: ", ": uninitialised memory: "];

fn barriers_for_too_many_or_too_few() {
    let law: Law = |kernels, _| init_makes_barriers_for_who_arrives(kernels);
    const FULL: &str = "mbarrier_init(ring.full(stage), 1);";
    const EMPTY: &str = "mbarrier_init(ring.empty(stage), COLUMNS / LANES);";
    let never = |over| [over, ": deadlock: "];
    let early = |over| [over, ": race: ", ": copy in flight: "];
    assert_all_caught(
        &[law, FIVE],
        &[
            (
                "full for all who copy and read",
                FULL,
                "mbarrier_init(ring.full(stage), 2);",
                &never("full of stage 0: phase 0 is over after 2 arrivals, wanted 1"),
            ),
            (
                "empty for each reader",
                EMPTY,
                "mbarrier_init(ring.empty(stage), COLUMNS);",
                &never("empty of stage 0: phase 0 is over after 128 arrivals, wanted 4"),
            ),
            (
                "empty for one warp too many",
                EMPTY,
                "mbarrier_init(ring.empty(stage), THREADS / LANES);",
                &never("empty of stage 0: phase 0 is over after 5 arrivals, wanted 4"),
            ),
            (
                "empty for one warp too few",
                EMPTY,
                "mbarrier_init(ring.empty(stage), COLUMNS / LANES - 1);",
                &early("empty of stage 0: phase 0 is over after 3 arrivals, wanted 4"),
            ),
            (
                "barriers of one stage alone",
                "for (int stage = 0; stage < STAGES; ++stage)",
                "for (int stage = 0; stage < 1; ++stage)",
                &["of stage 1), wanted one: none was made"],
            ),
        ],
    );
}

fn barriers_that_copies_have_not_heard_of() {
    let fence = "    fence_mbarrier_init();\n";
    assert_all_caught(&[init_shows_barriers_to_copies, FIVE], &[("no fence", fence, "", &[": missing proxy fence: "])]);
}

fn announcements_that_are_not_what_comes() {
    const RIGHT: &str = "mbarrier_arrive_expect_tx(ring.full(stage), TILE_BYTES);";
    // The last of five tiles, of which three rows are there.
    let law: Law = |kernels, seed| fill_brings_the_tile(kernels, 4 * ROWS + 3, 4, seed);
    let kernel: Law = kernel::<{ 4 * ROWS + 3 }>;
    assert_all_caught(
        &[law, kernel],
        &[
            (
                "numbers in the place of bytes",
                RIGHT,
                "mbarrier_arrive_expect_tx(ring.full(stage), ROWS * COLUMNS);",
                &["found 3072 bytes more than phase 0 expects"],
            ),
            (
                "a row too few",
                RIGHT,
                "mbarrier_arrive_expect_tx(ring.full(stage), TILE_BYTES - 4 * COLUMNS);",
                &["found 512 bytes more than phase 0 expects"],
            ),
            (
                "both stages",
                RIGHT,
                "mbarrier_arrive_expect_tx(ring.full(stage), STAGES * TILE_BYTES);",
                &["which awaits 0 arrivals and 4096 bytes"],
            ),
            ("an arrival without bytes", RIGHT, "mbarrier_arrive(ring.full(stage));", EARLY),
            ("bytes without an arrival", RIGHT, "", &["which awaits 1 arrivals and -4096 bytes"]),
        ],
    );
    let there = "mbarrier_arrive_expect_tx(ring.full(stage), n == 4 ? 4 * 3 * COLUMNS : TILE_BYTES);";
    let words = ["found 2560 bytes more than phase"];
    assert_all_caught(&[law, kernel], &[("the bytes that are there", RIGHT, there, &words)]);
}

fn copies_of_another_tile() {
    const RIGHT: &str = "0, n * ROWS, 0, 0);";
    let law: Law = |kernels, seed| fill_brings_the_tile(kernels, 6 * ROWS, 5, seed);
    assert_all_caught(
        &[law, FIVE],
        &[
            ("row n", RIGHT, "0, n, 0, 0);", &[": column "]),
            ("coordinates the other way round", RIGHT, "n * ROWS, 0, 0, 0);", &[": column "]),
            ("every tile to stage 0", "ring.tile[stage]), matrix", "ring.tile[0]), matrix", EARLY),
        ],
    );
}

fn waits_for_full_that_end_too_early_or_never() {
    const RIGHT: &str = "WAIT(ring.full(n % STAGES), n / STAGES % 2);";
    let any = [EARLY, &[": deadlock: "]].concat();
    assert_all_caught(
        &[wait_full_waits_for_the_tile, FIVE],
        &[
            ("no wait", RIGHT, "", EARLY),
            ("the other parity", RIGHT, "WAIT(ring.full(n % STAGES), n / STAGES % 2 ^ 1);", &any),
            ("one parity for all rounds", RIGHT, "WAIT(ring.full(n % STAGES), 0);", &any),
            ("the parity of the tile", RIGHT, "WAIT(ring.full(n % STAGES), n % 2);", &any),
            ("the number of the phase", RIGHT, "WAIT(ring.full(n % STAGES), n / STAGES);", &["found parity 2"]),
            (
                "one lane for its warp",
                RIGHT,
                "if (threadIdx.x % LANES == 0) WAIT(ring.full(n % STAGES), n / STAGES % 2);",
                EARLY,
            ),
        ],
    );
}

fn a_wait_for_full_that_gives_up() {
    let once = "mbarrier_try_wait(ring.full(n % STAGES), n / STAGES % 2);";
    let text = with("WAIT(ring.full(n % STAGES), n / STAGES % 2);", once);
    let kernels = Kernels::new(&text);
    // Whether it comes to that is a matter of luck.
    let said: Vec<String> = (0..20).filter_map(|seed| Some(FIVE(&kernels, seed).err()?.to_string())).collect();
    assert!(said.len() > 10, "{said:?}");
    assert!(said.iter().all(|said| EARLY.iter().any(|word| said.contains(word))), "{said:?}");
}

fn a_warp_that_says_it_has_read_and_has_not() {
    const ARRIVE: &str = "if (threadIdx.x % LANES == 0) mbarrier_arrive(ring.empty(n % STAGES));";
    let late = format!("{ARRIVE}\n    __syncwarp();");
    let law: Law = |kernels, seed| have_read_speaks_for_all_that_was_read(kernels, seed as usize % 2, seed);
    assert_all_caught(
        &[law, FIVE],
        &[
            ("lanes that are not waited for", "    __syncwarp();\n", "", &[": race: "]),
            ("lanes that are waited for too late", &format!("__syncwarp();\n    {ARRIVE}"), &late, &[": race: "]),
            ("no fence", "    fence_proxy_async();\n", "", &[": missing proxy fence: "]),
            ("nobody", ARRIVE, "", &["which awaits 4 arrivals"]),
            (
                "one thread for all warps",
                ARRIVE,
                "if (threadIdx.x == 0) mbarrier_arrive(ring.empty(n % STAGES));",
                &["which awaits 3 arrivals"],
            ),
            ("each lane", ARRIVE, "mbarrier_arrive(ring.empty(n % STAGES));", &[": deadlock: "]),
            (
                "at full",
                ARRIVE,
                "if (threadIdx.x % LANES == 0) mbarrier_arrive(ring.full(n % STAGES));",
                &["found no mbarrier object", ": deadlock: "],
            ),
        ],
    );
}

fn waits_for_empty_that_end_too_early_or_never() {
    const RIGHT: &str = "WAIT(ring.empty(n % STAGES), n / STAGES % 2 ^ 1);";
    // A stage filled twice, before anybody could read: then its barrier is announced more than it waits for, too.
    let twice = [": copy in flight: ", ": mbarrier: found 1 arrivals, wanted none", ": deadlock: "];
    assert_all_caught(
        &[wait_empty_waits_for_the_readers, FIVE],
        &[
            ("no wait", RIGHT, "", &twice[..2]),
            ("one parity for all rounds", RIGHT, "WAIT(ring.empty(n % STAGES), 1);", &twice),
            ("the parity of full", RIGHT, "WAIT(ring.empty(n % STAGES), n / STAGES % 2);", &[": deadlock: "]),
        ],
    );
    let before = "if (n > 0) WAIT(ring.empty((n - 1) % STAGES), (n - 1) / STAGES % 2);";
    let slip = ("the tile before, not the stage", RIGHT, before, &[": deadlock: "][..]);
    assert_all_caught(&[wait_empty_waits_for_the_readers], &[slip]);
}

fn a_stage_given_back_before_it_is_read() {
    let (read, say) = ("            sum += column_sum(ring, n % STAGES);\n", "            have_read(ring, n);\n");
    let slip =
        ("said first", &*format!("{read}{say}"), &*format!("{say}{read}"), &[": race: ", ": copy in flight: "][..]);
    assert_all_caught(&[FIVE], &[slip]);
}

fn barriers_used_before_they_are_there() {
    let words = [": race: the byte of shared memory at 0x20", "none was made, or not yet"];
    assert_all_caught(
        &[FIVE],
        &[
            ("no barrier of the block", "    __syncthreads();\n", "", &words),
            ("made by each thread", "if (threadIdx.x == 0) init(ring);", "init(ring);", &words),
            (
                "filled by each lane",
                "threadIdx.x == PRODUCER)",
                "threadIdx.x >= PRODUCER)",
                &["found 1 arrivals, wanted none"],
            ),
        ],
    );
}

const TILES: &str = "const int tiles = (rows + ROWS - 1) / ROWS;";
const FILLS: &str = "(int n = 0; n < tiles; ++n) {\n            wait_empty(";
const READS: &str = "(int n = 0; n < tiles; ++n) {\n            wait_full(";

/// A loop's head with another end.
fn until(head: &str, end: &str) -> String {
    head.replace("n < tiles", &format!("n < {end}"))
}

fn tails_that_are_forgotten() {
    let slips: &[Slip] = &[
        ("tiles in pairs", TILES, "const int tiles = rows / (STAGES * ROWS) * STAGES;", &[": column "]),
        ("filled in pairs", FILLS, &until(FILLS, "(tiles + 1) / 2 * 2"), &["the block ends while a copy"]),
        ("read in pairs", READS, &until(READS, "(tiles + 1) / 2 * 2"), &[": deadlock: "]),
        ("the last tile not read", READS, &until(READS, "tiles - 1"), &["the block ends while a copy"]),
        ("the last tile not filled", FILLS, &until(FILLS, "tiles - 1"), &[": deadlock: "]),
    ];
    assert_all_caught(&[kernel::<1>, kernel::<ROWS>, FIVE], slips);
    let whole = ("whole tiles alone", TILES, "const int tiles = rows / ROWS;", &[": column "][..]);
    assert_all_caught(&[kernel::<1>, kernel::<{ 2 * ROWS + 1 }>], &[whole]);
}

fn no_tile_at_all() {
    // What the map shows nobody has written.
    let unwritten = [": uninitialised memory: the byte of global memory"];
    assert_all_caught(
        &[kernel::<0>],
        &[
            ("one tile at least", TILES, "const int tiles = max(1, (rows + ROWS - 1) / ROWS);", &unwritten),
            ("one filled at least", FILLS, &until(FILLS, "max(1, tiles)"), &unwritten),
            ("one read at least", READS, &until(READS, "max(1, tiles)"), &[": deadlock: "]),
            (
                "nothing stored",
                "        float sum = 0.0f;\n",
                "        if (tiles == 0) return;\n        float sum = 0.0f;\n",
                &["is NaN"],
            ),
        ],
    );
}

fn tiles_that_nobody_needs() {
    let law: Law = |kernels, _| kernel_copies_each_tile_once(kernels, 5 * ROWS - 1);
    let pairs = "const int tiles = (rows + STAGES * ROWS - 1) / (STAGES * ROWS) * STAGES;";
    assert_all_caught(&[law], &[("copied in pairs", TILES, pairs, &["found 6 copies of"])]);
}

fn reports_name_lines_and_barriers() {
    let place = |text: &str, part: &str| {
        let line = text.lines().position(|line| line.contains(part)).unwrap_or_else(|| panic!("no {part}"));
        format!("mine.cu:{}", line + 1)
    };
    // One warp after another: the copies have begun when the first consumer reads.
    let text = with("WAIT(ring.full(n % STAGES), n / STAGES % 2);", "");
    let said = FIVE(&Kernels::new(&text), 0).unwrap_err().to_string();
    for part in
        [": copy in flight: ", "0x0 (tile of stage 0)", &place(&text, "sum += ring"), &place(&text, "tma_load_4d(")]
    {
        assert!(said.contains(part), "{part} in {said}");
    }
    let text = with("if (threadIdx.x % LANES == 0) mbarrier_arrive(ring.empty(n % STAGES));", "");
    let said = FIVE(&Kernels::new(&text), 0).unwrap_err().to_string();
    for part in ["(full of stage 0)", "(empty of stage 0), which awaits 4 arrivals", &place(&text, "WAIT(ring.empty")] {
        assert!(said.contains(part), "{part} in {said}");
    }
}
