//! What kernels do wrong, in small: each fault is found at its line, and the right program beside it runs under every schedule.

mod common;

use common::Program;
use ptx_sim::FaultKind;

/// Schedules of a right program.
const SEEDS: u64 = 200;

/// A fault of this kind at the line with `<- at`, with an earlier access at the one with `<- with` if there is one: under the
/// first seeds too, for what is wrong is wrong in every order.
fn is_found(program: &Program, kind: FaultKind) {
    for seed in 0..20 {
        let fault = match program.run(seed) {
            Ok(_) => panic!("seed {seed}: no fault, wanted {kind:?}"),
            Err(fault) => fault,
        };
        assert_eq!(fault.kind, kind, "seed {seed}: {fault}");
        let at = fault.at.as_ref().map(|site| site.ptx_line);
        let earlier = fault.earlier.as_ref().map(|(_, site)| site.ptx_line);
        let (here, other) = (program.line("<- at"), program.with());
        // Of two accesses that nothing orders, either may come first.
        let found =
            (at, earlier) == (Some(here), other) || kind == FaultKind::Race && (at, earlier) == (other, Some(here));
        assert!(found, "seed {seed}, wanted lines {here} and {other:?}: {fault}");
    }
}

/// It runs under every schedule, and leaves what `wanted` says of each thread.
fn is_right(program: &Program, wanted: impl Fn(u32) -> u32) {
    let count = program.shape.grid[0] * program.shape.block[0];
    let wanted: Vec<u32> = (0..count).map(wanted).collect();
    for seed in 0..SEEDS {
        match program.run(seed) {
            Ok((out, _)) => assert_eq!(out, wanted, "seed {seed}"),
            Err(fault) => panic!("seed {seed}: {fault}"),
        }
    }
}

/// Each thread writes its number to shared memory, and reads the number of the one `distance` away.
fn exchange(threads: u32, distance: u32, between: &str) -> Program {
    let mask = threads - 1;
    Program::new(
        threads,
        &format!(
            "st.shared.u32 [%r3], %r0; // <- with\n{between}\nadd.s32 %r4, %r0, {distance};\nand.b32 %r4, %r4, {mask};\n\
             shl.b32 %r4, %r4, 2;\nld.shared.u32 %r5, [%r4]; // <- at\nst.global.u32 [%d1], %r5;\nret;"
        ),
    )
}

#[test]
fn warps_that_exchange_without_a_barrier() {
    is_right(&exchange(128, 32, "bar.sync 0;"), |thread| (thread + 32) % 128);
    is_right(&exchange(128, 1, "barrier.sync.aligned 3;"), |thread| (thread + 1) % 128);
    // Seed 0 runs the writer after the reader: to a reader, memory is not written yet.
    let unordered = exchange(128, 32, "");
    let kinds: Vec<FaultKind> = (0..40).map(|seed| unordered.run(seed).unwrap_err().kind).collect();
    assert!(kinds.contains(&FaultKind::Race), "{kinds:?}");
    assert!(kinds.iter().all(|kind| matches!(kind, FaultKind::Race | FaultKind::Uninitialised)), "{kinds:?}");
}

#[test]
fn lanes_that_exchange_without_a_barrier() {
    is_right(&exchange(32, 1, "bar.warp.sync -1;"), |thread| (thread + 1) % 32);
    is_found(&exchange(32, 1, ""), FaultKind::Race);
    // A shuffle makes lanes meet, and orders no memory.
    is_found(&exchange(32, 1, "shfl.sync.idx.b32 %r9, %r0, 0, 31, -1;"), FaultKind::Race);
    // A barrier of the warp does not order two warps.
    let found: Vec<FaultKind> = (0..40)
        .filter_map(|seed| exchange(64, 32, "bar.warp.sync -1;").run(seed).err().map(|fault| fault.kind))
        .collect();
    assert!(found.len() == 40 && found.contains(&FaultKind::Race), "{found:?}");
}

