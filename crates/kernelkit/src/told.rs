//! What a kernel did wrong, in words that name the learner's lines.

use crate::Exercise;
use device::DeviceError;

impl Exercise {
    /// What is wrong with a kernel whose learner's file is `text`: with the lines that a simulated GPU's report names, and the
    /// place at the end, " at chapters/05-cuda-fa2/src/mine.cu:12".
    ///
    /// The words begin with "not yet implemented: " where the kernel met a TODO, with "does not compile: " where the compiler
    /// refused it, and with "not run: " where there is no compiler.
    pub fn told(&self, text: &str, error: &DeviceError) -> String {
        match error {
            DeviceError::Missing { .. } => format!("not run: {error}"),
            DeviceError::Compile { log, .. } => self.refused(log),
            DeviceError::Simulated { report } => self.fault(text, report),
            other => other.to_string(),
        }
    }

    /// The compiler's words from its first error on: warnings come before. What the learner's file lacks at its end is first
    /// missed in the file that includes it, and a later line says where the former began.
    fn refused(&self, log: &str) -> String {
        let error = log.find(": error").unwrap_or(0);
        let log = &log[log[..error].rfind('\n').map_or(0, |end| end + 1)..];
        let at = log.lines().find(|said| said.starts_with("mine.cu(")).and_then(|said| number_behind(said, "("));
        format!("does not compile: {log}{}", self.place(at))
    }

    fn fault(&self, text: &str, report: &str) -> String {
        let at = number_behind(report, "mine.cu:");
        let code_at = at.and_then(|at| self.code(text, &format!("mine.cu:{at}")));
        let step = code_at.and_then(|code| code.split_once("TODO(\"")?.1.split('"').next());
        if let (true, Some(step)) = (report.contains(": trap: "), step) {
            return format!("not yet implemented: {step}{}", self.place(at));
        }
        let mut shown = None;
        let lines = report.lines().map(|said| {
            // The learner did not write the PTX.
            let (head, rest) = said.split_once(", PTX line ").unwrap_or((said, ""));
            let place = rest.find(", block").map_or("", |at| &rest[at..]);
            // Where all wait, many wait at one line.
            let code = self.code(text, said).filter(|code| shown != Some(*code));
            shown = code.or(shown);
            format!(
                "{}{place}{}",
                (self.with_names)(head),
                code.map_or(String::new(), |code| format!("\n      {code}"))
            )
        });
        lines.collect::<Vec<_>>().join("\n") + &self.place(at)
    }

    /// The line of code that a line of a report names: of the learner's file, or else of the checks'.
    fn code<'a>(&'a self, text: &'a str, said: &str) -> Option<&'a str> {
        let of =
            |text: &'a str, file: &str| text.lines().nth(number_behind(said, file)?.checked_sub(1)?).map(str::trim);
        of(text, "mine.cu:").or_else(|| of(self.steps, "steps.cu:"))
    }

    fn place(&self, line: Option<usize>) -> String {
        line.map_or(String::new(), |line| format!(" at {}:{line}", self.file))
    }
}

