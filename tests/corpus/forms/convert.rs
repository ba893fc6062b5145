//! Conversions.

use crate::form::{Form, form};

pub(crate) const INTEGERS: &[Form] = &[
    form("cvt.<u8|s8|u16|s16|u32|s32|u64|s64>.<u8|s8|u16|s16|u32|s32|u64|s64>", "U = T"),
    // Where the result cannot hold all that the source can.
    form("cvt.sat.u8.<s8|u16|s16|u32|s32|u64|s64>", "U = T"),
    form("cvt.sat.s8.<u8|u16|s16|u32|s32|u64|s64>", "U = T"),
    form("cvt.sat.u16.<s8|s16|u32|s32|u64|s64>", "U = T"),
    form("cvt.sat.s16.<u16|u32|s32|u64|s64>", "U = T"),
    form("cvt.sat.u32.<s8|s16|s32|u64|s64>", "U = T"),
    form("cvt.sat.s32.<u32|u64|s64>", "U = T"),
    form("cvt.sat.u64.<s8|s16|s32|s64>", "U = T"),
    form("cvt.sat.s64.u64", "U = T"),
];

pub(crate) const FROM_INTEGERS: &[Form] = &[
    form("cvt.<rn|rz|rm|rp>.<f16|f32|f64>.<u8|s8|u16|s16|u32|s32|u64|s64>", "U = T"),
    form("cvt.<rn|rz|rm|rp>.bf16.<u16|s16|u32|s32|u64|s64>", "U = T").sm_90(),
];

pub(crate) const TO_INTEGERS: &[Form] = &[
    form("cvt.<rni|rzi|rmi|rpi>.<u8|s8|u16|s16|u32|s32|u64|s64>.<f16|f32|f64>", "U = T"),
    form("cvt.rzi.ftz.<u8|s8|u16|s16|u32|s32|u64|s64>.f32", "U = T"),
    form("cvt.rpi.ftz.<u32|s64>.f32", "U = T"),
    form("cvt.rni.sat.<u8|s8|u16|s16|u32|s32|u64|s64>.f32", "U = T"),
    form("cvt.<rni|rzi|rmi|rpi>.<u16|s16|u32|s32|u64|s64>.bf16", "U = T").sm_90(),
];

pub(crate) const FLOATS: &[Form] = &[
    form("cvt.<f32|f64>.f16", "U = T"),
    form("cvt<|.ftz>.f64.f32", "U = T"),
    form("cvt.ftz.f32.f16", "U = T"),
    form("cvt.f32.bf16", "U = T"),
    form("cvt.<rn|rz|rm|rp>.f16.<f32|f64>", "U = T"),
    form("cvt.rn.<ftz|sat|ftz.sat|relu>.f16.f32", "U = T"),
    form("cvt.rz.relu.f16.f32", "U = T"),
    form("cvt.<rn|rz|rm|rp><|.ftz|.sat>.f32.f64", "U = T"),
    form("cvt.<rn|rz><|.relu>.bf16.f32", "U = T"),
    form("cvt.<rn|rz><|.relu>.<f16x2|bf16x2>.f32", "U = T T"),
    form("cvt.<rni|rzi|rmi|rpi>.f16.f16", "T = T"),
    form("cvt.<rni|rzi|rmi|rpi>.f32.f32", "T = T"),
    form("cvt.<rni|rzi|rmi|rpi>.f64.f64", "T = T"),
    form("cvt.<sat|ftz.sat|rni.ftz|rzi.sat>.f32.f32", "T = T"),
    form("cvt.sat.<f16.f16|f64.f64>", "T = T"),
];
