//! Programs for sm_90a whose words were changed: each is refused, or ends well or with a fault, and never panics or hangs.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use ptx_sim::{Element, Memory, Module, OutOfBoundsFill, Schedule, Shape, Swizzle, Tiling};

/// A load of a box and one of a line, and a store of each, by the first thread; the others wait.
const BODY: &str = "
    mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0; @%p0 bra $L_made; mbarrier.init.shared::cta.b64 [bars], 1;
    mbarrier.init.shared::cta.b64 [bars+8], 64; fence.mbarrier_init.release.cluster; $L_made: bar.sync 0;
    setmaxnreg.dec.sync.aligned.u32 40; elect.sync _|%p1, -1; mov.u64 %d2, map; cvta.param.u64 %d2, %d2; mov.u32 %r1, 1;
    ld.param.u64 %d0, [out]; @%p0 bra $L_issued; mbarrier.arrive.expect_tx.shared::cta.b64 %d1, [bars], 640;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile], [%d2, {-4, %r1}], [bars];
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [tile+1024], [%d0], 128, [bars], %d2;
    $L_issued: mbarrier.try_wait.parity.shared::cta.b64 %p1, [bars], 0; @!%p1 bra $L_issued;
    ld.shared.u32 %r2, [tile]; fence.proxy.async.shared::cta; mbarrier.arrive.shared::cta.b64 %d1, [bars+8];
    $L_wait: mbarrier.test_wait.shared::cta.b64 %p2, [bars+8], %d1; @!%p2 bra $L_wait; mbarrier.pending_count.b64 %r3, %d1;
    @%p0 bra $L_end; cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d2, {0, 0}], [tile];
    cp.async.bulk.global.shared::cta.bulk_group [%d0], [tile+1024], 128; cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0; mbarrier.inval.shared::cta.b64 [bars];
    cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%d2, {0, 0}]; $L_end: ret;";

/// Words that take the place of others.
const WORDS: [&str; 22] = [
    "%p0",
    "%r0",
    "%d0",
    "_",
    "-1",
    "0",
    "1",
    "4294967295",
    "16",
    "{%r0, %r1}",
    "[%d0]",
    "[tile+4095]",
    "[bars]",
    "tile",
    "bars",
    "$L_end",
    "$L_wait",
    "read",
    "expect_tx",
    "noComplete",
    "5d",
    "u64",
];

fn changes() -> impl Strategy<Value = Vec<(Index, Option<&'static str>)>> {
    prop::collection::vec((any::<Index>(), prop::option::of(select(WORDS.to_vec()))), 0..4)
}

/// The text, cut so that every word, register and modifier is a piece.
fn pieces(text: &str) -> Vec<&str> {
    text.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '%' || c == '_' || c == '$')).collect()
}

fn run(body: &str, seed: u64, change: Option<(usize, u8)>) -> Option<Result<(), String>> {
    let text = format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n\
         .visible .entry kernel(.param .u64 out, .param .align 64 .b8 map[128])\n{{\n.reg .pred %p<3>; \
         .reg .b32 %r<5>; .reg .b64 %d<3>; .shared .align 1024 .b8 tile[4096]; .shared .b64 bars[2];\n{body}\n}}"
    );
    let mut memory = Memory::new(1 << 16);
    let module = Module::load(&text, &mut memory).ok()?;
    let (out, tensor) = (memory.alloc(4096).unwrap(), memory.alloc(4096).unwrap());
    memory.fill(out, 4096, 1).unwrap();
    memory.fill(tensor, 4096, 2).unwrap();
    let map = Tiling {
        element: Element::F32,
        address: tensor,
        lengths: &[32, 32],
        strides: &[128],
        tile: &[32, 4],
        swizzle: Swizzle::B128,
        fill: OutOfBoundsFill::Nan,
    };
    let mut map = map.encode().unwrap();
    if let Some((place, byte)) = change {
        map[place] ^= byte;
    }
    let shape = Shape { grid: [2, 1, 1], block: [128, 1, 1], shared_bytes: 16 };
    let kernel = module.kernel("kernel").unwrap();
    let arguments: [&[u8]; 2] = [&out.to_le_bytes(), &map];
    let done = kernel.launch(&mut memory, shape, &arguments, Schedule { seed, steps: 20_000 });
    Some(done.map(drop).map_err(|error| error.to_string()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_words(changes in changes(), seed: u64, change: Option<(Index, u8)>) {
        let pieces = pieces(BODY);
        let mut body: Vec<String> = pieces.iter().map(|piece| piece.to_string()).collect();
        for (index, word) in changes {
            let place = &mut body[index.index(pieces.len())];
            let end = place.pop().unwrap_or(' ');
            *place = format!("{}{end}", word.unwrap_or_default());
        }
        let change = change.map(|(place, byte)| (place.index(128), byte));
        let done = run(&body.concat(), seed, change);
        prop_assert!(done.and_then(Result::err).is_none_or(|error| !error.is_empty()));
    }
}

#[test]
fn the_program_itself_runs_as_one_block_alone() {
    // Two blocks that store to the same place race: that is all that is wrong with it.
    let body = BODY.replace("64; fence", "128; fence");
    let told = run(&body, 5, None).unwrap().unwrap_err();
    assert!(told.contains("memory at 0x7") && told.contains("cp.async.bulk"), "{told}");
    let one = body.replace(
        "setp.ne.u32 %p0, %r0, 0;",
        "mov.u32 %r4, %ctaid.x; setp.ne.u32 %p0, %r4, 0; @%p0 ret; setp.ne.u32 %p0, %r0, 0;",
    );
    for seed in 0..10 {
        assert_eq!(run(&one, seed, None), Some(Ok(())), "seed {seed}");
    }
}
