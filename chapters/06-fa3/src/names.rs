//! What the simulated GPU's addresses are to the learner.

use crate::{COLUMNS, ROWS, STAGES};

/// Words of a report with names behind addresses of the ring, which lies at address 0 of shared memory.
pub(crate) fn with_names(words: &str) -> String {
    const TILE: usize = size_of::<f32>() * ROWS * COLUMNS;
    const BARRIER: usize = size_of::<u64>();
    let named = |word: &str| {
        let address = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let number = usize::from_str_radix(address.strip_prefix("0x")?, 16).ok()?;
        // Zeros in front are those of a mask of lanes.
        if format!("{number:#x}") != address {
            return None;
        }
        let (name, stage) = match number.checked_sub(STAGES * TILE) {
            None => ("tile", number / TILE),
            Some(beyond) if beyond < STAGES * BARRIER => ("full", beyond / BARRIER),
            Some(beyond) if beyond < 2 * STAGES * BARRIER => ("empty", beyond / BARRIER - STAGES),
            Some(_) => return None,
        };
        Some(format!("{address} ({name} of stage {stage}){}", &word[address.len()..]))
    };
    words.split_inclusive(' ').map(|word| named(word).unwrap_or(word.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_outside_of_the_ring_have_no_name() {
        for (words, wanted) in [
            ("shared memory at 0x0 is", "shared memory at 0x0 (tile of stage 0) is"),
            ("at 0x1ffc, at 0x201c: in", "at 0x1ffc (tile of stage 1), at 0x201c (empty of stage 1): in"),
            ("at 0x2020 and 0x70002952900, 0x is", "at 0x2020 and 0x70002952900, 0x is"),
        ] {
            assert_eq!(with_names(words), wanted);
        }
    }
}
