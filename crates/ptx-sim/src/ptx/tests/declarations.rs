//! The head of a text, variables and functions.

use super::*;
use crate::ptx::{Space, Type, Variable};

/// The one variable outside functions.
fn variable(text: &str) -> Variable {
    let [variable] = module(text).variables.try_into().unwrap();
    variable
}

fn init(text: &str) -> Vec<u8> {
    let variable = variable(text);
    let init = variable.init.unwrap();
    assert_eq!(init.len() as u64, variable.bytes, "{text}");
    init
}

#[test]
fn heads() {
    let targets = [
        (".version 7.8 .target sm_90a", "sm_90a"),
        (".version 9.0\n.target sm_52, texmode_independent, debug\n.address_size 64", "sm_52"),
    ];
    for (text, target) in targets {
        assert_eq!(read(text).unwrap(), Module { target: target.into(), ..Module::default() });
    }
}

#[test]
fn variables() {
    let variable = |name: &str, space, ty, align, bytes, line| {
        let name = name.into();
        Variable { name, space, ty, align, bytes, init: None, pointers: Vec::new(), line }
    };
    let text = "
.extern .shared .align 16 .b8 memory[];
.visible .global .f64 x;
.const .align 8 .v2 .f32 table[3][5];
.shared .v4 .u16 s, t[2];
.weak .global .b128 q;
.common .global .b8 big[1048576][1048576];
.extern .shared .b32 rows[][4];";
    assert_eq!(
        module(text).variables,
        [
            variable("memory", Space::Shared, Type::B8, 16, 0, 5),
            variable("x", Space::Global, Type::F64, 8, 8, 6),
            variable("table", Space::Const, Type::F32, 8, 120, 7),
            variable("s", Space::Shared, Type::U16, 8, 8, 8),
            variable("t", Space::Shared, Type::U16, 8, 16, 8),
            variable("q", Space::Global, Type::B128, 16, 16, 9),
            variable("big", Space::Global, Type::B8, 1, 1 << 40, 10),
            variable("rows", Space::Shared, Type::B32, 4, 0, 11),
        ]
    );
    let text = ".local .align 4 .b8 \tdepot[28]; { .param .b64 retval0; .extern .shared .f32 y[]; }";
    assert_eq!(
        body(text),
        [
            Item::Variable(variable("depot", Space::Local, Type::B8, 4, 28, 5)),
            Item::Block(vec![
                Item::Variable(variable("retval0", Space::Param, Type::B64, 8, 8, 5)),
                Item::Variable(variable("y", Space::Shared, Type::F32, 4, 0, 5)),
            ]),
        ]
    );
}

