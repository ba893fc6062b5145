//! What Hopper has for warps that work apart: barriers in memory, elections, and registers that change hands.

use crate::compare::{input, integer};
use crate::form::{Form, Program, program};

pub(crate) const BARRIERS: &[Form] = &[
    program(
        "phases of an mbarrier, asked for by state and by parity",
        "u32 u32 =",
        "
.shared .align 8 .b64 bars[32];
.reg .b32 %b, %n, %m, %c; .reg .b64 %s<3>; .reg .pred %p;
mov.u32 %b, bars; mad.lo.u32 %b, %t, 8, %b; rem.u32 %n, %t, 3; add.u32 %n, %n, 2; sub.u32 %m, %n, 1; mov.u32 %d0, 0;
mbarrier.init.shared::cta.b64 [%b], %n;
mbarrier.test_wait.parity.shared::cta.b64 %p, [%b], 1; @%p or.b32 %d0, %d0, 1;
mbarrier.test_wait.parity.shared::cta.b64 %p, [%b], 0; @%p or.b32 %d0, %d0, 2;
mbarrier.arrive.shared::cta.b64 %s0, [%b];
mbarrier.test_wait.shared::cta.b64 %p, [%b], %s0; @%p or.b32 %d0, %d0, 4;
mbarrier.arrive.release.cta.shared::cta.b64 %s1, [%b], %m;
mbarrier.test_wait.shared::cta.b64 %p, [%b], %s0; @%p or.b32 %d0, %d0, 8;
mbarrier.test_wait.acquire.cta.shared::cta.b64 %p, [%b], %s1; @%p or.b32 %d0, %d0, 16;
mbarrier.test_wait.parity.shared::cta.b64 %p, [%b], 0; @%p or.b32 %d0, %d0, 32;
mbarrier.test_wait.parity.shared::cta.b64 %p, [%b], 1; @%p or.b32 %d0, %d0, 64;
mbarrier.arrive.shared.b64 %s2, [%b], %n;
mbarrier.test_wait.shared.b64 %p, [%b], %s2; @%p or.b32 %d0, %d0, 128;
mbarrier.test_wait.parity.shared.b64 %p, [%b], 1; @%p or.b32 %d0, %d0, 256;
mbarrier.test_wait.parity.shared.b64 %p, [%b], 0; @%p or.b32 %d0, %d0, 512;
mbarrier.pending_count.b64 %c, %s0; mul.lo.u32 %d1, %c, 100;
mbarrier.pending_count.b64 %c, %s1; mad.lo.u32 %d1, %c, 10, %d1;
mbarrier.pending_count.b64 %c, %s2; add.u32 %d1, %d1, %c;
",
    )
    .sm_90()
    .says(|_, i| {
        let threads = i as u64 % 3 + 2;
        vec![1 + 8 + 16 + 32 + 128 + 256, 100 * threads + 10 * (threads - 1) + threads]
    }),
    program(
        "an mbarrier that is left by one, awaits bytes, and is made again",
        "u32 u32 =",
        "
.shared .align 8 .b64 bars[32];
.reg .b32 %b, %c; .reg .b64 %s<3>, %w; .reg .pred %p;
mov.u32 %b, bars; mad.lo.u32 %b, %t, 8, %b; mov.u32 %d0, 0; mbarrier.init.shared::cta.b64 [%b], 3;
mbarrier.arrive_drop.shared::cta.b64 %s0, [%b]; mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %s1, [%b], 1;
mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%b], 48; mbarrier.arrive.shared::cta.b64 _, [%b];
mbarrier.test_wait.parity.shared::cta.b64 %p, [%b], 0; @%p or.b32 %d0, %d0, 1;
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%b], 32;
mbarrier.test_wait.parity.shared::cta.b64 %p, [%b], 0; @%p or.b32 %d0, %d0, 2;
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%b], 16;
mbarrier.test_wait.parity.shared::cta.b64 %p, [%b], 0; @%p or.b32 %d0, %d0, 4;
mbarrier.arrive.expect_tx.shared::cta.b64 %s2, [%b], 16; mbarrier.arrive.shared::cta.b64 _, [%b];
mbarrier.test_wait.parity.shared::cta.b64 %p, [%b], 1; @%p or.b32 %d0, %d0, 8;
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%b], 16;
mbarrier.test_wait.parity.shared::cta.b64 %p, [%b], 1; @%p or.b32 %d0, %d0, 16;
mbarrier.inval.shared::cta.b64 [%b]; st.shared.u64 [%b], 64; ld.shared.u64 %w, [%b]; cvt.u32.u64 %c, %w;
or.b32 %d0, %d0, %c; mbarrier.init.shared::cta.b64 [%b], 1; mbarrier.arrive.shared::cta.b64 _, [%b];
mbarrier.test_wait.parity.shared::cta.b64 %p, [%b], 0; @%p or.b32 %d0, %d0, 32;
mbarrier.pending_count.b64 %c, %s0; mul.lo.u32 %d1, %c, 100;
mbarrier.pending_count.b64 %c, %s1; mad.lo.u32 %d1, %c, 10, %d1;
mbarrier.pending_count.b64 %c, %s2; add.u32 %d1, %d1, %c;
",
    )
    .sm_90()
    .says(|_, _| vec![4 + 16 + 32 + 64, 322]),
    program(
        "two warps that wait for each other at mbarriers, in five rounds",
        "b32 = b32",
        "
.shared .align 4 .b32 words[64]; .shared .align 8 .b64 bars[2];
.reg .b32 %b, %k, %s, %o, %parity, %w; .reg .pred %p;
mov.u32 %b, bars; setp.ne.u32 %p, %t, 0; @%p bra MADE;
mbarrier.init.shared::cta.b64 [%b], 64; mbarrier.init.shared::cta.b64 [%b+8], 64;
MADE: bar.sync 0; mov.u32 %s, words; xor.b32 %o, %t, 32; mad.lo.u32 %o, %o, 4, %s; mad.lo.u32 %s, %t, 4, %s;
mov.u32 %k, 0; mov.b32 %d0, 0;
ROUND: and.b32 %parity, %k, 1; add.u32 %w, %a0, %k; st.shared.u32 [%s], %w; mbarrier.arrive.shared::cta.b64 _, [%b];
FULL: mbarrier.try_wait.parity.shared::cta.b64 %p, [%b], %parity; @!%p bra FULL;
ld.shared.u32 %w, [%o]; mad.lo.u32 %d0, %d0, 3, %w; mbarrier.arrive.shared::cta.b64 _, [%b+8];
EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p, [%b+8], %parity; @!%p bra EMPTY;
add.u32 %k, %k, 1; setp.lt.u32 %p, %k, 5; @%p bra ROUND;
",
    )
    .sm_90()
    .on([1, 1, 1], [64, 1, 1])
    .says(|program, i| {
        let other = word(program, i ^ 32);
        vec![(0..5).fold(0u32, |sum, k| sum.wrapping_mul(3).wrapping_add(other.wrapping_add(k))).into()]
    }),
    program(
        "a thread that its warp elects arrives for it, at a generic address",
        "b32 = b32",
        "
.shared .align 4 .b32 words[64]; .shared .align 8 .b64 bar;
.reg .b32 %s, %w; .reg .b64 %g; .reg .pred %p;
mov.u64 %g, bar; cvta.shared.u64 %g, %g; setp.ne.u32 %p, %t, 0; @%p bra MADE; mbarrier.init.b64 [%g], 64;
MADE: bar.sync 0; mov.u32 %s, words; mad.lo.u32 %w, %t, 4, %s; st.shared.u32 [%w], %a0; bar.warp.sync -1;
elect.sync %w|%p, -1; @%p mbarrier.arrive.release.cta.b64 _, [%g], 32;
WAIT: mbarrier.try_wait.parity.acquire.cta.b64 %p, [%g], 0, 1000; @!%p bra WAIT;
xor.b32 %w, %t, 45; mad.lo.u32 %w, %w, 4, %s; ld.shared.u32 %d0, [%w];
",
    )
    .sm_90()
    .on([1, 1, 1], [64, 1, 1])
    .says(|program, i| vec![word(program, i ^ 45).into()]),
    program(
        "a cluster of one block",
        "b32 u32 u32 = b32",
        "
.shared .align 4 .b32 words[64]; .shared .align 8 .b64 bar;
.reg .b32 %s, %w, %b; .reg .pred %p;
mov.u32 %b, bar; mapa.shared::cluster.u32 %b, %b, 0; getctarank.shared::cluster.u32 %d1, %b;
mov.u32 %d2, %cluster_nctarank; setp.ne.u32 %p, %t, 0; @%p bra MADE; mbarrier.init.shared::cta.b64 [bar], 64;
fence.mbarrier_init.release.cluster;
MADE: mov.u32 %s, words; mad.lo.u32 %w, %t, 4, %s; st.shared.u32 [%w], %a0;
barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
xor.b32 %w, %t, 33; mad.lo.u32 %w, %w, 4, %s; ld.shared.u32 %d0, [%w];
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%b];
WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [bar], 0; @!%p bra WAIT;
",
    )
    .sm_90()
    .on([1, 1, 1], [64, 1, 1])
    .says(|program, i| vec![word(program, i ^ 33).into(), 0, 1]),
];

