//! Finds directives, `{{#name arguments}}`, in the text of a page.

use crate::PageError;

/// The directives that make a block of their own, and those that stand in a sentence.
const BLOCKS: [&str; 4] = ["code", "figure", "results", "provenance"];
const INLINE: [&str; 4] = ["result", "ratio", "share", "ceiling"];

/// One directive on a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Directive<'a> {
    pub(crate) name: &'a str,
    pub(crate) arguments: &'a str,
    /// From 1.
    pub(crate) line: usize,
}

impl Directive<'_> {
    /// The error that says what the directive takes.
    pub(crate) fn wants(&self, wanted: &str) -> PageError {
        PageError::Arguments { name: self.name.into(), found: self.arguments.into(), wanted: wanted.into() }
    }
}

/// A line number and what is wrong there.
pub(crate) type AtLine = (usize, PageError);

/// The text with each directive replaced by what `replace` makes of it; `\{{#` becomes a plain `{{#`.
pub(crate) fn expand<'a>(
    text: &'a str,
    mut replace: impl FnMut(Directive<'a>) -> Result<String, PageError>,
) -> Result<String, AtLine> {
    let mut expanded = String::with_capacity(text.len());
    let mut fence = None;
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        fence = next_fence(fence, line);
        let result = match block(line) {
            Some(directive) if fence.is_none() => directive.and_then(|(name, arguments)| {
                replace(Directive { name, arguments, line: number }).map(|text| expanded.push_str(&text))
            }),
            _ => inline(line, number, &mut replace).map(|line| expanded.push_str(&line)),
        };
        result.map_err(|error| (number, error))?;
    }
    Ok(expanded)
}

/// The fence that is open after `line`: its character and how many of it.
fn next_fence(open: Option<(char, usize)>, line: &str) -> Option<(char, usize)> {
    let trimmed = line.trim();
    let Some(mark) = trimmed.chars().next().filter(|mark| matches!(mark, '`' | '~')) else { return open };
    let length = trimmed.chars().take_while(|&c| c == mark).count();
    match open {
        Some((char, least)) if char == mark && length >= least && length == trimmed.len() => None,
        None if length >= 3 => Some((mark, length)),
        open => open,
    }
}

/// A line that is one block directive. It ends with the line's last `}}`, so that a caption may hold braces.
fn block(line: &str) -> Option<Result<(&str, &str), PageError>> {
    let (name, rest) = split_name(line.strip_prefix("{{#")?);
    if !BLOCKS.contains(&name) {
        return None;
    }
    let Some(arguments) = rest.trim_end().strip_suffix("}}") else {
        let error = if rest.contains("}}") { PageError::NotAlone { name: name.into() } } else { unclosed(name) };
        return Some(Err(error));
    };
    if arguments.contains("{{#") {
        let wanted = "no directive inside a directive".into();
        return Some(Err(PageError::Arguments { name: name.into(), found: arguments.trim().into(), wanted }));
    }
    Some(Ok((name, arguments.trim())))
}

/// A line of prose with its inline directives replaced.
fn inline<'a>(
    line: &'a str,
    number: usize,
    replace: &mut impl FnMut(Directive<'a>) -> Result<String, PageError>,
) -> Result<String, PageError> {
    let (mut expanded, mut rest) = (String::new(), line);
    while let Some(start) = rest.find("{{#") {
        let (before, directive) = rest.split_at(start);
        if let Some(before) = before.strip_suffix('\\') {
            expanded.push_str(before);
            expanded.push_str("{{#");
            rest = &directive["{{#".len()..];
            continue;
        }
        expanded.push_str(before);
        let (name, after) = split_name(&directive["{{#".len()..]);
        if BLOCKS.contains(&name) {
            return Err(PageError::NotAlone { name: name.into() });
        }
        if !INLINE.contains(&name) {
            let wanted = [&BLOCKS[..], &INLINE[..]].concat().join(", ");
            return Err(PageError::UnknownDirective { found: name.into(), wanted });
        }
        let (arguments, after) = after.split_once("}}").ok_or_else(|| unclosed(name))?;
        expanded.push_str(&replace(Directive { name, arguments: arguments.trim(), line: number })?);
        rest = after;
    }
    Ok(expanded + rest)
}

fn split_name(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len()))
}

fn unclosed(name: &str) -> PageError {
    PageError::Unclosed { name: name.into() }
}
