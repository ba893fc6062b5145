//! A ring of two stages: one warp has them filled, another one reads them.

use super::program::{Program, is_found, is_right};
use ptx_sim::FaultKind::{InFlight, Mbarrier, ProxyFence, Race, Uninitialised};

/// What the producer and the consumers do in each of six rounds. Barriers 0 and 8 are of full stages, 16 and 24 of empty
/// ones. `%r10` is the stage's address, `%r11` that of its full barrier.
struct Ring {
    wait_empty: &'static str,
    refill: &'static str,
    wait_full: &'static str,
    consume: &'static str,
}

const WAIT_EMPTY: &str =
    "$L_empty:\nmbarrier.try_wait.parity.shared::cta.b64 %p4, [%r11+16], %r13;\n@!%p4 bra $L_empty;";
const REFILL: &str = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 128;\n\
     cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%d3], 128, [%r11]; // <- at copy";
const WAIT_FULL: &str = "$L_full:\nmbarrier.try_wait.parity.shared::cta.b64 %p4, [%r11], %r12;\n@!%p4 bra $L_full;";
const CONSUME: &str = "ld.shared.u32 %r5, [%r15]; // <- with read\nadd.u32 %r8, %r8, %r5;\n\
     fence.proxy.async.shared::cta;\nmbarrier.arrive.shared::cta.b64 _, [%r11+16];";

impl Ring {
    fn right() -> Self {
        Ring { wait_empty: WAIT_EMPTY, refill: REFILL, wait_full: WAIT_FULL, consume: CONSUME }
    }

    fn program(&self) -> Program {
        let Ring { wait_empty, refill, wait_full, consume } = self;
        let stage = "and.b32 %r14, %r9, 1;\nshl.b32 %r10, %r14, 7;\nmov.u32 %r11, bars;\nshl.b32 %r14, %r14, 3;\n\
                     add.u32 %r11, %r11, %r14;\nshr.u32 %r12, %r9, 1;\nand.b32 %r12, %r12, 1;\nxor.b32 %r13, %r12, 1;";
        let next = "add.u32 %r9, %r9, 1;\nsetp.lt.u32 %p3, %r9, 6;";
        Program::new(
            64,
            &format!(
                "@%p1 bra $L_made;\nmbarrier.init.shared::cta.b64 [bars], 1;\nmbarrier.init.shared::cta.b64 [bars+8], 1;\n\
                 mbarrier.init.shared::cta.b64 [bars+16], 32;\nmbarrier.init.shared::cta.b64 [bars+24], 32;\n\
                 fence.mbarrier_init.release.cluster;\n$L_made:\nbar.sync 0;\nmov.u32 %r9, 0;\nmov.u32 %r8, 0;\n\
                 setp.ge.u32 %p2, %r0, 32;\n@%p2 bra $L_consumer;\n@%p1 ret;\nmov.u64 %d3, %d9;\n\
                 $L_produce:\n{stage}\n{wait_empty}\n{refill}\nadd.u64 %d3, %d3, 128;\n{next}\n@%p3 bra $L_produce;\nret;\n\
                 $L_consumer:\n{stage}\nand.b32 %r15, %r3, 127;\nadd.u32 %r15, %r15, %r10;\n{wait_full}\n{consume}\n{next}\n\
                 @%p3 bra $L_consumer;\nst.global.u32 [%d1], %r8;"
            ),
        )
    }
}

#[test]
fn a_ring_of_stages() {
    // Word i of round r is 100 + 32 r + i.
    is_right(&Ring::right().program(), |thread| if thread < 32 { 0 } else { 6 * (100 + thread - 32) + 32 * 15 });
}

#[test]
fn a_stage_that_is_refilled_while_it_is_read() {
    let early = "mbarrier.arrive.shared::cta.b64 _, [%r11+16];\nld.shared.u32 %r5, [%r15]; // <- at <- with read\n\
                 add.u32 %r8, %r8, %r5;\nfence.proxy.async.shared::cta;";
    let refill = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 128;\n\
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%d3], 128, [%r11]; // <- at <- with copy";
    is_found(&Ring { consume: early, refill, ..Ring::right() }.program(), &[Race, InFlight, ProxyFence]);
}

#[test]
fn a_stage_that_readers_do_not_fence() {
    let bare = "ld.shared.u32 %r5, [%r15]; // <- with read\nadd.u32 %r8, %r8, %r5;\n\
                mbarrier.arrive.shared::cta.b64 _, [%r11+16];";
    is_found(&Ring { consume: bare, ..Ring::right() }.program(), &[ProxyFence]);
    // The producer can fence what it knows of them.
    let refill = format!("fence.proxy.async.shared::cta;\n{REFILL}").leak();
    is_right(&Ring { consume: bare, refill, ..Ring::right() }.program(), |thread| {
        if thread < 32 { 0 } else { 6 * (100 + thread - 32) + 32 * 15 }
    });
}

#[test]
fn waits_that_are_missing() {
    let kinds =
        |ring: Ring| (0..20).map(|seed| ring.program().run(seed).map(|_| ()).unwrap_err().kind).collect::<Vec<_>>();
    // The consumers read what is not there, or not yet.
    let found = kinds(Ring { wait_full: "", ..Ring::right() });
    assert!(found.iter().all(|kind| matches!(kind, InFlight | Uninitialised | Race)), "{found:?}");
    // The producer fills a stage again before anybody has seen the first filling.
    let found = kinds(Ring { wait_empty: "", ..Ring::right() });
    assert!(found.iter().all(|kind| matches!(kind, InFlight | Race | Mbarrier | ProxyFence)), "{found:?}");
    // With the parity of full stages, the producer waits for what it has not filled yet: nobody goes on.
    let waits = "$L_empty:\nmbarrier.try_wait.parity.shared::cta.b64 %p4, [%r11+16], %r12;\n@!%p4 bra $L_empty;";
    let fault = Ring { wait_empty: waits, ..Ring::right() }.program().run(4).unwrap_err();
    let told = fault.to_string();
    assert_eq!(fault.kind, ptx_sim::FaultKind::Deadlock, "{told}");
    assert!(
        told.contains("lanes 0x00000001 wait for phase 0 of the mbarrier at 0x4010, which awaits 32 arrivals"),
        "{told}"
    );
    assert!(
        told.contains("lanes 0xffffffff wait for phase 0 of the mbarrier at 0x4000, which awaits 1 arrivals"),
        "{told}"
    );
}
