//! Programs whose words were changed: each is refused, or ends well or with a fault, and never panics or hangs.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use ptx_sim::{Memory, Module, Schedule, Shape};

/// Instructions of many kinds, whose operands fit.
const BODY: &str = "
    mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 4; ld.param.u64 %d0, [out]; cvt.u64.u32 %d1, %r1; add.s64 %d2, %d0, %d1;
    setp.lt.s32 %p0, %r0, 16; @%p0 bra $L_end; cvt.rn.f32.s32 %f0, %r0; fma.rn.f32 %f1, %f0, %f0, %f0; bar.warp.sync -1;
    $L_end: st.shared.v4.u32 [%r1], {%r0, %r1, %r0, %r1}; bar.sync 0; ld.shared.v2.f32 {%f2, %f3}, [%r1+8];
    shfl.sync.bfly.b32 %r2|%p1, %r0, 1, 31, -1; vote.sync.ballot.b32 %r3, %p0, -1; redux.sync.add.s32 %r4, %r2, -1;
    cp.async.ca.shared.global [%r1], [%d2], 8; cp.async.commit_group; cp.async.wait_group 0; bar.sync 1, 64;
    atom.global.add.u32 %r5, [%d0], 1; red.shared.max.u32 [tile], %r5; fence.acq_rel.gpu;
    cvt.rn.f16x2.f32 %r6, %f1, %f2; fma.rn.f16x2 %r7, %r6, %r6, %r6; mov.b32 {%h0, %h1}, %r7; lop3.b32 %r8, %r7, %r6, %r5, 150;
    bfe.u32 %r9, %r8, 3, 4; prmt.b32 %r10, %r9, %r8, 4660; selp.f32 %f4, %f2, %f3, %p1; ex2.approx.ftz.f32 %f5, %f4;
    ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r11, %r12}, [%r1];
    mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r6, %r7}, {%r8}, {%f1, %f2, %f3, %f4};
    st.global.u32 [%d2], %r10; ret;";

/// Words that take the place of others.
const WORDS: [&str; 20] = [
    "%p0",
    "%h0",
    "%r0",
    "%d0",
    "%f0",
    "_",
    "-1",
    "0",
    "4294967295",
    "0f7FC00000",
    "{%r0, %r1}",
    "[%d0]",
    "[tile+4095]",
    "tile",
    "$L_end",
    "%clock",
    "%nosuch",
    "u64",
    "b128",
    "pred",
];

/// A change: where, and what stands there then; nothing if it is left out.
fn changes() -> impl Strategy<Value = Vec<(Index, Option<&'static str>)>> {
    prop::collection::vec((any::<Index>(), prop::option::of(select(WORDS.to_vec()))), 1..6)
}

/// The text, cut so that every word, register and modifier is a piece.
fn pieces(text: &str) -> Vec<&str> {
    text.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '%' || c == '_' || c == '$')).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_words(changes in changes(), seed: u64) {
        let pieces = pieces(BODY);
        let mut body: Vec<String> = pieces.iter().map(|piece| piece.to_string()).collect();
        for (index, word) in changes {
            let place = &mut body[index.index(pieces.len())];
            let end = place.pop().unwrap_or(' ');
            *place = format!("{}{end}", word.unwrap_or_default());
        }
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry kernel(.param .u64 out)\n{{\n.reg .pred %p<3>; \
             .reg .b16 %h<3>; .reg .b32 %r<13>; .reg .f32 %f<6>; .reg .b64 %d<3>; .shared .align 16 .b8 tile[4096];\n{}\n}}",
            body.concat()
        );
        let mut memory = Memory::new(1 << 16);
        if let Ok(module) = Module::load(&text, &mut memory) {
            let out = memory.alloc(4096).unwrap();
            let shape = Shape { grid: [2, 1, 1], block: [64, 1, 1], shared_bytes: 16 };
            let schedule = Schedule { seed, steps: 5000 };
            let done = module.kernel("kernel").unwrap().launch(&mut memory, shape, &[&out.to_le_bytes()], schedule);
            prop_assert!(done.map_err(|error| error.to_string()).err().is_none_or(|error| !error.is_empty()));
        }
    }
}

#[test]
fn the_program_itself_is_right() {
    assert!(Module::load("", &mut Memory::new(0)).is_err());
    assert_eq!(pieces(BODY).concat(), BODY);
}