#[test]
fn a_tile_overwritten_while_it_is_read() {
    let program = |barrier: &str| {
        let body = format!(
            "mov.u32 %r9, 0;\nmov.u32 %r8, 0;\n$L_again:\nadd.s32 %r10, %r0, %r9;\nst.shared.u32 [%r3], %r10; // <- at\n\
             bar.sync 0;\nxor.b32 %r4, %r3, 128;\nld.shared.u32 %r5, [%r4]; // <- with\nadd.s32 %r8, %r8, %r5;\n{barrier}\n\
             add.s32 %r9, %r9, 1;\nsetp.lt.s32 %p1, %r9, 3;\n@%p1 bra $L_again;\nst.global.u32 [%d1], %r8;\nret;"
        );
        Program::new(64, &body)
    };
    is_right(&program("bar.sync 0;"), |thread| 3 * (thread ^ 32) + 3);
    is_found(&program(""), FaultKind::Race);
}

#[test]
fn two_writers_of_one_place() {
    let program = |value: &str| {
        let body = format!(
            "mov.u32 %r4, 7;\nst.shared.u32 [tile], {value}; // <- at\nbar.sync 0;\nld.shared.u32 %r5, [tile];\n\
             st.global.u32 [%d1], %r5;\nret;"
        );
        Program::new(32, &body)
    };
    // The same value by one instruction: any winner is right.
    is_right(&program("%r4"), |_| 7);
    let fault = program("%r0").run(0).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Race, "{fault}");
    assert_eq!(fault.earlier.unwrap().1.lane, Some(0));
}

#[test]
fn neighbouring_halves_of_a_word_are_two_places() {
    let body = "mul.lo.s32 %r4, %r0, 2;\ncvt.u16.u32 %h1, %r0;\nst.shared.u16 [%r4], %h1;\nbar.sync 0;\n\
                ld.shared.u16 %h2, [%r4];\ncvt.u32.u16 %r5, %h2;\nst.global.u32 [%d1], %r5;\nret;";
    is_right(&Program::new(64, body), |thread| thread);
}

#[test]
fn blocks_that_share_a_place() {
    let store = |address: &str| Program::new(32, &format!("st.global.u32 [{address}], %r1; // <- at\nret;")).blocks(3);
    is_right(&store("%d1"), |thread| thread / 32);
    let fault = store("%d0").run(5).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Race, "{fault}");
    assert_ne!(fault.at.unwrap().block, fault.earlier.unwrap().1.block);
    let add = Program::new(32, "red.global.add.u32 [%d0], 1;\nret;").blocks(3);
    is_right(&add, |thread| if thread == 0 { 96 } else { 0 });
    let mixed = Program::new(
        32,
        "setp.eq.u32 %p1, %r1, 0;\n@%p1 red.global.add.u32 [%d0], 1; // <- at\n@!%p1 ld.global.u32 %r5, [%d0]; // <- with\nret;",
    );
    is_found(&mixed.blocks(2), FaultKind::Race);
}

/// All threads of two blocks read what the launch left at the start, and the block that comes last, as a counter says, adds 1
/// there, by one thread.
fn last_block(between: &str) -> Program {
    let body = format!(
        "ld.global.u32 %r4, [%d0];\nbar.sync 0;\nsetp.eq.u32 %p1, %r0, 0;\n@!%p1 bra $L_told;\nmembar.gl;\n\
         atom.global.add.u32 %r5, [%d0+4], 1;\nmembar.gl;\nst.shared.u32 [tile], %r5;\n$L_told:\nbar.sync 0;\n\
         ld.shared.u32 %r5, [tile];\nsetp.ne.u32 %p2, %r5, 1;\n@%p2 bra $L_end;\n@%p1 ld.global.u32 %r6, [%d0]; // <- with\n\
         {between}\nsetp.eq.u32 %p3, %r0, 32;\n@%p3 st.global.u32 [%d0], 7; // <- at\n$L_end:\nret;"
    );
    Program::new(64, &body).blocks(2)
}