#[test]
fn initial_bytes() {
    assert_eq!(init(".global .u32 x = 0x01020304;"), [4, 3, 2, 1]);
    assert_eq!(init(".global .align 2 .u16 x = -3;"), [0xfd, 0xff]);
    assert_eq!(init(".global .s8 x = -128;"), [0x80]);
    assert_eq!(init(".global .u8 x = 255;"), [0xff]);
    assert_eq!(init(".global .s64 x = -2;"), [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(init(".const .f32 x = 0f3FB8AA3B;"), [0x3b, 0xaa, 0xb8, 0x3f]);
    assert_eq!(init(".const .b32 x = 0fBF800000;"), [0, 0, 0x80, 0xbf]);
    assert_eq!(init(".const .f32 x = -2.5;"), (-2.5_f32).to_le_bytes());
    assert_eq!(init(".const .f64 x = 0d3FF0000000000000;"), 1.0_f64.to_le_bytes());
    assert_eq!(init(".const .f64 x = 1e-3;"), 1e-3_f64.to_le_bytes());
    assert_eq!(init(".global .f16 x = 0x3C00;"), [0, 0x3c]);
}

#[test]
fn initial_lists_are_filled_with_zeros() {
    assert_eq!(init(".global .b8 x[5] = {1, 2, 3};"), [1, 2, 3, 0, 0]);
    assert_eq!(init(".global .u16 x[2][3] = {{1}, {4, 5, 6}};"), [1, 0, 0, 0, 0, 0, 4, 0, 5, 0, 6, 0]);
    assert_eq!(init(".global .u8 x[2][3] = {{1, 2, 3}};"), [1, 2, 3, 0, 0, 0]);
    assert_eq!(init(".global .v2 .u8 x = {1, 2};"), [1, 2]);
    assert_eq!(init(".global .v4 .u8 x[3] = {{1}, {2, 3}};"), [1, 0, 0, 0, 2, 3, 0, 0, 0, 0, 0, 0]);
    assert_eq!(init(".global .u8 x[] = {7, 8, 9};"), [7, 8, 9]);
    assert_eq!(init(".global .s8 x[][2] = {{-1, 0}, {1}};"), [0xff, 0, 1, 0]);
    let both = module(".global .u8 x = 1, y[2] = {2};").variables;
    assert_eq!(both.into_iter().map(|v| v.init.unwrap()).collect::<Vec<_>>(), [vec![1], vec![2, 0]]);
}

#[test]
fn parameters() {
    let entry = function(
        ".visible .entry k(
	.param .u64 .ptr .global .align 16 p,
	.param .u64 .ptr .align 1 q,
	.param .u64 .ptr r,
	.param .align 64 .b8 map[128],
	.param .v4 .f32 v
) { }",
    );
    let params: Vec<_> =
        entry.params.iter().map(|p| (p.name.as_str(), p.space, p.ty, p.align, p.bytes, p.line)).collect();
    assert_eq!(
        params,
        [
            ("p", Space::Param, Type::U64, 8, 8, 5),
            ("q", Space::Param, Type::U64, 8, 8, 6),
            ("r", Space::Param, Type::U64, 8, 8, 7),
            ("map", Space::Param, Type::B8, 64, 128, 8),
            ("v", Space::Param, Type::F32, 16, 16, 9),
        ]
    );
    assert_eq!((entry.name.as_str(), entry.entry, entry.max_threads, entry.line), ("k", true, None, 4));
}

#[test]
fn functions_and_declarations() {
    let text = "
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b) ;
.weak .func  (.param .b32 r) f(.param .b32 x);
.func trap() .noreturn;
.weak .func (.param .b32 r) f(.param .b32 x)
{ ret; }
.func g { ret; }";
    let functions = module(text).functions;
    let found: Vec<_> =
        functions.iter().map(|f| (f.name.as_str(), f.entry, f.returns.len(), f.params.len(), f.line)).collect();
    assert_eq!(found, [("f", false, 1, 1, 8), ("g", false, 0, 0, 10)]);
}

#[test]
fn limits() {
    let max_threads = |limits: &str| function(&format!(".entry k()\n{limits}\n{{ }}")).max_threads;
    assert_eq!(max_threads(".maxntid 32, 4, 2\n.minnctapersm 1"), Some(256));
    assert_eq!(max_threads(".reqntid 128"), Some(128));
    assert_eq!(max_threads(".maxnreg 64 .maxnctapersm 2 .noreturn .pragma \"x\";"), None);
    assert_eq!(max_threads(".maxntid 64 .explicitcluster .reqnctapercluster 1, 1, 1"), Some(64));
    assert_eq!(function(".entry k() .maxnreg 64 { }").max_registers, Some(64));
}

#[test]
fn addresses_among_initial_values() {
    let module = module(".global .u32 x[2];\n.global .u64 y[3] = {7, x+4, generic(x)};");
    let pointers: Vec<_> = module.variables[1].pointers.iter().map(|p| (p.at, p.name.as_str(), p.offset)).collect();
    assert_eq!(pointers, [(8, "x", 4), (16, "x", 0)]);
    assert_eq!(module.variables[1].init.as_ref().unwrap()[..9], [7, 0, 0, 0, 0, 0, 0, 0, 0]);
}
