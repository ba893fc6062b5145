//! As much of ELF as keeps the driver, which is told no length, from reading past the end of a cubin.

/// What every ELF file begins with.
pub(crate) const MAGIC: &[u8] = b"\x7fELF";

/// Bytes of an entry of the table of segments.
const SEGMENT: u64 = 56;
/// Bytes of an entry of the table of sections.
const SECTION: u64 = 64;
/// The type of a section that has no bytes in the file.
const NO_BITS: u64 = 8;

/// Whether the bytes are an ELF file of 64 bits for GPUs of NVIDIA, whose tables and sections all end within them.
pub fn is_whole(bytes: &[u8]) -> bool {
    whole(bytes).is_some()
}

fn whole(bytes: &[u8]) -> Option<()> {
    let number = |at: usize, length: usize| {
        let field = bytes.get(at..at.checked_add(length)?)?;
        Some(field.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte)))
    };
    let within = |start: u64, length: u64| start.checked_add(length).filter(|&end| end <= bytes.len() as u64).map(drop);
    const GPU_OF_NVIDIA: u64 = 190;
    // 64 bits, little-endian.
    if !bytes.starts_with(MAGIC) || bytes.get(4..6)? != [2, 1] || number(0x12, 2)? != GPU_OF_NVIDIA {
        return None;
    }
    let (segments, sections) = (number(0x20, 8)?, number(0x28, 8)?);
    let (segment_size, segment_count) = (number(0x36, 2)?, number(0x38, 2)?);
    let (section_size, section_count) = (number(0x3a, 2)?, number(0x3c, 2)?);
    // The section of the sections' names is one of them.
    if segment_size != SEGMENT && segment_count > 0 || section_size != SECTION || number(0x3e, 2)? >= section_count {
        return None;
    }
    within(segments, segment_size * segment_count)?;
    within(sections, section_size * section_count)?;
    for segment in (0..segment_count).map(|place| (segments + place * SEGMENT) as usize) {
        within(number(segment + 0x8, 8)?, number(segment + 0x20, 8)?)?;
    }
    for section in (0..section_count).map(|place| (sections + place * SECTION) as usize) {
        if number(section + 0x4, 4)? != NO_BITS {
            within(number(section + 0x18, 8)?, number(section + 0x20, 8)?)?;
        }
    }
    Some(())
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64", target_endian = "little"))]
mod tests {
    use super::*;

    #[test]
    fn a_program_for_a_gpu_is_a_whole_elf_file_and_is_none_when_cut_short_or_broken() {
        let host = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(!is_whole(&host), "a program for this machine");
        let changed = |at: usize, bytes: &[u8]| {
            let mut file = host.clone();
            file[0x12] = 190;
            file[0x13] = 0;
            file[at..at + bytes.len()].copy_from_slice(bytes);
            file
        };
        let file = changed(0, b"\x7fELF");
        assert!(is_whole(&file));
        for length in [0, 5, 6, 0x3f, 0x40, file.len() / 2, file.len() - 1] {
            assert!(!is_whole(&file[..length]), "{length} of {} bytes", file.len());
        }
        let table = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
        let (first_segment, second_section) = (table(0x20), table(0x28) + 64);
        for (at, bytes, what) in [
            (0x20, &[0xff; 8][..], "segments at the end of the address space"),
            (0x28, &[0xff; 8], "sections at the end of the address space"),
            (0x36, &[0, 0], "segments of no bytes"),
            (0x3a, &[0, 0], "sections of no bytes"),
            (0x3a, &[65, 0], "sections of 65 bytes"),
            (0x3c, &[0, 0], "no sections"),
            (0x3e, &[0xff, 0xff], "names in a section that is not there"),
            (first_segment + 0x20, &[0xff; 8], "a segment without an end"),
            (second_section + 0x18, &[0xff; 8], "a section at the end of the address space"),
            (second_section + 0x20, &[0, 0, 0, 0, 1], "a section of 4 GiB"),
        ] {
            assert!(!is_whole(&changed(at, bytes)), "{what}");
        }
    }
}
