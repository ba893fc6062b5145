//! Builds, checks and serves the book, with mdBook as a library.
//!
//! A page is Markdown under `book/src`, named in `SUMMARY.md`. What it can do beyond Markdown:
//!
//! | on the page | becomes |
//! |---|---|
//! | `$N^2$`, `$$...$$` | a formula; `\$` is the sign itself |
//! | `{{#code FILE:ANCHOR}}` | the lines between `// ANCHOR: name` and `// ANCHOR_END: name` of a file of this repository |
//! | `{{#code FILE.diff}}` | a diff, whole |
//! | `{{#figure FILE.svg Caption}}` | an SVG file under `book/src`, inlined, with its caption |
//! | `{{#result FILE COLUMN key=value ...}}` | one measured number of `book/results/FILE` |
//! | `{{#ratio FILE COLUMN [key=value ... both] key=value ... over key=value ...}}` | the quotient of two of them |
//! | `{{#share FILE key=value ...}}` | how many percent of its ceiling a measured row reaches |
//! | `{{#ceiling FILE COLUMN [threads=N]}}` | what the machine could reach at best: `tflops` of f32 arithmetic, `gbps` of memory |
//! | `{{#results FILE columns=a,b,c [where key=value ...]}}` | a table of measured numbers with its provenance |
//! | `{{#provenance FILE}}` | machine, date, commit and method of a file of results |
//!
//! A directive stands on one line. `result`, `ratio`, `share` and `ceiling` stand in a sentence; the others make a block and have
//! the line for themselves. `\{{#` shows a directive as text. What cannot be found is an error, never a blank; and a page
//! with a measured number must also say where it was measured. It says how once: under the first table of a file.
//!
//! A name in backticks such as `m_not_stored` is a test or a function of the page's chapter, or of its kernels and their tests;
//! one that these sources do not have is an error.
//!
//! What it does not do: reload a page in the browser, or load anything from a network.

mod check;
mod code;
mod directive;
mod error;
mod figure;
mod html;
mod math;
mod names;
mod pages;
mod results;
mod serve;
mod warnings;

pub use check::{FEWEST_WORDS, Problem};
pub use error::{BookError, PageError};
pub use pages::Pages;
pub use serve::Server;

use mdbook_driver::MDBook;
use std::fs;
use std::path::{Path, PathBuf};

/// The book of one repository.
#[derive(Clone, Debug)]
pub struct Book {
    root: PathBuf,
}

impl Book {
    /// The book in the folder `book` of the repository at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Book { root: root.into() }
    }

    /// Where `cargo book build` puts the pages.
    pub fn output(&self) -> PathBuf {
        self.root.join("book/book")
    }

    /// Renders all pages into `output`, whose old content is removed.
    pub fn build(&self, output: &Path) -> Result<(), BookError> {
        let output = std::path::absolute(output).map_err(BookError::io(output))?;
        let (built, warnings) = warnings::collect(|| {
            let mut book = MDBook::load(self.root.join("book"))?;
            book.config.build.build_dir = output.clone();
            book.with_preprocessor(Pages::new(&self.root));
            book.build()
        });
        if let Err(error) = built {
            return Err(error.downcast().unwrap_or_else(|error| BookError::Mdbook(format!("{error:#}"))));
        }
        if let Some(first) = warnings.first() {
            return Err(BookError::Warned { first: first.clone(), count: warnings.len() });
        }
        // mdBook copies style sheets of a theme, but not what they refer to.
        let katex = Path::new("theme/katex");
        copy(&self.root.join("book").join(katex).join("fonts"), &output.join(katex).join("fonts"))
    }

    /// What is wrong with the pages built into `output`, and with `SUMMARY.md` and the results behind them.
    pub fn check(&self, output: &Path) -> Result<Vec<Problem>, BookError> {
        let mut problems = check::sources(&self.root.join("book"))?;
        problems.extend(check::pages(output)?);
        Ok(problems)
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), BookError> {
    if !from.exists() {
        return Ok(());
    }
    fs::create_dir_all(to).map_err(BookError::io(to))?;
    for entry in fs::read_dir(from).map_err(BookError::io(from))? {
        let path = entry.map_err(BookError::io(from))?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        fs::copy(&path, target).map_err(BookError::io(&path))?;
    }
    Ok(())
}
