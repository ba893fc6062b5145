//! `{{#figure FILE.svg Caption}}`: an SVG file of the book, put into the page itself so that it takes the page's colours.

use crate::PageError;
use crate::code::read;
use crate::directive::Directive;
use std::path::Path;

/// The figure with its caption, as Markdown.
pub(crate) fn block(source: &Path, directive: Directive) -> Result<String, PageError> {
    let (file, caption) =
        directive.arguments.split_once(' ').filter(|(file, _)| file.ends_with(".svg")).ok_or_else(|| {
            directive.wants("FILE.svg CAPTION, for example figures/tiles.svg One tile of S at a time.")
        })?;
    let svg = drawing(file, &read(source, file)?)?;
    Ok(format!("<figure>\n{svg}\n<figcaption>\n\n{}\n\n</figcaption>\n</figure>\n", caption.trim()))
}

/// The `svg` element, without what surrounds it, comments, and blank lines, which would end Markdown's HTML block.
fn drawing(file: &str, text: &str) -> Result<String, PageError> {
    let wants = |wanted| PageError::Figure { path: file.into(), wanted };
    let start = text.find("<svg").ok_or_else(|| wants("wanted an <svg> element"))?;
    let (end, tag) = text.rmatch_indices("</svg>").next().ok_or_else(|| wants("wanted a closing </svg>"))?;
    let text = text.get(start..end + tag.len()).ok_or_else(|| wants("wanted a closing </svg>"))?;
    let svg = without_comments(text).ok_or_else(|| wants("a comment has no end"))?;
    if !svg.contains("viewBox=") {
        return Err(wants("wanted a viewBox, so that the figure can shrink to a phone"));
    }
    if !svg.contains("<title>") && !svg.contains("aria-label=") {
        return Err(wants("wanted a <title> or an aria-label, for readers who do not see the figure"));
    }
    if svg.contains("<script") || svg.contains("href=\"http") {
        return Err(wants("wanted no script and nothing loaded from elsewhere"));
    }
    Ok(svg.lines().filter(|line| !line.trim().is_empty()).collect::<Vec<_>>().join("\n"))
}

fn without_comments(mut text: &str) -> Option<String> {
    let mut kept = String::new();
    while let Some((before, comment)) = text.split_once("<!--") {
        kept.push_str(before);
        text = comment.split_once("-->")?.1;
    }
    Some(kept + text)
}
