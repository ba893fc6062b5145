//! What kernels do wrong with `wgmma`: each fault is found at its line, and the right program beside it runs.

use crate::harness::{Kernel, LAYOUTS, Layout, READY, Type};
use ptx_sim::FaultKind;

/// Both operands as most kernels have them: K-major, 128 bytes.
const LAYOUT: Layout = LAYOUTS[6];
const MMA: &str = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}";
const FENCE: &str = "wgmma.fence.sync.aligned;";
const COMMIT: &str = "wgmma.commit_group.sync.aligned;";
const WAIT: &str = "wgmma.wait_group.sync.aligned 0;";

/// A of 64 rows at 0 and B of 8 columns behind it, all of them 1: a product is 16 everywhere. `%d4` and `%d5` are their
/// descriptors, `%p1` says to add, `%p0` is for one lane of the block alone.
fn kernel(ready: &str, body: &str) -> Kernel {
    let mut image = LAYOUT.image(Type::F16, 64, |_, _| 1.0);
    let start = 4 * image.len();
    image.extend(LAYOUT.image(Type::F16, 8, |_, _| 1.0));
    let body = format!(
        "mov.b64 %d4, {};\nmov.b64 %d5, {};\nsetp.ne.u32 %p1, %r0, -1;\nsetp.eq.u32 %p0, %r0, 40;\nshr.u32 %r9, %r0, 5;\n\
         mov.f32 %f0, 0f00000000;\nmov.f32 %f1, %f0;\nmov.f32 %f2, %f0;\nmov.f32 %f3, %f0;\n\
         mov.u32 %r4, 0x3c003c00;\nmov.u32 %r5, %r4;\nmov.u32 %r6, %r4;\nmov.u32 %r7, %r4;\n{body}",
        LAYOUT.descriptor(0, 64),
        LAYOUT.descriptor(start, 8),
    );
    let copied = image.len();
    Kernel::new(image, copied, ready, &body, &["%f0", "%f1", "%f2", "%f3"].map(String::from))
}

/// A body with A from shared memory.
fn shared(before: &str, between: &str, after: &str) -> String {
    format!("{before}\n{MMA}, %d4, %d5, %p1, 1, 1, 0, 0; // <- mma\n{between}\n{COMMIT}\n{after}")
}

/// A fault of this kind at the line with `<- at`, with an earlier access at the one with `<- with` if there is one.
fn is_found(kernel: &Kernel, kind: FaultKind) {
    for seed in 0..12 {
        let fault = match kernel.run(seed) {
            Ok(_) => panic!("seed {seed}: no fault, wanted {kind:?}"),
            Err(fault) => fault,
        };
        assert_eq!(fault.kind, kind, "seed {seed}: {fault}");
        let at = fault.at.as_ref().map(|site| site.ptx_line);
        let earlier = fault.earlier.as_ref().map(|(_, site)| site.ptx_line);
        let with = kernel.text.contains("<- with").then(|| kernel.line("<- with"));
        let here = kernel.line("<- at");
        // Of two that nothing orders, either may come first.
        let either = matches!(kind, FaultKind::Race | FaultKind::Divergence);
        let found = (at, earlier) == (Some(here), with) || either && (at, earlier) == (with, Some(here));
        assert!(found, "seed {seed}, wanted lines {here} and {with:?}: {fault}");
    }
}

/// It runs under every schedule, and each number is that.
fn is_right(kernel: &Kernel, wanted: f32) {
    for seed in 0..40 {
        match kernel.run(seed) {
            Ok((out, _)) => assert!(out.iter().all(|bits| f32::from_bits(*bits) == wanted), "seed {seed}: {out:x?}"),
            Err(fault) => panic!("seed {seed}: {fault}\n{}", kernel.text),
        }
    }
}

