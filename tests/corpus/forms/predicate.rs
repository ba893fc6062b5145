//! Comparisons and selections.

use crate::form::{Form, form};

pub(crate) const FORMS: &[Form] = &[
    form("setp.<eq|ne|lt|le|gt|ge>.<u16|s16|u32|s32|u64|s64>", "pred = T T"),
    form("setp.<lo|ls|hi|hs>.<u16|u32|u64>", "pred = T T"),
    form("setp.<eq|ne>.<b16|b32|b64>", "pred = T T"),
    form("setp.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan>.<f16|f32|f64>", "pred = T T"),
    form("setp.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan>.ftz.<f16|f32>", "pred = T T"),
    form("setp.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan>.bf16", "pred = T T").sm_90(),
    form("setp.<lt|geu|num>.f16x2 %d0|%d1, %a0, %a1;", "pred pred = f16x2 f16x2"),
    form("setp.<lt|eq|geu|nan>.f32 %d0|%d1, %a0, %a1;", "pred pred = f32 f32"),
    form("setp.<lt|ne>.<and|or|xor>.s32 %d0, %a0, %a1, %a2;", "pred = s32 s32 pred"),
    form("setp.<gt|equ>.<and|or|xor>.f32 %d0|%d1, %a0, %a1, %a2;", "pred pred = f32 f32 pred"),
    form("setp.hs.<and|or|xor>.u64 %d0|%d1, %a0, %a1, !%a2;", "pred pred = u64 u64 pred"),
    form("set.<lt|ne>.<u32|s32|f32>.<u16|s32|u64|f32|f64>", "U = T T"),
    form("set.<ltu|nan>.<u32|s32|f32>.f32", "U = T T"),
    form("set.<ge|neu>.<u32|f16>.f16", "U = T T"),
    form("set.eq.u32.b16", "U = T T"),
    form("set.gt.ftz.<u32|f32>.f32", "U = T T"),
    form("set.<le|neu>.<and|or|xor>.<u32|f32>.f32 %d0, %a0, %a1, %a2;", "U = f32 f32 pred"),
    form("selp.<b16|u16|s16|b32|u32|s32|b64|u64|s64|f32|f64>", "T = T T pred"),
    form("slct.<b16|u32|s32|b32|u64|b64|f32|f64>.s32", "U = U U T"),
    form("slct<|.ftz>.<b16|u32|b32|b64|f32|f64>.f32", "U = U U T"),
    form("@%a2 add.u32 %d0, %a0, %a1; @!%a2 sub.u32 %d0, %a0, %a1;", "u32 = u32 u32 pred"),
];
