//! Addresses, written out by hand from the tables and figures of the ISA.

use super::*;

/// A descriptor whose fields are bytes; mode 1 is 128 bytes, 2 is 64, 3 is 32.
fn descriptor(start: u64, leading: u64, stride: u64, mode: u64) -> Descriptor {
    Descriptor::decode(start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | mode << 62).unwrap()
}

/// Lines, units and where they lie.
fn holds(descriptor: Descriptor, major: Major, places: &[(u32, u32, u64)]) {
    for (line, unit, address) in places {
        let found = descriptor.address(major, *line, *unit);
        assert_eq!(found, *address, "line {line}, unit {unit}: found {found:#x}, wanted {address:#x}");
    }
}

#[test]
fn k_major_without_a_swizzle_is_core_matrices_of_8_rows_and_16_bytes() {
    // Each of 128 bytes; the other half of K is 256 further on, the next eight rows 512.
    let places =
        [(0, 0, 0x800), (1, 0, 0x810), (7, 0, 0x870), (0, 1, 0x900), (7, 1, 0x970), (8, 0, 0xa00), (17, 1, 0xd10)];
    holds(descriptor(0x800, 256, 512, 0), Major::K, &places);
}

#[test]
fn k_major_with_32_bytes_swaps_the_halves_of_rows_4_to_7_of_8() {
    let places = [
        (0, 0, 0x400),
        (0, 1, 0x410),
        (3, 0, 0x460),
        (4, 0, 0x490),
        (4, 1, 0x480),
        (7, 0, 0x4f0),
        (8, 0, 0x500),
        (12, 1, 0x580),
    ];
    holds(descriptor(0x400, 0, 256, 3), Major::K, &places);
}

#[test]
fn k_major_with_64_bytes_changes_two_rows_alike() {
    let places = [
        (0, 0, 0x0),
        (1, 1, 0x50),
        (2, 0, 0x90),
        (2, 1, 0x80),
        (3, 1, 0xc0),
        (4, 0, 0x120),
        (5, 1, 0x170),
        (6, 0, 0x1b0),
        (7, 1, 0x1e0),
        (8, 0, 0x200),
    ];
    holds(descriptor(0, 16, 512, 2), Major::K, &places);
    // The second 16 columns of K: two units on.
    holds(descriptor(32, 16, 512, 2), Major::K, &[(0, 0, 0x20), (2, 0, 0xb0), (4, 1, 0x110), (6, 1, 0x180)]);
}

#[test]
fn k_major_with_128_bytes_changes_each_row_by_its_number() {
    let places = [
        (0, 0, 0x400),
        (0, 1, 0x410),
        (1, 0, 0x490),
        (1, 1, 0x480),
        (2, 0, 0x520),
        (3, 1, 0x5a0),
        (5, 0, 0x6d0),
        (7, 0, 0x7f0),
        (7, 1, 0x7e0),
        (8, 0, 0x800),
        (15, 1, 0xbe0),
    ];
    holds(descriptor(0x400, 16, 1024, 1), Major::K, &places);
    // K from 48 on: six units on.
    holds(descriptor(0x460, 16, 1024, 1), Major::K, &[(0, 0, 0x460), (1, 0, 0x4f0), (6, 0, 0x700), (7, 1, 0x780)]);
    // Eight rows can lie anywhere: here two tiles have others between.
    holds(descriptor(0x400, 16, 4096, 1), Major::K, &[(7, 0, 0x7f0), (8, 0, 0x1400), (9, 1, 0x1480)]);
}

#[test]
fn mn_major_without_a_swizzle_is_core_matrices_too() {
    // Eight of M or N to a unit. 128 bytes are eight of K; the next eight of K are 1024 on, the next eight of M or N 128.
    let places = [(0, 0, 0), (1, 0, 0x10), (7, 0, 0x70), (0, 1, 0x80), (8, 0, 0x400), (9, 3, 0x590)];
    holds(descriptor(0, 1024, 128, 0), Major::Mn, &places);
}

#[test]
fn mn_major_with_32_bytes_has_16_of_m_or_n_in_a_row() {
    let places = [
        (0, 0, 0),
        (0, 1, 0x10),
        (3, 1, 0x70),
        (4, 0, 0x90),
        (4, 1, 0x80),
        (0, 2, 0x200),
        (5, 3, 0x2a0),
        (8, 0, 0x100),
        (13, 2, 0x3b0),
    ];
    holds(descriptor(0, 512, 256, 3), Major::Mn, &places);
}

#[test]
fn mn_major_with_64_bytes_has_32_of_m_or_n_in_a_row() {
    let places = [(0, 0, 0), (0, 3, 0x30), (2, 0, 0x90), (2, 3, 0xa0), (7, 0, 0x1f0), (0, 4, 0x400), (8, 5, 0x610)];
    holds(descriptor(0, 1024, 512, 2), Major::Mn, &places);
}

#[test]
fn mn_major_with_128_bytes_has_64_of_m_or_n_in_a_row() {
    let places = [
        (0, 0, 0x2000),
        (0, 7, 0x2070),
        (1, 0, 0x2090),
        (1, 7, 0x20e0),
        (7, 7, 0x2380),
        (8, 0, 0x2400),
        (15, 2, 0x27d0),
        (0, 8, 0x4000),
        (9, 15, 0x44e0),
    ];
    holds(descriptor(0x2000, 8192, 1024, 1), Major::Mn, &places);
}

#[test]
fn the_swizzle_is_of_the_address_and_not_of_the_distance() {
    // Three rows of 128 bytes off: row 0 is changed as row 3 of the pattern is.
    let off = descriptor(0x580, 16, 1024, 1);
    holds(off, Major::K, &[(0, 0, 0x5b0), (1, 0, 0x640), (5, 0, 0x800), (6, 1, 0x880)]);
    // With a base offset the pattern begins there.
    let bits = 0x58 | 1 << 16 | 64 << 32 | 3 << 49 | 1 << 62;
    let based = Descriptor::decode(bits).unwrap();
    holds(based, Major::K, &[(0, 0, 0x580), (1, 0, 0x610), (5, 0, 0x850), (7, 1, 0x960)]);
}
