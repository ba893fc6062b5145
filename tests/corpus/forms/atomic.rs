//! Atomics: each thread at an address of its own, where old and new value are compared; and all at few addresses, where what is
//! there at the end is.

use crate::form::{Form, form, program};

pub(crate) const FORMS: &[Form] = &[
    form("st.global.b32 [%q1], %a1; atom.global.<add|min|max>.<u32|s32> %d0, [%q1], %a0;", "T m4 = T T"),
    form("st.global.b32 [%q1], %a1; atom.global.<inc|dec>.u32 %d0, [%q1], %a0;", "T m4 = T T"),
    form("st.global.b32 [%q1], %a1; atom.global.<and|or|xor|exch>.b32 %d0, [%q1], %a0;", "T m4 = T T"),
    form("st.global.b64 [%q1], %a1; atom.global.<add|min|max>.u64 %d0, [%q1], %a0;", "T m8 = T T"),
    form("st.global.b64 [%q1], %a1; atom.global.<min|max>.s64 %d0, [%q1], %a0;", "T m8 = T T"),
    form("st.global.b64 [%q1], %a1; atom.global.<and|or|xor|exch>.b64 %d0, [%q1], %a0;", "T m8 = T T"),
    form("st.global.b32 [%q1], %a1; atom.global.add.f32 %d0, [%q1], %a0;", "T m4 = T T"),
    form("st.global.b32 [%q1], %a1; atom.global.cas.b32 %d0, [%q1], %a0, %a2;", "T m4 = b32:few b32:few b32"),
    form("st.global.b64 [%q1], %a1; atom.global.cas.b64 %d0, [%q1], %a0, %a2;", "T m8 = b64:few b64:few b64"),
    form(
        "st.global.b32 [%q1], %a1; atom.<relaxed|acquire|release|acq_rel>.<cta|gpu|sys>.global.add.u32 %d0, [%q1], %a0;",
        "T m4 = T T",
    ),
    form("st.global.b32 [%q0], %a1; red.global.<add|min|max>.<u32|s32> [%q0], %a0;", "m4 = T T"),
    form("st.global.b32 [%q0], %a1; red.global.<inc|dec>.u32 [%q0], %a0;", "m4 = T T"),
    form("st.global.b32 [%q0], %a1; red.global.<and|or|xor>.b32 [%q0], %a0;", "m4 = T T"),
    form("st.global.b32 [%q0], %a1; red.global.add.f32 [%q0], %a0;", "m4 = T T"),
    form("st.global.b64 [%q0], %a1; red.<|relaxed.gpu.>global.add.u64 [%q0], %a0;", "m8 = T T"),
    form(
        "cvta.global.u64 %q1, %q1; st.b32 [%q1], %a1; atom.add.u32 %d0, [%q1], %a0;",
        "T m4 = T T",
    ),
    form(
        concat!(
            ".shared .align 4 .b32 s[128]; .reg .b32 %s; mov.u32 %s, s; mad.lo.u32 %s, %t, 4, %s; st.shared.b32 [%s], %a1; ",
            "atom.shared.<add.u32|min.u32|min.s32|max.u32|max.s32|inc.u32|dec.u32|and.b32|or.b32|xor.b32|exch.b32|add.f32> ",
            "%d0, [%s], %a0; ld.shared.b32 %d1, [%s];"
        ),
        "b32 b32 = b32 b32",
    ),
    form(
        concat!(
            ".shared .align 8 .b64 s[128]; .reg .b32 %s; mov.u32 %s, s; mad.lo.u32 %s, %t, 8, %s; st.shared.b64 [%s], %a1; ",
            "atom.shared.<add.u64|min.s64|max.u64|and.b64|exch.b64> %d0, [%s], %a0; ld.shared.b64 %d1, [%s];"
        ),
        "b64 b64 = b64 b64",
    ),
    program(
        "atom.shared.cas",
        "b32 b64 b32 = b32:few b32:few b64:few b64:few",
        "
.shared .align 8 .b64 s[256];
.reg .b32 %s; mov.u32 %s, s; mad.lo.u32 %s, %t, 16, %s; st.shared.b32 [%s], %a0; st.shared.b64 [%s+8], %a2;
atom.shared.cas.b32 %d0, [%s], %a1, 77; atom.shared.cas.b64 %d1, [%s+8], %a3, %a2; ld.shared.b32 %d2, [%s];
",
    ),
    program(
        "all threads count in few counters",
        "m4 = b32 f32:integer",
        "
.reg .b64 %c; .reg .b32 %w; .reg .pred %p;
st.global.u32 [%q0], 0;
and.b32 %w, %a0, 3; mul.wide.u32 %c, %w, 4; mov.u64 %q0, counters; add.u64 %c, %c, %q0;
red.global.add.u32 [%c], 1; atom.global.max.s32 %w, [%c+16], %a0; red.global.xor.b32 [%c+32], %a0; red.global.add.f32 [%c+48], %a1;
atom.global.add.u32 %w, [%c], 0x10000; bar.sync 0; setp.ge.u32 %p, %t, 16; @%p bra DONE;
mad.wide.u32 %c, %t, 4, %q0; ld.global.cg.u32 %w, [%c]; mad.wide.u32 %q0, %t, 4, %out; st.global.u32 [%q0], %w;
DONE:
",
    )
    .with(".global .align 4 .b32 counters[16];")
    .on([1, 1, 1], [256, 1, 1]),
    program(
        "all threads count in shared counters",
        "b32 = b32 f32:integer",
        "
.shared .align 8 .b64 counters[4];
.reg .b32 %c, %w, %o; .reg .b64 %x; .reg .pred %p;
mov.u32 %c, counters; setp.ge.u32 %p, %t, 8; @%p bra READY;
mad.lo.u32 %o, %t, 4, %c; st.shared.u32 [%o], 0;
READY: bar.sync 0; cvt.u64.u32 %x, %a0;
atom.shared.add.u64 %x, [%c], %x; red.shared.or.b32 [%c+8], %a0; red.shared.min.s32 [%c+12], %a0; red.shared.add.f32 [%c+16], %a1;
red.shared.inc.u32 [%c+20], 1000; red.shared.max.u32 [%c+24], %a0; red.shared.add.u32 [%c+28], %a0; bar.sync 0;
and.b32 %w, %t, 7; mad.lo.u32 %o, %w, 4, %c; ld.shared.u32 %d0, [%o];
",
    ),
];

