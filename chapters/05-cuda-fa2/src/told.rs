//! What a kernel did wrong, in words that name the learner's lines.

use device::DeviceError;

/// The learner's file, from the root of the repository.
const FILE: &str = "chapters/05-cuda-fa2/src/mine.cu";

/// What is wrong with a kernel whose `mine.cu` is `text`: with the lines that a simulated GPU's report names, and the place
/// at the end, " at chapters/05-cuda-fa2/src/mine.cu:12".
///
/// The words begin with "not yet implemented: " where the kernel met a TODO, with "does not compile: " where the compiler
/// refused it, and with "not run: " where there is no compiler.
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
    let code = |line: Option<usize>| text.lines().nth(line?.checked_sub(1)?).map(str::trim);
    let todo = code(at).and_then(|code| code.split_once("TODO(\"")?.1.split('"').next());
    if let (true, Some(step)) = (report.contains(": trap: "), todo) {
        return format!("not yet implemented: {step}{}", place(at));
    }
    let lines = report.lines().map(|said| {
        // The learner did not write the PTX.
        let (head, rest) = said.split_once(", PTX line ").unwrap_or((said, ""));
        let place = rest.find(", block").map_or("", |at| &rest[at..]);
        let code = code(line(said, "mine.cu:")).map_or(String::new(), |code| format!("\n      {code}"));
        format!("{head}{place}{code}")
    });
    lines.collect::<Vec<_>>().join("\n") + &place(at)
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

    const TEXT: &str = "// one\n    TODO(\"step 2, load\");\n    tile[x] = 0;\n    y = tile[x];\n";

    fn simulated(report: &str) -> String {
        told(TEXT, &DeviceError::Simulated { report: report.into() })
    }

    #[test]
    fn a_trap_at_a_todo_is_a_step_still_to_be_written_and_any_other_is_a_fault() {
        let trap = |line: u32| {
            simulated(&format!(
                "fa2: trap: it stopped itself\n  at mine.cu:{line}, PTX line 40, trap, block (0, 0, 0), warp 1"
            ))
        };
        assert_eq!(trap(2), "not yet implemented: step 2, load at chapters/05-cuda-fa2/src/mine.cu:2");
        assert!(trap(3).starts_with("fa2: trap: it stopped itself\n  at mine.cu:3, block (0, 0, 0), warp 1\n"));
    }

    #[test]
    fn a_race_is_told_with_both_lines_and_what_stands_there() {
        let report = "fa2: race: the byte at 0x0\n  at mine.cu:4 (called at mine.cu:9), PTX line 421, ld.shared.f32, \
                      block (0, 0, 0), warp 0, lane 16\n  with the write at mine.cu:3, PTX line 179, st.shared.f32, \
                      block (0, 0, 0), warp 0, lane 0";
        let wanted = "fa2: race: the byte at 0x0\n  at mine.cu:4 (called at mine.cu:9), block (0, 0, 0), warp 0, lane 16\n      \
                      y = tile[x];\n  with the write at mine.cu:3, block (0, 0, 0), warp 0, lane 0\n      tile[x] = 0; \
                      at chapters/05-cuda-fa2/src/mine.cu:4";
        assert_eq!(simulated(report), wanted);
        assert_eq!(simulated("PTX line 3: no such instruction"), "PTX line 3: no such instruction");
        assert!(
            simulated("k: race\n  at mine.cu:0\n  at mine.cu:99")
                .ends_with("mine.cu:99 at chapters/05-cuda-fa2/src/mine.cu:0")
        );
    }

    #[test]
    fn what_does_not_compile_or_has_no_compiler_says_so_first() {
        let log = "mine.cu(3): error: expected a \";\"\n      tile[x] = 0\n\n1 error detected";
        let told = told(TEXT, &DeviceError::Compile { file: "steps.cu".into(), log: log.into() });
        assert_eq!(told, format!("does not compile: {log} at chapters/05-cuda-fa2/src/mine.cu:3"));
        let warned = format!("mine.cu(1): warning #940-D: missing return\n\n{log}");
        assert_eq!(super::told(TEXT, &DeviceError::Compile { file: "steps.cu".into(), log: warned }), told);
        let elsewhere = DeviceError::Compile { file: "steps.cu".into(), log: "steps.cu(9): error: mine.cu(3)".into() };
        assert_eq!(super::told(TEXT, &elsewhere), "does not compile: steps.cu(9): error: mine.cu(3)");
        let missing = DeviceError::Missing { what: "NVRTC", why: "found no library of it".into() };
        assert_eq!(super::told(TEXT, &missing), "not run: NVRTC: found no library of it");
    }
}
