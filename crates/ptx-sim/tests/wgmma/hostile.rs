//! Whatever descriptors and words a program has, it is refused, or ends well or with a fault.

use crate::harness::{Kernel, LAYOUTS, READY, Type};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use ptx_sim::{FaultKind, Memory, Module};

const BODY: &str = "
    wgmma.fence.sync.aligned; mov.b64 %d4, 4611686293305294848; mov.b64 %d5, 4611686293305295360; setp.lt.u32 %p0, %r0, 999;
    wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, %d4, %d5, %p0, 1, -1, 0, 0;
    wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, {%r4, %r5, %r6, %r7}, %d5, 1, 1, 1, 1;
    wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r10, %r11}, %d4, %d5, 0, 1, 1, 1, 0;
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1; wgmma.wait_group.sync.aligned 0;
    add.f32 %f0, %f0, %f0; st.shared.b32 [%r1], %r10; @%p0 bar.sync 0;";

/// Words that take the place of others.
const WORDS: [&str; 18] = [
    "%p0",
    "%h0",
    "%r0",
    "%d0",
    "%f0",
    "_",
    "-1",
    "0",
    "4",
    "4294967295",
    "{%r0, %r1}",
    "m64n256k16",
    "bf16",
    "f16",
    "%d5",
    "tile",
    "wgmma",
    "mma_async",
];

fn kernel(body: &str) -> Kernel {
    let image = LAYOUTS[6].image(Type::F16, 128, |_, _| 1.0);
    let copied = image.len();
    Kernel::new(image, copied, READY, body, &["%f0".into()])
}

/// The text, cut so that every word, register and modifier is a piece.
fn pieces(text: &str) -> Vec<&str> {
    text.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '%' || c == '_')).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_descriptor(bits: [u64; 2], plain: [bool; 2], seed: u64, transposed in 0..2, columns in 1..33usize) {
        // Without the bits that must be 0, most are still out of bounds.
        let [a, b] = [0, 1].map(|place| if plain[place] { bits[place] & 0xc00e_0fff_0fff_01ff } else { bits[place] });
        let d = (0..4 * columns).map(|register| format!("%f{register}")).collect::<Vec<_>>().join(", ");
        let kernel = kernel(&format!(
            "wgmma.fence.sync.aligned;\nmov.b64 %d4, {a};\nmov.b64 %d5, {b};\n\
             wgmma.mma_async.sync.aligned.m64n{}k16.f32.bf16.bf16 {{{d}}}, %d4, %d5, 0, 1, 1, {transposed}, {};\n\
             wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;",
            8 * columns,
            1 - transposed
        ));
        if let Err(fault) = kernel.run(seed) {
            let kinds = [FaultKind::Descriptor, FaultKind::OutOfBounds, FaultKind::Uninitialised];
            prop_assert!(kinds.contains(&fault.kind), "{fault}");
        }
    }

    #[test]
    fn changed_words(changes in prop::collection::vec((any::<Index>(), prop::option::of(select(WORDS.to_vec()))), 1..4), seed: u64) {
        let pieces = pieces(BODY);
        let mut body: Vec<String> = pieces.iter().map(|piece| piece.to_string()).collect();
        for (index, word) in changes {
            let place = &mut body[index.index(pieces.len())];
            let end = place.pop().unwrap_or(' ');
            *place = format!("{}{end}", word.unwrap_or_default());
        }
        let kernel = kernel(&body.concat());
        if Module::load(&kernel.text, &mut Memory::new(1 << 16)).is_ok()
            && let Err(fault) = kernel.run(seed)
        {
            prop_assert!(!fault.to_string().is_empty());
        }
    }
}

#[test]
fn the_program_itself_is_right() {
    kernel(BODY).run(1).unwrap_or_else(|fault| panic!("{fault}"));
}
