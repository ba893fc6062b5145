//! Bulk copies that are of no tensor.

use super::program::{Program, is_found, is_right, report, wait};
use ptx_sim::FaultKind::{Deadlock, InFlight, Mbarrier, Misaligned, OutOfBounds, ProxyFence, Race, Uninitialised};

/// The first thread has 256 bytes copied to the tile, all threads wait for them, and each reads its word.
struct Load {
    init: &'static str,
    fence: &'static str,
    expect: &'static str,
    copy: &'static str,
    wait: String,
}

impl Load {
    fn right() -> Self {
        Load {
            init: "mbarrier.init.shared::cta.b64 [bars], 1; // <- with made",
            fence: "fence.mbarrier_init.release.cluster;",
            expect: "mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 256;",
            copy: "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%d9], 256, [bars];",
            wait: wait("a", 0, "0"),
        }
    }

    fn program(&self) -> Program {
        let Load { init, fence, expect, copy, wait } = self;
        Program::new(
            64,
            &format!(
                "@%p1 bra $L_made;\n{init}\n{fence}\n$L_made:\nbar.sync 0;\n@%p1 bra $L_issued;\n{expect}\n{copy}\n\
                 $L_issued:\nbar.sync 0;\n{wait}\nld.shared.u32 %r5, [%r3]; // <- at\nst.global.u32 [%d1], %r5;"
            ),
        )
    }

    /// With another wait, whose reading is what is wrong.
    fn waits(wait: String) -> Program {
        let copy =
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%d9], 256, [bars]; // <- with";
        Load { init: "mbarrier.init.shared::cta.b64 [bars], 1;", copy, wait, ..Load::right() }.program()
    }
}

#[test]
fn a_load_is_waited_for() {
    is_right(&Load::right().program(), |thread| 100 + thread);
    let by_cta =
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [tile], [%d9], 256, [bars], %d9;";
    is_right(&Load { copy: by_cta, ..Load::right() }.program(), |thread| 100 + thread);
    let hint = "createpolicy.fractional.L2::evict_last.b64 %d5, 0f3F800000;\n\
                cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [tile], [%d9], 256, [bars], %d5;";
    is_right(&Load { copy: hint, ..Load::right() }.program(), |thread| 100 + thread);
    // What is issued before it is expected counts too.
    let (copy, expect) = (Load::right().expect, Load::right().copy);
    is_right(&Load { expect, copy, ..Load::right() }.program(), |thread| 100 + thread);
    // Two copies, and a fence of the proxy in place of that of the barriers.
    let copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%d9], 128, [bars];\n\
                cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile+128], [%d9+128], 128, [bars];";
    is_right(&Load { copy, fence: "fence.proxy.async;", ..Load::right() }.program(), |thread| 100 + thread);
}

#[test]
fn a_load_that_is_not_waited_for() {
    // Once the phase is over, the other parity is that of the next one, which never ends.
    let other = Load::waits(wait("a", 0, "1"));
    let kinds: Vec<_> = (0..20).map(|seed| other.run(seed).unwrap_err().kind).collect();
    assert!(kinds.contains(&InFlight) && kinds.iter().all(|kind| matches!(kind, InFlight | Deadlock)), "{kinds:?}");
    is_found(&Load::waits(String::new()), &[InFlight]);
    // A wait that may fail is asked once.
    let once = "mbarrier.try_wait.parity.shared::cta.b64 %p7, [bars], 0;".to_string();
    assert!((0..60).any(|seed| Load::waits(once.clone()).run(seed).is_err_and(|fault| fault.kind == InFlight)));
    // The thread that issued it waits, and a barrier is all that the others have: that is enough.
    let first = format!("@%p1 bra $L_others;\n{}\n$L_others:\nbar.sync 0;", wait("a", 0, "0"));
    is_right(&Load::waits(first.clone()), |thread| 100 + thread);
    is_found(&Load::waits(first.replace("bar.sync 0;", "")), &[InFlight, Race]);
}