#[test]
fn accumulators_before_their_wait() {
    is_right(&kernel(READY, &shared(FENCE, "", &format!("{WAIT}\nadd.f32 %f2, %f2, 0f00000000;"))), 16.0);
    for touch in
        ["add.f32 %f9, %f2, %f2;", "mov.f32 %f2, 0f00000000;", "st.shared.f32 [%r1], %f2;", "mov.b32 %r8, %f2;"]
    {
        let early = format!("{touch} // <- at\n{WAIT}");
        let wrong = kernel(READY, &shared(FENCE, "", &early).replace("<- mma", "<- with"));
        is_found(&wrong, FaultKind::Fragment);
        // One lane is enough.
        is_found(&kernel(READY, &wrong_guard(&early)), FaultKind::Fragment);
    }
    // A wait that leaves the group under way, and one for a group that the product is not in.
    let left = "wgmma.wait_group.sync.aligned 1;\nadd.f32 %f9, %f2, %f2; // <- at";
    is_found(&kernel(READY, &shared(FENCE, "", left).replace("<- mma", "<- with")), FaultKind::Fragment);
    let uncommitted =
        format!("{FENCE}\n{MMA}, %d4, %d5, %p1, 1, 1, 0, 0; // <- with\n{WAIT}\nadd.f32 %f9, %f2, %f2; // <- at");
    is_found(&kernel(READY, &uncommitted), FaultKind::Fragment);
}

fn wrong_guard(early: &str) -> String {
    shared(FENCE, "", &format!("@%p0 {early}")).replace("<- mma", "<- with")
}

#[test]
fn waits_leave_the_last_groups_under_way() {
    let second = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f10, %f11, %f12, %f13}, %d4, %d5, 0, 1, 1, 0, 0;";
    let body = |left: u32, touched: &str, after: &str| {
        shared(
            FENCE,
            "",
            &format!(
                "{second} // <- second\n{COMMIT}\nwgmma.wait_group.sync.aligned {left};\nadd.f32 %f9, {touched}, {touched}; // <- at\n{after}"
            ),
        )
    };
    is_right(&kernel(READY, &body(1, "%f2", WAIT)), 16.0);
    is_right(&kernel(READY, &body(0, "%f12", "")), 16.0);
    is_found(&kernel(READY, &body(1, "%f12", WAIT).replace("<- second", "<- with")), FaultKind::Fragment);
    is_found(&kernel(READY, &body(2, "%f2", WAIT).replace("<- mma", "<- with")), FaultKind::Fragment);
}

#[test]
fn products_of_one_shape_may_follow_each_other() {
    let again = format!(
        "{MMA}, %d4, %d5, %p1, 1, 1, 0, 0;\n{MMA}, %d4, %d5, %p1, -1, 1, 0, 0;\n{MMA}, {{%r4, %r5, %r6, %r7}}, %d5, %p1, 1, 1, 0;"
    );
    is_right(&kernel(READY, &shared(FENCE, &again, WAIT)), 32.0);
    let wide = "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, %d4, %d4, 0, 1, 1, 0, 0; // <- at";
    is_found(&kernel(READY, &shared(FENCE, wide, WAIT).replace("<- mma", "<- with")), FaultKind::Fragment);
    is_right(&kernel(READY, &shared(FENCE, &format!("{COMMIT}\n{WAIT}\n{wide}"), WAIT)), 16.0);
    let half = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f10, %f11, %f12, %f13}, {%f0, %f1, %f2, %f3}, %d5, 0, 1, 1, 0; // <- at";
    is_found(&kernel(READY, &shared(FENCE, half, WAIT).replace("<- mma", "<- with")), FaultKind::Fragment);
}

#[test]
fn registers_of_a() {
    let body = |before: &str, after: &str| {
        format!("{before}\n{MMA}, {{%r4, %r5, %r6, %r7}}, %d5, %p1, 1, 1, 0; // <- mma\n{COMMIT}\n{after}")
    };
    is_right(&kernel(READY, &body(FENCE, &format!("{WAIT}\nmov.u32 %r5, 0;\nadd.u32 %r8, %r5, %r6;"))), 16.0);
    for touch in ["mov.u32 %r5, 0;", "add.u32 %r8, %r8, %r5;", "st.shared.b32 [%r1], %r7;"] {
        let early = body(FENCE, &format!("{touch} // <- at\n{WAIT}")).replace("<- mma", "<- with");
        is_found(&kernel(READY, &early), FaultKind::Fragment);
        let unfenced = body(&format!("{FENCE}\n{touch} // <- with"), WAIT).replace("<- mma", "<- at");
        is_found(&kernel(READY, &unfenced), FaultKind::WgmmaFence);
    }
    // Two products may have the same fragments.
    let other = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f10, %f11, %f12, %f13}, {%r4, %r5, %r6, %r7}, %d5, 0, 1, 1, 0;";
    is_right(&kernel(READY, &body(FENCE, &format!("{other}\n{COMMIT}\n{WAIT}"))), 16.0);
}

