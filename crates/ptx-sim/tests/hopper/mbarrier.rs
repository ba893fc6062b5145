//! Barriers in memory.

use super::program::{Program, is_found, is_right, report, wait};
use ptx_sim::FaultKind::{Barrier, Deadlock, Mbarrier, Misaligned, OutOfBounds, Race, StepLimit, Uninitialised};

/// The first thread makes a barrier for 64 arrivals. Then each stores its number, arrives, waits, and reads a number of the
/// other warp.
fn exchange(init: &str, sync: &str, arrive: &str, wait: &str) -> Program {
    Program::new(
        64,
        &format!(
            "@%p1 bra $L_made;\n{init}\n$L_made:\n{sync}\nst.shared.u32 [%r3], %r0; // <- with\n{arrive}\n{wait}\n\
             xor.b32 %r4, %r3, 128;\nld.shared.u32 %r5, [%r4]; // <- at\nst.global.u32 [%d1], %r5;"
        ),
    )
}

const INIT: &str = "mbarrier.init.shared::cta.b64 [bars], 64;";
const SYNC: &str = "bar.sync 0;";
const ARRIVE: &str = "mbarrier.arrive.shared::cta.b64 _, [bars];";

#[test]
fn threads_that_arrive_and_wait() {
    is_right(&exchange(INIT, SYNC, ARRIVE, &wait("a", 0, "0")), |thread| thread ^ 32);
    let asks = "$L_a:\nmbarrier.test_wait.parity.shared::cta.b64 %p7, [bars], 0;\n@!%p7 bra $L_a;";
    is_right(&exchange(INIT, SYNC, ARRIVE, asks), |thread| thread ^ 32);
    // By the state that an arrival gives, in a generic address, with a hint of how long to wait.
    let states = "cvta.shared.u64 %d3, bars;\nmbarrier.arrive.release.cta.b64 %d4, [%d3];";
    let asks = "$L_a:\nmbarrier.try_wait.acquire.cta.b64 %p7, [%d3], %d4, 1000;\n@!%p7 bra $L_a;";
    is_right(&exchange("mov.u64 %d5, bars;\nmbarrier.init.shared.b64 [%d5], 64;", SYNC, states, asks), |thread| {
        thread ^ 32
    });
    // One thread of each warp arrives for all of it.
    let leader = "bar.warp.sync -1;\nelect.sync %r7|%p2, -1;\n@%p2 mbarrier.arrive.shared::cta.b64 _, [bars], 32;";
    is_right(&exchange(INIT, SYNC, leader, &wait("a", 0, "0")), |thread| thread ^ 32);
}

#[test]
fn a_wait_that_is_missing_or_for_another_phase() {
    let early = [Race, Uninitialised];
    is_found(&exchange(INIT, SYNC, ARRIVE, ""), &early);
    is_found(&exchange(INIT, SYNC, ARRIVE, &wait("a", 0, "1")), &early);
    let late = exchange(INIT, SYNC, "", &format!("{}\n{ARRIVE}", wait("a", 0, "1")));
    is_found(&late, &early);
    // What a thread does after it has arrived, nobody may take as done.
    let after = exchange(INIT, SYNC, &format!("{ARRIVE}\nst.shared.u32 [%r3], %r0;"), &wait("a", 0, "0"));
    assert!((0..20).all(|seed| after.run(seed).is_err_and(|fault| fault.kind == Race)));
}