/// The number behind the first `name`.
fn number_behind(text: &str, name: &str) -> Option<usize> {
    let (_, rest) = text.split_once(name)?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// one\n    TODO(\"step 2, fill\");\n    WAIT(full, 0);\n    WAIT(empty, 1);\n";

    const EXERCISE: Exercise = Exercise {
        file: "chapters/06-fa3/src/mine.cu",
        steps: "// the checks\n#include \"mine.cu\"\n",
        arch: "sm_90a",
        step_limit: 1,
        with_names: |words| words.replace("0x2008", "0x2008 (full of stage 1)"),
    };

    fn simulated(report: &str) -> String {
        EXERCISE.told(TEXT, &DeviceError::Simulated { report: report.into() })
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
    fn a_race_is_told_with_both_lines_and_what_stands_there() {
        let report = "fa2: race: the byte at 0x0\n  at mine.cu:4 (called at mine.cu:9), PTX line 421, ld.shared.f32, \
                      block (0, 0, 0), warp 0, lane 16\n  with the write at mine.cu:3, PTX line 179, st.shared.f32, \
                      block (0, 0, 0), warp 0, lane 0";
        let wanted = "fa2: race: the byte at 0x0\n  at mine.cu:4 (called at mine.cu:9), block (0, 0, 0), warp 0, lane 16\n      \
                      WAIT(empty, 1);\n  with the write at mine.cu:3, block (0, 0, 0), warp 0, lane 0\n      WAIT(full, 0); \
                      at chapters/06-fa3/src/mine.cu:4";
        assert_eq!(simulated(report), wanted);
        assert_eq!(simulated("PTX line 3: no such instruction"), "PTX line 3: no such instruction");
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
            waits("0x00000001", "0x2008", 4, 4),
        ];
        let told = simulated(&format!("sums: deadlock: warps wait for warps that do not come{}", all.concat()));
        let wanted = "sums: deadlock: warps wait for warps that do not come
  lanes 0x00002000 wait for phase 1 of the mbarrier at 0x2008 (full of stage 1) at \
ptx/mbarrier.cuh:35 (called at mine.cu:3), block (0, 0, 0), warp 0
      WAIT(full, 0);
  lanes 0xffffffff wait for phase 1 of the mbarrier at 0x2008 (full of stage 1) at \
ptx/mbarrier.cuh:35 (called at mine.cu:3), block (0, 0, 0), warp 1
  lanes 0x00000001 wait for phase 1 of the mbarrier at 0x2008 (full of stage 1) at \
ptx/mbarrier.cuh:35 (called at mine.cu:4), block (0, 0, 0), warp 4
      WAIT(empty, 1); at chapters/06-fa3/src/mine.cu:3";
        assert_eq!(told, wanted);
    }

    #[test]
    fn a_line_of_the_checks_is_shown_where_there_is_none_of_the_learners() {
        let report = "step_3: race: a byte\n  at mine.cu:3 (called at steps.cu:1)\n  with the copy at steps.cu:2";
        let wanted = "step_3: race: a byte\n  at mine.cu:3 (called at steps.cu:1)\n      WAIT(full, 0);\n  \
                      with the copy at steps.cu:2\n      #include \"mine.cu\" at chapters/06-fa3/src/mine.cu:3";
        assert_eq!(simulated(report), wanted);
        assert_eq!(
            simulated("k: race\n  at mine.cu:0\n  at steps.cu:9999"),
            "k: race\n  at mine.cu:0\n  \
                      at steps.cu:9999 at chapters/06-fa3/src/mine.cu:0"
        );
    }

    #[test]
    fn what_does_not_compile_or_has_no_compiler_says_so_first() {
        let log = "mine.cu(3): error: expected a \";\"\n      WAIT(full, 0)\n\n1 error detected";
        let refused =
            |log: &str| EXERCISE.told(TEXT, &DeviceError::Compile { file: "steps.cu".into(), log: log.into() });
        assert_eq!(refused(log), format!("does not compile: {log} at chapters/06-fa3/src/mine.cu:3"));
        let unclosed = "steps.cu(16): error: expected a \";\"\n\nmine.cu(4): note #3196-D: to match this \"{\"";
        assert_eq!(refused(unclosed), format!("does not compile: {unclosed} at chapters/06-fa3/src/mine.cu:4"));
        let warned = format!("mine.cu(1): warning #940-D: missing return\n\n{log}");
        assert_eq!(refused(&warned), refused(log));
        assert_eq!(refused("steps.cu(9): error: mine.cu(3)"), "does not compile: steps.cu(9): error: mine.cu(3)");
        let missing = DeviceError::Missing { what: "NVRTC", why: "found no library of it".into() };
        assert_eq!(EXERCISE.told(TEXT, &missing), "not run: NVRTC: found no library of it");
    }
}
