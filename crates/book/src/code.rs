//! `{{#code FILE:ANCHOR}}`: lines of a file of this repository, between `// ANCHOR: name` and `// ANCHOR_END: name`; and
//! `{{#code FILE.diff}}`: a diff, whole.

use crate::PageError;
use crate::directive::Directive;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The lines between two anchor comments, and where they begin.
struct Excerpt {
    lines: Vec<String>,
    first: usize,
}

/// The block of code with its caption, as Markdown.
pub(crate) fn block(root: &Path, directive: Directive) -> Result<String, PageError> {
    if directive.arguments.ends_with(".diff") {
        let file = directive.arguments;
        return Ok(figure(file, "", read(root, file)?.trim_end(), "```"));
    }
    let (file, anchor) = directive
        .arguments
        .split_once(':')
        .filter(|(file, anchor)| ![file, anchor].into_iter().any(|part| part.is_empty() || part.contains(' ')))
        .ok_or_else(|| directive.wants("FILE:ANCHOR, for example crates/fa1/src/lib.rs:update"))?;
    let text = read(root, file)?;
    let Excerpt { lines, first } = excerpt(file, &text, anchor)?;
    // A doc comment may hold a fence of its own.
    let longest = lines.iter().filter_map(|line| line.find("```").map(|at| backticks(&line[at..]))).max();
    let fence = "`".repeat(longest.map_or(3, |longest| longest + 1));
    Ok(figure(file, &format!(", from line {first}"), &lines.join("\n"), &fence))
}

fn figure(file: &str, place: &str, text: &str, fence: &str) -> String {
    format!(
        "<figure class=\"code\">\n<figcaption><code>{file}</code>{place}</figcaption>\n\n{fence}{}\n{text}\n{fence}\n\n</figure>\n",
        language(file),
    )
}

fn backticks(text: &str) -> usize {
    text.chars().take_while(|&c| c == '`').count()
}

/// The text of `file`, a path relative to the repository.
pub(crate) fn read(root: &Path, file: &str) -> Result<String, PageError> {
    let path = inside(root, file)?;
    fs::read_to_string(path).map_err(|error| PageError::File { path: file.into(), error })
}

fn inside(root: &Path, file: &str) -> Result<PathBuf, PageError> {
    let plain = |part| matches!(part, Component::Normal(_));
    if file.is_empty() || file.contains('\\') || !Path::new(file).components().all(plain) {
        return Err(PageError::Path { path: file.into() });
    }
    Ok(root.join(file))
}

fn excerpt(file: &str, text: &str, anchor: &str) -> Result<Excerpt, PageError> {
    let wrong = |what| {
        let names: Vec<&str> = text.lines().filter_map(|line| marker(line, "ANCHOR:")).collect();
        let found = if names.is_empty() { "none".into() } else { names.join(", ") };
        PageError::Anchor { path: file.into(), anchor: anchor.into(), what, found }
    };
    let places = |kind| {
        let lines = text.lines().enumerate().filter(move |(_, line)| marker(line, kind) == Some(anchor));
        lines.map(|(place, _)| place).collect::<Vec<_>>()
    };
    let (start, end) = match (places("ANCHOR:").as_slice(), places("ANCHOR_END:").as_slice()) {
        ([], _) => return Err(wrong("is missing")),
        ([_, _, ..], _) | (_, [_, _, ..]) => return Err(wrong("is there more than once")),
        ([_], []) => return Err(wrong("has no end")),
        ([start], [end]) if end < start => return Err(wrong("ends before it begins")),
        ([start], [end]) => (*start, *end),
    };
    let inner = text.lines().enumerate().take(end).skip(start + 1);
    // Anchors may nest: the comments of others do not show either.
    let kept: Vec<(usize, &str)> =
        inner.filter(|(_, line)| marker(line, "ANCHOR:").or(marker(line, "ANCHOR_END:")).is_none()).collect();
    let filled = || kept.iter().map(|(_, line)| line).filter(|line| !line.trim().is_empty());
    let Some(indent) = filled().map(|line| line.len() - line.trim_start().len()).min() else {
        return Err(wrong("is empty"));
    };
    let first = kept[0].0 + 1;
    Ok(Excerpt { lines: kept.iter().map(|(_, line)| line.get(indent..).unwrap_or("").to_owned()).collect(), first })
}

/// The name in a comment `// ANCHOR: name`, where `kind` is `ANCHOR:`; in files with `#` comments, `# ANCHOR: name`.
fn marker<'a>(line: &'a str, kind: &str) -> Option<&'a str> {
    let line = line.trim();
    let comment = line.strip_prefix("//").or(line.strip_prefix('#'))?;
    Some(comment.trim_start().strip_prefix(kind)?.trim())
}

/// The name that the highlighter knows the file's language by.
fn language(file: &str) -> &'static str {
    match file.rsplit_once('.').map(|(_, extension)| extension) {
        Some("rs") => "rust",
        Some("cu" | "cuh") => "cpp",
        Some("py") => "python",
        Some("toml") => "toml",
        Some("json") => "json",
        Some("sh") => "bash",
        Some("diff") => "diff",
        _ => "text",
    }
}
