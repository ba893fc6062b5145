//! Branches, calls, exits, guards and special registers.

use crate::form::{Form, form, program};

pub(crate) const FORMS: &[Form] = &[
    program(
        "a loop that each lane leaves by itself",
        "u32 = b32",
        "
.reg .pred %p; .reg .b32 %n, %odd;
and.b32 %n, %a0, 0xfff; add.u32 %n, %n, 1; mov.u32 %d0, 0;
LOOP: setp.le.u32 %p, %n, 1; @%p bra DONE;
and.b32 %odd, %n, 1; setp.eq.u32 %p, %odd, 1; @%p bra ODD;
shr.u32 %n, %n, 1; bra NEXT;
ODD: mad.lo.u32 %n, %n, 3, 1;
NEXT: add.u32 %d0, %d0, 1; bra LOOP;
DONE:
",
    ),
    program(
        "branches within branches",
        "u32 = b32",
        "
.reg .pred %p; .reg .b32 %w;
and.b32 %w, %a0, 1; setp.eq.u32 %p, %w, 0; @%p bra EVEN;
and.b32 %w, %a0, 2; setp.eq.u32 %p, %w, 0; @!%p bra THREE;
mov.u32 %d0, 100; bra.uni ODD;
THREE: mov.u32 %d0, 300; setp.lt.s32 %p, %a0, 0; @%p add.u32 %d0, %d0, 50;
ODD: add.u32 %d0, %d0, 1; bra DONE;
EVEN: setp.gt.u32 %p, %a0, 0x40000000; @%p bra LARGE;
mov.u32 %d0, 7; bra DONE;
LARGE: mov.u32 %d0, 8; setp.lt.s32 %p, %a0, 0; @!%p bra DONE; neg.s32 %d0, %d0;
DONE: mad.lo.u32 %d0, %d0, 3, %t;
",
    ),
    program(
        "loops within loops, with an early way out",
        "u32 = b32 b32",
        "
.reg .pred %p; .reg .b32 %i, %j, %n, %m;
and.b32 %n, %a0, 7; and.b32 %m, %a1, 7; mov.u32 %d0, 0; mov.u32 %i, 0;
OUTER: setp.ge.u32 %p, %i, %n; @%p bra DONE; mov.u32 %j, 0;
INNER: setp.ge.u32 %p, %j, %m; @%p bra AFTER; mad.lo.u32 %d0, %d0, 5, %j;
setp.gt.u32 %p, %d0, 0xf0000000; @%p bra DONE;
add.u32 %j, %j, 1; bra INNER;
AFTER: add.u32 %d0, %d0, %i; add.u32 %i, %i, 1; bra OUTER;
DONE: add.u32 %d0, %d0, %i;
",
    ),
    program(
        "lanes meet again after a branch",
        "b32 b32 = b32",
        "
.reg .pred %p; .reg .b32 %w;
setp.lt.s32 %p, %a0, 0; @%p bra NEGATIVE;
add.u32 %w, %a0, 3; bra MEET;
NEGATIVE: not.b32 %w, %a0;
MEET: bar.warp.sync 0xffffffff; shfl.sync.bfly.b32 %d0, %w, 1, 0x1f, 0xffffffff; vote.sync.ballot.b32 %d1, %p, 0xffffffff;
",
    ),
    program(
        "a function of several parameters",
        "b32 b64 = b32 b64",
        "
.reg .b32 %r; .reg .b64 %x;
{ .param .b32 x; .param .b64 y; .param .align 8 .b8 s[16]; .param .align 8 .b8 result[16];
st.param.b32 [x], %a0; st.param.b64 [y], %a1; st.param.b32 [s], %t; st.param.b64 [s+8], %a1;
call.uni (result), mixed, (x, y, s);
ld.param.b32 %r, [result]; ld.param.b64 %x, [result+8]; }
mov.u32 %d0, %r; mov.b64 %d1, %x;
",
    )
    .with(
        ".func (.param .align 8 .b8 result[16]) mixed(.param .b32 x, .param .b64 y, .param .align 8 .b8 s[16])
{ .reg .b32 %a, %b; .reg .b64 %c, %d;
ld.param.b32 %a, [x]; ld.param.b64 %c, [y]; ld.param.b32 %b, [s]; ld.param.b64 %d, [s+8];
mad.lo.u32 %a, %a, 3, %b; xor.b64 %c, %c, %d; add.u64 %c, %c, 5; st.param.b32 [result], %a; st.param.b64 [result+8], %c; ret; }",
    ),
    program(
        "a call by some lanes, of a function that calls, and returns early",
        "u32 = b32",
        "
.reg .pred %p;
mov.u32 %d0, 1; setp.lt.s32 %p, %a0, 0; @%p bra DONE;
{ .param .b32 x; .param .b32 y; st.param.b32 [x], %a0; call (y), outer, (x); ld.param.b32 %d0, [y]; }
DONE: add.u32 %d0, %d0, 1;
",
    )
    .with(
        ".func (.param .b32 y) inner(.param .b32 x)
{ .reg .b32 %a; .reg .pred %p; ld.param.b32 %a, [x]; and.b32 %a, %a, 255; setp.gt.u32 %p, %a, 100; @%p bra LARGE;
mul.lo.u32 %a, %a, %a; st.param.b32 [y], %a; ret;
LARGE: st.param.b32 [y], 100; ret; }
.func (.param .b32 y) outer(.param .b32 x)
{ .reg .b32 %a, %b; ld.param.b32 %a, [x]; shr.u32 %b, %a, 8;
{ .param .b32 u; .param .b32 v; st.param.b32 [u], %a; call.uni (v), inner, (u); ld.param.b32 %a, [v]; }
{ .param .b32 u; .param .b32 v; st.param.b32 [u], %b; call.uni (v), inner, (u); ld.param.b32 %b, [v]; }
mad.lo.u32 %a, %a, 1000, %b; st.param.b32 [y], %a; ret; }",
    ),
    program(
        "a function without a result, through memory",
        "m4 = b32",
        "
{ .param .b64 place; .param .b32 x; st.param.b64 [place], %q0; st.param.b32 [x], %a0; call.uni keep, (place, x); }
",
    )
    .with(
        ".func keep(.param .b64 place, .param .b32 x)
{ .reg .b64 %p; .reg .b32 %a; ld.param.u64 %p, [place]; ld.param.u32 %a, [x]; brev.b32 %a, %a; st.global.u32 [%p], %a; ret; }",
    ),
    program(
        "some lanes exit and the others go on",
        "m8 = b32",
        "
.reg .pred %p; .reg .b32 %lane, %w;
mov.u32 %lane, %laneid; and.b32 %w, %lane, 1; setp.eq.u32 %p, %w, 1;
st.global.u32 [%q0], %lane; @%p exit;
shfl.sync.bfly.b32 %w, %a0, 2, 0x1f, 0x55555555; st.global.u32 [%q0+4], %w;
",
    ),
    program(
        "whole warps return before a barrier",
        "m4 = b32",
        "
.shared .align 4 .b32 memory[64];
.reg .pred %p; .reg .b32 %s;
st.global.u32 [%q0], 9; setp.ge.u32 %p, %t, 64; @%p ret;
mov.u32 %s, memory; mad.lo.u32 %s, %t, 4, %s; st.shared.u32 [%s], %a0; bar.sync 0;
xor.b32 %s, %t, 33; shl.b32 %s, %s, 2; mov.u32 %x, memory; add.u32 %s, %s, %x; ld.shared.u32 %s, [%s]; st.global.u32 [%q0], %s;
",
    ),
    program(
        "guards on everything",
        "b32 b64 f32 pred = b32 b64 f32 pred pred",
        "
.reg .pred %p;
mov.b32 %d0, 1; mov.b64 %d1, 2; mov.b32 %d2, 0f3F000000; mov.pred %d3, %a4;
@%a3 add.u32 %d0, %a0, 5; @!%a3 shl.b32 %d0, %a0, 3; @%a4 mul.lo.u64 %d1, %a1, 3; @!%a4 cvt.s64.s32 %d1, %a0;
@%a3 fma.rn.f32 %d2, %a2, %a2, %a2; @!%a4 setp.lt.s32 %d3, %a0, 0; @%a4 xor.pred %d3, %a3, %a4;
and.pred %p, %a3, %a4; @%p ld.global.u32 %d0, [%p0]; @!%p popc.b32 %d0, %a0; @%p selp.b32 %d2, 0, %d0, %a3;
@%a3 bra SKIP; add.u32 %d0, %d0, 1;
SKIP: @!%p bra OUT; add.u32 %d0, %d0, 2;
OUT:
",
    ),
    program(
        "names in scopes",
        "u32 = b32",
        "
.reg .b32 %w; mov.u32 %w, 1;
{ .reg .b32 %w; mov.u32 %w, %a0; LOOP: shr.u32 %w, %w, 1; setp.gt.u32 %set, %w, 9; @%set bra LOOP; mov.u32 %d0, %w; }
{ .reg .b64 %w; cvt.u64.u32 %w, %a0; LOOP: shr.u64 %w, %w, 2; setp.gt.u64 %set, %w, 9; @%set bra LOOP; cvt.u32.u64 %x, %w; }
mad.lo.u32 %d0, %d0, 16, %x; add.u32 %d0, %d0, %w;
",
    ),
    program(
        "special registers",
        "m64 =",
        "
.reg .b32 %r<16>; .reg .b64 %o;
mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %ntid.x; mov.u32 %r4, %ntid.y; mov.u32 %r5, %ntid.z;
mov.u32 %r6, %ctaid.x; mov.u32 %r7, %ctaid.y; mov.u32 %r8, %ctaid.z; mov.u32 %r9, %nctaid.x; mov.u32 %r10, %nctaid.y;
mov.u32 %r11, %nctaid.z; mov.u32 %r12, %laneid; mov.u32 %r13, %lanemask_lt; mov.u32 %r14, %lanemask_eq;
mad.lo.u32 %r15, %r8, %r10, %r7; mad.lo.u32 %r15, %r15, %r9, %r6; mad.lo.u32 %r15, %r15, %r5, %r2;
mad.lo.u32 %r15, %r15, %r4, %r1; mad.lo.u32 %r15, %r15, %r3, %r0; mad.wide.u32 %o, %r15, 64, %out;
st.global.v4.u32 [%o], {%r0, %r1, %r2, %r3}; st.global.v4.u32 [%o+16], {%r4, %r5, %r6, %r7};
st.global.v4.u32 [%o+32], {%r8, %r9, %r10, %r11}; mov.u32 %r15, %lanemask_ge; st.global.v4.u32 [%o+48], {%r12, %r13, %r14, %r15};
",
    )
    .on([2, 1, 2], [4, 4, 2]),
    form("mov.u32 %d0, %lanemask_<eq|lt|le|gt|ge>;", "u32 ="),
    form("cvt.u64.u32 %d0, %<tid.x|laneid|ntid.x|nctaid.x>;", "u64 ="),
];