/// Plain accesses that atomics and fences order.
pub(crate) const ORDERS: &[Form] = &[
    program(
        "a lock taken by compare and swap, by one lane of each warp",
        "b32 = b32",
        "
.reg .b32 %w, %sum; .reg .pred %p; .reg .b64 %c, %l;
mov.u64 %c, sum; mov.u64 %l, lock; mov.u32 %w, %laneid; setp.ne.u32 %p, %w, 0; redux.sync.add.u32 %sum, %a0, -1; @%p bra MEET;
TRY: atom.acquire.gpu.global.cas.b32 %w, [%l], 0, 1; setp.ne.u32 %p, %w, 0; @%p bra TRY;
ld.global.cg.u32 %w, [%c]; add.u32 %w, %w, %sum; st.global.cg.u32 [%c], %w; atom.release.gpu.global.exch.b32 %w, [%l], 0;
MEET: bar.sync 0; ld.global.cg.u32 %d0, [%c];
",
    )
    .with(".global .align 4 .u32 lock; .global .align 4 .u32 sum;")
    .on([1, 1, 1], [128, 1, 1]),
    program(
        "the block that comes last adds what the others left",
        "m4 m4 = b32",
        "
.shared .align 4 .b32 last[1];
.reg .b32 %w, %sum; .reg .pred %p; .reg .b64 %c, %n;
st.global.u32 [%q0], %a0;
mov.u64 %c, sums; mov.u64 %n, arrived; redux.sync.add.u32 %sum, %a0, -1; mov.u32 %w, %tid.x; setp.ne.u32 %p, %w, 0; @%p bra MEET;
mov.u32 %w, %ctaid.x; mad.wide.u32 %c, %w, 4, %c; st.global.u32 [%c], %sum; fence.acq_rel.gpu;
atom.global.inc.u32 %w, [%n], 7; st.shared.u32 [last], %w; fence.acq_rel.gpu;
MEET: bar.sync 0; ld.shared.u32 %w, [last]; setp.ne.u32 %p, %w, 7; @%p bra DONE;
mov.u64 %c, sums; and.b32 %w, %t, 7; mad.wide.u32 %c, %w, 4, %c; ld.global.cg.u32 %w, [%c];
mad.wide.u32 %c, %t, 4, %out; st.global.u32 [%c+1024], %w;
DONE:
",
    )
    .with(".global .align 4 .u32 sums[8]; .global .align 4 .u32 arrived;")
    .on([8, 1, 1], [32, 1, 1]),
];