#[test]
fn phases_alternate() {
    // Three phases, in each of which a thread reads what another wrote in it.
    let body = |parity: &str| {
        format!(
            "@%p1 bra $L_made;\n{INIT}\nmbarrier.init.shared::cta.b64 [bars+8], 64;\n$L_made:\n{SYNC}\nmov.u32 %r8, 0;\n\
             mov.u32 %r9, 0;\n$L_again:\nadd.s32 %r10, %r0, %r9;\nst.shared.u32 [%r3], %r10;\n{ARRIVE}\nand.b32 %r6, %r9, 1;\n\
             {}\nxor.b32 %r4, %r3, 128;\nld.shared.u32 %r5, [%r4];\nadd.s32 %r8, %r8, %r5;\n\
             mbarrier.arrive.shared::cta.b64 _, [bars+8];\n{}\nadd.s32 %r9, %r9, 1;\nsetp.lt.u32 %p3, %r9, 3;\n\
             @%p3 bra $L_again;\nst.global.u32 [%d1], %r8;",
            wait("full", 0, "%r6"),
            wait("empty", 8, parity)
        )
    };
    is_right(&Program::new(64, &body("%r6")), |thread| 3 * (thread ^ 32) + 3);
    let kinds = |program: &Program| (0..20).map(|seed| program.run(seed).unwrap_err().kind).collect::<Vec<_>>();
    // With parities that are not turned over, the second round does not wait.
    let wrong = kinds(&Program::new(64, &body("0")));
    assert!(wrong.iter().all(|kind| matches!(kind, Race | Mbarrier)), "{wrong:?}");
    let wrong = report(&Program::new(64, &body("%r9")));
    assert!(wrong.contains("found parity 2, wanted 0 or 1"), "{wrong}");
}

#[test]
fn barriers_that_are_not_made() {
    let none = exchange("", SYNC, &format!("{ARRIVE} // <- at"), &wait("a", 0, "0"));
    assert!((0..20).all(|seed| none.run(seed).is_err_and(|fault| fault.kind == Mbarrier)));
    assert!(report(&none).contains("found no mbarrier object at 0x4000"), "{}", report(&none));
    // Nothing orders the making and the use by others.
    let unordered = exchange(INIT, "", ARRIVE, &wait("a", 0, "0"));
    let kinds: Vec<_> = (0..40).map(|seed| unordered.run(seed).unwrap_err().kind).collect();
    assert!(kinds.contains(&Race) && kinds.iter().all(|kind| matches!(kind, Race | Mbarrier)), "{kinds:?}");
}

#[test]
fn barriers_that_nobody_ends() {
    let two = exchange("mbarrier.init.shared::cta.b64 [bars], 66;", SYNC, ARRIVE, &wait("a", 0, "0"));
    for seed in 0..20 {
        let fault = two.run(seed).unwrap_err();
        assert_eq!(fault.kind, Deadlock, "{fault}");
        assert!(fault.to_string().contains("phase 0 of the mbarrier at 0x4000, which awaits 2 arrivals and 0 bytes"));
    }
    // Also where lanes ask and do not wait, and where they store in between, which could be a sign.
    let asks = "$L_a:\nmbarrier.test_wait.parity.shared::cta.b64 %p7, [bars], 0;\n@!%p7 bra $L_a;";
    let two = exchange("mbarrier.init.shared::cta.b64 [bars], 66;", SYNC, ARRIVE, asks);
    assert_eq!(two.run(3).unwrap_err().kind, Deadlock);
    let stores = "$L_a:\nst.shared.u32 [%r3+1024], %r0;\nmbarrier.test_wait.parity.shared::cta.b64 %p7, [bars], 0;\n@!%p7 bra $L_a;";
    let two = exchange("mbarrier.init.shared::cta.b64 [bars], 66;", SYNC, ARRIVE, stores);
    assert_eq!(two.run(3).unwrap_err().kind, StepLimit);
}