#[test]
fn bytes_that_are_not_those_expected() {
    let expects = |bytes: &str| {
        let expect = format!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {bytes};").leak();
        let copy =
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%d9], 256, [bars]; // <- at";
        Load { init: "mbarrier.init.shared::cta.b64 [bars], 1;", expect, copy, ..Load::right() }
    };
    let told = |load: &Load| {
        let fault = load.program().run(2).unwrap_err();
        (fault.kind, fault.to_string())
    };
    for bytes in ["128", "240"] {
        let (kind, report) = told(&expects(bytes));
        assert_eq!(kind, Mbarrier, "{report}");
    }
    let (kind, report) = told(&expects("384"));
    assert_eq!(kind, Deadlock);
    assert!(report.contains("phase 0 of the mbarrier at 0x4000, which awaits 0 arrivals and 128 bytes"), "{report}");
    // Two copies of which one is expected.
    let copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%d9], 128, [bars]; // <- at <- with\n\
                cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile+128], [%d9+128], 128, [bars]; // <- at <- with";
    let wait = wait("a", 0, "0");
    let body = format!(
        "@%p1 ret;\nmbarrier.init.shared::cta.b64 [bars], 1;\nfence.proxy.async;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 128;\n{copy}\n{wait}"
    );
    for seed in 0..20 {
        let fault = Program::new(1, &body).run(seed).unwrap_err();
        assert!(matches!(fault.kind, Mbarrier), "seed {seed}: {fault}");
    }
}

#[test]
fn a_barrier_whose_making_the_async_proxy_does_not_know() {
    let copy =
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%d9], 256, [bars]; // <- at copy";
    let wait = wait("a", 0, "0").replace("st.", "");
    let program = |fence| Load { fence, copy, wait: wait.clone(), ..Load::right() }.program();
    for seed in 0..20 {
        let fault = program("").run(seed).unwrap_err();
        assert_eq!(fault.kind, ProxyFence, "{fault}");
        let (with, made) = fault.earlier.unwrap();
        assert_eq!(
            (with.as_str(), made.instruction.as_str()),
            ("with the mbarrier object", "mbarrier.init.shared::cta.b64")
        );
    }
    // A fence of global memory is none of a barrier.
    assert_eq!(program("fence.proxy.async.global;").run(0).unwrap_err().kind, ProxyFence);
}

/// Each thread stores its number in the tile, and the first one has the tile copied out.
fn store(fence: &str, behind: &str, after: &str) -> Program {
    Program::new(
        64,
        &format!(
            "st.shared.u32 [%r3], %r0; // <- with\n{fence}\nbar.sync 0;\n@%p1 bra $L_issued;\n{behind}\n\
             cp.async.bulk.global.shared::cta.bulk_group [%d0], [tile], 256; // <- at\ncp.async.bulk.commit_group;\n\
             {after}\n$L_issued:"
        ),
    )
}

#[test]
fn what_is_stored_is_fenced() {
    let fence = "fence.proxy.async.shared::cta;";
    is_right(&store(fence, "", "cp.async.bulk.wait_group.read 0;"), |thread| thread);
    is_right(&store("fence.proxy.async;", "", "cp.async.bulk.wait_group 0;"), |thread| thread);
    // Who issues it may fence what the others did.
    is_right(&store("", fence, "cp.async.bulk.wait_group 0;"), |thread| thread);
    is_found(&store("", "", "cp.async.bulk.wait_group 0;"), &[ProxyFence]);
    is_found(&store("fence.proxy.async.global;", "", "cp.async.bulk.wait_group 0;"), &[ProxyFence]);
    // A fence before the write fences nothing of it.
    let early = store("", "", "cp.async.bulk.wait_group 0;");
    assert!(report(&early).contains("no fence.proxy.async between the two"), "{}", report(&early));
}

