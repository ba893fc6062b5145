//! Copies that arrive later: `cp.async`.

use crate::form::{Form, form, program};

pub(crate) const FORMS: &[Form] = &[
    form(
        concat!(
            ".shared .align 16 .b8 s[2048]; .reg .b32 %s; mov.u32 %s, s; mad.lo.u32 %s, %t, 16, %s; ",
            "cp.async.<ca|cg>.shared.global<|.L2::128B> [%s], [%p0], 16; cp.async.wait_all; ",
            "ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%s];"
        ),
        "b32 b32 b32 b32 = m16",
    ),
    form(
        concat!(
            ".shared .align 16 .b8 s[2048]; .reg .b32 %s; mov.u32 %s, s; mad.lo.u32 %s, %t, 16, %s; ",
            "cp.async.ca.shared.global [%s], [%p0+4], 4; cp.async.ca.shared.global [%s+8], [%p0+8], 8; cp.async.wait_all; ",
            "ld.shared.b32 %d0, [%s]; ld.shared.b64 %d1, [%s+8];"
        ),
        "b32 b64 = m16",
    ),
    program(
        "cp.async of fewer bytes, and zeros",
        "b32 b32 b32 b32 b32 b64 = m32 b32:few",
        "
.shared .align 16 .b8 s[4096];
.reg .b32 %s, %n;
mov.u32 %s, s; mad.lo.u32 %s, %t, 32, %s; mul.lo.u32 %n, %a1, 4; cp.async.cg.shared.global [%s], [%p0], 16, %n;
cp.async.ca.shared.global [%s+16], [%p0+16], 4, %a1; mul.lo.u32 %n, %a1, 2; cp.async.ca.shared.global [%s+24], [%p0+24], 8, %n;
cp.async.wait_all; ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%s]; ld.shared.b32 %d4, [%s+16]; ld.shared.b64 %d5, [%s+24];
",
    ),
    program(
        "groups of copies, each waited for",
        "b32 b32 b32 b32 = m16",
        "
.shared .align 16 .b8 s[2048];
.reg .b32 %s;
mov.u32 %s, s; mad.lo.u32 %s, %t, 16, %s;
cp.async.ca.shared.global [%s], [%p0], 4; cp.async.commit_group;
cp.async.ca.shared.global [%s+4], [%p0+4], 4; cp.async.commit_group;
cp.async.ca.shared.global [%s+8], [%p0+8], 4; cp.async.ca.shared.global [%s+12], [%p0+12], 4; cp.async.commit_group; cp.async.commit_group;
cp.async.wait_group 3; ld.shared.b32 %d0, [%s]; cp.async.wait_group 2; ld.shared.b32 %d1, [%s+4];
cp.async.wait_group 0; ld.shared.v2.b32 {%d2, %d3}, [%s+8];
",
    ),
    program(
        "tiles copied two steps ahead, read by other threads",
        "b32 = m64",
        "
.shared .align 16 .b8 s[6144];
.reg .b32 %s, %o, %k, %w, %stage; .reg .pred %p; .reg .b64 %from;
mov.u32 %s, s; mov.u64 %from, %p0; mad.lo.u32 %o, %t, 16, %s; mov.b32 %d0, 0;
cp.async.cg.shared.global [%o], [%from], 16; cp.async.commit_group;
cp.async.cg.shared.global [%o+2048], [%from+16], 16; cp.async.commit_group; mov.u32 %k, 0;
LOOP: cp.async.wait_group 1; bar.sync 0; rem.u32 %stage, %k, 3; mad.lo.u32 %stage, %stage, 2048, %s;
xor.b32 %w, %t, 77; mad.lo.u32 %stage, %w, 16, %stage; ld.shared.b32 %w, [%stage+4]; mad.lo.u32 %d0, %d0, 31, %w;
setp.ge.u32 %p, %k, 2; @%p bra NEXT;
add.u32 %w, %k, 2; rem.u32 %w, %w, 3; mad.lo.u32 %w, %w, 2048, %o; cp.async.cg.shared.global [%w], [%from+32], 16;
NEXT: cp.async.commit_group; add.u64 %from, %from, 16; add.u32 %k, %k, 1; setp.lt.u32 %p, %k, 4; @%p bra LOOP;
",
    )
    .on([2, 1, 1], [128, 1, 1]),
];
