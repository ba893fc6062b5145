//! What a kernel did wrong, in words that name the learner's lines and barriers.

use crate::compiled::STEPS;
use crate::{COLUMNS, ROWS, STAGES};
use device::DeviceError;

/// The learner's file, from the root of the repository.
const FILE: &str = "chapters/06-fa3/src/mine.cu";

/// What is wrong with a kernel whose `mine.cu` is `text`: with the lines that a simulated GPU's report names, the
/// barriers of the ring by their names, and the place at the end, " at chapters/06-fa3/src/mine.cu:12".
///
/// The words begin with "not yet implemented: " where the kernel met a TODO, with "does not compile: " where the
/// compiler refused it, and with "not run: " where there is no compiler.
pub fn told(text: &str, error: &DeviceError) -> String {
    match error {
        DeviceError::Missing { .. } => format!("not run: {error}"),
        DeviceError::Compile { log, .. } => refused(log),
        DeviceError::Simulated { report } => fault(text, report),
        other => other.to_string(),
    }
}

/// The compiler's words from its first error on: warnings come before.
fn refused(log: &str) -> String {
    let error = log.find(": error").unwrap_or(0);
    let log = &log[log[..error].rfind('\n').map_or(0, |end| end + 1)..];
    let at = log.strip_prefix("mine.cu(").and_then(|_| line(log, "("));
    format!("does not compile: {log}{}", place(at))
}

fn fault(text: &str, report: &str) -> String {
    let at = line(report, "mine.cu:");
    let todo = at.and_then(|at| code(text, &format!("mine.cu:{at}"))?.split_once("TODO(\"")?.1.split('"').next());
    if let (true, Some(step)) = (report.contains(": trap: "), todo) {
        return format!("not yet implemented: {step}{}", place(at));
    }
    let mut shown = None;
    let lines = report.lines().map(|said| {
        // The learner did not write the PTX.
        let (head, rest) = said.split_once(", PTX line ").unwrap_or((said, ""));
        let place = rest.find(", block").map_or("", |at| &rest[at..]);
        // Where all wait, many wait at one line.
        let code = code(text, said).filter(|code| shown != Some(*code));
        shown = code.or(shown);
        format!("{}{place}{}", with_names(head), code.map_or(String::new(), |code| format!("\n      {code}")))
    });
    lines.collect::<Vec<_>>().join("\n") + &place(at)
}

/// The line of code that a line of a report names: of the learner's file, or else of the checks'.
fn code<'a>(text: &'a str, said: &str) -> Option<&'a str> {
    let of = |text: &'a str, file: &str| text.lines().nth(line(said, file)?.checked_sub(1)?).map(str::trim);
    of(text, "mine.cu:").or_else(|| of(STEPS, "steps.cu:"))
}

/// The same words with names behind addresses of the ring, which lies at address 0 of shared memory.
fn with_names(words: &str) -> String {
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

/// The number behind the first `name`.
fn line(text: &str, name: &str) -> Option<usize> {
    let (_, rest) = text.split_once(name)?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn place(line: Option<usize>) -> String {
    line.map_or(String::new(), |line| format!(" at {FILE}:{line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// one\n    TODO(\"step 2, fill\");\n    WAIT(full, 0);\n    WAIT(empty, 1);\n";

    fn simulated(report: &str) -> String {
        told(TEXT, &DeviceError::Simulated { report: report.into() })
    }

    #[test]
    fn a_trap_at_a_todo_is_a_step_still_to_be_written_and_any_other_is_a_fault() {
        let trap = |line: u32| {
            simulated(&format!(
                "sums: trap: it stopped itself\n  at mine.cu:{line}, PTX line 40, trap, block (0, 0, 0), warp 1"
            ))
        };
        assert_eq!(trap(2), "not yet implemented: step 2, fill at chapters/06-fa3/src/mine.cu:2");
        assert!(trap(3).starts_with("sums: trap: it stopped itself\n  at mine.cu:3, block (0, 0, 0), warp 1\n"));
    }

    #[test]
    fn a_deadlock_is_told_with_each_line_once_and_the_barriers_by_name() {
        let waits = |lanes: &str, barrier: &str, line: u32, warp: u32| {
            format!(
                "\n  lanes {lanes} wait for phase 1 of the mbarrier at {barrier} at ptx/mbarrier.cuh:35 (called at \
                 mine.cu:{line}), PTX line 90, mbarrier.try_wait, block (0, 0, 0), warp {warp}"
            )
        };
        let all = [
            waits("0x00002000", "0x2008", 3, 0),
            waits("0xffffffff", "0x2008", 3, 1),
            waits("0x00000001", "0x2010", 4, 4),
        ];
        let told = simulated(&format!("sums: deadlock: warps wait for warps that do not come{}", all.concat()));
        let wanted = "sums: deadlock: warps wait for warps that do not come
  lanes 0x00002000 wait for phase 1 of the mbarrier at 0x2008 (full of stage 1) at \
ptx/mbarrier.cuh:35 (called at mine.cu:3), block (0, 0, 0), warp 0
      WAIT(full, 0);
  lanes 0xffffffff wait for phase 1 of the mbarrier at 0x2008 (full of stage 1) at \
ptx/mbarrier.cuh:35 (called at mine.cu:3), block (0, 0, 0), warp 1
  lanes 0x00000001 wait for phase 1 of the mbarrier at 0x2010 (empty of stage 0) at \
ptx/mbarrier.cuh:35 (called at mine.cu:4), block (0, 0, 0), warp 4
      WAIT(empty, 1); at chapters/06-fa3/src/mine.cu:3";
        assert_eq!(told, wanted);
    }

    #[test]
    fn a_line_of_the_checks_is_shown_where_there_is_none_of_the_learners() {
        let report = "step_3: race: a byte\n  at mine.cu:3 (called at steps.cu:1)\n  with the copy at steps.cu:3";
        let wanted = "step_3: race: a byte\n  at mine.cu:3 (called at steps.cu:1)\n      WAIT(full, 0);\n  \
                      with the copy at steps.cu:3\n      #include \"mine.cu\" at chapters/06-fa3/src/mine.cu:3";
        assert_eq!(simulated(report), wanted);
        assert_eq!(
            simulated("k: race\n  at mine.cu:0\n  at steps.cu:9999"),
            "k: race\n  at mine.cu:0\n  \
                      at steps.cu:9999 at chapters/06-fa3/src/mine.cu:0"
        );
    }

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

    #[test]
    fn what_does_not_compile_or_has_no_compiler_says_so_first() {
        let log = "mine.cu(3): error: expected a \";\"\n      WAIT(full, 0)\n\n1 error detected";
        let refused = |log: &str| told(TEXT, &DeviceError::Compile { file: "steps.cu".into(), log: log.into() });
        assert_eq!(refused(log), format!("does not compile: {log} at chapters/06-fa3/src/mine.cu:3"));
        let warned = format!("mine.cu(1): warning #940-D: missing return\n\n{log}");
        assert_eq!(refused(&warned), refused(log));
        assert_eq!(refused("steps.cu(9): error: mine.cu(3)"), "does not compile: steps.cu(9): error: mine.cu(3)");
        let missing = DeviceError::Missing { what: "NVRTC", why: "found no library of it".into() };
        assert_eq!(told(TEXT, &missing), "not run: NVRTC: found no library of it");
    }
}