pub(crate) const REGISTERS: &[Form] = &[
    program(
        "one lane of a warp is elected, and all know which",
        "pred pred u32 =",
        "
.reg .b32 %lane, %elected, %w; .reg .pred %p;
elect.sync %lane|%p, 0xffffffff; vote.sync.ballot.b32 %elected, %p, 0xffffffff;
popc.b32 %d2, %elected; shl.b32 %w, 1, %lane; setp.eq.u32 %d0, %elected, %w; setp.eq.u32 %d1, %lane, %t;
xor.pred %d1, %d1, %p; not.pred %d1, %d1;
",
    )
    .sm_90()
    .says(|_, _| vec![1, 1, 1]),
    program(
        "lanes of two masks elect, apart",
        "pred pred u32 =",
        "
.reg .b32 %lane, %elected, %mask, %w; .reg .pred %p, %odd;
and.b32 %w, %t, 1; setp.eq.u32 %odd, %w, 1; @%odd bra ODD;
mov.b32 %mask, 0x55555555; elect.sync %lane|%p, 0x55555555; vote.sync.ballot.b32 %elected, %p, 0x55555555; bra MEET;
ODD: mov.b32 %mask, 0xaaaaaaaa; elect.sync %lane|%p, %mask; vote.sync.ballot.b32 %elected, %p, %mask;
MEET: popc.b32 %d2, %elected; shl.b32 %w, 1, %lane; setp.eq.u32 %d0, %elected, %w; and.b32 %w, %w, %mask;
setp.ne.u32 %d1, %w, 0;
",
    )
    .sm_90()
    .says(|_, _| vec![1, 1, 1]),
    program(
        "setmaxnreg: one warpgroup gives what another takes",
        "b32 = b32",
        "
.reg .b32 %k; .reg .pred %p;
mov.b32 %d0, %a0; setp.ge.u32 %p, %t, 128; @%p bra TAKE;
setmaxnreg.dec.sync.aligned.u32 40; mad.lo.u32 %d0, %d0, 3, %t; bra DONE;
TAKE: setmaxnreg.inc.sync.aligned.u32 216; mov.u32 %k, 0;
LOOP: mad.lo.u32 %d0, %d0, 5, %k; add.u32 %k, %k, 1; setp.lt.u32 %p, %k, 10; @%p bra LOOP;
DONE:
",
    )
    .sm_90a()
    .limits(".maxntid 256, 1, 1\n.maxnreg 128")
    .on([1, 1, 1], [256, 1, 1])
    .says(|program, i| vec![after_registers(program, i)]),
    program(
        "setmaxnreg: two warpgroups take what a third gives",
        "b32 = b32",
        "
.reg .b32 %k; .reg .pred %p;
mov.b32 %d0, %a0; setp.ge.u32 %p, %t, 128; @%p bra TAKE;
setmaxnreg.dec.sync.aligned.u32 24; mad.lo.u32 %d0, %d0, 3, %t; bra DONE;
TAKE: setmaxnreg.inc.sync.aligned.u32 240; mov.u32 %k, 0;
LOOP: mad.lo.u32 %d0, %d0, 5, %k; add.u32 %k, %k, 1; setp.lt.u32 %p, %k, 10; @%p bra LOOP;
DONE:
",
    )
    .sm_90a()
    .limits(".maxntid 384, 1, 1\n.maxnreg 168")
    .on([1, 1, 1], [384, 1, 1])
    .says(|program, i| vec![after_registers(program, i)]),
];

/// The first input of a thread.
fn word(program: &Program, i: usize) -> u32 {
    integer(input(program, 0, i)) as u32
}

/// What a thread stores that has given registers, or taken them.
fn after_registers(program: &Program, i: usize) -> u64 {
    let a = word(program, i);
    if i < 128 {
        return a.wrapping_mul(3).wrapping_add(i as u32).into();
    }
    (0..10).fold(a, |sum, k| sum.wrapping_mul(5).wrapping_add(k)).into()
}
