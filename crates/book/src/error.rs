use std::io;
use std::path::{Path, PathBuf};

/// Why the book could not be built, checked or served.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// Something on a page is wrong.
    #[error("{page}, line {line}: {error}")]
    Page {
        /// The page's path under the book's `src`.
        page: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        error: Box<PageError>,
    },
    /// A file could not be read or written.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// mdBook warned of something while it rendered; the first warning stands for all.
    #[error("mdBook warns, {count} in all: {first}")]
    Warned {
        /// The first warning.
        first: String,
        /// How many there were.
        count: usize,
    },
    /// mdBook failed.
    #[error("mdBook: {0}")]
    Mdbook(String),
}

impl BookError {
    /// Adds the path to an error of the system.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> BookError {
        |error| BookError::Io { path: path.to_owned(), error }
    }
}

/// What can be wrong at one place of a page.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// A directive that does not exist.
    #[error("unknown directive {{{{#{found}}}}}; wanted one of {wanted}, or \\{{{{# to show it as text")]
    UnknownDirective {
        /// The name on the page.
        found: String,
        /// The names there are.
        wanted: String,
    },
    /// A directive without its end.
    #[error("{{{{#{name} has no }}}} on its line")]
    Unclosed {
        /// The directive.
        name: String,
    },
    /// A directive that makes a block, in the middle of something else.
    #[error("{{{{#{name}}}}} makes a block: it wants a line of its own, not indented and not in a code block")]
    NotAlone {
        /// The directive.
        name: String,
    },
    /// Arguments that the directive cannot take.
    #[error("{{{{#{name}}}}} found `{found}`, wanted {wanted}")]
    Arguments {
        /// The directive.
        name: String,
        /// What was given.
        found: String,
        /// What it takes.
        wanted: String,
    },
    /// A file that is missing or cannot be read.
    #[error("{path}: {error}")]
    File {
        /// The path, as the page names it.
        path: String,
        /// What the system says.
        error: io::Error,
    },
    /// A path that leaves the repository.
    #[error("{path}: wanted a path inside the repository, with / and without ..")]
    Path {
        /// The path, as the page names it.
        path: String,
    },
    /// An anchor that is missing, not closed, there twice, or empty.
    #[error("{path}: anchor `{anchor}` {what}; found in the file: {found}")]
    Anchor {
        /// The file.
        path: String,
        /// The anchor.
        anchor: String,
        /// What is wrong with it.
        what: &'static str,
        /// The anchors that the file has.
        found: String,
    },
    /// A figure that would not show well.
    #[error("{path}: {wanted}")]
    Figure {
        /// The file.
        path: String,
        /// What a figure must have.
        wanted: &'static str,
    },
    /// A results file that breaks the schema.
    #[error("{path}: {what}")]
    Results {
        /// The file.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// A column that results do not have.
    #[error("unknown column `{found}`; wanted one of {wanted}")]
    UnknownColumn {
        /// The name on the page.
        found: String,
        /// The names there are.
        wanted: String,
    },
    /// A number of rows that the directive cannot use.
    #[error("{path}: {found} rows match `{conditions}`, wanted {wanted}")]
    Rows {
        /// The file.
        path: String,
        /// How many rows match.
        found: usize,
        /// What they had to match.
        conditions: String,
        /// How many may.
        wanted: &'static str,
    },
    /// A value that the matching row does not have, or that is no number where one is needed.
    #[error("{path}: {column} of the row `{conditions}` is {found}, wanted a number")]
    Value {
        /// The file.
        path: String,
        /// The column.
        column: String,
        /// What the row had to match.
        conditions: String,
        /// The value.
        found: String,
    },
    /// A ceiling that was not measured.
    #[error("{path}: no ceiling of the threads, or of the device without threads, of `{conditions}`")]
    Ceiling {
        /// The file.
        path: String,
        /// What it was asked for.
        conditions: String,
    },
    /// A measured number on a page that does not say where it comes from.
    #[error(
        "a number of {path} stands here, but the page has no {{{{#results {path} ...}}}} or {{{{#provenance {path}}}}}"
    )]
    NoProvenance {
        /// The file.
        path: String,
    },
    /// A name that looks like a test or a function of a chapter and is none.
    #[error("`{name}` looks like a {what} of {folder}, and the sources there have none of that name")]
    Name {
        /// The name on the page.
        name: String,
        /// What it looks like.
        what: &'static str,
        /// Where it was looked for.
        folder: String,
    },
    /// A formula that does not parse.
    #[error("formula `{formula}`: {reason}")]
    Formula {
        /// The formula, without its dollar signs.
        formula: String,
        /// What the parser says.
        reason: String,
    },
    /// A dollar sign that opens no formula.
    #[error(
        "a dollar sign that opens no formula at `{near}`: wanted $...$ without blanks inside the signs and with braces in pairs, or \\$ for the sign itself"
    )]
    StrayDollar {
        /// The text after it.
        near: String,
    },
    /// A dollar sign where Markdown, and with it formulas, are not read.
    #[error(
        "a dollar sign inside an HTML block at `{near}`; leave a blank line after the tag for Markdown to be read, or write &#36;"
    )]
    DollarInHtml {
        /// The text after it.
        near: String,
    },
}
