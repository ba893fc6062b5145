//! Moves, packing, and constants as the text has them.

use crate::form::{Form, form};

pub(crate) const FORMS: &[Form] = &[
    form("mov.<b16|u16|s16|b32|u32|s32|b64|u64|s64|f32|f64|pred>", "T = T"),
    form("mov.b32 %d0, {%a0, %a1};", "b32 = b16 b16"),
    form("mov.b32 {%d0, %d1}, %a0;", "b16 b16 = b32"),
    form("mov.b64 %d0, {%a0, %a1};", "b64 = b32 b32"),
    form("mov.b64 {%d0, %d1}, %a0;", "b32 b32 = b64"),
    form("mov.b64 %d0, {%a0, %a1, %a2, %a3};", "b64 = b16 b16 b16 b16"),
    form("mov.b64 {%d0, %d1, %d2, %d3}, %a0;", "b16 b16 b16 b16 = b64"),
    form("mov.b64 {_, %d0}, %a0;", "b32 = b64"),
    form("mov.b32 {%d0, _}, %a0;", "b16 = b32"),
    form("mov.<u32|b32> %d0, <0|1|4294967295|0x7fffffff|0xFFFFFFFFU|017|0b1011|WARP_SZ>;", "b32 ="),
    form("mov.s32 %d0, <-1|-2147483648|2147483647>;", "s32 ="),
    form("mov.<u16|s16> %d0, <0|-1|65535|-32768>;", "b16 ="),
    form("mov.<b64|s64> %d0, <-1|0x123456789abcdef0|-9223372036854775808|18446744073709551615U>;", "b64 ="),
    form("mov.f32 %d0, <0f3F800000|0fFF800000|0f7fc00001|1.5|-0.1|3e-5>;", "f32 ="),
    form("mov.f64 %d0, <0d3FF0000000000000|0dfff8000000000001|1.5|-0.1|12345.678e-300>;", "f64 ="),
    form("add.s32 %d0, %a0, <-1|0x80000000|5>;", "s32 = s32"),
    form("add.rn.f32 %d0, %a0, <0f3F800000|0fBF800000>;", "f32 = f32"),
    form("fma.rn.f32 %d0, %a0, 0f40000000, 0fC0400000;", "f32 = f32"),
    form("setp.lt.s32 %d0, %a0, -5;", "pred = s32"),
    form("and.b64 %d0, %a0, -256;", "b64 = b64"),
    form("shl.b32 %d0, %a0, 31;", "b32 = b32"),
    form("membar.<cta|gl|sys>; mov.b32 %d0, %a0;", "b32 = b32"),
    form("fence.<sc|acq_rel>.<cta|gpu|sys>; mov.b32 %d0, %a0;", "b32 = b32"),
    form("prefetch.global.<L1|L2> [%p0]; mov.b32 %d0, %a0;", "b32 = b32"),
    form("nanosleep.u32 20; mov.b32 %d0, %a0;", "b32 = b32"),
];
