//! Loads and stores of every width, and the state spaces.

use crate::form::{Form, form, program};

pub(crate) const LOADS: &[Form] = &[
    form("ld.global.<b8|u8|s8|b16|u16|s16> %d0, [%p0];", "b16 = m2").of("16 bits"),
    form("ld.global.<b8|u8|s8|b16|u16|s16|b32|u32|s32|f32> %d0, [%p0+4];", "b32 = m8"),
    form("ld.global.<b8|u8|s8|b16|u16|s16|b32|u32|s32|b64|u64|s64|f64> %d0, [%p0];", "b64 = m8"),
    form("ld.global.v2.<b8|u8|s8> {%d0, %d1}, [%p0];", "2*b16 = m2").of("16 bits"),
    form("ld.global.v2.<b16|u16|s16> {%d0, %d1}, [%p0+4];", "2*b16 = m8"),
    form("ld.global.v2.<u8|s8|u16|s16|b32|u32|f32> {%d0, %d1}, [%p0];", "2*b32 = m8"),
    form("ld.global.v2.<b64|u64|s64|f64> {%d0, %d1}, [%p0];", "2*b64 = m16"),
    form("ld.global.v4.<b8|u8|s8> {%d0, %d1, %d2, %d3}, [%p0];", "4*b16 = m4").of("16 bits"),
    form("ld.global.v4.<b16|u16|s16> {%d0, %d1, %d2, %d3}, [%p0];", "4*b16 = m8"),
    form("ld.global.v4.<s8|b32|u32|s32|f32> {%d0, %d1, %d2, %d3}, [%p0];", "4*b32 = m16"),
    form("ld.global.<ca|cg|cs|lu|cv|nc|L1::no_allocate|L2::128B>.b32 %d0, [%p0];", "b32 = m4"),
    form("ld.global.nc.<L2::128B.|>v4.f32 {%d0, %d1, %d2, %d3}, [%p0];", "4*b32 = m16"),
    form("ld.<volatile|weak>.global.u32 %d0, [%p0];", "u32 = m4"),
    form("ld.<relaxed|acquire>.<cta|gpu|sys>.global.u32 %d0, [%p0];", "u32 = m4"),
    form("ld.volatile.global.v2.f32 {%d0, %d1}, [%p0];", "2*f32 = m8"),
    form("@%a1 ld.global.u32 %d0, [%p0]; @!%a1 mov.u32 %d0, 7;", "u32 = m4 pred"),
];

pub(crate) const STORES: &[Form] = &[
    form("st.global.<b8|u8|s8|b16|u16|s16> [%q0+2], %a0;", "m4 = b16"),
    form("st.global.<b8|u8|s8|b16|u16|s16|b32|u32|s32|f32> [%q0+4], %a0;", "m8 = b32"),
    form("st.global.<b8|u8|s8|b16|u16|s16|b32|u32|s32|b64|u64|s64|f64> [%q0], %a0;", "m8 = b64"),
    form("st.global.v2.<b8|b16|u16> [%q0], {%a0, %a1};", "m4 = 2*b16").of("16 bits"),
    form("st.global.v2.<u8|b16|b32|u32|f32> [%q0], {%a0, %a1};", "m8 = 2*b32"),
    form("st.global.v2.<b64|f64> [%q0], {%a0, %a1};", "m16 = 2*b64"),
    form("st.global.v4.<b8|b16> [%q0], {%a0, %a1, %a2, %a3};", "m8 = 4*b16"),
    form("st.global.v4.<b32|u32|f32> [%q0], {%a0, %a1, %a2, %a3};", "m16 = 4*b32"),
    form("st.global.<wb|cg|cs|wt|L1::no_allocate>.b32 [%q0], %a0;", "m4 = b32"),
    form("st.<volatile|weak>.global.u32 [%q0], %a0;", "m4 = u32"),
    form("st.<relaxed|release>.<cta|gpu|sys>.global.u32 [%q0], %a0;", "m4 = u32"),
    form("st.global.u32 [%q0], 305419896;", "m4 = u32"),
    form("@%a1 st.global.u32 [%q0], %a0;", "m4 = u32 pred"),
];