#[test]
fn a_race_in_a_block_that_has_waited_for_another() {
    is_right(&last_block("bar.sync 0;"), |thread| [7, 2].get(thread as usize).copied().unwrap_or(0));
    is_found(&last_block(""), FaultKind::Race);
}

/// Each lane copies 16 bytes of a table in global memory to its place, in two groups; the first word is stored.
fn copies(waits: &str) -> Program {
    let body = format!(
        "st.global.u32 [%d1], %r0;\nbar.sync 0;\nmul.lo.s32 %r4, %r0, 8;\nand.b32 %r5, %r0, 28;\nmul.wide.u32 %d2, %r5, 4;\n\
         add.s64 %d2, %d0, %d2;\nshl.b32 %r6, %r0, 4;\n\
         cp.async.cg.shared.global [%r6], [%d2], 16; // first\ncp.async.commit_group;\nadd.s32 %r7, %r6, 512;\n\
         cp.async.cg.shared.global [%r7], [%d2], 16; // <- with\ncp.async.commit_group;\n{waits}\n\
         ld.shared.u32 %r8, [%r7]; // <- at\nbar.sync 0;\ncp.async.wait_all;\nadd.s32 %r8, %r8, 100;\nst.global.u32 [%d1], %r8;\nret;"
    );
    Program::new(32, &body)
}

#[test]
fn copies_that_are_not_waited_for() {
    is_right(&copies("cp.async.wait_group 0;"), |thread| thread / 4 * 4 + 100);
    is_right(&copies("cp.async.wait_all;"), |thread| thread / 4 * 4 + 100);
    is_found(&copies("cp.async.wait_group 1;"), FaultKind::InFlight);
    is_found(&copies(""), FaultKind::InFlight);
}

#[test]
fn copies_of_another_warp_need_a_barrier_after_the_wait() {
    let program = |between: &str| {
        let body = format!(
            "st.global.u32 [%d1], %r0;\nbar.sync 0;\nmul.wide.u32 %d2, %r0, 4;\nadd.s64 %d2, %d0, %d2;\n\
             cp.async.ca.shared.global [%r3], [%d2], 4; // <- with\ncp.async.commit_group;\ncp.async.wait_group 0;\n{between}\n\
             xor.b32 %r4, %r3, 128;\nld.shared.u32 %r5, [%r4]; // <- at\nbar.sync 0;\nst.global.u32 [%d1], %r5;\nret;"
        );
        Program::new(64, &body)
    };
    is_right(&program("bar.sync 0;"), |thread| thread ^ 32);
    let kinds: Vec<FaultKind> = (0..60).map(|seed| program("").run(seed).unwrap_err().kind).collect();
    assert!(kinds.contains(&FaultKind::Race) && kinds.contains(&FaultKind::InFlight), "{kinds:?}");
}

#[test]
fn a_source_overwritten_under_a_copy() {
    let body = "st.global.u32 [%d1], %r0;\nmul.wide.u32 %d2, %r0, 4;\nadd.s64 %d2, %d0, %d2;\n\
                cp.async.ca.shared.global [%r3], [%d2], 4; // <- with\ncp.async.commit_group;\n\
                st.global.u32 [%d1], 5; // <- at\ncp.async.wait_group 0;\nret;";
    is_found(&Program::new(32, body), FaultKind::InFlight);
}

#[test]
fn zeros_fill_what_a_copy_does_not_read() {
    let body = "mov.u32 %r9, 257;\nst.global.u32 [%d1], %r9;\nshl.b32 %r6, %r0, 4;\nand.b32 %r5, %r0, 28;\n\
                mul.wide.u32 %d2, %r5, 4;\nadd.s64 %d2, %d0, %d2;\nbar.warp.sync -1;\nmov.u32 %r7, 6;\n\
                cp.async.cg.shared.global [%r6], [%d2], 16, %r7;\ncp.async.wait_all;\nld.shared.v4.u32 {%r10,%r11,%r12,%r13}, [%r6];\n\
                add.s32 %r14, %r11, %r12;\nbar.warp.sync -1;\nst.global.u32 [%d1], %r14;\nret;";
    is_right(&Program::new(32, body), |_| 257);
}