#[test]
fn a_fence_before_the_first_product_and_after_registers() {
    is_found(&kernel(READY, &shared("", "", WAIT).replace("<- mma", "<- at")), FaultKind::WgmmaFence);
    for touch in ["mov.f32 %f1, %f0;", "ld.shared.f32 %f3, [%r1];", "add.f32 %f9, %f2, %f2;"] {
        let late = shared(&format!("{FENCE}\n{touch} // <- with"), "", WAIT).replace("<- mma", "<- at");
        is_found(&kernel(READY, &late.replace("%p1", "0")), FaultKind::WgmmaFence);
        let fenced = shared(&format!("{FENCE}\n{touch}\n{FENCE}"), "", WAIT).replace("%p1", "0");
        is_right(&kernel(READY, &fenced), 16.0);
    }
    // Between two products it is the same.
    let again = |fence: &str| {
        shared(
            FENCE,
            "",
            &format!(
                "{WAIT}\nadd.f32 %f2, %f2, 0f00000000; // <- with\n{fence}\n{MMA}, %d4, %d5, 0, 1, 1, 0, 0; // <- at\n{COMMIT}\n{WAIT}"
            ),
        )
    };
    is_right(&kernel(READY, &again(FENCE)), 16.0);
    is_found(&kernel(READY, &again("")), FaultKind::WgmmaFence);
}

#[test]
fn operands_that_the_async_proxy_does_not_see_yet() {
    let right = shared(FENCE, "", WAIT);
    is_right(&kernel("bar.sync 0;\nfence.proxy.async.shared::cta;", &right), 16.0);
    let unfenced = |ready: &str| {
        let mut kernel = kernel(ready, &right.replace("<- mma", "<- at"));
        // Of the stores that copy the image, the first one is that of A's first rows.
        kernel.text = kernel.text.replacen("[%r1+0], %r2;", "[%r1+0], %r2; // <- with", 1);
        kernel
    };
    is_found(&unfenced("bar.sync 0;"), FaultKind::ProxyFence);
    is_found(&unfenced("bar.sync 0;\nfence.proxy.async.global;"), FaultKind::ProxyFence);
    // A fence without a barrier is one for the lane itself.
    for seed in 0..30 {
        let fault = unfenced("fence.proxy.async;").run(seed).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Race | FaultKind::Uninitialised), "seed {seed}: {fault}");
    }
    // Rows of A are of their warp, if they are in registers alone of others; B is of all.
    let own = "bar.sync 0;\nst.shared.b32 [%r1], %r4; // <- with\nfence.proxy.async;\nbar.warp.sync -1;";
    let fault = kernel(own, &right).run(3).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Race, "{fault}");
}

#[test]
fn each_warp_may_write_its_own_rows_of_a() {
    // 16 rows of 128 bytes: four bytes of each 16 are enough to see who reads them.
    let body = |sync: &str, row: &str| {
        let store = format!(
            "bar.sync 0;\n{row}\nmov.u32 %r11, 0x3c003c00;\nst.shared.b32 [%r10], %r11; // <- with\nfence.proxy.async;\n{sync}"
        );
        kernel(READY, &shared(&format!("{store}\n{FENCE}"), "", WAIT).replace("<- mma", "<- at"))
    };
    let own = "and.b32 %r10, %r0, 15;\nshl.b32 %r11, %r9, 4;\nadd.u32 %r10, %r10, %r11;\nshl.b32 %r10, %r10, 7;\n\
               and.b32 %r11, %r0, 16;\nadd.u32 %r10, %r10, %r11;";
    let others = format!("{own}\nxor.b32 %r10, %r10, 2048;");
    is_right(&body("bar.warp.sync -1;", own), 16.0);
    is_right(&body("bar.sync 0;", &others), 16.0);
    is_found(&body("bar.warp.sync -1;", &others), FaultKind::Race);
    is_found(&body("", own), FaultKind::Race);
}

