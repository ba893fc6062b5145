//! Compiling a chapter's checks with cargo, and what the compiler said.

use super::repository::Chapter;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::env;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// What came of compiling.
#[derive(Debug, PartialEq)]
pub(crate) enum Built {
    /// The program with the tests.
    Tests(PathBuf),
    /// The compiler's first error.
    Refused(CompileError),
}

/// The first error of a compilation.
#[derive(Debug, PartialEq)]
pub(crate) struct CompileError {
    pub(crate) message: String,
    /// file:line.
    pub(crate) at: Option<String>,
    /// The compiler's own words.
    pub(crate) rendered: String,
}

/// Compiles the test target `mine`. Without a network first: what a build needs has usually been fetched before.
pub(crate) fn build(chapter: &Chapter) -> Result<Built> {
    let offline = cargo(chapter, true)?;
    if let Some(built) = read(&String::from_utf8_lossy(&offline.stdout), offline.status.success()) {
        return Ok(built);
    }
    let online = cargo(chapter, false)?;
    match read(&String::from_utf8_lossy(&online.stdout), online.status.success()) {
        Some(built) => Ok(built),
        None => {
            let said = String::from_utf8_lossy(&online.stderr);
            let error = said.lines().find(|line| line.starts_with("error")).or(said.lines().last());
            bail!("cargo cannot build {}: {}", chapter.package, error.unwrap_or("it does not say why"))
        }
    }
}

fn cargo(chapter: &Chapter, offline: bool) -> Result<Output> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    command.current_dir(&chapter.root).args(["test", "--no-run", "--message-format=json", "--features", "mine"]);
    command.args(["--test", "mine", "-p", &chapter.package]);
    if offline {
        command.arg("--offline");
    }
    command.stdin(Stdio::null()).output().context("cannot run cargo")
}

/// The answer in cargo's messages, if there is one.
fn read(messages: &str, success: bool) -> Option<Built> {
    let mut program = None;
    for message in messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        match message["reason"].as_str() {
            Some("compiler-message") if message["message"]["level"] == "error" => {
                return Some(Built::Refused(compile_error(&message["message"])));
            }
            Some("compiler-artifact") if message["target"]["name"] == "mine" => {
                program = message["executable"].as_str().map(PathBuf::from).or(program);
            }
            _ => {}
        }
    }
    program.filter(|_| success).map(Built::Tests)
}

fn compile_error(message: &Value) -> CompileError {
    let spans = message["spans"].as_array().map_or(&[][..], Vec::as_slice);
    let primary = spans.iter().find(|span| span["is_primary"] == true);
    let at = primary.and_then(|span| Some(format!("{}:{}", span["file_name"].as_str()?, span["line_start"])));
    let text = |field: &str| message[field].as_str().unwrap_or_default().trim_end().to_string();
    CompileError { message: text("message"), at, rendered: text("rendered") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found() {
        let messages = "\
            {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"fa1\"},\"executable\":null}\n\
            {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"mine\"},\"executable\":\"/target/debug/deps/mine-1\"}\n\
            {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(read(messages, true), Some(Built::Tests("/target/debug/deps/mine-1".into())));
        assert_eq!(read(messages, false), None);
        assert_eq!(read("", false), None);
    }

    #[test]
    fn the_first_error_is_found_and_warnings_are_not_errors() {
        let message = |level: &str, text: &str| {
            format!(
                "{{\"reason\":\"compiler-message\",\"message\":{{\"level\":\"{level}\",\"message\":\"{text}\",\
                 \"rendered\":\"{level}: {text}\\n\",\"spans\":[{{\"is_primary\":true,\"file_name\":\"chapters/03-fa1/src/lib.rs\",\
                 \"line_start\":7}}]}}}}\n"
            )
        };
        let messages = message("warning", "unused") + &message("error", "mismatched types") + &message("error", "more");
        let wanted = CompileError {
            message: "mismatched types".into(),
            at: Some("chapters/03-fa1/src/lib.rs:7".into()),
            rendered: "error: mismatched types".into(),
        };
        assert_eq!(read(&messages, false), Some(Built::Refused(wanted)));
    }
}
