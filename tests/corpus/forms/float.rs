//! Arithmetic in f32, f64, f16 and bf16, and approximations.

use crate::form::{Form, form};

pub(crate) const SINGLE: &[Form] = &[
    form("<add|sub|mul>.<rn|rz|rm|rp><|.ftz><|.sat>.f32", "T = T T"),
    form("<add|sub|mul>.f32", "T = T T"),
    form("fma.<rn|rz|rm|rp><|.ftz><|.sat>.f32", "T = T T T"),
    form("div.rn<|.ftz>.f32", "T = T T"),
    form("<rcp|sqrt>.rn<|.ftz>.f32", "T = T"),
    form("<min|max><|.ftz><|.NaN>.f32", "T = T T"),
    form("<abs|neg><|.ftz>.f32", "T = T"),
    form("copysign.f32", "T = T T"),
    form("testp.<finite|infinite|number|notanumber|normal|subnormal>.<f32|f64>", "pred = T"),
];

pub(crate) const DOUBLE: &[Form] = &[
    form("<add|sub|mul>.rn.f64", "T = T T"),
    form("<add|sub|mul>.f64", "T = T T"),
    form("fma.rn.f64", "T = T T T"),
    form("div.rn.f64", "T = T T"),
    form("<rcp|sqrt>.rn.f64", "T = T"),
    form("<min|max>.f64", "T = T T"),
    form("<abs|neg>.f64", "T = T"),
    form("copysign.f64", "T = T T"),
];

pub(crate) const HALF: &[Form] = &[
    form("<add|sub|mul>.rn<|.ftz><|.sat>.<f16|f16x2>", "T = T T"),
    form("<add|sub|mul>.<f16|f16x2>", "T = T T"),
    form("fma.rn<|.ftz><|.sat|.relu>.<f16|f16x2>", "T = T T T"),
    form("fma.rn<|.relu>.<bf16|bf16x2>", "T = T T T"),
    form("<abs|neg><|.ftz>.<f16|f16x2>", "T = T"),
    form("<abs|neg>.<bf16|bf16x2>", "T = T"),
    form("<min|max><|.ftz><|.NaN>.<f16|f16x2>", "T = T T"),
    form("<min|max><|.NaN>.<bf16|bf16x2>", "T = T T"),
    form("<add|sub|mul>.rn.<bf16|bf16x2>", "T = T T").sm_90(),
];

pub(crate) const APPROXIMATIONS: &[Form] = &[
    form("div.<full|approx><|.ftz>.f32", "T = T T"),
    form("<rcp|sqrt|rsqrt|ex2|lg2|sin|cos>.approx<|.ftz>.f32", "T = T"),
    form("tanh.approx.f32", "T = T"),
    form("<ex2|tanh>.approx.<f16|f16x2>", "T = T"),
    form("ex2.approx.ftz.<bf16|bf16x2>", "T = T").sm_90(),
    form("tanh.approx.<bf16|bf16x2>", "T = T").sm_90(),
];