#[test]
fn operands_overwritten_under_a_product() {
    let write = "st.shared.b32 [%r1+8192], %r4; // <- at";
    let late = kernel(READY, &shared(FENCE, "", &format!("{WAIT}\nbar.sync 0;\n{write}")));
    is_right(&late, 16.0);
    let early = kernel(READY, &shared(FENCE, "", &format!("{write}\n{WAIT}")).replace("<- mma", "<- with"));
    is_found(&early, FaultKind::Operand);
    // A barrier is no wait.
    let early =
        kernel(READY, &shared(FENCE, "", &format!("bar.sync 0;\n{write}\n{WAIT}")).replace("<- mma", "<- with"));
    is_found(&early, FaultKind::Operand);
    // Who waited for the warpgroup, or was told by one of its threads, may write.
    let own = kernel(READY, &shared(FENCE, "", &format!("{WAIT}\n{write}")));
    is_right(&own, 16.0);
    let copy = format!("cp.async.ca.shared.global [%r1+8192], [%d3], 4; // <- at\n{WAIT}\ncp.async.wait_all;");
    is_found(&kernel(READY, &shared(FENCE, "", &copy).replace("<- mma", "<- with")), FaultKind::Operand);
}

#[test]
fn operands_that_are_not_there() {
    for (what, descriptor, kind) in [
        ("not written", LAYOUT.descriptor(16384, 8), FaultKind::Uninitialised),
        ("out of bounds", LAYOUT.descriptor(1 << 17, 8), FaultKind::OutOfBounds),
        ("out of bounds by its fifth line", LAYOUT.descriptor(32768 - 512, 8), FaultKind::OutOfBounds),
        ("a reserved bit", LAYOUT.descriptor(8192, 8) | 1 << 52, FaultKind::Descriptor),
        ("a base offset without a swizzle", LAYOUTS[0].descriptor(8192, 8) | 1 << 49, FaultKind::Descriptor),
    ] {
        println!("{what}");
        let last = "st.shared.b32 [%r1+32256], %r4;\nfence.proxy.async;\nbar.sync 0;";
        let body = shared(&format!("{last}\nmov.b64 %d5, {descriptor};\n{FENCE}"), "", WAIT).replace("<- mma", "<- at");
        let mut kernel = kernel(READY, &body);
        let tile = kernel.text.find("tile[").unwrap();
        let end = kernel.text[tile..].find(']').unwrap() + tile;
        kernel.text.replace_range(tile..end, "tile[32768");
        is_found(&kernel, kind);
        let told = kernel.run(0).unwrap_err().to_string();
        let place = match what {
            "out of bounds by its fifth line" => "B from column 4, k 0 on: 16 bytes at 0x8000",
            "a reserved bit" => "of B: reserved bits behind the base offset, bits 52 to 61: found 0x1, wanted 0",
            "a base offset without a swizzle" => "of B: base offset, bits 49 to 51: found 1",
            _ => "B from column 0, k 0 on: ",
        };
        assert!(told.contains(place), "{told}");
    }
}

#[test]
fn warps_that_do_not_do_the_same() {
    let mma = format!("{MMA}, %d4, %d5, %p1, 1, 1, 0, 0;");
    let diverge = |what: &str| kernel(READY, &format!("{FENCE}\n{what}\n{COMMIT}\n{WAIT}"));
    is_right(&diverge(&mma), 16.0);
    // One warp skips it and comes to the commit.
    let skips = diverge(&format!("setp.eq.u32 %p2, %r9, 1;\n@%p2 bra $L_end;\n{mma} // <- at\n$L_end:"));
    let mut skips = skips;
    skips.text = skips.text.replacen(COMMIT, &format!("{COMMIT} // <- with"), 1);
    is_found(&skips, FaultKind::Divergence);
    // One warp has ended, and the others wait.
    let ends = diverge(&format!("setp.eq.u32 %p2, %r9, 1;\n@%p2 exit;\n{mma} // <- at"));
    is_found(&ends, FaultKind::Divergence);
    // One lane goes without.
    let lane = diverge(&format!("@!%p0 {mma}"));
    assert_eq!(lane.run(1).unwrap_err().kind, FaultKind::Divergence);
    // One lane means something else.
    for other in ["@%p0 add.s64 %d5, %d5, 2;", "@%p0 add.s64 %d4, %d4, 2;", "not.pred %p1, %p0;"] {
        is_found(&diverge(&format!("{other}\n{mma} // <- at")), FaultKind::Divergence);
    }
    let mut few = diverge(&mma);
    few.threads = 96;
    assert_eq!(few.run(0).unwrap_err().kind, FaultKind::Divergence);
}

