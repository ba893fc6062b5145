//! Instructions, operands, registers, labels and lines of the source.

use super::*;
use crate::ptx::{Guard, Loc, Type};

/// The operands of one instruction.
fn operands(text: &str) -> Vec<Operand> {
    let [Item::Instruction(instruction)] = &body(&format!("op {text};"))[..] else { panic!("{text}") };
    instruction.operands.clone()
}

fn address(base: Operand, offset: i64) -> Operand {
    Operand::Address { base: Box::new(base), offset, loads: true }
}

#[test]
fn guards_opcodes_and_modifiers() {
    let text = "add.rn.f32 a, b, c;\n@p bra.uni L;\n@!%p1 ld .global.L2::128B.b32 a, [b];\nret;";
    let found: Vec<_> =
        instructions(&body(text)).iter().map(|i| (i.line, i.guard.clone(), i.to_string(), i.operands.len())).collect();
    let guard = |register: &str, negated| Some(Guard { register: register.into(), negated });
    assert_eq!(
        found,
        [
            (5, None, "add.rn.f32".into(), 3),
            (6, guard("p", false), "bra.uni".into(), 1),
            (7, guard("%p1", true), "ld.global.L2::128B.b32".into(), 2),
            (8, None, "ret".into(), 0),
        ]
    );
}

#[test]
fn names() {
    for text in ["x", "_", "%r1", "$L__BB0_1", "_Z3fooIfE$a", "%tid.x", "%clock_hi", "v.b0"] {
        assert_eq!(operands(text), [name(text)]);
    }
    assert_eq!(operands("!p"), [Operand::Not("p".into())]);
    assert_eq!(operands("%p1|_"), [Operand::Pair(Box::new(name("%p1")), Box::new(name("_")))]);
}

#[test]
fn integers() {
    let cases = [
        ("0", 0),
        ("42", 42),
        ("-1", u64::MAX),
        ("0x1e", 30),
        ("0XffU", 255),
        ("017", 15),
        ("0b101", 5),
        ("7U", 7),
        ("-0x10", 0_u64.wrapping_sub(16)),
        ("- -3", 3),
        ("0xFFFFFFFFFFFFFFFF", u64::MAX),
        ("-9223372036854775808", 1 << 63),
    ];
    for (text, value) in cases {
        assert_eq!(operands(text), [Operand::Integer(value)], "{text}");
    }
}

#[test]
fn floats() {
    assert_eq!(operands("0f3F800000"), [Operand::F32(0x3f80_0000)]);
    assert_eq!(operands("0FfF7fFFFf"), [Operand::F32(0xff7f_ffff)]);
    assert_eq!(operands("-0f00000000"), [Operand::F32(0x8000_0000)]);
    assert_eq!(operands("0d3FF0000000000000"), [Operand::F64(0x3ff0_0000_0000_0000)]);
    assert_eq!(operands("0d3FE1e5555E55555e"), [Operand::F64(0x3fe1_e555_5e55_555e)]);
    for (text, value) in [("1.0", 1.0_f64), ("2.", 2.), ("-1.5e-3", -1.5e-3), ("1e2", 100.), ("0.5E+1", 5.)] {
        assert_eq!(operands(text), [Operand::F64(value.to_bits())], "{text}");
    }
}

#[test]
fn addresses() {
    assert_eq!(operands("[%rd1]"), [address(name("%rd1"), 0)]);
    assert_eq!(operands("[ %rd1 + 8 ]"), [address(name("%rd1"), 8)]);
    assert_eq!(operands("[r+-8]"), [address(name("r"), -8)]);
    assert_eq!(operands("[r-8]"), [address(name("r"), -8)]);
    assert_eq!(operands("[r--0x10]"), [address(name("r"), 16)]);
    assert_eq!(operands("[r-9223372036854775808]"), [address(name("r"), i64::MIN)]);
    assert_eq!(operands("[16]"), [address(Operand::Integer(16), 0)]);
    // "1e" is of the hexadecimal number, not the beginning of an exponent.
    assert_eq!(operands("[0x1e+5]"), [address(Operand::Integer(30), 5)]);
    assert_eq!(operands("memory+4"), [Operand::Address { base: Box::new(name("memory")), offset: 4, loads: false }]);
}

