//! The PTX that the repository has. The numbers are copied from the files by hand.

use super::*;
use crate::ptx::{Guard, Space, Type};

/// What a compiler wrote has one instruction a line, but for calls, whose arguments have lines of their own.
fn by_line(text: &str) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let mut text = text.split("//").next().unwrap().trim();
        if text.starts_with('@') {
            text = text.split_once(' ').unwrap().1;
        }
        if text.starts_with(|c: char| c.is_ascii_lowercase()) && (text.ends_with(';') || text.starts_with("call")) {
            found.push((line, text.split([' ', '\t', ';']).next().unwrap().to_owned()));
        }
    }
    found
}

#[test]
fn every_file_reads_instruction_by_instruction() {
    for file in prebuilt_files() {
        let text = repository_file(&format!("kernels/prebuilt/{file}"));
        let module = read(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
        let found: Vec<(u32, String)> = module
            .functions
            .iter()
            .flat_map(|function| instructions(&function.body))
            .map(|instruction| (instruction.line, instruction.to_string()))
            .collect();
        let wanted = by_line(&text);
        let first = found.iter().zip(&wanted).find(|(found, wanted)| found != wanted);
        assert!(found == wanted, "{file}: {first:?}, {} instructions of {}", found.len(), wanted.len());
        assert!(file.contains(&format!(".{}.ptx", module.target)), "{file}: {}", module.target);
    }
}

#[test]
fn fa1_has_its_variables_and_parameters() {
    let module = read(&repository_file("kernels/prebuilt/05_fa1.f32.sm_80.ptx")).unwrap();
    let variables: Vec<_> =
        module.variables.iter().map(|v| (v.name.as_str(), v.space, v.ty, v.init.as_deref())).collect();
    let expected: [(_, _, _, Option<&[u8]>); 7] = [
        ("LANES", Space::Global, Type::U32, Some(&[32, 0, 0, 0])),
        ("NEG_INFINITY", Space::Global, Type::F32, Some(&[0, 0, 0x80, 0xff])),
        ("ALL_LANES", Space::Global, Type::U32, Some(&[0xff; 4])),
        ("LOG2_E", Space::Global, Type::F32, Some(&[0x3b, 0xaa, 0xb8, 0x3f])),
        ("WARPS", Space::Global, Type::U32, Some(&[16, 0, 0, 0])),
        ("THREADS", Space::Global, Type::U32, Some(&[0, 2, 0, 0])),
        ("memory", Space::Shared, Type::B8, None),
    ];
    assert_eq!(variables, expected);
    assert_eq!((module.variables[6].align, module.variables[6].bytes), (16, 0));

    let [fa1, wide_dot] = &module.functions[..] else { panic!("{} functions", module.functions.len()) };
    assert_eq!((fa1.name.as_str(), fa1.entry, fa1.max_threads), ("fa1", true, Some(512)));
    assert_eq!(fa1.params.iter().map(|p| (p.bytes, p.align)).collect::<Vec<_>>(), [(344, 8), (8, 4), (32, 8)]);
    assert_eq!((wide_dot.name.as_str(), wide_dot.entry), ("_Z8wide_dotIfEdPKT_xS2_xi", false));
    assert_eq!(wide_dot.returns.iter().map(|r| (r.name.as_str(), r.bytes)).collect::<Vec<_>>(), [("func_retval0", 8)]);
    assert_eq!(wide_dot.params.iter().map(|p| p.bytes).collect::<Vec<_>>(), [8, 8, 8, 8, 4]);
    let first = instructions(&fa1.body)[0];
    assert_eq!((first.to_string(), first.guard.is_none()), ("mov.b64".into(), true));
    assert_eq!(first.operands, [name("%rd105"), name("fa1_param_0")]);
    let from = first.loc.unwrap();
    let (_, file) = module.files.iter().find(|(number, _)| *number == from.file).unwrap();
    assert_eq!(file, "05_fa1.cu");
}

#[test]
fn naive_has_its_shared_tiles_and_calls() {
    let module = read(&repository_file("kernels/prebuilt/05_naive.f32.sm_80.ptx")).unwrap();
    let names: Vec<_> = module.functions.iter().map(|f| (f.name.as_str(), f.entry)).collect();
    let expected =
        [("naive_scores", true), ("naive_softmax", true), ("naive_output", true), ("_Z8wide_dotIfEdPKT_xS2_xi", false)];
    assert_eq!(names, expected);
    let scores = &module.functions[0].body;
    let shared: Vec<_> = scores
        .iter()
        .filter_map(|item| match item {
            Item::Variable(v) => Some((v.name.as_str(), v.space, v.align, v.bytes)),
            _ => None,
        })
        .collect();
    assert_eq!(
        shared,
        [("_ZZ12naive_scoresE1q", Space::Shared, 4, 4224), ("_ZZ12naive_scoresE1k", Space::Shared, 4, 4224)]
    );

    let blocks: Vec<_> =
        scores.iter().filter_map(|item| if let Item::Block(b) = item { Some(b) } else { None }).collect();
    assert_eq!(blocks.len(), 8);
    let call = instructions(blocks[0]).into_iter().find(|i| i.opcode == "call").unwrap();
    let arguments = (0..5).map(|i| name(&format!("param{i}"))).collect();
    assert_eq!(call.to_string(), "call.uni");
    assert_eq!(
        call.operands,
        [Operand::List(vec![name("retval0")]), name("_Z8wide_dotIfEdPKT_xS2_xi"), Operand::List(arguments)]
    );
}

#[test]
fn the_copies_of_the_hopper_test_read() {
    let module = read(&repository_file("crates/device/tests/hopper.sm_90.ptx")).unwrap();
    assert_eq!(module.target, "sm_90");
    let tile = instructions(&module.functions[1].body);
    let copy = tile.iter().find(|i| i.opcode == "cp").unwrap();
    assert_eq!(
        copy.modifiers,
        ["async", "bulk", "tensor", "2d", "shared::cluster", "global", "tile", "mbarrier::complete_tx::bytes"]
    );
    let address = |base: &str| Operand::Address { base: Box::new(name(base)), offset: 0, loads: true };
    let coordinates = vec![name("%r3"), name("%r2")];
    assert_eq!(
        copy.operands,
        [address("%r7"), Operand::Tensor { base: Box::new(name("%rd4")), coordinates }, address("%r10")]
    );
    let branch = tile.iter().find(|i| i.opcode == "bra").unwrap();
    assert_eq!(branch.guard, Some(Guard { register: "%p1".into(), negated: false }));
}
