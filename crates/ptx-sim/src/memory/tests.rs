//! Memory against a map of bytes, and what it says of addresses that are not there.

use super::{Bytes, FIRST, GUARD, Memory, MemoryError, Outside};
use proptest::prelude::*;

fn found(memory: &mut Memory, address: u64, bytes: u32) -> Outside {
    memory.allocation(address, bytes).map(|_| ()).expect_err("it is outside")
}

#[test]
fn addresses_are_far_apart_and_aligned_and_beyond_32_bits() {
    let mut memory = Memory::new(1 << 20);
    let addresses: Vec<u64> = [1, 0, 256, 1000].into_iter().map(|bytes| memory.alloc(bytes).unwrap()).collect();
    for pair in addresses.windows(2) {
        assert!(pair[1] >= pair[0] + 256 + 256, "{pair:x?}");
    }
    for address in addresses {
        assert_eq!(address % 256, 0);
        assert!(address > 1 << 40);
    }
}

#[test]
fn capacity_is_what_there_is() {
    let mut memory = Memory::new(1000);
    let first = memory.alloc(600).unwrap();
    assert_eq!(memory.free_bytes(), 400);
    assert_eq!(memory.alloc(401), Err(MemoryError::Full { bytes: 401, free: 400 }));
    assert_eq!(memory.alloc(u64::MAX), Err(MemoryError::Full { bytes: u64::MAX, free: 400 }));
    memory.free(first).unwrap();
    let second = memory.alloc(1000).unwrap();
    assert_ne!(first, second);
    assert_eq!(memory.free_bytes(), 0);
}

#[test]
fn more_than_the_machine_has_is_an_error() {
    let mut memory = Memory::new(u64::MAX);
    for bytes in [u64::MAX, u64::MAX - 3, i64::MAX as u64, 1 << 56] {
        assert_eq!(memory.alloc(bytes), Err(MemoryError::Full { bytes, free: u64::MAX }));
    }
    assert!(memory.alloc(8).is_ok());
}

#[test]
fn what_is_outside_has_a_name() {
    let mut memory = Memory::new(1 << 20);
    let first = memory.alloc(4096).unwrap();
    let second = memory.alloc(64).unwrap();
    let third = memory.alloc(64).unwrap();
    let beyond = |by| Outside::Beyond { start: first, len: 4096, by };
    assert_eq!(found(&mut memory, first + 4096, 4), beyond(4));
    assert_eq!(found(&mut memory, first + 4094, 4), beyond(2));
    assert_eq!(found(&mut memory, first + 4096 + 996, 4), beyond(1000));
    assert_eq!(found(&mut memory, second - 4, 4), Outside::Before { start: second, len: 64, by: 4 });
    assert_eq!(found(&mut memory, second - 2, 4), Outside::Before { start: second, len: 64, by: 2 });
    assert_eq!(found(&mut memory, FIRST - 8, 4), Outside::Before { start: first, len: 4096, by: 8 });
    for nowhere in [0, 4, first & 0xffff_ffff, FIRST - GUARD, third + GUARD, u64::MAX - 3, u64::MAX] {
        assert_eq!(found(&mut memory, nowhere, 4), Outside::Nowhere, "{nowhere:#x}");
    }
    memory.free(second).unwrap();
    assert_eq!(found(&mut memory, second, 4), Outside::Freed { start: second });
    assert_eq!(found(&mut memory, second + 60, 8), Outside::Freed { start: second });
    assert!(memory.allocation(third, 4).is_ok());
    assert_eq!(
        found(&mut memory, first + 4096, 4).to_string(),
        format!("an address beyond the end of the allocation of 4096 bytes at {first:#x}: by 4 bytes")
    );
}

#[test]
fn only_beginnings_are_given_back_and_once() {
    let mut memory = Memory::new(1 << 20);
    let (empty, full) = (memory.alloc(0).unwrap(), memory.alloc(16).unwrap());
    for wrong in [full + 1, full + 16, full - 256, 0, u64::MAX] {
        let Err(MemoryError::Address { address, .. }) = memory.free(wrong) else { panic!("{wrong:#x} was freed") };
        assert_eq!(address, wrong);
    }
    for address in [full, empty] {
        memory.free(address).unwrap();
        let twice = memory.free(address).unwrap_err().to_string();
        assert!(twice.contains("freed"), "{twice}");
    }
    assert_eq!(memory.free_bytes(), 1 << 20);
}

#[test]
fn an_allocation_of_no_bytes_takes_none() {
    let mut memory = Memory::new(0);
    let empty = memory.alloc(0).unwrap();
    assert_eq!(memory.write(empty, &[]), Ok(()));
    assert!(memory.write(empty, &[1]).is_err());
    assert_eq!(found(&mut memory, empty, 1), Outside::Beyond { start: empty, len: 0, by: 1 });
}

#[test]
fn the_host_reads_zeros_where_a_lane_may_not_read() {
    let mut memory = Memory::new(100);
    let address = memory.alloc(100).unwrap();
    memory.write(address + 3, &[7; 5]).unwrap();
    let mut host = [9; 100];
    memory.read(address, &mut host).unwrap();
    assert_eq!(host.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 35);
    let mut four = [0; 4];
    let (bytes, offset) = memory.allocation(address + 4, 4).unwrap();
    assert_eq!((bytes.read(offset, &mut four), four), (Ok(()), [7; 4]));
    let (bytes, offset) = memory.allocation(address, 4).unwrap();
    assert_eq!(bytes.read(offset, &mut four), Err(0));
    memory.fill(address, 100, 1).unwrap();
    let (bytes, offset) = memory.allocation(address, 100).unwrap();
    assert_eq!(bytes.read(offset, &mut host), Ok(()));
    assert_eq!(host, [1; 100]);
    assert!(memory.fill(address, 101, 1).is_err());
}

#[test]
fn a_huge_allocation_costs_what_is_touched() {
    let mut memory = Memory::new(1 << 40);
    let address = memory.alloc(1 << 32).unwrap();
    memory.write(address + (1 << 32) - 4, &[1, 2, 3, 4]).unwrap();
    let (bytes, offset) = memory.allocation(address + (1 << 32) - 4, 4).unwrap();
    let mut four = [0; 4];
    assert_eq!((bytes.read(offset, &mut four), four), (Ok(()), [1, 2, 3, 4]));
}

proptest! {
    /// Writes and fills anywhere; each read gives the bytes or the first that was not written.
    #[test]
    fn bytes_are_as_a_list_of_optional_bytes(
        len in 1..300_usize,
        calls in prop::collection::vec((0..3, any::<prop::sample::Index>(), 0..150_usize, any::<u8>()), 1..60),
    ) {
        let mut bytes = Bytes::new(len);
        let mut model: Vec<Option<u8>> = vec![None; len];
        for (call, at, count, byte) in calls {
            let at = at.index(len);
            let count = count.min(len - at);
            match call {
                0 => bytes.fill(at, count, byte),
                1 => bytes.write(at, &vec![byte; count]),
                _ => {
                    let mut read = vec![0; count];
                    let wanted: Result<Vec<u8>, usize> =
                        (at..at + count).map(|at| model[at].ok_or(at)).collect();
                    prop_assert_eq!(bytes.read(at, &mut read).map(|()| read), wanted);
                    continue;
                }
            }
            model[at..at + count].fill(Some(byte));
        }
        let zeros: Vec<u8> = model.iter().map(|byte| byte.unwrap_or(0)).collect();
        prop_assert_eq!(bytes.raw(0, len), &zeros[..]);
    }
}