#[test]
fn a_store_that_is_not_waited_for() {
    let program = |after: &str, again: &str| {
        Program::new(
            64,
            &format!(
                "st.shared.u32 [%r3], %r0;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n@%p1 bra $L_issued;\n\
                 cp.async.bulk.global.shared::cta.bulk_group [%d0], [tile], 256; // <- with\n\
                 cp.async.bulk.commit_group;\n{after}\n$L_issued:\nbar.sync 0;\n{again}\nbar.sync 0;\n\
                 @!%p1 cp.async.bulk.wait_group 0;"
            ),
        )
    };
    let writes = "st.shared.u32 [%r3], 5; // <- at";
    is_right(&program("cp.async.bulk.wait_group.read 0;", writes), |thread| thread);
    is_found(&program("", writes), &[InFlight]);
    is_found(&program("cp.async.bulk.wait_group.read 1;", writes), &[InFlight]);
    // Others may read what it reads, but not yet what it writes.
    is_right(&program("", "ld.shared.u32 %r4, [%r3];"), |thread| thread);
    let reads = "ld.global.u32 %r4, [%d1]; // <- at";
    is_found(&program("cp.async.bulk.wait_group.read 0;", reads), &[InFlight]);
    is_right(&program("cp.async.bulk.wait_group 0;", "ld.global.u32 %r4, [%d1];\nst.global.u32 [%d1], 3;"), |_| 3);
}

#[test]
fn a_block_that_ends_while_a_copy_uses_its_memory() {
    let fence = "fence.proxy.async;";
    let left = |after: &str| {
        Program::new(
            64,
            &format!(
                "st.shared.u32 [%r3], %r0;\n{fence}\nbar.sync 0;\n@%p1 bra $L_issued;\n\
                 cp.async.bulk.global.shared::cta.bulk_group [%d0], [tile], 256; // <- at\n{after}\n$L_issued:"
            ),
        )
    };
    is_found(&left("cp.async.bulk.commit_group;"), &[InFlight]);
    // A group that is not committed is not waited for.
    is_found(&left("cp.async.bulk.wait_group 0;"), &[InFlight]);
    let load = "@%p1 ret;\nmbarrier.init.shared::cta.b64 [bars], 1;\nfence.proxy.async;\n\
                mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 256;\n\
                cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%d9], 256, [bars]; // <- at";
    is_found(&Program::new(64, load), &[InFlight]);
}

#[test]
fn a_tile_that_is_written_and_then_loaded() {
    let program = |fence: &str| {
        let load = Load::right();
        let Load { init, expect, copy, wait, .. } = &load;
        let init = init.replace("// <- with made", "");
        Program::new(
            64,
            &format!(
                "st.shared.u32 [%r3], 0; // <- with\n@%p1 bra $L_made;\n{init}\nfence.mbarrier_init.release.cluster;\n\
                 $L_made:\n{fence}\nbar.sync 0;\n@%p1 bra $L_issued;\n{expect}\n{copy} // <- at\n$L_issued:\n{wait}\n\
                 ld.shared.u32 %r5, [%r3];\nst.global.u32 [%d1], %r5;"
            ),
        )
    };
    is_right(&program("fence.proxy.async.shared::cta;"), |thread| 100 + thread);
    is_found(&program(""), &[ProxyFence]);
}

#[test]
fn what_is_written_to_global_memory_and_then_loaded() {
    let program = |fence: &str| {
        let Load { init, fence: made, expect, wait, .. } = Load::right();
        let init = init.replace("// <- with made", "");
        Program::new(
            64,
            &format!(
                "st.global.u32 [%d1], %r0; // <- with\n@%p1 bra $L_made;\n{init}\n{made}\n$L_made:\n{fence}\nbar.sync 0;\n\
                 @%p1 bra $L_issued;\n{expect}\n\
                 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%d0], 256, [bars]; // <- at\n\
                 $L_issued:\n{wait}\nld.shared.u32 %r5, [%r3];\nadd.u32 %r5, %r5, 1;\nst.global.u32 [%d1], %r5;"
            ),
        )
    };
    is_right(&program("fence.proxy.async.global;"), |thread| thread + 1);
    is_found(&program(""), &[ProxyFence]);
    is_found(&program("fence.proxy.async.shared::cta;"), &[ProxyFence]);
}