#[test]
fn barriers_that_part_of_a_warp_or_block_misses() {
    let lanes =
        "setp.lt.u32 %p1, %r0, 16;\n@%p1 bra $L_half;\nbar.sync 0;\nbra $L_end;\n$L_half:\nbar.sync 1;\n$L_end:\nret;";
    assert_eq!(Program::new(32, lanes).run(0).unwrap_err().kind, FaultKind::Divergence);
    let guarded = "setp.lt.u32 %p1, %r0, 16;\n@%p1 bar.sync 0;\nbar.sync 1;\nret;";
    let fault = Program::new(32, guarded).run(3).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Divergence, "{fault}");
    assert_eq!(fault.others.len(), 2, "{fault}");
    let counted = "setp.ge.u32 %p1, %r0, 32;\n@%p1 bra $L_end;\nbar.sync 1, 64; // <- at\n$L_end:\nret;";
    is_found(&Program::new(64, counted), FaultKind::Deadlock);
    let fault = Program::new(64, counted).run(0).unwrap_err();
    assert!(fault.to_string().contains("barrier 1, where 32 of 64 threads have come"), "{fault}");
    // Threads that have exited are not waited for.
    let early = "setp.ge.u32 %p1, %r0, 40;\n@%p1 ret;\nbar.sync 0;\nst.global.u32 [%d1], 1;\nret;";
    is_right(&Program::new(64, early), |thread| u32::from(thread < 40));
}

#[test]
fn barriers_against_their_rules() {
    // The first warp wants 64 threads, the others 96.
    let counts = "shr.u32 %r4, %r0, 5;\nadd.s32 %r4, %r4, 2;\nmin.u32 %r4, %r4, 3;\nshl.b32 %r4, %r4, 5;\n\
                  bar.sync 2, %r4; // <- at\nret;";
    is_found(&Program::new(96, counts), FaultKind::Barrier);
    is_found(&Program::new(64, "bar.sync 16; // <- at\nret;"), FaultKind::Barrier);
    is_found(&Program::new(64, "bar.sync 1, 48; // <- at\nret;"), FaultKind::Barrier);
    is_found(&Program::new(32, "rem.u32 %r4, %r0, 2;\nbar.sync %r4; // <- at\nret;"), FaultKind::Barrier);
}

/// The first warp writes and arrives, the second waits and reads.
#[test]
fn a_producer_that_arrives_and_a_consumer_that_waits() {
    let program = |arrive: &str| {
        let body = format!(
            "setp.ge.u32 %p1, %r0, 32;\n@%p1 bra $L_consumer;\nst.shared.u32 [%r3], %r0;\n{arrive}\nbra $L_end;\n$L_consumer:\n\
             bar.sync 1, 64;\nxor.b32 %r4, %r3, 128;\nld.shared.u32 %r5, [%r4];\nst.global.u32 [%d1], %r5;\n$L_end:\nret;"
        );
        Program::new(64, &body)
    };
    is_right(&program("bar.arrive 1, 64;"), |thread| thread.saturating_sub(32));
    // Arriving first and writing after orders nothing.
    let early = program("bar.arrive 1, 64;\nst.shared.u32 [%r3], %r0;");
    let kinds: Vec<_> = (0..60).map(|seed| early.run(seed).map(|_| ()).map_err(|fault| fault.kind)).collect();
    assert!(kinds.iter().all(|kind| *kind == Err(FaultKind::Race)), "{kinds:?}");
}

