//! Barriers of a block.

use crate::form::{Form, program};

pub(crate) const FORMS: &[Form] = &[
    program(
        "bar.sync 0",
        "b32 = b32",
        "
.shared .align 4 .b32 memory[128];
.reg .b32 %s, %o;
mov.u32 %s, memory; mad.lo.u32 %o, %t, 4, %s; st.shared.b32 [%o], %a0; bar.sync 0;
sub.u32 %o, 127, %t; mad.lo.u32 %o, %o, 4, %s; ld.shared.b32 %d0, [%o];
",
    ),
    program(
        "bar.sync of ids and counts",
        "b32 = b32",
        "
.shared .align 4 .b32 memory[128];
.reg .b32 %s, %o, %id; .reg .pred %p;
mov.u32 %s, memory; mad.lo.u32 %o, %t, 4, %s; st.shared.b32 [%o], %a0; setp.ge.u32 %p, %t, 64; @%p bra UPPER;
bar.sync 1, 64; bra READ;
UPPER: shr.u32 %id, %t, 6; add.u32 %id, %id, 14; bar.sync %id, 64;
READ: xor.b32 %o, %t, 63; mad.lo.u32 %o, %o, 4, %s; ld.shared.b32 %d0, [%o];
",
    ),
    program(
        "bar.arrive by those who write, bar.sync by those who read",
        "b32 = b32",
        "
.shared .align 4 .b32 memory[64];
.reg .b32 %s, %o; .reg .pred %p;
mov.u32 %s, memory; and.b32 %o, %t, 63; mad.lo.u32 %o, %o, 4, %s; mov.b32 %d0, 0; setp.ge.u32 %p, %t, 64; @%p bra READ;
st.shared.b32 [%o], %a0; bar.arrive 3, 128; bra DONE;
READ: bar.sync 3, 128; ld.shared.b32 %d0, [%o];
DONE:
",
    ),
    program(
        "a buffer of one slot, handed to and fro",
        "b32 = b32",
        "
.shared .align 4 .b32 memory[64];
.reg .b32 %s, %o, %k, %w; .reg .pred %p;
mov.u32 %s, memory; and.b32 %o, %t, 63; mad.lo.u32 %o, %o, 4, %s; mov.b32 %d0, 0; mov.u32 %k, 0;
setp.ge.u32 %p, %t, 64; @%p bra READ;
WRITE: bar.sync 2, 128; mad.lo.u32 %w, %k, %a0, %t; st.shared.b32 [%o], %w; bar.arrive 1, 128;
add.u32 %k, %k, 1; setp.lt.u32 %p, %k, 5; @%p bra WRITE; bar.sync 2, 128; bra DONE;
READ: bar.arrive 2, 128;
AGAIN: bar.sync 1, 128; ld.shared.b32 %w, [%o]; mad.lo.u32 %d0, %d0, 3, %w; bar.arrive 2, 128;
add.u32 %k, %k, 1; setp.lt.u32 %p, %k, 5; @%p bra AGAIN;
DONE:
",
    ),
    program(
        "bar.red",
        "u32 pred pred u32 = pred:warp b32",
        "
.reg .pred %p;
setp.lt.s32 %p, %a1, 0;
bar.red.popc.u32 %d0, 0, %p; bar.red.and.pred %d1, 0, %a0; bar.red.or.pred %d2, 0, !%a0; bar.red.popc.u32 %d3, 2, 128, !%p;
",
    ),
    program(
        "bar.red of one warp",
        "u32 pred = pred:warp",
        "
.reg .b32 %id; .reg .pred %p;
shr.u32 %id, %t, 5; add.u32 %id, %id, 4; bar.red.popc.u32 %d0, %id, 32, %a0; bar.red.and.pred %d1, %id, 32, %a0;
",
    ),
    program(
        "barrier.sync, barrier.arrive and barrier.red",
        "b32 u32 = b32 pred",
        "
.shared .align 4 .b32 memory[128];
.reg .b32 %s, %o; .reg .pred %p;
mov.u32 %s, memory; mad.lo.u32 %o, %t, 4, %s; st.shared.b32 [%o], %a0; barrier.sync 0;
xor.b32 %o, %t, 96; mad.lo.u32 %o, %o, 4, %s; ld.shared.b32 %d0, [%o];
barrier.red.popc.u32 %d1, 1, %a1; barrier.sync.aligned 2, 128; barrier.cta.sync 3; barrier.cta.sync.aligned 0;
setp.lt.u32 %p, %t, 32; @%p bra ARRIVE; barrier.sync 5, 128; bra DONE;
ARRIVE: barrier.arrive 5, 128;
DONE:
",
    ),
    program(
        "a sum over the block, halved at each barrier",
        "b32 = b32",
        "
.shared .align 4 .b32 memory[128];
.reg .b32 %s, %o, %n, %v, %w; .reg .pred %p, %q;
mov.u32 %s, memory; mad.lo.u32 %s, %t, 4, %s; st.shared.b32 [%s], %a0; mov.u32 %n, 64;
LOOP: bar.sync 0; setp.ge.u32 %q, %t, %n; @%q bra NEXT;
mad.lo.u32 %o, %n, 4, %s; ld.shared.b32 %v, [%s]; ld.shared.b32 %w, [%o]; add.u32 %v, %v, %w; st.shared.b32 [%s], %v;
NEXT: shr.u32 %n, %n, 1; setp.ne.u32 %p, %n, 0; @%p bra LOOP;
bar.sync 0; mov.u32 %s, memory; ld.shared.b32 %d0, [%s];
",
    ),
];
