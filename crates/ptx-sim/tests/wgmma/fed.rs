//! A warp that has operands copied by bulk, and a warpgroup that multiplies them: one stage, filled three times.

use crate::harness::{Kernel, LAYOUTS, Type};
use ptx_sim::FaultKind;

const ROUNDS: usize = 3;
const WAIT_FULL: &str = "$L_full:\nmbarrier.try_wait.parity.shared::cta.b64 %p4, [bars], %r12;\n@!%p4 bra $L_full;";
const WAIT: &str = "wgmma.wait_group.sync.aligned 0;";
/// By one thread of the warpgroup, for all.
const RELEASE: &str = "@!%p1 mbarrier.arrive.shared::cta.b64 _, [bars+8];";

/// In round r, A is r + 1 everywhere, and B 1: the sum of all rounds is 16 (1 + 2 + 3).
fn kernel(wait_full: &str, after: &str) -> Kernel {
    let layout = LAYOUTS[6];
    let mut image = Vec::new();
    for round in 0..ROUNDS {
        image.extend(layout.image(Type::Bf16, 64, |_, _| (round + 1) as f32));
        image.extend(layout.image(Type::Bf16, 8, |_, _| 1.0));
    }
    let bytes = 4 * image.len() / ROUNDS;
    let body = format!(
        ".shared .align 1024 .b8 stage[{bytes}];\n.shared .align 8 .b8 bars[16];\n\
         setp.ne.u32 %p1, %r0, 0;\n@%p1 bra $L_made;\nmbarrier.init.shared::cta.b64 [bars], 1;\n\
         mbarrier.init.shared::cta.b64 [bars+8], 1;\nfence.mbarrier_init.release.cluster;\n$L_made:\nbar.sync 0;\n\
         mov.u32 %r9, 0;\nsetp.lt.u32 %p2, %r0, 128;\n@%p2 bra $L_consumer;\n\
         setp.ne.u32 %p3, %r0, 128;\n@%p3 ret;\nld.param.u64 %d7, [in];\n\
         $L_produce:\nnot.b32 %r12, %r9;\nand.b32 %r12, %r12, 1;\n\
         $L_empty:\nmbarrier.try_wait.parity.shared::cta.b64 %p4, [bars+8], %r12;\n@!%p4 bra $L_empty;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {bytes};\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [stage], [%d7], {bytes}, [bars]; // <- copy\n\
         add.s64 %d7, %d7, {bytes};\nadd.u32 %r9, %r9, 1;\nsetp.lt.u32 %p3, %r9, {ROUNDS};\n@%p3 bra $L_produce;\nret;\n\
         $L_consumer:\nmov.f32 %f0, 0f00000000;\nmov.f32 %f1, %f0;\nmov.f32 %f2, %f0;\nmov.f32 %f3, %f0;\n\
         mov.u32 %r10, stage;\nshr.u32 %r10, %r10, 4;\ncvt.u64.u32 %d4, %r10;\nor.b64 %d4, %d4, {};\n\
         add.s64 %d5, %d4, {};\n\
         $L_consume:\nand.b32 %r12, %r9, 1;\n{wait_full}\nwgmma.fence.sync.aligned;\n\
         wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f0, %f1, %f2, %f3}}, %d4, %d5, 1, 1, 1, 0, 0; // <- mma\n\
         wgmma.commit_group.sync.aligned;\n{after}\n\
         add.u32 %r9, %r9, 1;\nsetp.lt.u32 %p3, %r9, {ROUNDS};\n@%p3 bra $L_consume;\n",
        layout.descriptor(0, 64),
        layout.bytes(64) / 16,
    );
    let mut kernel = Kernel::new(image, 0, "", &body, &["%f0", "%f1", "%f2", "%f3"].map(String::from));
    kernel.threads = 160;
    kernel
}

#[test]
fn one_thread_gives_the_stage_back_for_the_warpgroup() {
    let kernel = kernel(WAIT_FULL, &format!("{WAIT}\n{RELEASE}"));
    for seed in 0..60 {
        let (out, _) = kernel.run(seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        assert!(out[..512].iter().all(|bits| f32::from_bits(*bits) == 96.0), "seed {seed}: {out:x?}");
    }
}

#[test]
fn a_stage_given_back_before_the_wait() {
    let kernel = kernel(WAIT_FULL, &format!("{RELEASE}\n{WAIT}"));
    for seed in 0..20 {
        let fault = kernel.run(seed).unwrap_err();
        let lines = (fault.at.as_ref().unwrap().ptx_line, fault.earlier.as_ref().unwrap().1.ptx_line);
        // Either may come first: the next copy, or the product of those who have not come yet.
        let (copy, mma) = (kernel.line("<- copy"), kernel.line("<- mma"));
        assert!(
            matches!((fault.kind, lines), (FaultKind::Operand, found) if found == (copy, mma)),
            "seed {seed}: {fault}"
        );
    }
}

#[test]
fn a_warp_that_does_not_wait_for_the_stage() {
    let some = format!("setp.ge.u32 %p5, %r0, 96;\n@%p5 bra $L_there;\n{WAIT_FULL}\n$L_there:");
    let kernel = kernel(&some, &format!("{WAIT}\n{RELEASE}"));
    for seed in 0..20 {
        let fault = kernel.run(seed).unwrap_err();
        assert_eq!(
            (fault.kind, fault.at.as_ref().unwrap().ptx_line),
            (FaultKind::InFlight, kernel.line("<- mma")),
            "{fault}"
        );
    }
}