#[test]
fn fences_and_waits_without_products() {
    is_right(&kernel(READY, &format!("{WAIT}\n{FENCE}\n{COMMIT}\n{COMMIT}\n{WAIT}")), 0.0);
    let mut few = kernel(READY, &format!("{FENCE} // <- at"));
    few.threads = 64;
    is_found(&few, FaultKind::Divergence);
}

#[test]
fn two_warpgroups_have_accumulators_of_their_own() {
    // The second warpgroup multiplies twice, in another order with the first under each seed.
    let twice = format!("setp.lt.u32 %p2, %r0, 128;\n@%p2 bra $L_end;\n{MMA}, %d4, %d5, %p1, 1, 1, 0, 0;\n$L_end:");
    let mut both = kernel(READY, &shared(FENCE, &twice, WAIT));
    both.threads = 256;
    for seed in 0..40 {
        let (out, counters) = both.run(seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        let wanted = |place| if place < 512 { 16.0 } else { 32.0 };
        assert!((0..).zip(out).all(|(place, bits)| f32::from_bits(bits) == wanted(place)), "seed {seed}");
        assert_eq!(counters.flops.tensor, 3 * 2 * 64 * 8 * 16);
    }
}

#[test]
fn forms_that_an_assembler_refuses() {
    for (instruction, why) in [
        (format!("{MMA}, %d4, %d5, %p1, 1, 1, 0;"), "number of operands"),
        (format!("{MMA}, {{%r4, %r5, %r6, %r7}}, %d5, %p1, 1, 1, 0, 0;"), "number of operands"),
        (format!("{MMA}, {{%r4, %r5, %r6}}, %d5, %p1, 1, 1, 0;"), "found 3 registers, wanted 4"),
        (format!("{MMA}, {{%f0, %r5, %r6, %r7}}, %d5, %p1, 1, 1, 0;"), "both of A and of D"),
        (format!("{MMA}, %d4, %d5, %p1, 2, 1, 0, 0;"), "scale 2"),
        (format!("{MMA}, %d4, %d5, %p1, 1, 0, 0, 0;"), "scale 0"),
        (format!("{MMA}, %d4, %d5, %p1, 1, 1, 2, 0;"), "transposition 2"),
        (MMA.replace("n8", "n12") + ", %d4, %d5, %p1, 1, 1, 0, 0;", "found no shape"),
        (MMA.replace("k16", "k32") + ", %d4, %d5, %p1, 1, 1, 0, 0;", "found no shape"),
        (MMA.replace("n8", "n264") + ", %d4, %d5, %p1, 1, 1, 0, 0;", "found no shape"),
        (MMA.replace("n8", "n16") + ", %d4, %d5, %p1, 1, 1, 0, 0;", "found 4 registers, wanted 8"),
        (MMA.replace("f16.f16", "f16.bf16") + ", %d4, %d5, %p1, 1, 1, 0, 0;", "for these types"),
        (MMA.replace("f32.f16.f16", "bf16.bf16.bf16") + ", %d4, %d5, %p1, 1, 1, 0, 0;", "for these types"),
        (MMA.replace("%f3", "%f2") + ", %d4, %d5, %p1, 1, 1, 0, 0;", "a register twice"),
        (MMA.replace("%f3", "_") + ", %d4, %d5, %p1, 1, 1, 0, 0;", "found _"),
        (MMA.replace(".aligned", "") + ", %d4, %d5, %p1, 1, 1, 0, 0;", "found no form"),
        ("wgmma.wait_group.sync.aligned -1;".into(), "number of groups"),
        ("wgmma.wait_group.sync.aligned %r0;".into(), "wanted a constant"),
        ("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 %r0;".into(), "found no shape"),
    ] {
        let kernel = kernel(READY, &format!("{instruction} // <- at"));
        let refused = ptx_sim::Module::load(&kernel.text, &mut ptx_sim::Memory::new(1 << 20)).map(drop).unwrap_err();
        assert_eq!(refused.line, kernel.line("<- at"), "{instruction}: {refused}");
        assert!(refused.what.contains(why), "{instruction}: {refused}");
    }
    let mut kernel = kernel(READY, FENCE);
    for target in ["sm_80", "sm_90", "sm_100a"] {
        kernel.text = kernel.text.replace("sm_90a", target);
        assert!(ptx_sim::Module::load(&kernel.text, &mut ptx_sim::Memory::new(1 << 20)).is_err(), "{target}");
        kernel.text = kernel.text.replace(target, "sm_90a");
    }
}
