//! Matrices in the registers of a warp: `ldmatrix`, `stmatrix`, `movmatrix` and `mma`.

use crate::form::{Form, form};

/// Each lane puts 16 bytes into shared memory, and has the address of another's.
macro_rules! rows {
    ($rest:literal) => {
        concat!(
            ".shared .align 16 .b8 s[2048]; .reg .b32 %s, %o, %w<4>; mov.u32 %s, s; mad.lo.u32 %o, %t, 16, %s; ",
            "ld.global.v4.b32 {%w0, %w1, %w2, %w3}, [%p0]; st.shared.v4.b32 [%o], {%w0, %w1, %w2, %w3}; ",
            "xor.b32 %o, %t, 9; mad.lo.u32 %o, %o, 16, %s; bar.warp.sync 0xffffffff; ",
            $rest
        )
    };
}

pub(crate) const MOVES: &[Form] = &[
    form(rows!("ldmatrix.sync.aligned.m8n8.x1<|.trans>.shared.b16 {%d0}, [%o];"), "b32 = m16"),
    form(rows!("ldmatrix.sync.aligned.m8n8.x2<|.trans>.shared.b16 {%d0, %d1}, [%o];"), "2*b32 = m16"),
    form(rows!("ldmatrix.sync.aligned.m8n8.x4<|.trans>.shared.b16 {%d0, %d1, %d2, %d3}, [%o];"), "4*b32 = m16"),
    form("movmatrix.sync.aligned.m8n8.trans.b16 %d0, %a0;", "b32 = b32"),
    form(
        rows!(
            "stmatrix.sync.aligned.m8n8.x1<|.trans>.shared.b16 [%o], {%a1}; bar.warp.sync 0xffffffff; \
             ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%o];"
        ),
        "4*b32 = m16 b32",
    )
    .sm_90(),
    form(
        rows!(
            "stmatrix.sync.aligned.m8n8.x2<|.trans>.shared.b16 [%o], {%a1, %a2}; bar.warp.sync 0xffffffff; \
             ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%o];"
        ),
        "4*b32 = m16 2*b32",
    )
    .sm_90(),
    form(
        rows!(
            "stmatrix.sync.aligned.m8n8.x4<|.trans>.shared.b16 [%o], {%a1, %a2, %a3, %a4}; bar.warp.sync 0xffffffff; \
             ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%o];"
        ),
        "4*b32 = m16 4*b32",
    )
    .sm_90(),
];

/// With A and B in the type before the alternatives, C and D in f32 or f16.
macro_rules! product {
    (m16n8k8 $types:literal f32) => {
        concat!(
            "mma.sync.aligned.m16n8k8.row.col.",
            $types,
            " {%d0, %d1, %d2, %d3}, {%a0, %a1}, {%a2}, {%a3, %a4, %a5, %a6};"
        )
    };
    (m16n8k8 $types:literal f16) => {
        concat!("mma.sync.aligned.m16n8k8.row.col.", $types, " {%d0, %d1}, {%a0, %a1}, {%a2}, {%a3, %a4};")
    };
    (m16n8k16 $types:literal f32) => {
        concat!(
            "mma.sync.aligned.m16n8k16.row.col.",
            $types,
            " {%d0, %d1, %d2, %d3}, {%a0, %a1, %a2, %a3}, {%a4, %a5}, {%a6, %a7, %a8, %a9};"
        )
    };
    (m16n8k16 $types:literal f16) => {
        concat!(
            "mma.sync.aligned.m16n8k16.row.col.",
            $types,
            " {%d0, %d1}, {%a0, %a1, %a2, %a3}, {%a4, %a5}, {%a6, %a7};"
        )
    };
}

pub(crate) const PRODUCTS: &[Form] = &[
    form(product!(m16n8k8 "f32.f16.f16.f32" f32), "4*f32 = 3*f16x2:integer 4*f32:integer").of("integers"),
    form(product!(m16n8k8 "f32.f16.f16.f32" f32), "4*f32 = 3*f16x2:unit 4*f32:unit").of("fractions"),
    form(product!(m16n8k8 "f16.f16.f16.f16" f16), "2*f16x2 = 3*f16x2:integer 2*f16x2:integer").of("integers"),
    form(product!(m16n8k8 "f16.f16.f16.f16" f16), "2*f16x2 = 3*f16x2:unit 2*f16x2:unit").of("fractions"),
    form(product!(m16n8k8 "f32.bf16.bf16.f32" f32), "4*f32 = 3*bf16x2:integer 4*f32:integer").of("integers"),
    form(product!(m16n8k8 "f32.bf16.bf16.f32" f32), "4*f32 = 3*bf16x2:unit 4*f32:unit").of("fractions"),
    form(product!(m16n8k16 "f32.f16.f16.f32" f32), "4*f32 = 6*f16x2:integer 4*f32:integer").of("integers"),
    form(product!(m16n8k16 "f32.f16.f16.f32" f32), "4*f32 = 6*f16x2:unit 4*f32:unit").of("fractions"),
    form(product!(m16n8k16 "f16.f16.f16.f16" f16), "2*f16x2 = 6*f16x2:integer 2*f16x2:integer").of("integers"),
    form(product!(m16n8k16 "f16.f16.f16.f16" f16), "2*f16x2 = 6*f16x2:unit 2*f16x2:unit").of("fractions"),
    form(product!(m16n8k16 "f32.bf16.bf16.f32" f32), "4*f32 = 6*bf16x2:integer 4*f32:integer").of("integers"),
    form(product!(m16n8k16 "f32.bf16.bf16.f32" f32), "4*f32 = 6*bf16x2:unit 4*f32:unit").of("fractions"),
];
