//! Counts by hand, and against sets.

use super::{Counters, Global, Shared};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const ALL: u32 = u32::MAX;

fn each(address: impl Fn(u64) -> u64) -> [u64; 32] {
    std::array::from_fn(|lane| address(lane as u64))
}

fn sectors(addresses: [u64; 32], active: u32, bytes: u32) -> u64 {
    let mut global = Global::default();
    global.count(&addresses, active, bytes);
    assert_eq!(global.bytes, u64::from(active.count_ones() * bytes));
    global.sectors
}

/// Passes and conflicts.
fn passes(addresses: [u64; 32], active: u32, bytes: u32) -> (u64, u64) {
    let mut shared = Shared::default();
    shared.count(&addresses, active, bytes);
    assert_eq!((shared.bytes, shared.requests), (u64::from(active.count_ones() * bytes), 1));
    (shared.passes, shared.conflicts)
}

#[test]
fn sectors_of_requests() {
    let base = 0x700_0000_0000;
    assert_eq!(sectors(each(|lane| base + 4 * lane), ALL, 4), 4);
    assert_eq!(sectors(each(|lane| base + 4 * (31 - lane)), ALL, 4), 4);
    assert_eq!(sectors(each(|lane| base + 16 * lane), ALL, 16), 16);
    assert_eq!(sectors(each(|lane| base + 2 * lane), ALL, 2), 2);
    assert_eq!(sectors(each(|_| base + 8), ALL, 4), 1);
    assert_eq!(sectors(each(|lane| base + 256 * lane), ALL, 4), 32);
    assert_eq!(sectors(each(|lane| base + 256 * lane), 0b1011, 4), 3);
    // Begun 4 bytes after a sector's beginning, 128 bytes touch one more.
    assert_eq!(sectors(each(|lane| base + 4 + 4 * lane), ALL, 4), 5);
    // 16 bytes over a border of sectors.
    assert_eq!(sectors(each(|lane| base + 24 + 1024 * lane), ALL, 16), 64);
    assert_eq!(sectors(each(|lane| base + lane % 2 * 32), ALL, 4), 2);
}

#[test]
fn passes_over_the_banks() {
    assert_eq!(passes(each(|lane| 4 * lane), ALL, 4), (1, 0));
    assert_eq!(passes(each(|lane| 4 * (31 - lane)), ALL, 4), (1, 0));
    assert_eq!(passes(each(|_| 64), ALL, 4), (1, 0));
    assert_eq!(passes(each(|lane| 2 * lane), ALL, 2), (1, 0));
    assert_eq!(passes(each(|lane| 8 * lane), ALL, 4), (2, 1));
    assert_eq!(passes(each(|lane| 128 * lane), ALL, 4), (32, 31));
    assert_eq!(passes(each(|lane| 132 * lane), ALL, 4), (1, 0));
    assert_eq!(passes(each(|lane| 128 * lane), 0xf0, 4), (4, 3));
    // Two rows, in columns that do not meet.
    assert_eq!(passes(each(|lane| lane / 16 * 128 + 4 * lane), ALL, 4), (1, 0));
}

#[test]
fn wide_accesses_are_served_in_parts() {
    assert_eq!(passes(each(|lane| 8 * lane), ALL, 8), (2, 0));
    assert_eq!(passes(each(|lane| 16 * lane), ALL, 16), (4, 0));
    assert_eq!(passes(each(|lane| 16 * lane), 0xff00_00ff, 16), (2, 0));
    assert_eq!(passes(each(|_| 0), ALL, 16), (4, 0));
    // Rows of 128 bytes: each lane of a quarter on the same four banks.
    assert_eq!(passes(each(|lane| 128 * lane), ALL, 16), (32, 28));
    // Rows of 144 bytes, as padding makes them.
    assert_eq!(passes(each(|lane| 144 * lane), ALL, 16), (4, 0));
    assert_eq!(passes(each(|lane| 128 * lane), 1 << 17, 8), (1, 0));
}

#[test]
fn nobody_asks_for_nothing() {
    let (mut global, mut shared) = (Global::default(), Shared::default());
    global.count(&[0; 32], 0, 4);
    shared.count(&[0; 32], 0, 4);
    assert_eq!((global, shared), (Global::default(), Shared::default()));
}

#[test]
fn counters_add_up() {
    let one = |name: &str, n| {
        let mut counters = Counters { instructions: BTreeMap::from([(name.into(), n)]), ..Counters::default() };
        counters.flops.tensor = n;
        counters.global_reads.count(&[0; 32], 1, 4);
        counters.global_writes.count(&[0; 32], 3, 4);
        counters.shared.count(&each(|lane| 128 * lane), 7, 4);
        counters
    };
    let mut sum = one("add.s32", 2);
    sum += one("add.s32", 3);
    sum += one("bar.sync", 5);
    assert_eq!(sum.instructions, BTreeMap::from([("add.s32".into(), 5), ("bar.sync".into(), 5)]));
    assert_eq!(sum.flops.tensor, 10);
    assert_eq!(sum.global_reads, Global { bytes: 12, sectors: 3, requests: 3 });
    assert_eq!(sum.global_writes, Global { bytes: 24, sectors: 3, requests: 3 });
    assert_eq!(sum.shared, Shared { bytes: 36, requests: 3, passes: 9, conflicts: 6 });
}

proptest! {
    #[test]
    fn counts_are_those_of_sets(
        places in prop::collection::vec(0..200_u64, 32),
        active in any::<u32>(),
        bytes in prop::sample::select(vec![1_u32, 2, 4, 8, 16]),
        unaligned in 0..16_u64,
    ) {
        let wide = u64::from(bytes);
        let active_lanes = || (0..32).filter(|lane| active >> lane & 1 == 1);
        let anywhere = each(|lane| 1000 + places[lane as usize] * wide + unaligned);
        let touched: BTreeSet<u64> = active_lanes()
            .flat_map(|lane| (anywhere[lane]..anywhere[lane] + wide).map(|byte| byte / 32))
            .collect();
        prop_assert_eq!(sectors_or_none(anywhere, active, bytes), touched.len() as u64);

        let aligned = each(|lane| places[lane as usize] * wide);
        let (mut wanted, mut parts) = (0, 0);
        for part in 0..32 / (128 / wide).min(32) {
            let mut banks: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
            for lane in active_lanes().filter(|&lane| lane as u64 / (128 / wide).min(32) == part) {
                for byte in aligned[lane]..aligned[lane] + wide {
                    banks.entry(byte / 4 % 32).or_default().insert(byte / 4);
                }
            }
            wanted += banks.values().map(BTreeSet::len).max().unwrap_or(0) as u64;
            parts += u64::from(!banks.is_empty());
        }
        let mut shared = Shared::default();
        shared.count(&aligned, active, bytes);
        prop_assert_eq!((shared.passes, shared.conflicts), (wanted, wanted - parts));
    }
}

fn sectors_or_none(addresses: [u64; 32], active: u32, bytes: u32) -> u64 {
    if active == 0 { 0 } else { sectors(addresses, active, bytes) }
}