/// Who waits gives up, does something else that another waits for, and waits again.
#[test]
fn a_wait_that_is_in_vain_for_a_while() {
    let body = format!(
        "@%p1 bra $L_made;\nmbarrier.init.shared::cta.b64 [bars], 1;\nmbarrier.init.shared::cta.b64 [bars+8], 1;\n$L_made:\n\
         {SYNC}\nsetp.eq.u32 %p2, %r0, 0;\n@%p2 bra $L_first;\nsetp.ne.u32 %p2, %r0, 32;\n@%p2 ret;\n{}\n\
         mbarrier.arrive.shared::cta.b64 _, [bars];\nret;\n$L_first:\nmov.u32 %r8, 0;\n$L_again:\n\
         mbarrier.try_wait.parity.shared::cta.b64 %p4, [bars], 0;\n@%p4 bra $L_end;\nsetp.ne.u32 %p3, %r8, 0;\n\
         @!%p3 mbarrier.arrive.shared::cta.b64 _, [bars+8];\nmov.u32 %r8, 1;\nbra $L_again;\n$L_end:\n\
         st.global.u32 [%d1], 7;",
        wait("b", 8, "0")
    );
    is_right(&Program::new(64, &body), |thread| if thread == 0 { 7 } else { 0 });
}

#[test]
fn barriers_against_their_rules() {
    let alone = |body: &str| Program::new(1, body);
    for (body, kind) in [
        ("mbarrier.init.shared::cta.b64 [bars+4], 1; // <- at", Misaligned),
        ("mbarrier.init.shared::cta.b64 [bars], 0; // <- at", Mbarrier),
        ("mbarrier.init.shared::cta.b64 [bars], 0x100000; // <- at", Mbarrier),
        ("mbarrier.init.shared::cta.b64 [bars+64], 1; // <- at", OutOfBounds),
        ("mbarrier.init.b64 [%d1], 1; // <- at", OutOfBounds),
        (
            "mbarrier.init.shared::cta.b64 [bars], 1; // <- with\nmbarrier.init.shared::cta.b64 [bars], 1; // <- at",
            Mbarrier,
        ),
        (
            "mbarrier.init.shared::cta.b64 [bars], 1;\nmbarrier.inval.shared::cta.b64 [bars];\n\
             mbarrier.arrive.shared::cta.b64 _, [bars]; // <- at",
            Mbarrier,
        ),
        ("mbarrier.init.shared::cta.b64 [bars], 1;\nmbarrier.arrive.shared::cta.b64 _, [bars], 2; // <- at", Mbarrier),
        (
            "mbarrier.init.shared::cta.b64 [bars], 1;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 16;\n\
             mbarrier.arrive.shared::cta.b64 _, [bars]; // <- at",
            Mbarrier,
        ),
        (
            "mbarrier.init.shared::cta.b64 [bars], 1;\nmbarrier.expect_tx.shared::cta.b64 [bars], 0x100000; // <- at",
            Mbarrier,
        ),
        (
            "mbarrier.init.shared::cta.b64 [bars], 1;\nmbarrier.arrive.noComplete.release.cta.shared::cta.b64 %d3, [bars], 1; // <- at",
            Mbarrier,
        ),
        ("mbarrier.init.shared::cta.b64 [bars], 1; // <- with\nld.shared.u32 %r4, [bars+4]; // <- at", Mbarrier),
        ("mbarrier.init.shared::cta.b64 [bars], 1; // <- with\nst.shared.u32 [bars], %r0; // <- at", Mbarrier),
        (
            "mbarrier.init.shared::cta.b64 [bars], 1;\nmov.u64 %d3, 0x500000;\n\
             mbarrier.try_wait.shared::cta.b64 %p2, [bars], %d3; // <- at",
            Mbarrier,
        ),
    ] {
        println!("{body}");
        is_found(&alone(body), &[kind]);
    }
}

