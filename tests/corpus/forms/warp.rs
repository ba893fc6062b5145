//! What the lanes of a warp do together.

use crate::form::{Form, form, program};

pub(crate) const FORMS: &[Form] = &[
    form("shfl.sync.<up|down|bfly|idx>.b32 %d0|%d1, %a0, %a1, %a2, 0xffffffff;", "b32 pred = b32 b32:lane b32:segment"),
    form("shfl.sync.<up|down|bfly|idx>.b32 %d0, %a0, %a1, <0x1f|0x1c1f|0|0x181f>, 0xffffffff;", "b32 = b32 b32:lane"),
    form("shfl.sync.bfly.b32 %d0, %a0, <16|8|4|2|1>, 31, -1;", "b32 = b32"),
    form("shfl.sync.up.b32 %d0|%d1, %a0, <1|7|31>, <0|0x1800>, -1;", "b32 pred = b32"),
    form("shfl.sync.down.b32 %d0|%d1, %a0, <1|7|31>, <31|0x1807>, -1;", "b32 pred = b32"),
    form("vote.sync.<all|any|uni>.pred %d0, <|!>%a0, 0xffffffff;", "pred = pred:warp"),
    form("vote.sync.ballot.b32 %d0, <|!>%a0, 0xffffffff;", "b32 = pred"),
    form("match.any.sync.<b32|b64> %d0, %a0, 0xffffffff;", "b32 = T:few"),
    form("match.all.sync.<b32|b64> %d0|%d1, %a0, 0xffffffff;", "b32 pred = T:warp"),
    form("match.all.sync.b32 %d0, %a0, 0xffffffff;", "b32 = b32:warp"),
    form("redux.sync.<add|min|max>.<u32|s32> %d0, %a0, 0xffffffff;", "T = T"),
    form("redux.sync.<and|or|xor>.b32 %d0, %a0, 0xffffffff;", "T = T"),
    program(
        "half of the warp does one thing and half another",
        "b32 b32 = b32",
        "
.reg .pred %p, %q; .reg .b32 %lane;
mov.u32 %lane, %laneid; and.b32 %lane, %lane, 1; setp.eq.u32 %p, %lane, 1; setp.lt.s32 %q, %a0, 0; @%p bra ODD;
shfl.sync.idx.b32 %d0, %a0, 4, 0x1f, 0x55555555; vote.sync.ballot.b32 %d1, %q, 0x55555555; bra DONE;
ODD: redux.sync.max.s32 %d0, %a0, 0xaaaaaaaa; match.any.sync.b32 %d1, %lane, 0xaaaaaaaa;
DONE:
",
    ),
    program(
        "a mask in a register, of the lanes that take a branch",
        "b32 b32 = b32",
        "
.reg .pred %p; .reg .b32 %mask;
mov.b32 %d1, 0; mov.b32 %d0, 0; and.b32 %mask, %a0, 0xff; setp.lt.u32 %p, %mask, 100;
vote.sync.ballot.b32 %mask, %p, 0xffffffff; @!%p bra DONE;
redux.sync.add.u32 %d0, %a0, %mask; vote.sync.ballot.b32 %d1, %p, %mask;
DONE:
",
    ),
    program(
        "lanes exchange through shared memory",
        "b32 = b32",
        "
.shared .align 4 .b32 memory[128];
.reg .b32 %s, %o;
mov.u32 %s, memory; mad.lo.u32 %o, %t, 4, %s; st.shared.b32 [%o], %a0; bar.warp.sync 0xffffffff;
xor.b32 %o, %t, 21; mad.lo.u32 %o, %o, 4, %s; ld.shared.b32 %d0, [%o];
",
    ),
    program(
        "a sum over the warp in a loop",
        "f32 = f32:integer",
        "
.reg .b32 %step, %other; .reg .pred %p;
mov.b32 %d0, %a0; mov.u32 %step, 16;
LOOP: shfl.sync.bfly.b32 %other, %d0, %step, 31, -1; add.f32 %d0, %d0, %other; shr.u32 %step, %step, 1;
setp.ne.u32 %p, %step, 0; @%p bra LOOP;
",
    ),
];
