//! Looks over the built pages as a reader would click them.

use crate::html::{self, Document, Reference};
use crate::results::Results;
use crate::serve::decode;
use crate::{BookError, PageError};
use pulldown_cmark::{Event, Parser, Tag};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A page with fewer words of prose is a stub.
pub const FEWEST_WORDS: usize = 100;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, relative to the folder that was checked.
    pub file: String,
    /// The line, from 1, where there is one.
    pub line: Option<u64>,
    /// What was found and what was wanted.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Problem { file, line, what } = self;
        match line {
            Some(line) => write!(f, "{file}, line {line}: {what}"),
            None => write!(f, "{file}: {what}"),
        }
    }
}

/// Every page is in `SUMMARY.md`, every entry is a page, and every file of results can be read.
pub(crate) fn sources(book: &Path) -> Result<Vec<Problem>, BookError> {
    let problem = |file: &str, what: &str| Problem { file: file.into(), line: None, what: what.into() };
    let mut problems = Vec::new();
    let summary = "src/SUMMARY.md";
    let text = read(&book.join(summary))?;
    let mut listed = BTreeSet::new();
    for event in Parser::new(&text) {
        let Event::Start(Tag::Link { dest_url, .. }) = event else { continue };
        match &*dest_url {
            "" => problems.push(problem(summary, "an entry without a page")),
            page if !listed.insert(page.to_owned()) => {
                problems.push(problem(summary, &format!("{page} is there twice")))
            }
            _ => {}
        }
    }
    let source = book.join("src");
    let pages = files(&source)?.into_iter().filter(|file| file.ends_with(".md") && file != "SUMMARY.md");
    let pages: BTreeSet<String> = pages.collect();
    problems.extend(pages.difference(&listed).map(|page| problem(&format!("src/{page}"), "missing in SUMMARY.md")));
    problems.extend(listed.difference(&pages).map(|page| problem(summary, &format!("{page} is no page"))));

    let folder = book.join("results");
    for file in if folder.exists() { files(&folder)? } else { Vec::new() } {
        if !file.ends_with(".json") {
            continue;
        }
        match Results::load(&folder, &file) {
            Err(PageError::Results { what, .. }) => problems.push(problem(&format!("results/{file}"), &what)),
            Err(error) => problems.push(problem(&format!("results/{file}"), &error.to_string())),
            Ok(_) => {}
        }
    }
    Ok(problems)
}

/// Every link, fragment and asset of the pages in `output` is there, nothing comes from elsewhere, no page is a stub.
pub(crate) fn pages(output: &Path) -> Result<Vec<Problem>, BookError> {
    let files: BTreeSet<String> = files(output)?.into_iter().collect();
    let mut documents = BTreeMap::new();
    for page in files.iter().filter(|file| file.ends_with(".html")) {
        documents.insert(page.clone(), html::read(&read(&output.join(page))?));
    }
    let site = Site { files: &files, documents: &documents };
    let mut problems = Vec::new();
    for (page, document) in &documents {
        site.check(page, document, &mut problems);
    }
    for file in files.iter().filter(|file| file.ends_with(".css")) {
        site.check_style(file, &read(&output.join(file))?, None, &mut problems);
    }
    Ok(problems)
}

/// All that was built.
struct Site<'a> {
    files: &'a BTreeSet<String>,
    documents: &'a BTreeMap<String, Document>,
}

impl Site<'_> {
    fn check(&self, page: &str, document: &Document, problems: &mut Vec<Problem>) {
        let problem = |line, what| Problem { file: page.into(), line, what };
        let mut seen = HashSet::new();
        for id in document.ids.iter().filter(|id| !seen.insert(*id)) {
            problems.push(problem(None, format!("the id `{id}` stands twice")));
        }
        for Reference { element, target, line } in &document.references {
            if let Err(what) = self.resolve(page, target, element == "a") {
                problems.push(problem(Some(*line), format!("<{element}> `{target}`: {what}")));
            }
        }
        for (style, line) in &document.styles {
            self.check_style(page, style, Some(*line), problems);
        }
        if let Some(words) = document.words.filter(|&words| words < FEWEST_WORDS) {
            problems.push(problem(None, format!("a stub of {words} words, wanted at least {FEWEST_WORDS}")));
        }
    }

    fn check_style(&self, file: &str, style: &str, line: Option<u64>, problems: &mut Vec<Problem>) {
        for target in urls(style) {
            if let Err(what) = self.resolve(file, target, false) {
                problems.push(Problem { file: file.into(), line, what: format!("url({target}): {what}") });
            }
        }
    }

    /// Whether `target`, written in the file `from`, leads somewhere; a link may lead out of the book.
    fn resolve(&self, from: &str, target: &str, is_link: bool) -> Result<(), String> {
        if let Some(scheme) = scheme(target) {
            return match scheme {
                "http" | "https" | "mailto" if is_link => Ok(()),
                "data" if !is_link => Ok(()),
                _ if is_link => Err("wanted a page of the book, http, https or mailto".into()),
                _ => Err("loaded from elsewhere; wanted a file of the book".into()),
            };
        }
        if target.starts_with('/') {
            return Err("an absolute path; wanted a relative one, so that the book can lie in any folder".into());
        }
        let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
        let path = decode(path.split('?').next().unwrap_or("")).ok_or("not percent-encoded as it should be")?;
        let file = if path.is_empty() { from.to_owned() } else { join(from, &path).ok_or("leads out of the book")? };
        if !self.files.contains(&file) {
            return Err(format!("there is no {file}"));
        }
        let fragment = decode(fragment).ok_or("not percent-encoded as it should be")?;
        match self.documents.get(&file) {
            Some(document) if !fragment.is_empty() && !document.ids.contains(&fragment) => {
                Err(format!("{file} has no id `{fragment}`"))
            }
            _ => Ok(()),
        }
    }
}

/// The scheme of a URL; that of one that begins with `//` is the page's own.
fn scheme(target: &str) -> Option<&str> {
    if target.starts_with("//") {
        return Some("//");
    }
    let (scheme, _) = target.split_once(':')?;
    scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)).then_some(scheme)
}

/// `path` as seen from the file `from`, both with `/`; none if it climbs out.
fn join(from: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    if path.ends_with('/') {
        parts.pop();
        parts.push("index.html");
    }
    Some(parts.join("/"))
}

/// What a style sheet loads, by `url(...)` or by `@import "..."`.
fn urls(style: &str) -> Vec<&str> {
    let by_url = style.split("url(").skip(1).filter_map(|rest| rest.split(')').next());
    let by_import = style.split("@import").skip(1).filter_map(|rest| rest.split(';').next());
    let by_import = by_import.filter(|rest| !rest.contains("url("));
    by_url.chain(by_import).map(|url| url.trim().trim_matches(['"', '\''])).filter(|url| !url.is_empty()).collect()
}

fn read(path: &Path) -> Result<String, BookError> {
    fs::read_to_string(path).map_err(BookError::io(path))
}

/// All files under `folder`, relative to it, with `/`, in order.
fn files(folder: &Path) -> Result<Vec<String>, BookError> {
    let (mut found, mut folders) = (Vec::new(), vec![(folder.to_owned(), String::new())]);
    while let Some((path, prefix)) = folders.pop() {
        for entry in fs::read_dir(&path).map_err(BookError::io(&path))? {
            let path: PathBuf = entry.map_err(BookError::io(&path))?.path();
            let name = format!("{prefix}{}", path.file_name().unwrap_or_default().to_string_lossy());
            if path.is_dir() { folders.push((path, name + "/")) } else { found.push(name) }
        }
    }
    found.sort();
    Ok(found)
}
