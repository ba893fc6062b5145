//! Formulas: `$...$` in a sentence and `$$...$$` on their own become HTML and MathML.

use crate::PageError;
use crate::directive::AtLine;
use katex::{KatexContext, Settings, render_to_string};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::ops::Range;

/// Characters that Markdown could read as markup once a formula stands in the page as inline HTML.
const MARKUP: &str = "\\`*_[]|~$";

/// Turns formulas into HTML.
pub(crate) struct Math {
    context: KatexContext,
}

impl Math {
    pub(crate) fn new() -> Self {
        Math { context: KatexContext::default() }
    }

    /// The page with each formula replaced. Code is left as it is.
    pub(crate) fn expand(&self, text: &str) -> Result<String, AtLine> {
        let (mut expanded, mut done, mut in_code) = (String::with_capacity(text.len()), 0, false);
        // As mdBook reads a page, and formulas besides.
        let options = Options::ENABLE_TABLES
            | Options::ENABLE_FOOTNOTES
            | Options::ENABLE_STRIKETHROUGH
            | Options::ENABLE_TASKLISTS
            | Options::ENABLE_HEADING_ATTRIBUTES
            | Options::ENABLE_DEFINITION_LIST
            | Options::ENABLE_GFM
            | Options::ENABLE_MATH;
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            let at_line = |error| (line(text, range.start), error);
            let (formula, display) = match event {
                Event::InlineMath(formula) => (formula, false),
                Event::DisplayMath(formula) => (formula, true),
                Event::Start(Tag::CodeBlock(_)) | Event::End(TagEnd::CodeBlock) => {
                    in_code = !in_code;
                    continue;
                }
                Event::Text(_) if !in_code => {
                    check_text(text, range.clone()).map_err(at_line)?;
                    continue;
                }
                Event::Html(_) => {
                    check_html(&text[range.clone()]).map_err(at_line)?;
                    continue;
                }
                _ => continue,
            };
            expanded.push_str(&text[done..range.start]);
            expanded.push_str(&self.render(&formula, display).map_err(at_line)?);
            done = range.end;
        }
        expanded.push_str(&text[done..]);
        Ok(expanded)
    }

    fn render(&self, formula: &str, display: bool) -> Result<String, PageError> {
        let settings = Settings { display_mode: display, ..Settings::default() };
        match render_to_string(&self.context, formula, &settings) {
            Ok(html) => Ok(inert(&html)),
            Err(error) => Err(PageError::Formula { formula: formula.trim().into(), reason: plain(&error.to_string()) }),
        }
    }
}

/// The parser underlines what is wrong with combining characters, which few terminals show well.
fn plain(reason: &str) -> String {
    reason.chars().filter(|c| !('\u{300}'..='\u{36f}').contains(c)).collect()
}

/// A dollar sign in plain text began no formula: it was meant to, or it is money and should be escaped.
fn check_text(page: &str, range: Range<usize>) -> Result<(), PageError> {
    // The parser ends a text before an escaped character and begins the next one with it.
    let escaped = page[..range.start].ends_with('\\');
    match page[range.clone()].match_indices('$').find(|&(at, _)| !(at == 0 && escaped)) {
        Some((at, _)) => Err(PageError::StrayDollar { near: near(&page[range.start + at..]) }),
        None => Ok(()),
    }
}

fn check_html(text: &str) -> Result<(), PageError> {
    text.find('$').map_or(Ok(()), |at| Err(PageError::DollarInHtml { near: near(&text[at..]) }))
}

/// The rest of the line, or its beginning.
fn near(text: &str) -> String {
    text.lines().next().unwrap_or("").chars().take(40).collect()
}

/// From 1.
fn line(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// HTML on one line that Markdown passes on unread, with the attributes of each tag in order: KaTeX's order varies from
/// run to run.
fn inert(html: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(html.len()), html);
    while let Some(start) = rest.find('<') {
        escape(&rest[..start], &mut out);
        let end = tag_end(&rest[start..]).map_or(rest.len(), |end| start + end);
        sorted_tag(&rest[start..end], &mut out);
        rest = &rest[end..];
    }
    escape(rest, &mut out);
    out.replace('\n', " ")
}

fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        if MARKUP.contains(c) {
            out.push_str(&format!("&#{};", u32::from(c)));
        } else {
            out.push(c);
        }
    }
}

/// Just past the `>` that ends the tag at the start of `text`; one in quotes does not.
fn tag_end(text: &str) -> Option<usize> {
    let mut quoted = false;
    text.find(|c| {
        quoted ^= c == '"';
        c == '>' && !quoted
    })
    .map(|at| at + 1)
}

fn sorted_tag(tag: &str, out: &mut String) {
    let Some((name, mut rest)) = tag.split_once(' ') else { return out.push_str(tag) };
    let mut attributes = Vec::new();
    while let Some((attribute, after)) = rest.split_once('"').and_then(|(key, value)| {
        let (value, after) = value.split_once('"')?;
        Some((format!("{}\"{value}\"", key.trim_start()), after))
    }) {
        attributes.push(attribute);
        rest = after;
    }
    attributes.sort();
    out.push_str(name);
    for attribute in attributes {
        out.push(' ');
        out.push_str(&attribute);
    }
    out.push_str(rest);
}