/// Each state space, and addresses that any of them has.
pub(crate) const SPACES: &[Form] = &[
    program(
        "a parameter that is a struct",
        "m64 =",
        "
.reg .b64 %x<8>; .reg .b32 %w<4>; .reg .b16 %h<2>; .reg .f64 %f;
ld.param.u32 %w0, [argument]; ld.param.s8 %w1, [argument+7]; ld.param.v2.u32 {%w2, %w3}, [argument+8];
ld.param.u64 %x0, [argument+16]; ld.param.f64 %f, [argument+24]; ld.param.u8 %h0, [argument+5]; ld.param.s16 %x1, [argument+2];
st.global.v4.u32 [%q0], {%w0, %w1, %w2, %w3};
st.global.u64 [%q0+16], %x0; st.global.f64 [%q0+24], %f; st.global.u16 [%q0+32], %h0; st.global.u64 [%q0+40], %x1;
ld.param.v4.f32 {%w0, %w1, %w2, %w3}, [argument+16];
st.global.v4.f32 [%q0+48], {%w0, %w1, %w2, %w3};
",
    )
    .argument(&[
        0x10, 0x32, 0x54, 0x96, 0x98, 0xba, 0xdc, 0xfe, 1, 2, 3, 4, 5, 6, 7, 8, 0xf1, 0xe2, 0xd3, 0xc4, 0xb5, 0xa6, 0x97,
        0x88, 0x18, 0x2d, 0x44, 0x54, 0xfb, 0x21, 0x09, 0x40,
    ]),
    program(
        "variables with initial values",
        "m64 = b32",
        "
.reg .b32 %w<6>; .reg .b64 %x<6>; .reg .b16 %h<2>;
and.b32 %w0, %a0, 3; mov.u64 %x0, powers; mad.wide.u32 %x0, %w0, 4, %x0;
ld.const.u32 %w1, [%x0]; ld.const.f32 %w2, [third]; ld.const.s8 %w3, [letters+2]; ld.const.u64 %x1, [wide+8];
st.global.v2.u32 [%q0], {%w1, %w2}; st.global.u32 [%q0+8], %w3; st.global.u64 [%q0+16], %x1;
ld.global.v4.u16 {%w1, %w2, %w3, %w4}, [halves]; ld.global.f64 %x2, [number]; ld.global.u32 %w5, [zeros+4];
st.global.v4.u32 [%q0+32], {%w1, %w2, %w3, %w4}; st.global.u64 [%q0+24], %x2; st.global.u32 [%q0+12], %w5;
ld.const.u32 %w3, [powers+12]; ld.global.u32 %w1, [numbers]; st.global.v2.u32 [%q0+48], {%w1, %w3};
ld.global.s16 %w4, [rest+6]; st.global.u32 [%q0+60], %w4;
",
    )
    .with(
        ".const .align 4 .b32 powers[4] = {1, -2, 0x40, 8};
.const .f32 third = 0f3EAAAAAB;
.const .align 1 .b8 letters[4] = {104, 97, 200, 0};
.const .align 8 .u64 wide[2] = {1, 0xfedcba9876543210};
.global .align 8 .u16 halves[4] = {1, 65535, 32768, 7};
.global .f64 number = 0d400921FB54442D18;
.global .align 4 .b32 zeros[4];
.global .align 4 .u32 numbers[3] = {11, 22, 33};
.global .align 2 .s16 rest[4] = {-5, 6};",
    ),
    program(
        "addresses as initial values",
        "b32 b32 = b32",
        "
.reg .b64 %x;
ld.global.u64 %x, [pointers]; ld.global.u32 %d0, [%x]; ld.global.u64 %x, [pointers+8]; ld.u32 %d1, [%x];
",
    )
    .with(
        ".global .align 4 .u32 pointed[3] = {11, 22, 33};
.global .align 8 .u64 pointers[2] = {pointed+4, generic(pointed)+8};",
    ),
    program(
        "a global variable that a kernel writes",
        "b32 = b32",
        "
.reg .b64 %x; .reg .b32 %w;
mov.u64 %x, slots; mad.wide.u32 %x, %i, 4, %x;
st.global.u32 [%x], %a0; ld.global.u32 %w, [%x]; add.u32 %d0, %w, 1;
",
    )
    .with(".global .align 4 .b32 slots[256];"),
    program(
        "local memory, indexed",
        "b32 b64 = b32 b64",
        "
.local .align 16 .b8 stack[64];
.reg .b64 %x<4>; .reg .b32 %w<6>; .reg .pred %p;
mov.u64 %x0, stack; cvta.local.u64 %x1, %x0;
mov.u32 %w0, 0;
FILL: mad.wide.u32 %x2, %w0, 4, %x0; mad.lo.u32 %w1, %w0, 7, %a0; st.local.u32 [%x2], %w1;
add.u32 %w0, %w0, 1; setp.lt.u32 %p, %w0, 16; @%p bra FILL;
and.b32 %w2, %a0, 15; mad.wide.u32 %x3, %w2, 4, %x1; ld.u32 %d0, [%x3];
st.u64 [%x1+24], %a1; ld.local.v2.u32 {%w3, %w4}, [stack+24]; mov.b64 %d1, {%w4, %w3};
st.local.u8 [%x0+5], %w2; ld.local.s16 %w5, [%x0+4]; xor.b32 %d0, %d0, %w5;
",
    ),
    program(
        "shared memory of every width",
        "m32 = b32 b64",
        "
.shared .align 16 .b8 memory[2048];
.reg .b64 %x<4>; .reg .b32 %s, %w<8>; .reg .b16 %h<4>;
mov.u32 %s, memory; mad.lo.u32 %s, %t, 16, %s;
st.shared.u64 [%s], %a1; st.shared.b32 [%s+8], %a0; st.shared.u16 [%s+12], %a0; st.shared.u8 [%s+14], %a0; st.shared.b8 [%s+15], %a1;
ld.shared.u8 %w0, [%s+3]; ld.shared.s8 %w1, [%s+9]; ld.shared.s16 %w2, [%s+6]; ld.shared.u16 %w3, [%s+14];
st.global.v4.b32 [%q0], {%w0, %w1, %w2, %w3};
ld.shared.v4.u32 {%w4, %w5, %w6, %w7}, [%s]; ld.shared.v2.b64 {%x0, %x1}, [%s]; ld.shared.v4.u16 {%h0, %h1, %h2, %h3}, [%s+8];
xor.b64 %x0, %x0, %x1; st.global.u64 [%q0+16], %x0; mov.b64 %x2, {%h3, %h2, %h1, %h0}; xor.b32 %w4, %w4, %w7;
cvt.u64.u32 %x3, %w4; add.u64 %x2, %x2, %x3; st.global.u64 [%q0+24], %x2;
",
    ),
    program(
        "volatile and ordered accesses of shared memory",
        "2*b32 b32 = b32",
        "
.shared .align 4 .b32 memory[128];
.reg .b32 %s;
mov.u32 %s, memory; mad.lo.u32 %s, %t, 4, %s;
st.volatile.shared.u32 [%s], %a0; ld.volatile.shared.u32 %d0, [%s];
st.release.cta.shared.u32 [%s], 5; ld.acquire.cta.shared.u32 %d1, [%s];
st.relaxed.cta.shared.u32 [%s], %t; ld.relaxed.cta.shared.u32 %d2, [%s];
",
    ),
    program(
        "static and dynamic shared memory",
        "2*b32 = 2*b32",
        "
.shared .align 8 .b32 fixed[128];
.reg .b32 %s<4>;
mov.u32 %s0, fixed; mad.lo.u32 %s0, %t, 4, %s0; mov.u32 %s1, dynamic; mad.lo.u32 %s1, %t, 4, %s1;
st.shared.u32 [%s0], %a0; st.shared.u32 [%s1], %a1; st.shared.u32 [%s1+512], %t;
bar.sync 0;
mov.u32 %s2, fixed; mov.u32 %s3, dynamic+512; sub.u32 %s0, 127, %t; mad.lo.u32 %s2, %s0, 4, %s2; mad.lo.u32 %s3, %s0, 4, %s3;
ld.shared.u32 %d0, [%s2]; ld.shared.u32 %d1, [%s3+-512]; ld.shared.u32 %s0, [%s3]; add.u32 %d1, %d1, %s0;
",
    )
    .with(".extern .shared .align 16 .b8 dynamic[];")
    .on([2, 1, 1], [128, 1, 1])
    .shared(1024),
    program(
        "generic addresses there and back",
        "4*b32 = b32",
        "
.shared .align 4 .b32 block[128]; .local .align 4 .b32 own[2];
.reg .b64 %x<8>;
mov.u64 %x0, block; mad.wide.u32 %x0, %t, 4, %x0; cvta.shared.u64 %x1, %x0; st.u32 [%x1], %a0;
cvta.to.shared.u64 %x2, %x1; ld.shared.u32 %d0, [%x2];
mov.u64 %x3, own; cvta.local.u64 %x4, %x3; st.u32 [%x4+4], %a0; cvta.to.local.u64 %x5, %x4; ld.local.u32 %d1, [%x5+4];
cvta.global.u64 %x6, %p0; ld.u32 %d2, [%x6]; cvta.to.global.u64 %x7, %x6; ld.global.u32 %d3, [%x7];
",
    ),
    program(
        "isspacep",
        "b32 = b32",
        "
.shared .align 4 .b32 block[128]; .local .align 4 .b32 own[2];
.reg .b64 %x<4>; .reg .b32 %w; .reg .pred %p; .reg .b64 %y;
mov.u64 %y, block; mad.wide.u32 %y, %t, 4, %y; cvta.shared.u64 %x0, %y; mov.u64 %y, own; cvta.local.u64 %x1, %y; st.u32 [%x1], %a0; st.u32 [%x0], 1;
cvta.global.u64 %x2, %p0; mov.u64 %y, constant; cvta.const.u64 %x3, %y; mov.u32 %d0, 0;
isspacep.shared %p, %x0; @%p or.b32 %d0, %d0, 1; isspacep.local %p, %x0; @%p or.b32 %d0, %d0, 2;
isspacep.global %p, %x0; @%p or.b32 %d0, %d0, 4; isspacep.shared %p, %x1; @%p or.b32 %d0, %d0, 8;
isspacep.local %p, %x1; @%p or.b32 %d0, %d0, 16; isspacep.global %p, %x1; @%p or.b32 %d0, %d0, 32;
isspacep.shared %p, %x2; @%p or.b32 %d0, %d0, 64; isspacep.local %p, %x2; @%p or.b32 %d0, %d0, 128;
isspacep.global %p, %x2; @%p or.b32 %d0, %d0, 256; isspacep.const %p, %x3; @%p or.b32 %d0, %d0, 512;
isspacep.const %p, %x0; @%p or.b32 %d0, %d0, 1024; ld.u32 %w, [%x3]; xor.b32 %d0, %d0, %w;
",
    )
    .with(".const .align 4 .b32 constant[1] = {0x70000000};")
    .on([1, 1, 1], [32, 1, 1]),
];