#[test]
fn counts_can_be_read_dropped_and_expected() {
    let body = "mbarrier.init.shared::cta.b64 [bars], 3;\nmbarrier.arrive_drop.shared::cta.b64 %d3, [bars];\n\
                mbarrier.arrive.shared::cta.b64 %d4, [bars];\nmbarrier.pending_count.b64 %r4, %d3;\n\
                mbarrier.pending_count.b64 %r5, %d4;\nmad.lo.u32 %r6, %r4, 10, %r5;\n\
                mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bars], 48;\n\
                mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bars], 32;\n\
                mbarrier.complete_tx.shared::cta.b64 [bars], 16;\nmbarrier.arrive.shared::cta.b64 _, [bars];\n\
                mbarrier.test_wait.parity.shared::cta.b64 %p2, [bars], 0;\nselp.u32 %r7, 100, 0, %p2;\n\
                add.u32 %r6, %r6, %r7;\nmbarrier.arrive.shared::cta.b64 _, [bars], 2;\n\
                mbarrier.test_wait.parity.shared::cta.b64 %p2, [bars], 1;\nselp.u32 %r7, 1000, 0, %p2;\n\
                add.u32 %r6, %r6, %r7;\nmbarrier.inval.shared::cta.b64 [bars];\nst.shared.u64 [bars], 5;\n\
                st.global.u32 [%d1], %r6;";
    is_right(&Program::new(1, body), |_| 1132);
}

#[test]
fn a_cluster_of_one_block() {
    let body = "mov.u32 %r4, bars;\nmapa.shared::cluster.u32 %r5, %r4, 0;\nsetp.ne.u32 %p2, %r4, %r5;\n@%p2 trap;\n\
                mbarrier.init.shared::cta.b64 [bars], 1;\nmbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];\n\
                mov.u32 %r6, %cluster_nctarank;\nst.global.u32 [%d1], %r6;";
    is_right(&Program::new(1, body), |_| 1);
    let other = "mov.u32 %r4, bars;\nmapa.shared::cluster.u32 %r5, %r4, 1;\nmbarrier.init.shared::cta.b64 [bars], 1;\n\
                 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5]; // <- at";
    is_found(&Program::new(1, other), &[OutOfBounds, Misaligned]);
}

/// Each thread stores its number, arrives at the barrier of the cluster, waits, and reads a number of the other warp.
#[test]
fn the_barrier_of_a_cluster() {
    let program = |arrive: &str, wait: &str| {
        Program::new(
            64,
            &format!(
                "st.shared.u32 [%r3], %r0; // <- with\n{arrive}\n{wait}\nxor.b32 %r4, %r3, 128;\n\
                 ld.shared.u32 %r5, [%r4]; // <- at\nst.global.u32 [%d1], %r5;"
            ),
        )
    };
    let (arrive, wait) = ("barrier.cluster.arrive.release.aligned;", "barrier.cluster.wait.acquire.aligned;");
    is_right(&program(arrive, wait), |thread| thread ^ 32);
    is_right(&program("barrier.cluster.arrive;", "barrier.cluster.wait;"), |thread| thread ^ 32);
    let twice = format!("{arrive}\n{wait}\n{arrive}");
    is_right(&program(&twice, wait), |thread| thread ^ 32);
    is_found(&program(arrive, ""), &[Race, Uninitialised]);
    is_found(&program("barrier.cluster.arrive.relaxed.aligned;", wait), &[Race]);
    let wrong = |body: &str| Program::new(64, body);
    is_found(&wrong("barrier.cluster.wait.aligned; // <- at"), &[Barrier]);
    is_found(&wrong("barrier.cluster.arrive.aligned;\nbarrier.cluster.arrive.aligned; // <- at"), &[Barrier]);
    // Threads that have exited are not waited for; those that wait for something else are.
    is_right(&wrong("setp.ge.u32 %p2, %r0, 32;\n@%p2 ret;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;"), |_| 0);
    let stuck = "setp.ge.u32 %p2, %r0, 32;\n@%p2 bra $L_other;\nbarrier.cluster.arrive;\nbarrier.cluster.wait; // <- at\nret;\n\
                 $L_other:\nbar.sync 1, 64; // <- at";
    is_found(&wrong(stuck), &[Deadlock]);
    let told = report(&wrong(stuck));
    assert!(told.contains("the barrier of the cluster, where 32 of 64 threads have arrived"), "{told}");
}