#[test]
fn tensors_vectors_and_lists() {
    let coordinates = vec![name("x"), Operand::Integer(0)];
    assert_eq!(
        operands("[map, {x, 0}], [mbar]"),
        [Operand::Tensor { base: Box::new(name("map")), coordinates: coordinates.clone() }, address(name("mbar"), 0)]
    );
    let base = Box::new(Operand::Address { base: Box::new(name("map")), offset: 64, loads: false });
    assert_eq!(operands("[map+64, {x, 0}]"), [Operand::Tensor { base, coordinates }]);
    assert_eq!(
        operands("{ %f1, _, 0f00000000, -1 }"),
        [Operand::Vector(vec![name("%f1"), name("_"), Operand::F32(0), Operand::Integer(u64::MAX)])]
    );
    assert_eq!(operands("f, ()"), [name("f"), Operand::List(vec![])]);
    assert_eq!(
        operands("(r), f, (a, 1)"),
        [Operand::List(vec![name("r")]), name("f"), Operand::List(vec![name("a"), Operand::Integer(1)])]
    );
}

#[test]
fn registers() {
    let register = |ty, name: &str, count, line| Item::Registers { ty, name: name.into(), count, line };
    assert_eq!(
        body(".reg .pred %p<3>;\n.reg .b32 x, y, %r<4000000000>;\n.reg .f16x2 h;"),
        [
            register(Type::Pred, "%p", Some(3), 5),
            register(Type::B32, "x", None, 6),
            register(Type::B32, "y", None, 6),
            register(Type::B32, "%r", Some(4_000_000_000), 6),
            register(Type::F16x2, "h", None, 7),
        ]
    );
}

#[test]
fn blocks_labels_and_comments() {
    let items = body("a: $L__BB0_1: /* { * **/ {\n.reg .pred p; // }\n}\n.pragma \"nounroll\", \"x;}\";;");
    let label = |name: &str| Item::Label { name: name.into(), line: 5 };
    let register = Item::Registers { ty: Type::Pred, name: "p".into(), count: None, line: 6 };
    assert_eq!(items, [label("a"), label("$L__BB0_1"), Item::Block(vec![register])]);
}

#[test]
fn a_line_of_the_source_holds_until_the_next() {
    let text = "
.visible .entry first()
{
	.reg .b32 	%r<2>;
	.loc	1 8 0
$L__func_begin0:
	.loc	1 9 30
	mov.u32 	%r1, %tid.x;
	{
	.loc	2 84 3, function_name $L__info_string0, inlined_at 1 9 31
	add.s32 	%r1, %r1, 1;
	}
	add.s32 	%r1, %r1, 2;
	.loc	2 85 3, function_name $L__info_string0+4, inlined_at 2 84 1
	add.s32 	%r1, %r1, 3;
	.loc	1 10 1
	ret;
}
.visible .entry second()
{
	ret;
}
	.file	1 \"/x/kernel.cu\"
	.file	2 \"/x/tile/problem.cuh\", 1700000000, 42
	.section	.debug_str
	{
$L__info_string0:
.b8 95,90,78,0
.b64 $L__func_begin0-$L__info_string0+1
.b32 .debug_abbrev
	}
	.section	.debug_loc	{	}
";
    let module = module(text);
    assert_eq!(module.files, [(1, "/x/kernel.cu".into()), (2, "/x/tile/problem.cuh".into())]);
    let locs: Vec<_> = instructions(&module.functions[0].body).iter().map(|i| i.loc.unwrap()).collect();
    let loc = |file, line, inlined_at| Loc { file, line, inlined_at };
    assert_eq!(
        locs,
        [
            loc(1, 9, None),
            loc(2, 84, Some((1, 9))),
            loc(2, 84, Some((1, 9))),
            loc(2, 85, Some((2, 84))),
            loc(1, 10, None)
        ]
    );
    assert_eq!(instructions(&module.functions[1].body)[0].loc, None);
}