#[test]
fn copies_of_what_is_not_there() {
    let copy = |copy: &str| {
        Program::new(
            1,
            &format!(
                "mbarrier.init.shared::cta.b64 [bars], 1;\nfence.proxy.async;\nmov.u32 %r8, 16;\n\
                 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 256;\n{copy} // <- at"
            ),
        )
    };
    let load = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes";
    for (body, kind) in [
        (format!("{load} [tile], [%d9+16384], 16, [bars];"), OutOfBounds),
        (format!("{load} [tile], [%d9+16368], 32, [bars];"), OutOfBounds),
        (format!("{load} [tile+16448], [%d9], 16, [bars];"), OutOfBounds),
        (format!("{load} [tile], [%d9+8], 16, [bars];"), Misaligned),
        (format!("{load} [tile+8], [%d9], 16, [bars];"), Misaligned),
        (format!("{load} [tile], [%d9], 24, [bars];"), Misaligned),
        (format!("{load} [tile], [%d9], 0, [bars];"), Misaligned),
        (format!("{load} [tile], [%d9], %r8, [bars+8];"), Mbarrier),
        (format!("{load} [tile], [%d9], %r8, [bars+4];"), Misaligned),
        ("cp.async.bulk.global.shared::cta.bulk_group [%d0], [tile], 16;".into(), Uninitialised),
    ] {
        println!("{body}");
        is_found(&copy(&body), &[kind]);
    }
    let onto = copy(&format!("{load} [tile+16384], [%d9], 16, [bars];"));
    assert_eq!(onto.run(0).unwrap_err().kind, Mbarrier);
    // What the host did not write is not read.
    let empty = copy(&format!("{load} [tile], [%d9], 32, [bars];")).input(vec![1; 16]);
    assert_eq!(empty.run(0).unwrap_err().kind, OutOfBounds);
}

#[test]
fn forms_that_are_refused_by_name() {
    for (instruction, told) in [
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [a], [b], 16, [c], 3;",
            ".multicast::cluster is not simulated",
        ),
        ("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [a], [b], 16, [c];", "source"),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d1], [a], 16;", "not simulated"),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [a], [%d1, {0, 0}], [c];",
            "im2col",
        ),
        (
            "cp.async.bulk.tensor.6d.shared::cluster.global.mbarrier::complete_tx::bytes [a], [%d1, {0}], [c];",
            "dimensions",
        ),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [a], [%d1, {0}], [c];",
            "1 coordinates, wanted 2",
        ),
        ("mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [a];", ".relaxed is not simulated"),
        ("fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;", "proxy"),
        ("griddepcontrol.wait;", "griddepcontrol: not simulated"),
        ("barrier.cluster.arrive.acquire;", ".acquire is not simulated"),
        ("setmaxnreg.inc.sync.aligned.u32 20;", "found 20 registers, wanted a multiple of 8 from 24 to 256"),
    ] {
        let refused = refusal("sm_90a", instruction);
        assert!(refused.contains(told), "{instruction} {refused}");
    }
    for (target, instruction, told) in [
        ("sm_80", "fence.proxy.async;", "found target sm_80, wanted sm_90 or later"),
        ("sm_90", "setmaxnreg.inc.sync.aligned.u32 64;", "found target sm_90, wanted sm_90a"),
    ] {
        let refused = refusal(target, instruction);
        assert!(refused.contains(told), "{instruction} {refused}");
    }
}

fn refusal(target: &str, instruction: &str) -> String {
    let text = format!(
        ".version 8.0\n.target {target}\n.address_size 64\n.entry kernel() {{\n.reg .b64 %d<3>; .shared .b64 a, b, c;\n\
         {instruction}\nret;\n}}"
    );
    let refused = ptx_sim::Module::load(&text, &mut ptx_sim::Memory::new(0)).map(drop).unwrap_err();
    assert_eq!(refused.line, 6, "{refused}");
    refused.what
}
