//! As much of ELF as keeps the driver, which is told no length, from reading past the end of a cubin.

/// Whether the bytes are an ELF file of 64 bits whose tables and sections all end within them.
pub fn is_whole(bytes: &[u8]) -> bool {
    whole(bytes).is_some()
}

fn whole(bytes: &[u8]) -> Option<()> {
    let number = |at: usize, length: usize| {
        let field = bytes.get(at..at.checked_add(length)?)?;
        Some(field.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte)))
    };
    let within = |start: u64, length: u64| start.checked_add(length).filter(|&end| end <= bytes.len() as u64).map(drop);
    // The magic number, 64 bits, little-endian.
    if bytes.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (segments, sections) = (number(0x20, 8)?, number(0x28, 8)?);
    let (segment_size, segment_count) = (number(0x36, 2)?, number(0x38, 2)?);
    let (section_size, section_count) = (number(0x3a, 2)?, number(0x3c, 2)?);
    within(segments, segment_size * segment_count)?;
    within(sections, section_size * section_count)?;
    const NO_BITS: u64 = 8;
    for section in (0..section_count).map(|place| (sections + place * section_size) as usize) {
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
    fn a_program_is_a_whole_elf_file_and_is_none_when_cut_short() {
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(is_whole(&file));
        for length in [0, 5, 6, 0x3f, 0x40, file.len() / 2, file.len() - 1] {
            assert!(!is_whole(&file[..length]), "{length} of {} bytes", file.len());
        }
        let mut broken = file.to_vec();
        broken[0x28..0x30].fill(0xff);
        assert!(!is_whole(&broken), "sections at the end of the address space");
    }
}
