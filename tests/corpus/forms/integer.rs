//! Integer arithmetic, and bits.

use crate::form::{Form, form};

pub(crate) const ARITHMETIC: &[Form] = &[
    form("<add|sub|mul.lo|mul.hi|min|max>.<u16|s16|u32|s32|u64|s64>", "T = T T"),
    form("<add|sub>.sat.s32", "T = T T"),
    form("<div|rem>.<u16|s16|u32|s32|u64|s64>", "T = T T:nonzero"),
    form("mul.wide.<u16|s16|u32|s32>", "W = T T"),
    form("<mad.lo|mad.hi>.<u16|s16|u32|s32|u64|s64>", "T = T T T"),
    form("mad.hi.sat.s32", "T = T T T"),
    form("mad.wide.<u16|s16|u32|s32>", "W = T T W"),
    form("<abs|neg>.<s16|s32|s64>", "T = T"),
    form("sad.<u16|s16|u32|s32|u64|s64>", "T = T T T"),
    form("dp4a.<u32|s32>.<u32|s32>", "b32 = b32 b32 b32"),
    form("add.cc.u32 %d0, %a0, %a1; addc.cc.u32 %d1, %a2, %a3; addc.u32 %d2, 0, 0;", "u32 u32 u32 = u32 u32 u32 u32"),
    form("sub.cc.u32 %d0, %a0, %a1; subc.cc.u32 %d1, %a2, %a3; subc.u32 %d2, 0, 0;", "u32 u32 u32 = u32 u32 u32 u32"),
    form("add.cc.s32 %d0, %a0, %a1; addc.s32 %d1, %a0, %a1;", "s32 s32 = s32 s32"),
    form("sub.cc.s32 %d0, %a0, %a1; subc.s32 %d1, %a0, %a1;", "s32 s32 = s32 s32"),
];

pub(crate) const BITS: &[Form] = &[
    form("<popc|clz>.<b32|b64>", "u32 = T"),
    form("brev.<b32|b64>", "T = T"),
    form("<bfind|bfind.shiftamt>.<u32|s32|u64|s64>", "u32 = T"),
    form("bfe.<u32|s32|u64|s64>", "T = T b32:shift b32:shift"),
    form("bfi.<b32|b64>", "T = T T b32:shift b32:shift"),
    form("prmt.b32<|.f4e|.b4e|.rc8|.ecl|.ecr|.rc16>", "b32 = b32 b32 b32"),
    form("shf.<l|r>.<wrap|clamp>.b32", "b32 = b32 b32 b32:shift"),
    form("shl.<b16|b32|b64>", "T = T b32:shift"),
    form("shr.<b16|u16|s16|b32|u32|s32|b64|u64|s64>", "T = T b32:shift"),
    form("<and|or|xor>.<b16|b32|b64|pred>", "T = T T"),
    form("not.<b16|b32|b64|pred>", "T = T"),
    form("cnot.<b16|b32|b64>", "T = T"),
    form("lop3.b32 %d0, %a0, %a1, %a2, <0x80|0x96|0xe8|0xca|0x1b|0xfe|0x35>;", "b32 = b32 b32 b32"),
];
