//! A measurement that no other test may disturb.

use std::env;
use std::process::Command;

/// Set for the process that measures.
const ALONE: &str = "FLASH_LADDER_TEST_ALONE";

/// What `measure` gives in a process of its own, in which no other test runs: the heap, say, is one for a whole process,
/// and tests run side by side. `test` is the name of the calling test as the test program lists it, "checks::step_6_heap":
/// that program is started once more for this test, and the second one measures.
///
/// # Panics
/// If the second process gives no number; its words are in the message.
pub fn alone(test: &str, measure: impl FnOnce() -> usize) -> usize {
    if env::var_os(ALONE).is_some() {
        let measured = measure();
        println!("\nalone: {measured}");
        return measured;
    }
    let program = env::current_exe().expect("a test knows its program");
    let output = Command::new(program).args([test, "--exact", "--nocapture"]).env(ALONE, "1").output();
    let output = output.expect("a test program that has started starts once more");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let measured = said.lines().find_map(|line| line.strip_prefix("alone: ")?.trim().parse().ok());
    measured.unwrap_or_else(|| panic!("{test} gave no number:\n{said}{}", String::from_utf8_lossy(&output.stderr)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_alone_is_told() {
        // The other process has a number of its own.
        let measured = alone("alone::tests::what_is_measured_alone_is_told", || std::process::id() as usize);
        let here = std::process::id() as usize;
        assert!((measured == here) == env::var_os(ALONE).is_some(), "{measured} measured in process {here}");
    }
}