#[test]
fn lanes_that_do_not_come_to_a_shuffle() {
    let body = "setp.lt.u32 %p1, %r0, 16;\n@%p1 bra $L_end;\nshfl.sync.bfly.b32 %r5, %r0, 1, 31, -1; // <- at\n$L_end:\n\
                bar.warp.sync -1;\nret;";
    let fault = Program::new(32, body).run(0).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Divergence, "{fault}");
    let own = "setp.lt.u32 %p1, %r0, 16;\n@%p1 bra $L_end;\nshfl.sync.bfly.b32 %r5, %r0, 1, 31, 0xffff0000;\n\
               st.global.u32 [%d1], %r5;\n$L_end:\nbar.warp.sync -1;\nret;";
    is_right(&Program::new(32, own), |thread| if thread < 16 { 0 } else { thread ^ 1 });
    is_found(
        &Program::new(32, "shfl.sync.bfly.b32 %r5, %r0, 1, 31, 0xfffffffe; // <- at\nret;"),
        FaultKind::Divergence,
    );
}

#[test]
fn accesses_to_nothing() {
    for (what, body, kind) in [
        ("global beyond", "ld.global.u32 %r5, [%d1+4]; // <- at\nret;", FaultKind::OutOfBounds),
        ("global before", "st.global.u32 [%d1+-4], %r0; // <- at\nret;", FaultKind::OutOfBounds),
        ("null", "mov.u64 %d2, 0;\nld.global.u32 %r5, [%d2]; // <- at\nret;", FaultKind::OutOfBounds),
        ("shared beyond", "st.shared.u32 [%r3+4092], %r0; // <- at\nret;", FaultKind::OutOfBounds),
        ("misaligned", "ld.global.v2.u32 {%r5,%r6}, [%d0+4]; // <- at\nret;", FaultKind::Misaligned),
        ("copy misaligned", "cp.async.cg.shared.global [%r3], [%d0], 16; // <- at\nret;", FaultKind::Misaligned),
        ("uninitialised", "ld.shared.u32 %r5, [%r3]; // <- at\nret;", FaultKind::Uninitialised),
        (
            "local beyond",
            ".local .b8 own[16];\nmov.u64 %d2, 0x700000000;\nst.local.u32 [%d2], %r0; // <- at\nret;",
            FaultKind::OutOfBounds,
        ),
        (
            "a matrix of lanes that have exited",
            "setp.ge.u32 %p1, %r0, 8;\n@%p1 exit;\nmovmatrix.sync.aligned.m8n8.trans.b16 %r5, %r0; // <- at\nret;",
            FaultKind::Divergence,
        ),
        ("parameters", "ld.param.u64 %d2, [out+8]; // <- at\nret;", FaultKind::OutOfBounds),
        ("trap", "setp.eq.u32 %p1, %r0, 3;\n@%p1 trap; // <- at\nret;", FaultKind::Trap),
        ("a loop", "$L_again:\nbra $L_again; // <- at\nret;", FaultKind::StepLimit),
        (
            "matrix",
            "mov.u32 %r4, 4096;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r4]; // <- at\nret;",
            FaultKind::OutOfBounds,
        ),
    ] {
        println!("{what}");
        is_found(&Program::new(32, body), kind);
    }
}

#[test]
fn what_is_not_simulated_is_refused_with_its_line() {
    for instruction in [
        "set.eq.f16x2.f16x2 %r4, %r3, %r2;",
        "redux.sync.add.f32 %f1, %f2, -1;",
        "red.shared.exch.b128 [tile], 5;",
        "red.shared.and.pred [tile], 1;",
        "cvt.u32.b128 %r4, 5;",
        "mul.cc.u32 %r4, %r3, %r2;",
        "fence.proxy.alias;",
        "ld.param.u32 %r4, [tile];",
        "mov.u32 %r4, %clock_hi;",
    ] {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.entry kernel() {{\n.reg .b32 %r<5>; .reg .f32 %f<3>; \
             .shared .b8 tile[16];\n{instruction}\nret;\n}}"
        );
        let refused = ptx_sim::Module::load(&text, &mut ptx_sim::Memory::new(0)).map(drop).unwrap_err();
        assert_eq!(refused.line, 6, "{instruction} {refused}");
    }
}
